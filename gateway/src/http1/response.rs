//! Response heads, as engines send them and as clients get them.

use super::fields::{self, Fields, Kind};
use super::{Framing, MAX_FIELDS, Malformed};
use bytes::{Bytes, BytesMut};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of an engine's response head; more is garbage. Engines send under 1 KiB.
pub const MAX_HEAD: usize = 64 * 1024;

/// A parsed response head and the bytes it came in.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    raw: Bytes,
    reason: Range<usize>,
    fields: Fields,
    /// Status code.
    pub status: u16,
    /// How the body ends.
    pub framing: Framing,
    /// The engine keeps this connection.
    pub keep_alive: bool,
    /// `Content-Type: text/event-stream`.
    pub event_stream: bool,
}

/// Takes one complete head off the front of `buf`; `None` while it is incomplete. `bodiless` says that the request was
/// one whose answer has no body (`HEAD`).
pub fn take(buf: &mut BytesMut, bodiless: bool) -> Result<Option<ResponseHead>, Malformed> {
    let Some(end) = memchr::memmem::find(buf, b"\r\n\r\n").map(|at| at + 4) else {
        if buf.len() > MAX_HEAD {
            return Err(Malformed::bad("response head is too large"));
        }
        let mut storage = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut partial = httparse::Response::new(&mut []);
        let judged =
            httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut partial, buf, &mut storage);
        return judged.map(|_| None).map_err(|_| Malformed::bad("not an HTTP/1.1 response"));
    };
    if end > MAX_HEAD {
        return Err(Malformed::bad("response head is too large"));
    }
    parse(buf.split_to(end).freeze(), bodiless).map(Some)
}

fn parse(raw: Bytes, bodiless: bool) -> Result<ResponseHead, Malformed> {
    let mut storage = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, &raw, &mut storage);
    match parsed {
        Ok(httparse::Status::Complete(length)) if length == raw.len() => {}
        Ok(_) => return Err(Malformed::bad("bare line feed in the response head")),
        Err(_) => return Err(Malformed::bad("not an HTTP/1.1 response")),
    }
    let (fields, framed) = fields::collect(&raw, response.headers)?;
    let status = response.code.unwrap_or_default();
    let reason = response.reason.unwrap_or_default();
    let reason = if reason.is_empty() {
        0..0
    } else {
        let start = reason.as_ptr() as usize - raw.as_ptr() as usize;
        start..start + reason.len()
    };
    let framing = match (framed.chunked, framed.length) {
        _ if bodiless || status < 200 || status == 204 || status == 304 => Framing::Empty,
        (true, _) => Framing::Chunked,
        (false, Some(0)) => Framing::Empty,
        (false, Some(length)) => Framing::Length(length),
        (false, None) => Framing::UntilClose,
    };
    let old = response.version == Some(0);
    let keep_alive = !framed.close && (!old || framed.keep_alive) && framing != Framing::UntilClose;
    let event_stream = fields.iter().filter(|field| field.kind == Kind::ContentType).any(|field| {
        let value = field.value(&raw);
        value.len() >= 17 && value[..17].eq_ignore_ascii_case(b"text/event-stream")
    });
    Ok(ResponseHead { reason, fields, status, framing, keep_alive, event_stream, raw })
}

/// How a client's answer is framed and what is added to it.
#[derive(Clone, Copy, Debug)]
pub struct Downstream<'a> {
    /// Framing towards the client.
    pub framing: Framing,
    /// `content-length` of an answer without a body (`HEAD`, 304), as the engine gave it.
    pub announced: Option<u64>,
    /// Request id.
    pub request_id: &'a str,
    /// Say `connection: close`.
    pub close: bool,
    /// The client speaks HTTP/1.0 and asked to keep the connection.
    pub old_keep_alive: bool,
    /// The client may see `x-forebay-*` fields.
    pub diagnostics: bool,
}

impl ResponseHead {
    /// Fields in order.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| (field.name(&self.raw), field.value(&self.raw)))
    }

    /// Fields that do not belong to one connection, in order.
    pub fn passing(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let passing = self.fields.iter().filter(|field| !field.stays() || field.kind == Kind::Forebay);
        passing.map(|field| (field.name(&self.raw), field.value(&self.raw)))
    }

    /// `content-length` as announced, also where the framing says that no body follows.
    pub fn announced(&self) -> Option<u64> {
        let field = self.fields.iter().find(|field| field.kind == Kind::ContentLength)?;
        text(field.value(&self.raw)).parse().ok()
    }

    /// `retry-after` in seconds, where it is given so.
    pub fn retry_after(&self) -> Option<u64> {
        let (_, value) = self.fields().find(|(name, _)| name.eq_ignore_ascii_case(b"retry-after"))?;
        text(value).parse().ok()
    }

    /// Appends the head that a client gets: status line and fields as the engine sent them, less what belongs to the
    /// connection between engine and gateway.
    pub fn write_client(&self, to: &Downstream<'_>, out: &mut Vec<u8>) {
        out.reserve(self.raw.len() + 128);
        out.extend_from_slice(b"HTTP/1.1 ");
        fields::write_decimal(u64::from(self.status), out);
        out.push(b' ');
        out.extend_from_slice(&self.raw[self.reason.clone()]);
        out.extend_from_slice(b"\r\n");
        for field in self.fields.iter().filter(|field| !field.stays() && field.kind != Kind::RequestId) {
            field.write(&self.raw, out);
        }
        to.write_end(out);
    }
}

impl Downstream<'_> {
    /// Appends framing, request id, `connection` and the blank line.
    pub fn write_end(&self, out: &mut Vec<u8>) {
        match self.framing {
            Framing::Length(length) => write_length(length, out),
            Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            Framing::Empty => {
                if let Some(length) = self.announced {
                    write_length(length, out);
                }
            }
            Framing::UntilClose => {}
        }
        out.extend_from_slice(b"x-request-id: ");
        out.extend_from_slice(self.request_id.as_bytes());
        if self.close {
            out.extend_from_slice(b"\r\nconnection: close");
        } else if self.old_keep_alive {
            out.extend_from_slice(b"\r\nconnection: keep-alive");
        }
        out.extend_from_slice(b"\r\n\r\n");
    }
}

fn write_length(length: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"content-length: ");
    fields::write_decimal(length, out);
    out.extend_from_slice(b"\r\n");
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
