//! Text to token ids and back, as the engine that is played would do it.
//!
//! Two modes, and the engine says at start which one it runs in:
//! - *tokenizer*: a Hugging Face `tokenizer.json` with the chat template beside it. Ids are those of a real engine.
//! - *bytes*: no files. Four bytes are one token and its id is a hash of them, so that equal prefixes give equal ids;
//!   a fixed plain template is used. Good for proxies and schedulers, not for token parity; ids cannot be decoded.
//!
//! Independent of the gateway on purpose: the two check each other.

mod convert;
mod messages;
mod python;
mod template;
mod words;

#[cfg(test)]
mod tests;

pub use convert::{chat_of_messages, chat_of_responses};
pub use messages::{BadMessage, ChatInput};
pub use words::{Output, OutputLength};

use serde_json::Value;
use std::path::Path;
use template::Template;
use words::Words;

/// What can go wrong with text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file that is missing or unreadable.
    #[error("{path}: {why}")]
    File {
        /// Which one.
        path: String,
        /// What the system or the parser said.
        why: String,
    },
    /// No vocabulary entries that re-tokenise to themselves.
    #[error("{0}: no plain words found in the vocabulary, so no output text can be made")]
    NoWords(String),
    /// The model has no chat template.
    #[error("this tokenizer has no chat template")]
    NoTemplate,
    /// The template refused the conversation, or does not compile.
    #[error("chat template: {0}")]
    Template(String),
    /// The encoder failed.
    #[error("tokenizer: {0}")]
    Encoder(String),
    /// Ids that stand for no text.
    #[error("this engine runs without a tokenizer and cannot turn ids into text")]
    NotInvertible,
}

/// Tokenizer, chat template and output vocabulary of one model.
pub struct Codec {
    encoder: Encoder,
    template: Option<Template>,
    words: Words,
}

enum Encoder {
    Fast(Box<fastokens::Tokenizer>),
    Bytes,
}

/// Ids of the byte mode lie below this.
const BYTE_MODE_IDS: u32 = 150_000;
/// Bytes of one token in byte mode.
const BYTE_MODE_TOKEN_BYTES: usize = 4;
/// Memory for text segments seen before; chats repeat their history with every turn.
const SEGMENT_CACHE_BYTES: usize = 32 << 20;

impl Codec {
    /// Reads `tokenizer.json` and `tokenizer_config.json` (and `chat_template.jinja`, which wins) from `folder`.
    pub fn load(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        let failed = |path: &Path, why: String| TextError::File { path: path.display().to_string(), why };
        let mut fast = fastokens::Tokenizer::from_file(&path).map_err(|e| failed(&path, e.to_string()))?;
        fast.enable_segment_cache(SEGMENT_CACHE_BYTES);
        let path = folder.join("tokenizer_config.json");
        let text = std::fs::read_to_string(&path).map_err(|e| failed(&path, e.to_string()))?;
        let config: Value = serde_json::from_str(&text).map_err(|e| failed(&path, e.to_string()))?;
        let separate = std::fs::read_to_string(folder.join("chat_template.jinja")).ok();
        let template = Template::from_config(&config, separate)?;
        let eos = template::special_token(&config, "eos_token").and_then(|text| fast.token_to_id(&text));
        let words =
            Words::from_vocabulary(&fast, eos).ok_or_else(|| TextError::NoWords(folder.display().to_string()))?;
        Ok(Self { encoder: Encoder::Fast(Box::new(fast)), template, words })
    }

    /// The mode without files.
    pub fn bytes() -> Self {
        Self { encoder: Encoder::Bytes, template: None, words: Words::of_four_bytes() }
    }

    /// Whether ids are those of a real tokenizer.
    pub fn is_real(&self) -> bool {
        matches!(self.encoder, Encoder::Fast(_))
    }

    /// Ids of `text`; `add_special` puts the model's own first and last tokens around it.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        match &self.encoder {
            Encoder::Fast(fast) => {
                fast.encode_with_special_tokens(text, add_special).map_err(|e| TextError::Encoder(e.to_string()))
            }
            Encoder::Bytes => Ok(text.as_bytes().chunks(BYTE_MODE_TOKEN_BYTES).map(byte_mode_id).collect()),
        }
    }

    /// Text of `ids`, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        match &self.encoder {
            Encoder::Fast(fast) => fast.decode(ids, false).map_err(|e| TextError::Encoder(e.to_string())),
            Encoder::Bytes => Err(TextError::NotInvertible),
        }
    }

    /// Vocabulary entries of `ids`, as the tokenizer file spells them.
    pub fn token_strings(&self, ids: &[u32]) -> Result<Vec<String>, TextError> {
        match &self.encoder {
            Encoder::Fast(fast) => {
                Ok(ids.iter().map(|&id| fast.id_to_token(id).unwrap_or_default().to_owned()).collect())
            }
            Encoder::Bytes => Err(TextError::NotInvertible),
        }
    }

    /// The prompt of a conversation.
    pub fn render(&self, chat: &ChatInput) -> Result<String, TextError> {
        match (&self.template, &self.encoder) {
            (Some(template), _) => template.render(chat),
            (None, Encoder::Bytes) => Ok(template::plain(chat)),
            (None, Encoder::Fast(_)) => Err(TextError::NoTemplate),
        }
    }

    /// Whether the template walks over content parts itself.
    pub fn wants_content_parts(&self) -> bool {
        self.template.as_ref().is_some_and(Template::wants_content_parts)
    }

    /// Whether the template fails on a system message between others: then vLLM moves those of an Anthropic conversation
    /// to its front.
    pub fn merges_system(&self) -> bool {
        let message = |role: &str| serde_json::json!({"role": role, "content": "t"});
        let messages = ["system", "user", "system", "user"].map(message).into();
        self.render(&ChatInput { messages, ..ChatInput::default() }).is_err()
    }

    /// What the model answers to `prompt`: always the same for the same prompt and `choice`.
    pub fn compose(&self, prompt: &[u32], choice: u32, length: OutputLength) -> Output {
        self.words.compose(prompt, choice, length)
    }
}

/// Id of up to four bytes.
fn byte_mode_id(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7u32, |id, &byte| id.wrapping_mul(31).wrapping_add(u32::from(byte))) % BYTE_MODE_IDS
}
