//! HTTP/1.1 by hand: small, and able to misbehave on purpose.
//!
//! A framework would be shorter, but an engine that can cut a stream, lie about a length or answer rubbish needs the
//! socket itself, and the thin mode needs every microsecond. Both modes share this reader.
//!
//! Limits: a head of [`MAX_HEAD_BYTES`] and [`MAX_HEADERS`] fields, a body of [`MAX_BODY_BYTES`]; beyond them the
//! connection is answered with 431 or 413 and closed.

mod read;
mod write;

pub(crate) use read::{Connection, ReadEnd, Request};
pub(crate) use write::{LAST_CHUNK, Response, event_stream_head, put_chunk, reason_phrase};

/// As uvicorn's h11 limit: larger heads are refused.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
/// Header fields of one request.
pub(crate) const MAX_HEADERS: usize = 96;
/// A long-context prompt in JSON is a few MiB; the same limit as the gateway's.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 20;
