//! What the frames of each dialect's streams say: output, finish, end, failure, counts. Keys are searched, nothing is
//! parsed: see [`super::usage`] for why that finds keys only.

use super::events::Events;
use super::usage::{Counts, Usage, read_meta_info};
use crate::error::{Fault, Shape};
use crate::parse::Dialect;
use memchr::memmem::{self, Finder};
use std::sync::LazyLock;

/// How a stream's frames are read, and how an error is told in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grammar {
    /// Chunks with `choices`, then `[DONE]`.
    #[default]
    OpenAi,
    /// Named events from `message_start` to `message_stop`.
    Anthropic,
    /// Named events from `response.created` to `response.completed`.
    Responses,
    /// Chunks with the text so far and `meta_info`, then `[DONE]`.
    SgLang,
}

impl Grammar {
    /// That of a dialect's streams.
    pub fn of(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Messages | Dialect::CountTokens => Self::Anthropic,
            Dialect::Responses => Self::Responses,
            Dialect::Generate => Self::SgLang,
            _ => Self::OpenAi,
        }
    }

    /// The frames that end a stream with an error; `sequence` counts the frames before.
    pub(super) fn error_frames(self, fault: &Fault, sequence: u32) -> String {
        match self {
            Self::OpenAi => format!("data: {}\n\ndata: [DONE]\n\n", fault.body()),
            Self::SgLang => format!("data: {}\n\ndata: [DONE]\n\n", fault.body_in(Shape::SgLang)),
            Self::Anthropic => format!("event: error\ndata: {}\n\n", fault.body_in(Shape::Anthropic)),
            Self::Responses => {
                let event = serde_json::json!({
                    "type": "error", "code": "server_error", "message": fault.message, "param": null,
                    "sequence_number": sequence,
                });
                format!("event: error\ndata: {event}\n\n")
            }
        }
    }
}

struct Keys {
    usage: Finder<'static>,
    choices: Finder<'static>,
    finish: Finder<'static>,
    error: Finder<'static>,
    meta_info: Finder<'static>,
    stop_reason: Finder<'static>,
    kind: Finder<'static>,
    /// Values that are output when they are a non-empty string or array.
    output: [Finder<'static>; 9],
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys {
    usage: Finder::new(b"\"usage\":"),
    choices: Finder::new(b"\"choices\":"),
    finish: Finder::new(b"\"finish_reason\":"),
    error: Finder::new(b"\"error\":"),
    meta_info: Finder::new(b"\"meta_info\":"),
    stop_reason: Finder::new(b"\"stop_reason\":"),
    kind: Finder::new(b"\"type\":"),
    output: [
        Finder::new(b"\"content\":"),
        Finder::new(b"\"text\":"),
        Finder::new(b"\"tool_calls\":"),
        Finder::new(b"\"reasoning_content\":"),
        Finder::new(b"\"reasoning\":"),
        Finder::new(b"\"function_call\":"),
        Finder::new(b"\"refusal\":"),
        Finder::new(b"\"token_ids\":"),
        Finder::new(b"\"output_ids\":"),
    ],
});

impl Events {
    /// Notes what a frame says; `false` when it is the usage frame that is to be taken out.
    pub(super) fn observe(&mut self, frame: &[u8]) -> bool {
        let Some(data) = data(frame) else { return true };
        match self.grammar {
            Grammar::OpenAi => return self.observe_openai(data),
            Grammar::SgLang => self.observe_sglang(data),
            Grammar::Anthropic => self.observe_anthropic(kind(frame, data), data),
            Grammar::Responses => {
                self.frames += 1;
                self.observe_responses(kind(frame, data), data);
            }
        }
        true
    }

    fn observe_openai(&mut self, data: &[u8]) -> bool {
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
        self.note_output_or_error(data);
        true
    }

    fn observe_sglang(&mut self, data: &[u8]) {
        if data.trim_ascii_end() == b"[DONE]" {
            self.done = true;
            return;
        }
        let keys = &*KEYS;
        if let Some(at) = keys.meta_info.find(data) {
            let usage = read_meta_info(&data[at + keys.meta_info.needle().len()..]);
            self.usage = usage.or(self.usage);
        }
        // `{"type": "stop", …}` at the end, null before.
        self.finished |= matches!(first_byte(data, &keys.finish), Some(b'{' | b'"'));
        self.note_output_or_error(data);
    }

    fn note_output_or_error(&mut self, data: &[u8]) {
        let keys = &*KEYS;
        if is_output(data, keys) {
            self.outputs += 1;
        } else if !self.failed && matches!(first_byte(data, &keys.error), Some(b'{' | b'"')) {
            self.failed = true;
        }
    }

    fn observe_anthropic(&mut self, kind: &[u8], data: &[u8]) {
        let keys = &*KEYS;
        match kind {
            b"content_block_delta" => self.outputs += 1,
            // What a new message has generated is a placeholder; the last delta has the total.
            b"message_start" => self.merge(Counts { completion: None, ..counts(data) }),
            b"message_delta" => {
                self.merge(counts(data));
                self.finished |= first_byte(data, &keys.stop_reason) == Some(b'"');
            }
            b"message_stop" => self.done = true,
            b"error" => self.failed = true,
            _ => {}
        }
    }

    fn merge(&mut self, counts: Counts) {
        self.counts = counts.or(self.counts);
        self.usage = self.counts.usage();
    }

    fn observe_responses(&mut self, kind: &[u8], data: &[u8]) {
        match kind {
            b"response.completed" | b"response.incomplete" => {
                self.done = true;
                self.usage = Usage::find_last(data);
            }
            b"response.failed" | b"error" => self.failed = true,
            _ if kind.ends_with(b".delta") => self.outputs += 1,
            _ => {}
        }
    }
}

/// Counts of the first `usage` of a frame.
fn counts(data: &[u8]) -> Counts {
    value(data, &KEYS.usage).and_then(Counts::read).unwrap_or_default()
}

/// The value of a frame's first `data` line.
fn data(frame: &[u8]) -> Option<&[u8]> {
    let start = if frame.starts_with(b"data:") { 0 } else { memmem::find(frame, b"\ndata:")? + 1 };
    Some(frame[start + b"data:".len()..].trim_ascii_start())
}

/// The name of a frame: of its `event` line, else the first `type` of its data.
fn kind<'a>(frame: &'a [u8], data: &'a [u8]) -> &'a [u8] {
    if let Some(rest) = frame.strip_prefix(b"event:") {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        return rest[..end].trim_ascii();
    }
    let quoted = value(data, &KEYS.kind).and_then(|value| value.strip_prefix(b"\""));
    let end = quoted.and_then(|name| memchr::memchr(b'"', name));
    quoted.zip(end).map_or(b"", |(name, end)| &name[..end])
}

/// First byte of the value after `key`.
fn first_byte(data: &[u8], key: &Finder<'_>) -> Option<u8> {
    value(data, key)?.first().copied()
}

fn value<'a>(data: &'a [u8], key: &Finder<'_>) -> Option<&'a [u8]> {
    let at = key.find(data)? + key.needle().len();
    Some(data[at..].trim_ascii_start())
}

fn is_empty_array(data: &[u8], key: &Finder<'_>) -> bool {
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
