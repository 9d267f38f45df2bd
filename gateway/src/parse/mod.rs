//! parse: bytes → the few fields that routing needs.
//!
//! One pass over the body checks that all of it is strict JSON (what we forward must be what we understood) and notes
//! the spans of the fields that matter; nothing is built, and the client's bytes are kept. Only keys of the outermost
//! object count: `"user":` inside a prompt is text. Fields that nobody here knows travel on byte for byte.
//!
//! Invariants:
//! - a field that steers routing occurs at most once: JSON libraries disagree about which of two would win, and the
//!   engine must not act on another value than the gateway did;
//! - `null` means absent;
//! - every span in [`Parsed`] lies within the body, on UTF-8 boundaries, around one complete JSON value.
//!
//! Failure: a 400 in the dialect's error shape that names the field, or the byte where the body stops being JSON. There is
//! no recursion and no allocation that grows with the body, so hostile nesting costs nothing.

mod dialect;
mod fields;
mod known;
mod policy;
mod scan;
mod splice;
#[cfg(test)]
mod tests;
pub(crate) mod text;

pub use dialect::Dialect;
pub use splice::IdsPlace;

pub(crate) use scan::{RawString, Scanner};

use crate::error::{Fault, Shape};
use bytes::Bytes;
use std::ops::Range;

/// First words of the line that Claude Code puts before its system prompt: a hash that changes with every request.
pub(crate) const PREAMBLE: &str = "x-anthropic-billing-header";
/// Bytes of a prompt in which it may begin: it comes first, behind a role and some punctuation.
const PREAMBLE_WITHIN: usize = 128;

/// A request body and what the scan found in it. Ranges index `body` and span whole JSON values.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// API.
    pub dialect: Dialect,
    /// Exactly what the client sent.
    pub body: Bytes,
    /// `model`, unescaped; empty where it was left out and may be ([`Dialect::may_omit_model`]).
    pub model: String,
    /// Value of `model`; empty where it was left out.
    model_span: Range<usize>,
    /// `stream`; null = absent = false.
    pub stream: bool,
    /// `stream_options.include_usage` as the client gave it.
    pub include_usage: bool,
    /// `max_completion_tokens`, `max_output_tokens`, `max_tokens` or `sampling_params.max_new_tokens`.
    pub max_tokens: Option<u32>,
    /// `n`, 1 when absent.
    pub n: u32,
    /// `cache_salt`.
    pub cache_salt: Option<String>,
    /// `user`, the end user as the client names them.
    pub user: Option<String>,
    /// `session_id` (vLLM): the same for all requests of one conversation.
    pub session_id: Option<String>,
    /// What an agent's requests of one session have in common without being meant for routing: `prompt_cache_key`, or
    /// Claude Code's `metadata.user_id`.
    pub session_hint: Option<String>,
    /// `priority` (vLLM): lower is served earlier, 0 when absent.
    pub priority: i64,
    /// Value of the field that holds the prompt: `messages`, `prompt`, `input`, `text`, `token_ids`, `query`, …. Empty
    /// where there is none, as when a completion brings only `prompt_embeds`.
    pub prompt: Range<usize>,
    /// Name of that field.
    pub prompt_field: &'static str,
    /// Value of `tools`, where present and not null.
    pub tools: Option<Range<usize>>,
    /// Every other known field, by name: mostly what changes the rendered prompt (`system`, `chat_template_kwargs`,
    /// `add_generation_prompt`, `continue_final_message`, `reasoning_effort`, `chat_template`, …).
    pub template_fields: Vec<(&'static str, Range<usize>)>,
    /// Value of `stream_options`, where present.
    pub stream_options: Option<Range<usize>>,
    /// Value of `stream_options.include_usage`, where present.
    include_usage_value: Option<Range<usize>>,
    /// Fields that the request policy looks at, by name.
    pub(crate) guarded: Vec<(&'static str, Range<usize>)>,
    /// `max_tokens` and `max_completion_tokens`, as far as they were there.
    token_limits: Vec<(u32, Range<usize>)>,
    /// The messages have a key that may name something to fetch or to load.
    has_media: bool,
    /// What the policy replaces (an empty range: inserts).
    edits: Vec<(Range<usize>, Bytes)>,
    /// Offset of the brace that closes the body's object.
    close: usize,
}

/// Scans a body; ~60 µs for 400 KB.
///
/// # Errors
/// 400 for a body that is not strict JSON in UTF-8, is nested deeper than 128, lacks a required field, repeats a
/// routing field, or has a known field of the wrong type (`param` names it).
pub fn parse(dialect: Dialect, body: Bytes) -> Result<Parsed, Fault> {
    let mut parsed = fields::scan(dialect, &body)?;
    parsed.body = body;
    Ok(parsed)
}

impl Parsed {
    /// Nothing found yet.
    fn empty(dialect: Dialect) -> Self {
        Self {
            dialect,
            body: Bytes::new(),
            model: String::new(),
            model_span: 0..0,
            stream: false,
            include_usage: false,
            max_tokens: None,
            n: 1,
            cache_salt: None,
            user: None,
            session_id: None,
            session_hint: None,
            priority: 0,
            prompt: 0..0,
            prompt_field: "",
            tools: None,
            template_fields: Vec::new(),
            stream_options: None,
            include_usage_value: None,
            guarded: Vec::new(),
            token_limits: Vec::new(),
            has_media: false,
            edits: Vec::new(),
            close: 0,
        }
    }

    /// Whether the gateway asked for usage on the client's behalf, so that the usage frame must not reach it.
    pub fn wants_usage_stripped(&self) -> bool {
        self.stream && !self.include_usage && self.dialect.asks_for_usage()
    }

    /// The body to send upstream: the client's bytes, with `stream_options.include_usage: true` spliced in for a
    /// stream whose client did not ask for usage, and what the policy clamps. Slices share the body; nothing of it is copied.
    pub fn upstream_body(&self) -> Vec<Bytes> {
        splice::upstream_body(self)
    }

    /// Asks for `model` instead, which the name in the body stands for.
    pub fn rename(&mut self, model: &str) {
        if !self.model_span.is_empty() {
            let written = serde_json::Value::from(model).to_string();
            self.edits.push((self.model_span.clone(), written.into()));
        }
        model.clone_into(&mut self.model);
    }

    /// The body with the prompt's `ids` where an engine takes them.
    pub fn body_with_ids(&self, place: IdsPlace, ids: &[u32]) -> Vec<Bytes> {
        splice::body_with_ids(self, place, ids)
    }

    /// The prompt from the first byte that stays the same through a session: without the line that Claude Code puts
    /// before its system prompt and that changes with every request (engines drop it too).
    pub fn stable_prompt(&self) -> &[u8] {
        let prompt = &self.body[self.prompt.clone()];
        let head = &prompt[..prompt.len().min(PREAMBLE_WITHIN)];
        let Some(at) = memchr::memmem::find(head, PREAMBLE.as_bytes()) else { return prompt };
        let rest = &prompt[at..];
        // The line ends at an escaped line feed or with its string.
        let end = memchr::memchr2(b'\\', b'"', rest).unwrap_or(rest.len());
        &rest[end..]
    }

    /// The first `bytes` of [`Self::stable_prompt`], and the rest of an inlined medium that they break off: two pictures
    /// whose files begin alike are two pictures.
    pub fn affinity_head(&self, bytes: usize) -> &[u8] {
        let prompt = self.stable_prompt();
        let Some(head) = prompt.get(..bytes) else { return prompt };
        let broken =
            memchr::memmem::rfind(head, b"\"data:").filter(|at| memchr::memchr(b'"', &head[at + 1..]).is_none());
        if broken.is_none() {
            return head;
        }
        let rest = memchr::memchr(b'"', &prompt[bytes..]).unwrap_or(prompt.len() - bytes);
        &prompt[..bytes + rest]
    }

    /// Whether the prompt is more than text: what an engine makes of it is not to be told from the request.
    pub(crate) fn holds_media(&self) -> bool {
        const FIELDS: [&str; 4] = ["image_data", "audio_data", "video_data", "features"];
        self.has_media || FIELDS.iter().any(|name| self.template_span(name).is_some())
    }

    /// Value of the template field `name`, as JSON text.
    pub fn template_field(&self, name: &str) -> Option<&[u8]> {
        Some(&self.body[self.template_span(name)?])
    }

    /// Span of the template field `name`.
    pub fn template_span(&self, name: &str) -> Option<Range<usize>> {
        self.template_fields.iter().find(|(field, _)| *field == name).map(|(_, span)| span.clone())
    }
}
