//! One connection to an engine: a request out, an answer in.

use crate::fleet::Endpoint;
use crate::http1::chunked::Decoder;
use crate::http1::{Framing, Malformed};
use crate::stream::{Socket, poll_read_buf};
use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::AsyncWrite;

/// Bytes asked for in one read: some ten tokens. An open stream holds so much for its whole life.
const READ: usize = 4 * 1024;
/// The same once a read was filled: a burst. Larger reads follow when a body's length is known.
const WIDE_READ: usize = 16 * 1024;
/// One read never asks for more, however long the body.
const MAX_READ: usize = 256 * 1024;

/// What connections that may stand for each other have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    /// Name in the certificate; `None` in the clear.
    secure: Option<Arc<str>>,
}

impl Place {
    pub(super) fn of(endpoint: &Endpoint) -> Self {
        Self { address: endpoint.address, secure: endpoint.secure.clone() }
    }
}

/// A connection to an engine.
pub struct Connection {
    io: Socket,
    /// Bytes read and not yet used.
    pub input: BytesMut,
    pub(super) place: Place,
    /// It has served before, so it may turn out to be closed.
    pub(super) reused: bool,
    /// Bytes that one read asks for.
    room: usize,
}

impl Connection {
    pub(super) fn new(io: Socket, place: Place) -> Self {
        Self { io, input: BytesMut::new(), place, reused: false, room: READ }
    }

    /// Still open, and the engine has sent nothing that nobody asked for. Costs no system call on a quiet socket.
    pub(super) fn is_open(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.input.reserve(1);
        // Outside the task's budget: an exhausted budget would read as "quiet".
        let mut probe = std::pin::pin!(tokio::task::unconstrained(poll_fn(|cx| {
            poll_read_buf(&mut self.io, &mut self.input, cx)
        })));
        probe.as_mut().poll(&mut cx).is_pending()
    }

    /// Writes head and body, as much as the socket takes with each call.
    pub(super) async fn send(&mut self, head: &[u8], body: &[Bytes]) -> io::Result<()> {
        let mut parts: SmallVec<[&[u8]; 6]> = std::iter::once(head).chain(body.iter().map(|part| &part[..])).collect();
        let mut first = 0;
        poll_fn(|cx| {
            while first < parts.len() {
                let slices: SmallVec<[IoSlice<'_>; 6]> = parts[first..].iter().map(|part| IoSlice::new(part)).collect();
                let Poll::Ready(mut written) = Pin::new(&mut self.io).poll_write_vectored(cx, &slices)? else {
                    return Poll::Pending;
                };
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                while first < parts.len() && written >= parts[first].len() {
                    written -= parts[first].len();
                    first += 1;
                }
                if written > 0 {
                    parts[first].advance(written);
                }
            }
            if self.io.holds_back() { Pin::new(&mut self.io).poll_flush(cx) } else { Poll::Ready(Ok(())) }
        })
        .await
    }

    /// Reads once into `input`, up to about `expected` bytes where so many are known to come; 0 is the end.
    pub async fn read(&mut self, expected: u64) -> io::Result<usize> {
        let room = usize::try_from(expected).unwrap_or(MAX_READ).clamp(self.room, MAX_READ);
        if self.input.capacity() - self.input.len() < self.room / 4 || room > self.room {
            self.input.reserve(room);
        }
        let free = self.input.capacity() - self.input.len();
        let read = poll_fn(|cx| poll_read_buf(&mut self.io, &mut self.input, cx)).await?;
        if read == free {
            // Who fills what there is has more to say.
            self.room = WIDE_READ;
        }
        Ok(read)
    }
}

/// What is left of an answer's body.
#[derive(Debug)]
pub enum Body {
    /// So many bytes.
    Left(u64),
    /// Chunks.
    Chunked(Box<Decoder>),
    /// Everything until the engine closes.
    UntilClose,
    /// Nothing.
    Done,
}

impl Body {
    pub(super) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Empty => Self::Done,
            Framing::Length(length) => Self::Left(length),
            Framing::Chunked => Self::Chunked(Box::default()),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// The body has ended as its framing says it should.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Bytes known to come, 0 where unknown.
    pub fn expected(&self) -> u64 {
        if let Self::Left(left) = self { *left } else { 0 }
    }

    /// Hands what `input` holds of the body to `sink` and takes it off `input`.
    pub fn drain(&mut self, input: &mut BytesMut, mut sink: impl FnMut(&[u8])) -> Result<(), Malformed> {
        match self {
            Self::Done => {}
            Self::Left(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                sink(&input[..here]);
                input.advance(here);
                *left -= here as u64;
                if *left == 0 {
                    *self = Self::Done;
                }
            }
            Self::Chunked(decoder) => {
                let used = decoder.decode(input, sink)?;
                input.advance(used);
                if decoder.is_done() {
                    *self = Self::Done;
                }
            }
            Self::UntilClose => {
                sink(input);
                input.clear();
            }
        }
        Ok(())
    }

    /// Takes what `input` holds of a body with known length without copying it; `None` for other framings.
    pub fn split(&mut self, input: &mut BytesMut) -> Option<Bytes> {
        let Self::Left(left) = self else { return None };
        let here = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
        *left -= here as u64;
        if *left == 0 {
            *self = Self::Done;
        }
        Some(input.split_to(here).freeze())
    }

    /// The engine closed: an end for a body framed by it, a cut for any other.
    pub fn close(&mut self) -> bool {
        let ended = matches!(self, Self::UntilClose | Self::Done);
        if ended {
            *self = Self::Done;
        }
        ended
    }
}
