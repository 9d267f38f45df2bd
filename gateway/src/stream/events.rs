//! Server-sent events: split into whole frames at any byte, looked at cheaply, passed on untouched.

use super::grammar::Grammar;
use super::usage::{Counts, Usage};
use crate::error::Fault;

/// An unfinished frame longer than this is passed on as it comes and no longer looked at.
const MAX_FRAME: usize = 256 * 1024;

/// Splitter and observer of one stream.
///
/// Only whole frames are passed on, so a stream that is cut ends between two frames and its error event is well formed.
#[derive(Debug, Default)]
pub struct Events {
    pub(super) grammar: Grammar,
    pub(super) strip_usage: bool,
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
    /// Counts so far, where several frames bring them in parts.
    pub(super) counts: Counts,
    /// Frames with data, where frames are numbered.
    pub(super) frames: u32,
}

impl Events {
    /// At the start of a stream.
    pub fn new(grammar: Grammar, strip_usage: bool) -> Self {
        Self { grammar, strip_usage, line_start: true, ..Self::default() }
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
        // Without their last event these clients never see their message whole.
        let named = matches!(self.grammar, Grammar::Anthropic | Grammar::Responses);
        self.done || self.failed || (self.finished && !named)
    }

    /// What ends this stream with an error that its clients understand.
    pub(super) fn error_frames(&self, fault: &Fault) -> String {
        self.grammar.error_frames(fault, self.frames)
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

    /// A frame came after which another engine cannot take over: output, a finish, an error, the end.
    pub fn is_committed(&self) -> bool {
        // Elsewhere the first frames bring counts already.
        let counted = self.grammar == Grammar::OpenAi && self.usage.is_some();
        self.outputs > 0 || self.finished || self.is_complete() || counted
    }
}
