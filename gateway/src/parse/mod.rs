//! parse: bytes → the few fields that routing needs.
//!
//! A depth-1 scan; the original bytes are kept and edited by splice.

use crate::error::Fault;
use bytes::Bytes;
use std::ops::Range;

/// Which API the body speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
}

/// A request body and what the scan found in it. Ranges index `body` and span whole JSON values.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// API.
    pub dialect: Dialect,
    /// Exactly what the client sent.
    pub body: Bytes,
    /// `model`, unescaped.
    pub model: String,
    /// `stream`; null = absent = false.
    pub stream: bool,
    /// `stream_options.include_usage` as the client gave it.
    pub include_usage: bool,
    /// `max_completion_tokens` or `max_tokens`.
    pub max_tokens: Option<u32>,
    /// `n`, 1 when absent.
    pub n: u32,
    /// `cache_salt`.
    pub cache_salt: Option<String>,
    /// Value of `messages` (chat) or `prompt` (completions).
    pub prompt: Range<usize>,
    /// Value of `tools`, where present and not null.
    pub tools: Option<Range<usize>>,
    /// Every other chat field that changes the rendered prompt, by name (`chat_template_kwargs`,
    /// `add_generation_prompt`, `continue_final_message`, `reasoning_effort`, `chat_template`, …).
    pub template_fields: Vec<(&'static str, Range<usize>)>,
    /// Value of `stream_options`, where present.
    pub stream_options: Option<Range<usize>>,
}

/// Scans a body.
pub fn parse(_dialect: Dialect, _body: Bytes) -> Result<Parsed, Fault> {
    unimplemented!()
}

impl Parsed {
    /// The body to send upstream: the client's bytes, with `stream_options.include_usage: true` spliced in for a
    /// stream whose client did not ask for usage.
    pub fn upstream_body(&self) -> Vec<Bytes> {
        unimplemented!()
    }
}
