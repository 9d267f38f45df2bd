//! http1: HTTP/1.1 framing and header hygiene as pure functions; no I/O, no clock.
//!
//! ```text
//! bytes ─ request::parse ─► RequestHead ─ write_upstream ─► bytes for an engine
//! bytes ─ response::parse ─► ResponseHead ─ write_client ─► bytes for a client
//! bytes ─ chunked::Decoder ─► payload slices
//! ```
//!
//! pingora-core carries sockets and listeners, rustls TLS, h2 HTTP/2; pingora's own HTTP/1 session is not used, because the gateway
//! promises what that session fixes otherwise: a configurable bound on the request head with 431, deadlines over a whole
//! head or body instead of one read, refusal of `Content-Length` together with `Transfer-Encoding`, one write for a head
//! and what follows it, header fields repeated in their order, and no header map built per message.
//!
//! Heads are kept as the bytes that came in plus ranges into them; a field is copied once, into the outgoing head.
//!
//! Invariants
//! 1. Framing is decided once, here. A message whose length could be read in two ways is refused, never repaired.
//! 2. No hop-by-hop field, no field named by `Connection`, and no `x-forebay-*` field crosses the gateway.
//! 3. Nothing here allocates in proportion to what a peer merely announces.

pub mod chunked;
pub mod fields;
pub mod request;
pub mod response;

pub use request::RequestHead;
pub use response::ResponseHead;

#[cfg(test)]
mod tests;

/// Most fields of one head; one more is answered 431 (a request) or is garbage (a response). Engines and SDKs send
/// fewer than 25.
pub const MAX_FIELDS: usize = 96;

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    Empty,
    /// So many bytes.
    Length(u64),
    /// Chunked.
    Chunked,
    /// Ends with the connection (responses only).
    UntilClose,
}

/// A message that breaks HTTP/1.1, or is built so that two readers could see two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Status a client is answered with.
    pub status: u16,
    /// What is wrong.
    pub what: &'static str,
}

impl Malformed {
    pub(crate) const fn bad(what: &'static str) -> Self {
        Self { status: 400, what }
    }
}
