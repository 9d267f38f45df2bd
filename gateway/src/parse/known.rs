//! The fields that the gateway knows in each dialect, and their types. Everything else is the engine's business.

use super::Dialect;

/// A known field's type, as far as the gateway checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Any,
    /// Of any type, and looked at by the request policy.
    Guarded,
    Text,
    Flag,
    Integer,
    Array,
    Object,
    TextOrArray,
    TextOrObject,
}

impl Kind {
    pub(super) fn accepts(self, first: u8) -> bool {
        match self {
            Self::Any | Self::Guarded => true,
            Self::Text => first == b'"',
            Self::Flag => matches!(first, b't' | b'f'),
            Self::Integer => matches!(first, b'-' | b'0'..=b'9'),
            Self::Array => first == b'[',
            Self::Object => first == b'{',
            Self::TextOrArray => matches!(first, b'"' | b'['),
            Self::TextOrObject => matches!(first, b'"' | b'{'),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Any | Self::Guarded => "a value",
            Self::Text => "a string",
            Self::Flag => "true or false",
            Self::Integer => "an integer",
            Self::Array => "an array",
            Self::Object => "an object",
            Self::TextOrArray => "a string or an array",
            Self::TextOrObject => "a string or an object",
        }
    }
}

/// A name and its type.
type Field = (&'static str, Kind);

/// Known in every dialect.
const COMMON: &[Field] = &[
    ("model", Kind::Text),
    ("stream", Kind::Flag),
    ("n", Kind::Integer),
    ("cache_salt", Kind::Text),
    ("user", Kind::Text),
    ("session_id", Kind::Text),
    ("priority", Kind::Integer),
    ("kv_transfer_params", Kind::Object),
    ("best_of", Kind::Guarded),
    ("logprobs", Kind::Guarded),
    ("top_logprobs", Kind::Guarded),
    ("prompt_logprobs", Kind::Guarded),
    ("response_format", Kind::Guarded),
    ("structured_outputs", Kind::Guarded),
    ("guided_regex", Kind::Guarded),
    ("guided_grammar", Kind::Guarded),
    ("guided_json", Kind::Guarded),
    ("guided_choice", Kind::Guarded),
    ("structural_tag", Kind::Guarded),
    ("regex", Kind::Guarded),
    ("ebnf", Kind::Guarded),
    ("json_schema", Kind::Guarded),
    ("custom_logit_processor", Kind::Guarded),
    ("logits_processors", Kind::Guarded),
    ("input_embeds", Kind::Guarded),
    ("ec_transfer_params", Kind::Guarded),
    ("bootstrap_host", Kind::Guarded),
    ("bootstrap_port", Kind::Guarded),
    ("bootstrap_room", Kind::Guarded),
];

/// Further fields that change what a chat template renders, in the dialects that have them.
const CHAT: &[Field] = &[
    ("messages", Kind::Array),
    ("stream_options", Kind::Object),
    ("max_tokens", Kind::Integer),
    ("max_completion_tokens", Kind::Integer),
    ("prompt_cache_key", Kind::Text),
    ("tools", Kind::Array),
    ("tool_choice", Kind::TextOrObject),
    ("chat_template", Kind::Text),
    ("chat_template_kwargs", Kind::Object),
    ("add_generation_prompt", Kind::Flag),
    ("continue_final_message", Kind::Flag),
    ("reasoning_effort", Kind::Text),
    ("documents", Kind::Array),
    ("add_special_tokens", Kind::Flag),
    ("truncate_prompt_tokens", Kind::Integer),
];

const COMPLETIONS: &[Field] = &[
    ("prompt", Kind::TextOrArray),
    ("prompt_embeds", Kind::TextOrArray),
    ("stream_options", Kind::Object),
    ("max_tokens", Kind::Integer),
    ("echo", Kind::Flag),
    ("add_special_tokens", Kind::Flag),
    ("truncate_prompt_tokens", Kind::Integer),
];

const RESPONSES: &[Field] = &[
    ("input", Kind::TextOrArray),
    ("instructions", Kind::Text),
    ("max_output_tokens", Kind::Integer),
    ("prompt_cache_key", Kind::Text),
    ("tools", Kind::Array),
    ("reasoning", Kind::Object),
    ("chat_template_kwargs", Kind::Object),
    ("previous_response_id", Kind::Text),
    ("previous_input_messages", Kind::Array),
];

const MESSAGES: &[Field] = &[
    ("messages", Kind::Array),
    ("system", Kind::TextOrArray),
    ("max_tokens", Kind::Integer),
    ("metadata", Kind::Object),
    ("tools", Kind::Array),
    ("thinking", Kind::Object),
    ("output_config", Kind::Object),
    ("chat_template_kwargs", Kind::Object),
];

const GENERATE: &[Field] = &[
    ("text", Kind::TextOrArray),
    ("input_ids", Kind::Array),
    ("image_data", Kind::Any),
    ("audio_data", Kind::Any),
    ("video_data", Kind::Any),
    ("sampling_params", Kind::Any),
];

const TOKENS_IN: &[Field] = &[
    ("token_ids", Kind::Array),
    ("features", Kind::Object),
    ("stream_options", Kind::Object),
    ("sampling_params", Kind::Object),
];

const POOLED: &[Field] = &[
    ("input", Kind::TextOrArray),
    ("messages", Kind::Array),
    ("add_special_tokens", Kind::Flag),
    ("truncate_prompt_tokens", Kind::Integer),
];

const RERANK: &[Field] = &[("query", Kind::Any)];

const SCORE: &[Field] = &[("queries", Kind::Any), ("text_1", Kind::Any), ("data_1", Kind::Any)];

/// What is all about text and ids, nothing of it the gateway's business.
const NOTHING: &[Field] = &[];

impl Dialect {
    /// Position (for the mark of what was seen), name and type of a known field.
    pub(super) fn field(self, key: &str) -> Option<(usize, &'static str, Kind)> {
        let own = match self {
            Self::Chat => CHAT,
            Self::Completions => COMPLETIONS,
            Self::Responses => RESPONSES,
            Self::Messages | Self::CountTokens => MESSAGES,
            Self::Generate => GENERATE,
            Self::TokensIn => TOKENS_IN,
            Self::Embeddings | Self::Pooling => POOLED,
            Self::Rerank => RERANK,
            Self::Score => SCORE,
            Self::Tokenize | Self::Detokenize => NOTHING,
        };
        let all = COMMON.iter().chain(own);
        all.enumerate().find(|(_, (name, _))| *name == key).map(|(i, (name, kind))| (i, *name, *kind))
    }

    /// The name of a guarded field called `key`, which some engines take within `sampling_params` too.
    pub(super) fn guarded(key: &str) -> Option<&'static str> {
        COMMON.iter().find(|(name, kind)| *name == key && *kind == Kind::Guarded).map(|(name, _)| *name)
    }

    /// The field by which a body of its own bounds its answer; `None` where that stands elsewhere or there is no answer.
    pub(super) fn limit_field(self) -> Option<&'static str> {
        match self {
            Self::Chat | Self::Completions | Self::Messages => Some("max_tokens"),
            Self::Responses => Some("max_output_tokens"),
            _ => None,
        }
    }

    /// The field that holds the prompt and must be there; `None` where it has several names or none that matters.
    pub(super) fn prompt_field(self) -> Option<&'static str> {
        match self {
            Self::Chat | Self::Messages | Self::CountTokens => Some("messages"),
            Self::Completions => Some("prompt"),
            Self::Responses | Self::Embeddings => Some("input"),
            Self::TokensIn => Some("token_ids"),
            Self::Rerank => Some("query"),
            Self::Generate | Self::Pooling | Self::Score | Self::Tokenize | Self::Detokenize => None,
        }
    }
}
