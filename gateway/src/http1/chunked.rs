//! Chunked bodies, decoded incrementally and strictly.

use super::Malformed;

/// Bytes of one size line, extensions included: no engine or SDK sends more than 20.
const MAX_SIZE_LINE: usize = 256;
/// Bytes of all trailer lines; trailers are read and dropped.
const MAX_TRAILER: usize = 8 * 1024;

/// Decoder of one chunked body.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// Payload bytes left in the present chunk.
    left: u64,
    /// Hex digits seen of the present size.
    digits: u8,
    /// Bytes seen of the present size line or of all trailers.
    line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { state: State::Size, left: 0, digits: 0, line: 0 }
    }
}

impl Decoder {
    /// The last chunk and its trailers have been read.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Reads from `input`, hands each run of payload to `sink` and returns how many bytes were consumed: all of them,
    /// unless the body ended before.
    pub fn decode(&mut self, input: &[u8], mut sink: impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Data {
                let run = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len() - at);
                sink(&input[at..at + run]);
                at += run;
                self.left -= run as u64;
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                continue;
            }
            self.step(input[at])?;
            at += 1;
        }
        Ok(at)
    }

    /// One byte that is not payload.
    fn step(&mut self, byte: u8) -> Result<(), Malformed> {
        self.state = match (self.state, byte) {
            (State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => self.push_digit(byte)?,
            (State::Size, b';' | b' ' | b'\t') if self.digits > 0 => self.count_extension()?,
            (State::Size | State::Extension, b'\r') if self.digits > 0 => State::SizeLf,
            (State::Extension, byte) if byte != b'\n' => self.count_extension()?,
            (State::SizeLf, b'\n') => self.start_chunk(),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size,
            (State::TrailerStart, b'\r') => State::EndLf,
            (State::TrailerStart | State::Trailer, byte) if byte != b'\r' && byte != b'\n' => self.count_trailer()?,
            (State::Trailer, b'\r') => State::TrailerLf,
            (State::TrailerLf, b'\n') => State::TrailerStart,
            (State::EndLf, b'\n') => State::Done,
            (State::DataCr | State::DataLf, _) => return Err(Malformed::bad("chunk is longer than its size says")),
            _ => return Err(Malformed::bad("bad chunk size line")),
        };
        Ok(())
    }

    fn push_digit(&mut self, byte: u8) -> Result<State, Malformed> {
        let digit = (byte as char).to_digit(16).map_or(0, u64::from);
        // 15 digits hold 2^60 bytes: more is an attack on whoever multiplies.
        if self.digits >= 15 {
            return Err(Malformed::bad("chunk size is too large"));
        }
        self.digits += 1;
        self.left = self.left * 16 + digit;
        Ok(State::Size)
    }

    fn count_extension(&mut self) -> Result<State, Malformed> {
        self.line += 1;
        if self.line > MAX_SIZE_LINE {
            Err(Malformed::bad("chunk extension is too long"))
        } else {
            Ok(State::Extension)
        }
    }

    fn count_trailer(&mut self) -> Result<State, Malformed> {
        self.line += 1;
        if self.line > MAX_TRAILER { Err(Malformed::bad("trailers are too long")) } else { Ok(State::Trailer) }
    }

    fn start_chunk(&mut self) -> State {
        self.digits = 0;
        self.line = 0;
        if self.left == 0 { State::TrailerStart } else { State::Data }
    }
}

/// Room that [`open`] takes before the payload.
pub const SIZE_LINE: usize = 10;

/// Starts one chunk of yet unknown size at the end of `out`.
pub fn open(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(b"00000000\r\n");
    at
}

/// Ends the chunk that [`open`] started at `at`: its size is now known. An empty chunk would end the body, so it is
/// taken back.
pub fn close(out: &mut Vec<u8>, at: usize) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let size = out.len() - at - SIZE_LINE;
    if size == 0 {
        out.truncate(at);
        return;
    }
    debug_assert!(size <= u32::MAX as usize, "one chunk is one read");
    for (position, slot) in out[at..at + 8].iter_mut().enumerate() {
        *slot = HEX[(size >> (28 - 4 * position)) & 15];
    }
    out.extend_from_slice(b"\r\n");
}

/// Ends a chunked body.
pub const LAST: &[u8] = b"0\r\n\r\n";
