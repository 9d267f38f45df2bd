//! One client's connection: reads, writes, and the watch for its leaving.

use super::deadline::Deadline;
use super::drain::Drain;
use super::socket::{Peer, Socket};
use bytes::{Buf, BytesMut};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, Instant};

/// Bytes read at a time, and the first read of every request: head and body of a small chat arrive together. A connection holds
/// so much for its whole life; longer bodies are read into a buffer of their own.
const READ: usize = 4 * 1024;
/// Room kept while only the end of the connection is expected: small, so that watching for it allocates nothing.
const PROBE: usize = 64;
/// Bytes of following requests that a client may send while one is being served; then it is no longer read from (and
/// its leaving is seen only when writing).
const MAX_PIPELINED: usize = 64 * 1024;
/// Bytes a second that a client must take of what waits for it. Text that a person reads comes at some 50.
const MIN_RATE: u64 = 4 * 1024;
/// With these bytes every HTTP/2 connection begins.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A connection that ends with unread input is drained so much and so long, so that the answer outruns the reset.
const LINGER_BYTES: usize = 256 * 1024;
const LINGER_FOR: Duration = Duration::from_millis(500);

/// Why waiting for something else ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The client closed its connection.
    Gone,
    /// The deadline passed.
    Late,
    /// The drain ran out of time.
    Stopped,
}

/// A client's connection.
pub struct Client {
    io: Socket,
    /// Who it is.
    pub peer: Peer,
    /// Bytes read and not yet used.
    pub input: BytesMut,
    /// The connection's only timer.
    pub deadline: Deadline,
    drain: Drain,
    write_timeout: Duration,
    gone: bool,
}

impl Client {
    pub(crate) fn new(io: Socket, drain: Drain, idle: Duration, write_timeout: Duration) -> Self {
        let deadline = Deadline::new(idle);
        let peer = io.peer();
        Self { io, peer, input: BytesMut::with_capacity(READ), deadline, drain, write_timeout, gone: false }
    }

    /// Reads more into `input`, of which at least `room` bytes are free. `Ok(0)` is the end.
    fn poll_input(&mut self, room: usize, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        self.input.reserve(room);
        poll_read_buf(&mut self.io, &mut self.input, cx)
    }

    /// Reads more into `input` before the deadline.
    pub(crate) async fn read_input(&mut self) -> Result<usize, Interrupt> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(read) = self.poll_input(READ / 2, cx) {
                return Poll::Ready(read.ok().filter(|n| *n > 0).ok_or(Interrupt::Gone));
            }
            self.poll_clock(cx).map(Err)
        })
        .await
    }

    /// Reads straight into `body`, which has room, before the deadline.
    pub(crate) async fn read_into(&mut self, body: &mut BytesMut) -> Result<usize, Interrupt> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(read) = poll_read_buf(&mut self.io, body, cx) {
                return Poll::Ready(read.ok().filter(|n| *n > 0).ok_or(Interrupt::Gone));
            }
            self.poll_clock(cx).map(Err)
        })
        .await
    }

    /// Between requests: `true` when input came, `false` when the connection should end (closed, idle for too long,
    /// or the gateway drains).
    pub(crate) async fn wait_for_request(&mut self) -> bool {
        if !self.input.is_empty() {
            return true;
        }
        std::future::poll_fn(|cx| {
            if let Poll::Ready(read) = self.poll_input(READ / 2, cx) {
                return Poll::Ready(read.is_ok_and(|n| n > 0));
            }
            if self.drain.poll_started(cx).is_ready() {
                return Poll::Ready(false);
            }
            self.poll_clock(cx).map(|_| false)
        })
        .await
    }

    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<Interrupt> {
        if self.deadline.poll_passed(cx).is_ready() {
            return Poll::Ready(Interrupt::Late);
        }
        self.drain.poll_over(cx).map(|()| Interrupt::Stopped)
    }

    /// Runs `work` to its end, unless the client leaves, the deadline passes or the drain is over first; `work` is
    /// then dropped. This is how every wait inside a request is made, so a client that leaves is seen in every phase.
    pub async fn race<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Interrupt> {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            if self.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(Interrupt::Gone));
            }
            self.poll_clock(cx).map(Err)
        })
        .await
    }

    /// Ready once the client has closed. Bytes of a next request are kept, up to a bound.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.gone {
            if self.input.len() >= MAX_PIPELINED {
                return Poll::Pending;
            }
            match ready!(self.poll_input(PROBE, cx)) {
                Ok(n) if n > 0 => {}
                _ => self.gone = true,
            }
        }
        Poll::Ready(())
    }

    /// Writes `head` and then `body`, together where the socket takes both. All of it must be taken within `write_timeout` and
    /// the time that it needs at [`MIN_RATE`]: a deadline that began anew with each byte would let a client that takes one
    /// byte at a time hold its stream for ever.
    pub async fn write(&mut self, mut head: &[u8], mut body: &[u8]) -> Result<(), Interrupt> {
        let mut waiting = false;
        let patience = self.write_timeout + Duration::from_millis((head.len() + body.len()) as u64 * 1_000 / MIN_RATE);
        std::future::poll_fn(|cx| {
            while !head.is_empty() || !body.is_empty() {
                match poll_write_two(&mut self.io, head, body, cx) {
                    Poll::Ready(Ok(n)) if n > 0 => {
                        let of_head = n.min(head.len());
                        head.advance(of_head);
                        body.advance(n - of_head);
                    }
                    Poll::Ready(_) => {
                        self.gone = true;
                        return Poll::Ready(Err(Interrupt::Gone));
                    }
                    Poll::Pending => {
                        // The clock is read only when the client is slow.
                        if !std::mem::replace(&mut waiting, true) {
                            self.deadline.set(Instant::now() + patience);
                        }
                        return self.poll_clock(cx).map(Err);
                    }
                }
            }
            // TLS and HTTP/2 may hold back what they took; a plain socket does not, and is spared the call.
            if self.io.holds_back() {
                match Pin::new(&mut self.io).poll_flush(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => {
                        self.gone = true;
                        return Poll::Ready(Err(Interrupt::Gone));
                    }
                    Poll::Pending => {
                        if !std::mem::replace(&mut waiting, true) {
                            self.deadline.set(Instant::now() + patience);
                        }
                        return self.poll_clock(cx).map(Err);
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Whether the client starts as HTTP/2 does. What was read stays to be read.
    pub(crate) async fn speaks_http2(&mut self, header_timeout: Duration) -> bool {
        loop {
            let known = self.input.len().min(HTTP2_PREFACE.len());
            if self.input[..known] != HTTP2_PREFACE[..known] {
                return false;
            }
            if known == HTTP2_PREFACE.len() {
                return true;
            }
            if known == 0 {
                if !self.wait_for_request().await {
                    return false;
                }
                continue;
            }
            self.deadline.set(Instant::now() + header_timeout);
            if self.read_input().await.is_err() {
                return false;
            }
        }
    }

    /// The byte stream, and what was read of it already.
    pub(crate) fn into_parts(self) -> (bytes::Bytes, Socket, Drain) {
        (self.input.freeze(), self.io, self.drain)
    }

    /// Ends the connection so that what was written reaches the client even if it is still sending.
    pub(crate) async fn finish(mut self) {
        if self.gone || self.io.flush().await.is_err() {
            return;
        }
        self.deadline.set(Instant::now() + LINGER_FOR);
        let mut left = LINGER_BYTES;
        let lingering = async {
            let _ = AsyncWriteExt::shutdown(&mut self.io).await;
            let mut sink = [0u8; 4096];
            while let Ok(n @ 1..) = self.io.read(&mut sink).await {
                left = left.saturating_sub(n);
                if left == 0 {
                    break;
                }
            }
        };
        let mut lingering = pin!(lingering);
        let deadline = &mut self.deadline;
        std::future::poll_fn(|cx| match lingering.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => deadline.poll_passed(cx),
        })
        .await;
    }

    /// The gateway has been asked to stop: answers say `Connection: close`.
    pub fn is_draining(&self) -> bool {
        self.drain.has_started()
    }
}

/// Reads once into the spare room of `buf`.
pub(crate) fn poll_read_buf(io: &mut Socket, buf: &mut BytesMut, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
    // `read_buf` gives the spare capacity to the socket without clearing it first; polled to its end here, since a
    // read that is pending has read nothing.
    let mut read = pin!(io.read_buf(buf));
    read.as_mut().poll(cx)
}

/// Writes `head` and `body` with one call.
fn poll_write_two(io: &mut Socket, head: &[u8], body: &[u8], cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
    if body.is_empty() {
        Pin::new(io).poll_write(cx, head)
    } else if head.is_empty() {
        Pin::new(io).poll_write(cx, body)
    } else {
        Pin::new(io).poll_write_vectored(cx, &[std::io::IoSlice::new(head), std::io::IoSlice::new(body)])
    }
}
