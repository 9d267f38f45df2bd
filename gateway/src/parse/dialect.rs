//! Which API a body speaks, and what follows from that.

use super::Shape;

/// An API whose requests are routed by what they ask. Bodies travel as they come: an engine that lacks the route says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages` (Anthropic).
    Messages,
    /// `POST /v1/messages/count_tokens` (Anthropic).
    CountTokens,
    /// `POST /generate` (SGLang).
    Generate,
    /// `POST /inference/v1/generate` (vLLM: ids in, ids out).
    TokensIn,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /pooling`.
    Pooling,
    /// `POST /rerank`, `/v1/rerank`, `/v2/rerank`.
    Rerank,
    /// `POST /score`, `/v1/score`.
    Score,
    /// `POST /tokenize`, `/v1/tokenize`.
    Tokenize,
    /// `POST /detokenize`, `/v1/detokenize`.
    Detokenize,
}

/// Every path that is routed by its body.
const PATHS: &[(&str, Dialect)] = &[
    ("/v1/chat/completions", Dialect::Chat),
    ("/v1/completions", Dialect::Completions),
    ("/v1/responses", Dialect::Responses),
    ("/v1/messages", Dialect::Messages),
    ("/v1/messages/count_tokens", Dialect::CountTokens),
    ("/generate", Dialect::Generate),
    ("/inference/v1/generate", Dialect::TokensIn),
    ("/v1/embeddings", Dialect::Embeddings),
    ("/pooling", Dialect::Pooling),
    ("/rerank", Dialect::Rerank),
    ("/v1/rerank", Dialect::Rerank),
    ("/v2/rerank", Dialect::Rerank),
    ("/score", Dialect::Score),
    ("/v1/score", Dialect::Score),
    ("/tokenize", Dialect::Tokenize),
    ("/v1/tokenize", Dialect::Tokenize),
    ("/detokenize", Dialect::Detokenize),
    ("/v1/detokenize", Dialect::Detokenize),
];

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 13] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Generate,
        Self::TokensIn,
        Self::Embeddings,
        Self::Pooling,
        Self::Rerank,
        Self::Score,
        Self::Tokenize,
        Self::Detokenize,
    ];

    /// The dialect of a path; `None` for what is passed on unread.
    pub fn of_path(path: &str) -> Option<Self> {
        PATHS.iter().find(|(known, _)| *known == path).map(|(_, dialect)| *dialect)
    }

    /// The dialect called `name`, see [`Self::name`].
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// Name in metrics, logs and `/explain`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::Generate => "generate",
            Self::TokensIn => "tokens_in",
            Self::Embeddings => "embeddings",
            Self::Pooling => "pooling",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
        }
    }

    /// In which shape its clients read errors.
    pub fn shape(self) -> Shape {
        match self {
            Self::Messages | Self::CountTokens => Shape::Anthropic,
            Self::Generate => Shape::SgLang,
            _ => Shape::OpenAi,
        }
    }

    /// Whether a request fills or reads an engine's KV cache. What does not is sent to the worker with the least to do.
    pub fn prefills(self) -> bool {
        !matches!(self, Self::CountTokens | Self::Tokenize | Self::Detokenize)
    }

    /// Whether a conversation begins with instructions of whoever wrote the client.
    pub(super) fn has_system_prompt(self) -> bool {
        matches!(self, Self::Chat | Self::Responses | Self::Messages | Self::CountTokens)
    }

    /// Whether tokens come one after the other.
    pub fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::Messages | Self::Generate | Self::TokensIn
        )
    }

    /// Whether `model` may be left out where there is only one: engines that have one model do not ask for its name.
    pub fn may_omit_model(self) -> bool {
        matches!(
            self,
            Self::Generate
                | Self::TokensIn
                | Self::Pooling
                | Self::Rerank
                | Self::Score
                | Self::Tokenize
                | Self::Detokenize
        )
    }

    /// Whether streams tell their usage only to those who ask for it in `stream_options`.
    pub(super) fn asks_for_usage(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::TokensIn)
    }
}
