//! Which engine is played, and the routes that it generates on.

use serde::{Deserialize, Serialize};

/// Whose server is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Flavor {
    /// vLLM 0.32.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM's `trtllm-serve`.
    Trtllm,
}

/// A route that generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Chat,
    Completion,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
    /// SGLang's own.
    Generate,
    /// vLLM's ids in, ids out.
    TokensIn,
}

/// How errors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `{"error": {…}}`, as vLLM and OpenAI.
    Nested,
    /// `{"object": "error", …}`, as SGLang's and TensorRT-LLM's OpenAI routes.
    Flat,
    /// `{"type": "error", "error": {…}}`.
    Anthropic,
    /// `{"error": {"message"}}`, as SGLang's own routes.
    Bare,
}

/// Every path that generates, whoever has it.
const GENERATING: [&str; 6] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/inference/v1/generate"];

/// Whether some flavor generates at `path`.
pub(crate) fn is_generating(path: &str) -> bool {
    GENERATING.contains(&path)
}

impl Route {
    /// The route of a path, if `flavor` has it.
    pub(crate) fn of(flavor: Flavor, path: &str) -> Option<Self> {
        Some(match (flavor, path) {
            (_, "/v1/chat/completions") => Self::Chat,
            (_, "/v1/completions") => Self::Completion,
            (Flavor::Vllm, "/v1/responses") => Self::Responses,
            (Flavor::Vllm, "/v1/messages") => Self::Messages,
            (Flavor::Vllm, "/inference/v1/generate") => Self::TokensIn,
            (Flavor::Sglang, "/generate") => Self::Generate,
            _ => return None,
        })
    }
}

impl Shape {
    /// That of a path's errors.
    pub(crate) fn of(flavor: Flavor, path: &str) -> Self {
        match flavor {
            Flavor::Vllm if path.starts_with("/v1/messages") => Self::Anthropic,
            Flavor::Vllm => Self::Nested,
            Flavor::Sglang if path == "/generate" => Self::Bare,
            Flavor::Sglang | Flavor::Trtllm => Self::Flat,
        }
    }
}
