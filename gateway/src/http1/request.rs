//! Request heads, as clients send them and as engines get them.

use super::fields::{self, Field, Fields, Kind};
use super::{Framing, MAX_FIELDS, Malformed};
use bytes::{Bytes, BytesMut};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ops::Range;

/// A parsed request head and the bytes it came in.
#[derive(Clone, Debug)]
pub struct RequestHead {
    raw: Bytes,
    method: Range<usize>,
    target: Range<usize>,
    fields: Fields,
    /// How long the body is.
    pub framing: Framing,
    /// The client wants this connection kept.
    pub keep_alive: bool,
    /// HTTP/1.0: no chunked answers.
    pub old: bool,
    /// `Expect: 100-continue`.
    pub expect_continue: bool,
}

/// How far a head has been read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes already searched for the end.
    searched: usize,
    /// Length at which an unfinished head was last looked at for garbage.
    judged: usize,
}

/// Takes one complete head off the front of `buf`, or says what is wrong with it; `None` while it is incomplete.
pub fn take(buf: &mut BytesMut, progress: &mut Progress, max: usize) -> Result<Option<RequestHead>, Malformed> {
    if progress.searched == 0 {
        skip_blank_lines(buf);
    }
    let from = progress.searched.saturating_sub(3);
    let Some(end) = memchr::memmem::find(&buf[from..], b"\r\n\r\n").map(|at| from + at + 4) else {
        if buf.len() > max {
            return Err(too_large());
        }
        progress.searched = buf.len();
        // Garbage (a TLS hello, say) is refused at once; looking again only at double the length keeps slow senders
        // from costing the square of what they send.
        if !buf.is_empty() && buf.len() >= progress.judged.saturating_mul(2) {
            progress.judged = buf.len();
            judge(buf)?;
        }
        return Ok(None);
    };
    if end > max {
        return Err(too_large());
    }
    let raw = buf.split_to(end).freeze();
    *progress = Progress::default();
    parse(raw).map(Some)
}

const fn too_large() -> Malformed {
    Malformed { status: 431, what: "request head is too large" }
}

/// Some clients end a body with a stray line break (RFC 9112 §2.2).
fn skip_blank_lines(buf: &mut BytesMut) {
    let blank = buf.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    if blank > 0 {
        bytes::Buf::advance(buf, blank);
    }
}

fn judge(partial: &[u8]) -> Result<(), Malformed> {
    let mut storage = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    httparse::Request::new(&mut []).parse_with_uninit_headers(partial, &mut storage).map(drop).map_err(explain)
}

fn explain(error: httparse::Error) -> Malformed {
    match error {
        httparse::Error::TooManyHeaders => Malformed { status: 431, what: "too many header fields" },
        httparse::Error::Version => Malformed { status: 505, what: "only HTTP/1.0 and HTTP/1.1 are spoken here" },
        httparse::Error::HeaderName => Malformed::bad("bad header field name"),
        httparse::Error::HeaderValue => Malformed::bad("bad header field value"),
        httparse::Error::NewLine => Malformed::bad("bad line end in the request head"),
        _ => Malformed::bad("not an HTTP/1.1 request"),
    }
}

fn parse(raw: Bytes) -> Result<RequestHead, Malformed> {
    let mut storage = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(&raw, &mut storage).map_err(explain)? {
        httparse::Status::Complete(length) if length == raw.len() => {}
        _ => return Err(Malformed::bad("bare line feed in the request head")),
    }
    let (fields, framed) = fields::collect(&raw, request.headers)?;
    let old = request.version == Some(0);
    let span = |part: &str| {
        let start = part.as_ptr() as usize - raw.as_ptr() as usize;
        start..start + part.len()
    };
    let method = span(request.method.unwrap_or_default());
    let target = span(request.path.unwrap_or_default());
    check_host(&raw, &fields, old)?;
    if framed.chunked && old {
        return Err(Malformed::bad("Transfer-Encoding in an HTTP/1.0 request"));
    }
    let expect_continue = match fields.iter().find(|field| field.kind == Kind::Expect) {
        None => false,
        Some(field) if field.value(&raw).eq_ignore_ascii_case(b"100-continue") => !old,
        Some(_) => return Err(Malformed { status: 417, what: "only Expect: 100-continue is understood" }),
    };
    // A switch to HTTP/2 may be ignored; whoever asks for a web socket cannot go on without one.
    let wants = |field: &&Field| field.kind == Kind::Upgrade && !field.value(&raw).eq_ignore_ascii_case(b"h2c");
    if fields.iter().find(wants).is_some_and(|field| !field.value(&raw).is_empty()) {
        return Err(Malformed { status: 501, what: "connections are not upgraded here" });
    }
    let framing = match (framed.chunked, framed.length) {
        (true, _) => Framing::Chunked,
        (false, Some(length)) if length > 0 => Framing::Length(length),
        (false, _) => Framing::Empty,
    };
    let keep_alive = !framed.close && (!old || framed.keep_alive);
    let head = RequestHead { method, target, fields, framing, keep_alive, old, expect_continue, raw };
    head.check_target()?;
    Ok(head)
}

fn check_host(raw: &[u8], fields: &Fields, old: bool) -> Result<(), Malformed> {
    let mut hosts = fields.iter().filter(|field| field.kind == Kind::Host);
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if host.value(raw).contains(&b',') => Err(Malformed::bad("bad Host field")),
        (Some(_), None) => Ok(()),
        (None, _) if old => Ok(()),
        (None, _) => Err(Malformed::bad("no Host field")),
        (Some(_), Some(_)) => Err(Malformed::bad("more than one Host field")),
    }
}

impl RequestHead {
    fn check_target(&self) -> Result<(), Malformed> {
        if self.method() == "CONNECT" {
            return Err(Malformed { status: 405, what: "CONNECT is not served: this is no forward proxy" });
        }
        if self.target().starts_with('/') { Ok(()) } else { Err(Malformed::bad("request target is not a path")) }
    }

    /// Method, upper case as sent.
    pub fn method(&self) -> &str {
        text(&self.raw[self.method.clone()])
    }

    /// Path and query. Of an absolute-form target (`http://host/path`) only what follows the authority counts.
    pub fn target(&self) -> &str {
        let target = text(&self.raw[self.target.clone()]);
        for scheme in ["http://", "https://"] {
            let absolute = target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
            if absolute {
                let rest = &target[scheme.len()..];
                return rest.find('/').map_or("/", |at| &rest[at..]);
            }
        }
        target
    }

    /// Path without the query.
    pub fn path(&self) -> &str {
        let target = self.target();
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    /// Value of the first field of this kind.
    pub fn value(&self, kind: Kind) -> Option<&[u8]> {
        self.fields.iter().find(|field| field.kind == kind).map(|field| field.value(&self.raw))
    }

    /// Fields in order.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| (field.name(&self.raw), field.value(&self.raw)))
    }

    /// Appends the head that an engine gets: the client's fields less what stays here, `Host` set to the engine, the
    /// body's length, the request id, and the rank where one was chosen.
    pub fn write_upstream(&self, to: &Upstream<'_>, out: &mut Vec<u8>) {
        out.reserve(self.raw.len() + 160);
        out.extend_from_slice(self.method().as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.target().as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
        out.extend_from_slice(to.authority.as_bytes());
        out.extend_from_slice(b"\r\n");
        for field in self.fields.iter().filter(|field| passes(field, to)) {
            field.write(&self.raw, out);
        }
        if let Some(length) = to.length {
            out.extend_from_slice(b"content-length: ");
            fields::write_decimal(length, out);
            out.extend_from_slice(b"\r\n");
        }
        self.write_origin(&to.origin, out);
        out.extend_from_slice(b"x-request-id: ");
        out.extend_from_slice(to.request_id.as_bytes());
        if let Some(rank) = to.rank {
            out.extend_from_slice(b"\r\nx-data-parallel-rank: ");
            fields::write_decimal(u64::from(rank), out);
        }
        out.extend_from_slice(b"\r\n\r\n");
    }
}

impl RequestHead {
    /// Appends `x-forwarded-for`, the chain of a believed proxy continued, and `x-forwarded-proto` where none is passed on.
    fn write_origin(&self, origin: &Origin, out: &mut Vec<u8>) {
        let said =
            |kind: Kind| self.fields.iter().filter(move |field| origin.trusted && field.kind == kind && !field.named);
        let mut chain = said(Kind::ForwardedFor).peekable();
        if chain.peek().is_some() || origin.address.is_some() {
            out.extend_from_slice(b"x-forwarded-for: ");
            let mut between: &[u8] = b"";
            for field in chain {
                out.extend_from_slice(between);
                out.extend_from_slice(field.value(&self.raw));
                between = b", ";
            }
            if let Some(address) = origin.address {
                out.extend_from_slice(between);
                // Writing to memory cannot fail.
                let _ = write!(out, "{}", address.to_canonical());
            }
            out.extend_from_slice(b"\r\n");
        }
        let told = said(Kind::Forwarded).any(|field| field.name(&self.raw).eq_ignore_ascii_case(b"x-forwarded-proto"));
        if !told && origin.address.is_some() {
            let scheme: &[u8] = if origin.secure { b"https" } else { b"http" };
            out.extend_from_slice(b"x-forwarded-proto: ");
            out.extend_from_slice(scheme);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Where a head goes.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// `host:port` of the engine.
    pub authority: &'a str,
    /// Bytes of the body; `None` for a request without one.
    pub length: Option<u64>,
    /// Request id.
    pub request_id: &'a str,
    /// Data-parallel rank.
    pub rank: Option<u16>,
    /// Drop `Accept-Encoding`: a compressed answer could not be observed.
    pub plain_answer: bool,
    /// Drop the client's key: it is the gateway's to check, and no engine's to know.
    pub keep_key: bool,
    /// Where the request came from.
    pub origin: Origin,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The other end of the connection.
    pub address: Option<IpAddr>,
    /// It came over TLS.
    pub secure: bool,
    /// It is a proxy that is believed: what it says of its own client is passed on.
    pub trusted: bool,
}

fn passes(field: &Field, to: &Upstream<'_>) -> bool {
    let stays = match field.kind {
        Kind::Host | Kind::Expect | Kind::RequestId | Kind::Rank => true,
        Kind::AcceptEncoding => to.plain_answer,
        Kind::ForwardedFor => true,
        Kind::Forwarded => !to.origin.trusted,
        Kind::Authorization | Kind::ApiKey => to.keep_key,
        _ => false,
    };
    !(stays || field.stays())
}

/// httparse has checked that methods and targets are ASCII.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
