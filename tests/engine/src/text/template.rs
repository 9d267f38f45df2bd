//! Chat templates, rendered as the engine's Jinja renders them.

use super::messages::ChatInput;
use super::{TextError, python};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::Value as Json;

/// Instructions that one rendering may use; a template of a real model needs some thousand for a long chat.
const RENDER_FUEL: u64 = 20_000_000;
const NAME: &str = "chat";

/// A compiled template with the special tokens it may name.
pub(super) struct Template {
    environment: Environment<'static>,
    specials: Vec<(&'static str, String)>,
    wants_content_parts: bool,
}

impl Template {
    /// The template of a `tokenizer_config.json`, or `separate` (a `chat_template.jinja`) where there is one.
    pub(super) fn from_config(config: &Json, separate: Option<String>) -> Result<Option<Self>, TextError> {
        let inside = match config.get("chat_template") {
            Some(Json::String(source)) => Some(source.clone()),
            // Several named ones: the one called "default".
            Some(Json::Array(named)) => named
                .iter()
                .find(|one| one["name"] == "default")
                .and_then(|one| one["template"].as_str())
                .map(str::to_owned),
            _ => None,
        };
        let Some(source) = separate.or(inside) else { return Ok(None) };
        let mut environment = environment();
        let wants_content_parts = iterates_content(&source);
        environment.add_template_owned(NAME, source).map_err(|e| TextError::Template(e.to_string()))?;
        let names = ["bos_token", "eos_token", "pad_token", "unk_token"];
        let specials = names.into_iter().filter_map(|name| Some((name, special_token(config, name)?))).collect();
        Ok(Some(Self { environment, specials, wants_content_parts }))
    }

    pub(super) fn wants_content_parts(&self) -> bool {
        self.wants_content_parts
    }

    /// The prompt of `chat`. What the template raises is the error's text.
    pub(super) fn render(&self, chat: &ChatInput) -> Result<String, TextError> {
        let mut context: Vec<(String, Value)> =
            self.specials.iter().map(|(name, text)| ((*name).to_owned(), Value::from(text.as_str()))).collect();
        context.push(("messages".to_owned(), Value::from(Serde(&chat.messages))));
        if let Some(tools) = &chat.tools {
            context.push(("tools".to_owned(), Value::from(Serde(tools))));
        }
        context.push(("add_generation_prompt".to_owned(), Value::from(chat.add_generation_prompt)));
        context.push(("continue_final_message".to_owned(), Value::from(chat.continue_final_message)));
        for (name, value) in &chat.template_kwargs {
            context.push((name.clone(), Value::from(Serde(value))));
        }
        let template = self.environment.get_template(NAME).map_err(|e| TextError::Template(e.to_string()))?;
        let context = Value::from_pairs(context);
        template.render(context).map_err(|e| TextError::Template(e.to_string()))
    }
}

/// A special token of the configuration, which spells it as text or as an added-token object.
pub(super) fn special_token(config: &Json, name: &str) -> Option<String> {
    let token = config.get(name)?;
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// The template of the byte mode: prefix-stable, so that caches can be observed.
pub(super) fn plain(chat: &ChatInput) -> String {
    let mut out = String::new();
    for message in &chat.messages {
        let role = message["role"].as_str().unwrap_or_default();
        let content = match &message["content"] {
            Json::String(text) => text.clone(),
            other => other.to_string(),
        };
        out.push_str(&format!("<|{role}|>\n{content}\n"));
    }
    if chat.add_generation_prompt {
        out.push_str("<|assistant|>\n");
    }
    out
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(RENDER_FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", |value: &Value, kwargs: Kwargs| python::tojson(value, kwargs));
    environment.add_function("raise_exception", |what: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, what))
    });
    environment
}

/// Whether some loop of the template walks over a message's content: then parts are handed over as a list, else as
/// joined text.
fn iterates_content(source: &str) -> bool {
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        rest = &rest[at + 2..];
        let block = &rest[..rest.find("%}").unwrap_or(rest.len())];
        let block = block.trim_matches(['-', ' ', '\t', '\n']);
        let Some((_, over)) = block.strip_prefix("for ").and_then(|b| b.split_once(" in ")) else { continue };
        let over = over.split(['|', ' ']).next().unwrap_or_default();
        if over.ends_with(".content") || over.ends_with("['content']") || over.ends_with("[\"content\"]") {
            return true;
        }
    }
    false
}
