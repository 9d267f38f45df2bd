//! One model's local tokenizer: encoder, chat templates and special tokens, loaded from a directory.

use super::encoder::Encoder;
use super::learned::{self, Learned};
use super::messages::Message;
use super::request;
use super::template::Templates;
use crate::config::resolved;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_128;

/// Names under which templates find special tokens.
const SPECIAL_TOKENS: &[&str] =
    &["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Everything needed to turn requests for one model into ids.
pub(crate) struct Local {
    /// Encoder.
    pub(crate) encoder: Encoder,
    /// What renders its chats.
    pub(crate) chat: Chat,
    /// Identity of `tokenizer.json`.
    pub(crate) digest: [u8; 16],
}

/// What turns chats into text.
pub(crate) struct Chat {
    /// Chat templates.
    pub(crate) templates: Templates,
    /// Special tokens by the names that templates use.
    pub(crate) special_tokens: Vec<(String, String)>,
    /// What was learned of the default template.
    learned: Option<Learned>,
    /// See [`Chat::disabled_effort`].
    disabled_effort: OnceLock<&'static str>,
}

impl Local {
    /// Loads `tokenizer.json`, `tokenizer_config.json` and the chat templates of a model.
    ///
    /// # Errors
    /// What is missing or broken, with its path.
    pub(crate) fn load(directory: &Path, model: &resolved::Model) -> Result<Self, String> {
        let path = directory.join("tokenizer.json");
        let json = read(&path)?;
        let encoder = Encoder::load(&json).map_err(|e| format!("{}: {e}", path.display()))?;
        let config_path = directory.join("tokenizer_config.json");
        let config: Value = if config_path.exists() {
            let text = read(&config_path)?;
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", config_path.display()))?
        } else {
            Value::Null
        };
        let sources = template_sources(directory, model, &config)?;
        let special_tokens = SPECIAL_TOKENS.iter().filter_map(|name| {
            let token = &config[name];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some(((*name).to_owned(), text.to_owned()))
        });
        let chat = Chat::new(sources, special_tokens.collect())
            .map_err(|e| format!("chat template of {}: {e:#}", model.name))?;
        Ok(Self { encoder, chat, digest: xxh3_128(json.as_bytes()).to_le_bytes() })
    }
}

impl Chat {
    /// Compiles templates (name → Jinja) and learns the default one.
    pub(crate) fn new(
        sources: BTreeMap<String, String>,
        special_tokens: Vec<(String, String)>,
    ) -> Result<Self, minijinja::Error> {
        let mut chat = Self {
            templates: Templates::compile(sources)?,
            special_tokens,
            learned: None,
            disabled_effort: OnceLock::new(),
        };
        chat.learned = Learned::learn(&chat);
        Ok(chat)
    }

    /// Whether the engine moves the system messages of an Anthropic conversation to its front.
    pub(crate) fn merges_system(&self) -> bool {
        self.templates.wants_system_first()
    }

    /// Which effort turns thinking off.
    pub(crate) fn disabled_effort(&self) -> &'static str {
        self.disabled_effort.get_or_init(|| request::disabled_effort(self))
    }

    /// The rendered prompt of a plain chat, where the template was learned to be a concatenation.
    pub(crate) fn concatenated(&self, messages: &[Message<'_>]) -> Option<String> {
        self.learned.as_ref()?.render(&learned::plain(messages)?)
    }

    /// Whether plain chats are concatenated.
    pub(crate) fn uses_learned(&self) -> bool {
        self.learned.as_ref().is_some_and(Learned::is_used)
    }

    /// Renders plain chats by the template from now on.
    pub(crate) fn forget_learned(&self) {
        if let Some(learned) = &self.learned {
            learned.disable();
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Chat templates by name: the operator's file, else `chat_template.jinja`, else the tokenizer's configuration.
fn template_sources(
    directory: &Path,
    model: &resolved::Model,
    config: &Value,
) -> Result<BTreeMap<String, String>, String> {
    let named = |source: String| BTreeMap::from([("default".to_owned(), source)]);
    if let Some(path) = &model.chat_template {
        return Ok(named(read(path)?));
    }
    let file = directory.join("chat_template.jinja");
    let mut sources = match &config["chat_template"] {
        Value::String(source) => named(source.clone()),
        Value::Array(list) => {
            let pair =
                |entry: &Value| Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()));
            list.iter().filter_map(pair).collect()
        }
        _ => BTreeMap::new(),
    };
    if file.exists() {
        sources = named(read(&file)?);
    }
    let more = directory.join("additional_chat_templates");
    if let Ok(entries) = fs::read_dir(&more) {
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
                sources.insert(name.to_owned(), read(&path)?);
            }
        }
    }
    Ok(sources)
}
