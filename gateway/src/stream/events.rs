//! Server-sent events: split into whole frames at any byte, looked at cheaply, passed on untouched.

use super::usage::Usage;
use memchr::memmem;
use std::sync::LazyLock;

/// An unfinished frame longer than this is passed on as it comes and no longer looked at.
const MAX_FRAME: usize = 256 * 1024;

/// Splitter and observer of one stream.
///
/// Only whole frames are passed on, so a stream that is cut ends between two frames and its error event is well formed.
#[derive(Debug, Default)]
pub struct Events {
    strip_usage: bool,
    /// Start of a frame whose end has not come yet.
    partial: Vec<u8>,
    /// The next byte starts a line.
    line_start: bool,
    /// Inside a frame that is too long to be looked at.
    oversized: bool,
    /// Frames with output.
    pub outputs: u32,
    /// A `finish_reason` was given.
    pub finished: bool,
    /// `[DONE]` came.
    pub done: bool,
    /// The engine reported an error inside the stream.
    pub failed: bool,
    /// Counts, from the latest frame that had them.
    pub usage: Option<Usage>,
}

struct Keys {
    usage: memmem::Finder<'static>,
    choices: memmem::Finder<'static>,
    finish: memmem::Finder<'static>,
    error: memmem::Finder<'static>,
    /// Values that are output when they are a non-empty string or array.
    output: [memmem::Finder<'static>; 7],
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys {
    usage: memmem::Finder::new(b"\"usage\":"),
    choices: memmem::Finder::new(b"\"choices\":"),
    finish: memmem::Finder::new(b"\"finish_reason\":"),
    error: memmem::Finder::new(b"\"error\":"),
    output: [
        memmem::Finder::new(b"\"content\":"),
        memmem::Finder::new(b"\"text\":"),
        memmem::Finder::new(b"\"tool_calls\":"),
        memmem::Finder::new(b"\"reasoning_content\":"),
        memmem::Finder::new(b"\"reasoning\":"),
        memmem::Finder::new(b"\"function_call\":"),
        memmem::Finder::new(b"\"refusal\":"),
    ],
});

impl Events {
    /// At the start of a stream.
    pub fn new(strip_usage: bool) -> Self {
        Self { strip_usage, line_start: true, ..Self::default() }
    }

    /// Takes the next bytes of the stream and appends the frames that are now whole to `out`.
    pub fn feed(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let mut rest = payload;
        while let Some(length) = self.frame_end(rest) {
            let (end, after) = rest.split_at(length);
            rest = after;
            if std::mem::take(&mut self.oversized) {
                out.extend_from_slice(end);
            } else if self.partial.is_empty() {
                self.frame(end, out);
            } else {
                let mut frame = std::mem::take(&mut self.partial);
                frame.extend_from_slice(end);
                self.frame(&frame, out);
                frame.clear();
                self.partial = frame;
            }
        }
        if self.oversized {
            out.extend_from_slice(rest);
        } else if !rest.is_empty() {
            self.partial.extend_from_slice(rest);
            if self.partial.len() > MAX_FRAME {
                self.oversized = true;
                out.append(&mut self.partial);
            }
        }
    }

    /// The stream ended well: what is left of an unfinished frame goes out as it is.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.partial);
    }

    /// The stream says by itself that it is complete.
    pub fn is_complete(&self) -> bool {
        self.done || self.finished || self.failed
    }

    /// The bytes passed on so far end between two frames.
    pub fn is_between_frames(&self) -> bool {
        !self.oversized
    }

    /// Index just past the end of the present frame: an empty line, its ends `\n` or `\r\n`.
    fn frame_end(&mut self, data: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            if self.line_start {
                match data.get(at)? {
                    b'\n' => return Some(at + 1),
                    b'\r' => {
                        at += 1;
                        continue;
                    }
                    _ => self.line_start = false,
                }
            }
            at += memchr::memchr(b'\n', &data[at..])? + 1;
            self.line_start = true;
        }
    }

    /// Looks at one whole frame and passes it on.
    fn frame(&mut self, frame: &[u8], out: &mut Vec<u8>) {
        if self.observe(frame) {
            out.extend_from_slice(frame);
        }
    }

    /// Notes what a frame says; `false` when it is the usage frame that is to be taken out.
    fn observe(&mut self, frame: &[u8]) -> bool {
        let Some(data) = data(frame) else { return true };
        if data.trim_ascii_end() == b"[DONE]" {
            self.done = true;
            return true;
        }
        let keys = &*KEYS;
        let counts = keys.usage.find(data).map(|at| &data[at + keys.usage.needle().len()..]).and_then(Usage::read);
        if let Some(usage) = counts {
            self.usage = Some(usage);
            if is_empty_array(data, &keys.choices) {
                return !self.strip_usage;
            }
        }
        if !self.finished {
            self.finished = first_byte(data, &keys.finish) == Some(b'"');
        }
        if is_output(data, keys) {
            self.outputs += 1;
        } else if !self.failed && matches!(first_byte(data, &keys.error), Some(b'{' | b'"')) {
            self.failed = true;
        }
        true
    }

    /// A frame came after which another engine cannot take over: output, a finish, an error, the end.
    pub fn is_committed(&self) -> bool {
        self.outputs > 0 || self.is_complete() || self.usage.is_some()
    }
}

/// The value of a frame's first `data` line.
fn data(frame: &[u8]) -> Option<&[u8]> {
    let start = if frame.starts_with(b"data:") { 0 } else { memmem::find(frame, b"\ndata:")? + 1 };
    Some(frame[start + b"data:".len()..].trim_ascii_start())
}

/// First byte of the value after `key`.
fn first_byte(data: &[u8], key: &memmem::Finder<'_>) -> Option<u8> {
    value(data, key)?.first().copied()
}

fn value<'a>(data: &'a [u8], key: &memmem::Finder<'_>) -> Option<&'a [u8]> {
    let at = key.find(data)? + key.needle().len();
    Some(data[at..].trim_ascii_start())
}

fn is_empty_array(data: &[u8], key: &memmem::Finder<'_>) -> bool {
    value(data, key)
        .and_then(|value| value.strip_prefix(b"["))
        .is_some_and(|rest| rest.trim_ascii_start().starts_with(b"]"))
}

/// Some key of output has a value that is not empty: `"x`, `[x`, `{x`.
fn is_output(data: &[u8], keys: &Keys) -> bool {
    keys.output.iter().any(|key| match value(data, key) {
        Some([b'"', next, ..]) => *next != b'"',
        Some([b'[', rest @ ..]) => !rest.trim_ascii_start().starts_with(b"]"),
        Some([b'{', ..]) => true,
        _ => false,
    })
}
