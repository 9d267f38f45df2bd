//! Answers onto a socket.

use std::io;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: Vec<u8>,
    /// Headers besides type and length.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Added to the announced length: a lie.
    pub(crate) length_off_by: i64,
    /// Close afterwards.
    pub(crate) close: bool,
}

impl Response {
    /// JSON with status 200.
    pub(crate) fn json(body: impl Into<Vec<u8>>) -> Self {
        Self::new(200, "application/json", body)
    }

    /// No body.
    pub(crate) fn empty(status: u16) -> Self {
        Self::new(status, "", Vec::new())
    }

    pub(crate) fn new(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type, body: body.into(), headers: Vec::new(), length_off_by: 0, close: false }
    }

    /// Writes head and body in one go.
    pub(crate) async fn write(&self, stream: &mut TcpStream) -> io::Result<()> {
        let length = (self.body.len() as i64 + self.length_off_by).max(0);
        let mut out = head(self.status, self.content_type);
        for (name, value) in &self.headers {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if self.close {
            out.extend_from_slice(b"connection: close\r\n");
        }
        out.extend_from_slice(format!("content-length: {length}\r\n\r\n").as_bytes());
        out.extend_from_slice(&self.body);
        stream.write_all(&out).await
    }
}

/// The head of an event stream, chunked.
pub(crate) fn event_stream_head() -> Vec<u8> {
    let mut out = head(200, "text/event-stream; charset=utf-8");
    out.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
    out
}

/// `payload` as one chunk.
pub(crate) fn put_chunk(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", payload.len()).as_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// The end of a chunked body.
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn head(status: u16, content_type: &str) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status} {}\r\nserver: uvicorn\r\n", reason_phrase(status)).into_bytes();
    if !content_type.is_empty() {
        out.extend_from_slice(format!("content-type: {content_type}\r\n").as_bytes());
    }
    out
}

/// The words after a status.
pub(crate) fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}
