//! Requests off a socket.

use super::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::ops::Range;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// First guess at a request's size.
const BUFFER_BYTES: usize = 16 << 10;
/// Bytes that a client may send ahead while it is being answered.
const MAX_AHEAD_BYTES: usize = 64 << 10;

/// One request: the head kept as it came, the body whole.
#[derive(Debug)]
pub(crate) struct Request {
    head: Bytes,
    method: Range<usize>,
    target: Range<usize>,
    /// The body, chunks joined.
    pub(crate) body: Bytes,
    /// The client wants the connection closed after the answer.
    pub(crate) close: bool,
}

impl Request {
    pub(crate) fn method(&self) -> &str {
        std::str::from_utf8(&self.head[self.method.clone()]).unwrap_or_default()
    }

    /// The path, without the query.
    pub(crate) fn path(&self) -> &str {
        self.target().split('?').next().unwrap_or_default()
    }

    /// What follows `?`, or nothing.
    pub(crate) fn query(&self) -> &str {
        self.target().split_once('?').map_or("", |(_, query)| query)
    }

    /// The first header called `name`, trimmed.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut fields);
        parsed.parse(&self.head).ok()?;
        let field = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
        Some(String::from_utf8_lossy(field.value).trim().to_owned())
    }

    fn target(&self) -> &str {
        std::str::from_utf8(&self.head[self.target.clone()]).unwrap_or_default()
    }
}

/// Why no request came.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    /// The client closed between requests, or the socket failed.
    Gone,
    /// Not HTTP, or more than a limit allows: answer with this status and close.
    Refused(u16),
}

impl From<io::Error> for ReadEnd {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// What framing the head announces.
struct Framing {
    head_bytes: usize,
    method: Range<usize>,
    target: Range<usize>,
    length: usize,
    chunked: bool,
    expects: bool,
    close: bool,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    buffer: BytesMut,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(BUFFER_BYTES) }
    }

    /// The next request.
    pub(crate) async fn read_request(&mut self) -> Result<Request, ReadEnd> {
        let framing = loop {
            if let Some(framing) = parse_head(&self.buffer)? {
                break framing;
            }
            if self.buffer.len() > MAX_HEAD_BYTES {
                return Err(ReadEnd::Refused(431));
            }
            self.fill().await?;
        };
        let head = self.buffer.split_to(framing.head_bytes).freeze();
        if framing.length > MAX_BODY_BYTES {
            return Err(ReadEnd::Refused(413));
        }
        if framing.expects {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body = if framing.chunked { self.read_chunks().await? } else { self.read_exactly(framing.length).await? };
        Ok(Request { head, method: framing.method, target: framing.target, body, close: framing.close })
    }

    /// Ends when the client closes its side. Cancel-safe; what it sends ahead meanwhile is kept.
    pub(crate) async fn client_gone(&mut self) {
        while self.buffer.len() < MAX_AHEAD_BYTES {
            if self.fill().await.is_err() {
                return;
            }
        }
        std::future::pending().await
    }

    async fn read_exactly(&mut self, length: usize) -> Result<Bytes, ReadEnd> {
        self.buffer.reserve(length.saturating_sub(self.buffer.len()));
        while self.buffer.len() < length {
            self.fill().await?;
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    async fn read_chunks(&mut self) -> Result<Bytes, ReadEnd> {
        let mut body = BytesMut::new();
        loop {
            let line = self.read_line().await?;
            let digits = line.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
            let size = std::str::from_utf8(digits).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
            let Some(size) = size else { return Err(ReadEnd::Refused(400)) };
            if body.len().saturating_add(size) > MAX_BODY_BYTES {
                return Err(ReadEnd::Refused(413));
            }
            if size == 0 {
                while !self.read_line().await?.is_empty() {}
                return Ok(body.freeze());
            }
            body.extend_from_slice(&self.read_exactly(size).await?);
            if !self.read_line().await?.is_empty() {
                return Err(ReadEnd::Refused(400));
            }
        }
    }

    async fn read_line(&mut self) -> Result<Bytes, ReadEnd> {
        loop {
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n") {
                let line = self.buffer.split_to(end).freeze();
                self.buffer.advance(2);
                return Ok(line);
            }
            if self.buffer.len() > MAX_HEAD_BYTES {
                return Err(ReadEnd::Refused(400));
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), ReadEnd> {
        self.buffer.reserve(1);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(ReadEnd::Gone),
            _ => Ok(()),
        }
    }
}

fn parse_head(buffer: &[u8]) -> Result<Option<Framing>, ReadEnd> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut fields);
    let head_bytes = match parsed.parse(buffer) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(ReadEnd::Refused(431)),
        Err(_) => return Err(ReadEnd::Refused(400)),
    };
    let within = |text: Option<&str>| {
        let text = text.unwrap_or_default();
        let from = text.as_ptr() as usize - buffer.as_ptr() as usize;
        from..from + text.len()
    };
    let mut framing = Framing {
        head_bytes,
        method: within(parsed.method),
        target: within(parsed.path),
        length: 0,
        chunked: false,
        expects: false,
        close: parsed.version == Some(0),
    };
    for field in parsed.headers.iter() {
        if field.name.eq_ignore_ascii_case("content-length") {
            let length = std::str::from_utf8(field.value).ok().and_then(|text| text.trim().parse().ok());
            framing.length = length.ok_or(ReadEnd::Refused(400))?;
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            framing.chunked = field.value.eq_ignore_ascii_case(b"chunked");
        } else if field.name.eq_ignore_ascii_case("connection") {
            framing.close |= field.value.eq_ignore_ascii_case(b"close");
        } else if field.name.eq_ignore_ascii_case("expect") {
            framing.expects = true;
        }
    }
    Ok(Some(framing))
}
