//! One stream of an HTTP/2 connection, as the HTTP/1.1 connection that the rest of the gateway knows.
//!
//! ```text
//! HEADERS, DATA ─► head and body as HTTP/1.1 bytes ─► Client (reads)      the request, once
//! HEADERS, DATA ◄─ head parsed, framing taken off  ◄─ Client (writes)     the answer, once
//! ```
//!
//! One request path serves both versions, so limits, deadlines, policy and hygiene cannot differ between them. The price is
//! one more parse of a head that this process has written itself, and one copy of the body.
//!
//! Invariants
//! 1. The framing is ours: a length only where the client gave one (`h2` holds DATA against it), else chunks. No field that
//!    belongs to a connection is taken over, and no name or value can hold a line break.
//! 2. Nothing is taken from the writer while flow control holds back what it wrote before, so a stream buffers what one
//!    write brought and no more.
//! 3. A stream that is dropped before its answer is complete is reset: no client can take it for a whole one.

use super::socket::Peer;
use crate::http1::chunked::{Decoder, LAST};
use crate::http1::fields::write_decimal;
use crate::http1::{Framing, response};
use bytes::{Buf, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use std::fmt::Write as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes taken from one write: what a stream holds while its window is closed.
const MAX_WRITE: usize = 64 * 1024;

/// Fields that HTTP/2 forbids, since they speak of a connection that is not there.
const FORBIDDEN: [HeaderName; 4] =
    [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, HeaderName::from_static("keep-alive")];

/// How the streams of one connection ended.
#[derive(Debug, Default)]
pub struct Endings {
    /// Before the answer was complete.
    pub reset: AtomicU32,
    /// All.
    pub ended: AtomicU32,
}

/// Where the answer stands.
enum Answer {
    /// Its head is not complete.
    Head,
    /// So many bytes follow.
    Left(u64),
    /// Chunks follow.
    Chunked(Decoder),
    /// Everything until the writer shuts down.
    UntilShutdown,
    /// All of it was written.
    Done,
}

/// One request and its answer.
pub struct Pipe {
    peer: Peer,
    request: RecvStream,
    /// The request as HTTP/1.1, as far as it is not read yet.
    inbound: BytesMut,
    chunked: bool,
    /// The request was read to its end.
    read: bool,
    bodiless: bool,
    respond: SendResponse<Bytes>,
    sender: Option<SendStream<Bytes>>,
    /// The answer's head, as far as it was written.
    head: BytesMut,
    answer: Answer,
    /// Payload that flow control has not let go yet.
    outbound: BytesMut,
    /// The end of the stream was sent.
    sent: bool,
    shut: bool,
    reset: bool,
    endings: Arc<Endings>,
}

/// A request that HTTP/2 does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAllowed;

impl Pipe {
    /// Of one accepted stream. A request that breaks HTTP/2's rules is reset.
    pub fn new(
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        peer: Peer,
        endings: Arc<Endings>,
    ) -> Result<Self, NotAllowed> {
        let (parts, body) = request.into_parts();
        let Some((inbound, chunked)) = write_head(&parts, body.is_end_stream()) else {
            respond.send_reset(Reason::PROTOCOL_ERROR);
            return Err(NotAllowed);
        };
        Ok(Self {
            peer,
            inbound,
            chunked,
            read: body.is_end_stream(),
            request: body,
            bodiless: parts.method == Method::HEAD,
            respond,
            sender: None,
            head: BytesMut::new(),
            answer: Answer::Head,
            outbound: BytesMut::new(),
            sent: false,
            shut: false,
            reset: false,
            endings,
        })
    }

    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Ready once the client has given the stream up.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let reset = match &mut self.sender {
            Some(sender) => ready!(sender.poll_reset(cx)),
            None => ready!(self.respond.poll_reset(cx)),
        };
        // NO_ERROR only says that the client wants no more of its own body read.
        self.reset |= !matches!(reset, Ok(Reason::NO_ERROR));
        Poll::Ready(())
    }

    /// One frame of the request's body, or its end, into `inbound`.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(self.request.poll_data(cx)) {
            Some(Ok(data)) => {
                // The window opens as the reader takes; who does not read holds one window at most.
                self.request.flow_control().release_capacity(data.len()).map_err(io::Error::other)?;
                if self.chunked && !data.is_empty() {
                    let _ = write!(self.inbound, "{:x}\r\n", data.len());
                    self.inbound.extend_from_slice(&data);
                    self.inbound.extend_from_slice(b"\r\n");
                } else {
                    self.inbound.extend_from_slice(&data);
                }
            }
            Some(Err(error)) => {
                self.reset = true;
                return Poll::Ready(Err(io::Error::other(error)));
            }
            None => {
                self.read = true;
                if self.chunked {
                    self.inbound.extend_from_slice(LAST);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what flow control lets go; ready once nothing waits.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(sender) = &mut self.sender else { return Poll::Ready(Ok(())) };
        let done = matches!(self.answer, Answer::Done);
        while !self.outbound.is_empty() {
            sender.reserve_capacity(self.outbound.len());
            let room = match ready!(sender.poll_capacity(cx)) {
                Some(Ok(room)) => room.min(self.outbound.len()),
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
            if room == 0 {
                continue;
            }
            let part = self.outbound.split_to(room).freeze();
            let last = done && self.outbound.is_empty();
            sender.send_data(part, last).map_err(io::Error::other)?;
            self.sent |= last;
        }
        if done && !self.sent {
            sender.send_data(Bytes::new(), true).map_err(io::Error::other)?;
            self.sent = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes over the answer's heads once they are complete.
    fn take_heads(&mut self) -> io::Result<()> {
        while matches!(self.answer, Answer::Head) {
            let taken = response::take(&mut self.head, self.bodiless);
            let Some(head) = taken.map_err(|malformed| io::Error::other(malformed.what))? else { return Ok(()) };
            let mut answer = Response::new(());
            *answer.status_mut() = StatusCode::from_u16(head.status).map_err(io::Error::other)?;
            for (name, value) in head.passing() {
                let name = HeaderName::from_bytes(name).map_err(io::Error::other)?;
                let value = HeaderValue::from_bytes(value).map_err(io::Error::other)?;
                answer.headers_mut().append(name, value);
            }
            if head.status < 200 {
                self.respond.send_informational(answer).map_err(io::Error::other)?;
                continue;
            }
            if let Some(length) = head.announced() {
                answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
            }
            let empty = head.framing == Framing::Empty;
            self.sender = Some(self.respond.send_response(answer, empty).map_err(io::Error::other)?);
            self.sent = empty;
            self.answer = match head.framing {
                Framing::Empty => Answer::Done,
                Framing::Length(length) => Answer::Left(length),
                Framing::Chunked => Answer::Chunked(Decoder::default()),
                Framing::UntilClose => Answer::UntilShutdown,
            };
            let rest = self.head.split();
            self.take_payload(&rest)?;
        }
        Ok(())
    }

    fn take_payload(&mut self, data: &[u8]) -> io::Result<()> {
        match &mut self.answer {
            Answer::Head => self.head.extend_from_slice(data),
            Answer::Left(left) => {
                self.outbound.extend_from_slice(data);
                *left = left.saturating_sub(data.len() as u64);
                if *left == 0 {
                    self.answer = Answer::Done;
                }
            }
            Answer::Chunked(decoder) => {
                let outbound = &mut self.outbound;
                decoder
                    .decode(data, |part| outbound.extend_from_slice(part))
                    .map_err(|malformed| io::Error::other(malformed.what))?;
                if decoder.is_done() {
                    self.answer = Answer::Done;
                }
            }
            Answer::UntilShutdown => self.outbound.extend_from_slice(data),
            Answer::Done => {}
        }
        Ok(())
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.inbound.is_empty() {
            if this.shut || this.reset {
                return Poll::Ready(Ok(()));
            }
            if this.read {
                // Nothing more is to come but the client's leaving.
                return this.poll_reset(cx).map(Ok);
            }
            ready!(this.poll_body(cx))?;
        }
        let part = this.inbound.len().min(buf.remaining());
        buf.put_slice(&this.inbound[..part]);
        this.inbound.advance(part);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        let part = &buf[..buf.len().min(MAX_WRITE)];
        this.take_payload(part)?;
        this.take_heads()?;
        // What stays behind is sent by the next write or flush.
        match this.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(part.len())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_drain(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if matches!(this.answer, Answer::UntilShutdown) {
            this.answer = Answer::Done;
        }
        ready!(this.poll_drain(cx))?;
        this.shut = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.endings.ended.fetch_add(1, Ordering::Relaxed);
        if self.sent {
            return;
        }
        self.endings.reset.fetch_add(1, Ordering::Relaxed);
        match &mut self.sender {
            Some(sender) => sender.send_reset(Reason::INTERNAL_ERROR),
            None => self.respond.send_reset(Reason::INTERNAL_ERROR),
        }
    }
}

/// The request's head as HTTP/1.1, and whether its body is chunked; `None` for what HTTP/2 forbids.
fn write_head(parts: &http::request::Parts, ended: bool) -> Option<(BytesMut, bool)> {
    let mut head = Vec::with_capacity(512);
    let path = parts.uri.path_and_query().map_or("*", http::uri::PathAndQuery::as_str);
    let fields = &parts.headers;
    // Two hosts are one too many: who reads which would be chance.
    let named = fields.get(header::HOST).map(HeaderValue::as_bytes);
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let host = match (authority, named) {
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => return None,
        (authority, host) => authority.or(host)?,
    };
    if FORBIDDEN.iter().any(|name| fields.contains_key(name)) || fields.contains_key("proxy-connection") {
        return None;
    }
    let mut line = |name: &[u8], value: &[u8]| {
        head.extend_from_slice(name);
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    };
    line(b"host", host);
    for (name, value) in fields.iter().filter(|(name, _)| !matches!(**name, header::HOST | header::COOKIE)) {
        line(name.as_str().as_bytes(), value.as_bytes());
    }
    // One field again, as it was before HTTP/2 allowed it to be split.
    let crumbs: Vec<&[u8]> = fields.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if !crumbs.is_empty() {
        line(b"cookie", &crumbs.join(&b"; "[..]));
    }
    line(b"connection", b"close");
    let has_length = fields.contains_key(header::CONTENT_LENGTH);
    let chunked = !ended && !has_length;
    if chunked {
        line(b"transfer-encoding", b"chunked");
    }
    let mut whole = BytesMut::with_capacity(head.len() + 64);
    let _ = write!(whole, "{} {path} HTTP/1.1\r\n", parts.method);
    whole.extend_from_slice(&head);
    if ended && !has_length && !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
        let mut length = b"content-length: ".to_vec();
        write_decimal(0, &mut length);
        whole.extend_from_slice(&length);
        whole.extend_from_slice(b"\r\n");
    }
    whole.extend_from_slice(b"\r\n");
    Some((whole, chunked))
}
