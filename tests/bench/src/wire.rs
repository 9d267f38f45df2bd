//! HTTP/1.1 as far as a load client needs it: response heads and body framing. Pure; bytes in, bytes out.

use thiserror::Error;

/// Header lines of one response; routers here send fewer than twenty.
const MAX_HEADERS: usize = 64;
/// Bytes of one chunk-size line, extensions included.
const MAX_CHUNK_LINE_BYTES: usize = 256;

/// A response that is not HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The head does not parse.
    #[error("bad response head: {0}")]
    Head(String),
    /// A chunk-size line does not parse.
    #[error("bad chunk size line: {0:?}")]
    ChunkSize(String),
    /// No line end after a chunk's bytes.
    #[error("chunk of declared size is not followed by a line end")]
    ChunkEnd,
    /// The connection closed before the body was whole.
    #[error("connection closed inside the body")]
    Truncated,
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes.
    Length(usize),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Until the connection closes.
    UntilClose,
}

/// A parsed response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Framing of the body that follows.
    pub framing: Framing,
    /// Whether the connection ends after this response.
    pub close: bool,
    /// Bytes of the head, the blank line included.
    pub length: usize,
}

/// Parses a head at the start of `bytes`; `None` when more bytes are needed.
///
/// # Errors
/// The bytes are no HTTP/1.x response head.
pub fn parse_head(bytes: &[u8]) -> Result<Option<Head>, WireError> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut lines);
    let status = response.parse(bytes).map_err(|e| WireError::Head(e.to_string()))?;
    let httparse::Status::Complete(length) = status else { return Ok(None) };
    let mut framing = Framing::UntilClose;
    let mut close = response.version == Some(0);
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = String::from_utf8_lossy(header.value);
            let bytes = text.trim().parse().map_err(|_| WireError::Head(format!("content-length {text:?}")))?;
            framing = Framing::Length(bytes);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked;
        } else if header.name.eq_ignore_ascii_case("connection") {
            close |= header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let status = response.code.ok_or_else(|| WireError::Head("no status".into()))?;
    Ok(Some(Head { status, framing, close: close || framing == Framing::UntilClose, length }))
}

/// Takes body bytes off the wire in pieces of any size and yields the payload.
#[derive(Debug)]
pub struct BodyReader {
    state: State,
    line: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many bytes of a length-framed body are missing.
    Length(usize),
    UntilClose,
    ChunkLine,
    ChunkData(usize),
    /// Bytes of the line end after a chunk that are missing (2 or 1).
    ChunkEnd(u8),
    /// Lines after the last chunk, up to the blank one.
    Trailer,
    Done,
}

impl BodyReader {
    /// Reads a body of this framing.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(n) => State::Length(n),
            Framing::Chunked => State::ChunkLine,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, line: Vec::new() }
    }

    /// Whether the body is whole.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Appends to `payload` what `bytes` carries. Bytes after the end of the body are ignored: nothing is pipelined.
    ///
    /// # Errors
    /// The chunked coding is broken.
    pub fn feed(&mut self, mut bytes: &[u8], payload: &mut Vec<u8>) -> Result<(), WireError> {
        while !bytes.is_empty() {
            match self.state {
                State::Done => return Ok(()),
                State::UntilClose => {
                    payload.extend_from_slice(bytes);
                    return Ok(());
                }
                State::Length(missing) => {
                    let left = missing - take(&mut bytes, missing, payload);
                    self.state = if left == 0 { State::Done } else { State::Length(left) };
                }
                State::ChunkData(missing) => {
                    let left = missing - take(&mut bytes, missing, payload);
                    self.state = if left == 0 { State::ChunkEnd(2) } else { State::ChunkData(left) };
                }
                State::ChunkEnd(missing) => {
                    let expected = if missing == 2 { b'\r' } else { b'\n' };
                    if bytes[0] != expected {
                        return Err(WireError::ChunkEnd);
                    }
                    bytes = &bytes[1..];
                    self.state = if missing == 2 { State::ChunkEnd(1) } else { State::ChunkLine };
                }
                State::ChunkLine | State::Trailer => bytes = self.take_line(bytes)?,
            }
        }
        Ok(())
    }

    /// Tells the reader that the connection closed.
    ///
    /// # Errors
    /// The body was not whole.
    pub fn close(&mut self) -> Result<(), WireError> {
        if self.state == State::UntilClose {
            self.state = State::Done;
        }
        if self.is_done() { Ok(()) } else { Err(WireError::Truncated) }
    }

    /// Collects a line that may arrive in pieces; acts on it when it is whole.
    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], WireError> {
        let end = memchr::memchr(b'\n', bytes);
        let (piece, rest) = end.map_or((bytes, &bytes[bytes.len()..]), |at| (&bytes[..at], &bytes[at + 1..]));
        self.line.extend_from_slice(piece);
        if self.line.len() > MAX_CHUNK_LINE_BYTES {
            return Err(WireError::ChunkSize(String::from_utf8_lossy(&self.line[..32]).into_owned()));
        }
        if end.is_some() {
            let line = String::from_utf8_lossy(&self.line).trim().to_owned();
            self.line.clear();
            self.state = match self.state {
                State::Trailer if line.is_empty() => State::Done,
                State::Trailer => State::Trailer,
                _ => {
                    let digits = line.split(';').next().unwrap_or_default().trim();
                    match usize::from_str_radix(digits, 16) {
                        Ok(0) => State::Trailer,
                        Ok(size) => State::ChunkData(size),
                        Err(_) => return Err(WireError::ChunkSize(line)),
                    }
                }
            };
        }
        Ok(rest)
    }
}

/// Moves up to `most` bytes from the front of `bytes` to `payload`; how many it were.
fn take(bytes: &mut &[u8], most: usize, payload: &mut Vec<u8>) -> usize {
    let taken = most.min(bytes.len());
    payload.extend_from_slice(&bytes[..taken]);
    *bytes = &bytes[taken..];
    taken
}

#[cfg(test)]
mod tests;
