//! A parsed request → the prompt text that the engine would tokenise.

use super::json::{self, Unreadable};
use super::messages;
use super::model::Chat;
use super::template::Chosen;
use crate::parse::{Dialect, Parsed, Scanner};
use minijinja::Value;
use minijinja::value::ValueKind;
use std::borrow::Cow;
use std::ops::Range;

/// A prompt, ready for the encoder.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// What the model reads.
    pub(crate) text: String,
    /// Whether the tokenizer adds its special tokens (BOS, …) around it.
    pub(crate) special: bool,
}

/// Why a request has no prompt text here.
#[derive(Debug)]
pub(crate) enum NoPrompt {
    /// A shape that only the engine renders.
    Unsupported(&'static str),
    /// The template refused or failed; the engine's answer will say the same.
    Failed(minijinja::Error),
}

impl From<Unreadable> for NoPrompt {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::NotJson => Self::Unsupported("json"),
            Unreadable::Unsupported(what) => Self::Unsupported(what),
        }
    }
}

/// Arguments that the engine's template call takes by name: from a client they would change more than the template.
const RESERVED: &[&str] = &[
    "chat_template",
    "continue_final_message",
    "conversation",
    "documents",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
];

/// Efforts that the engine takes; it refuses others.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What the engine appends to the message that it is to continue, to find its end in the rendered text.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Ids of a completion prompt that needs no tokenizer at all.
pub(crate) fn given_ids(parsed: &Parsed) -> Option<Vec<u32>> {
    if parsed.dialect != Dialect::Completions || truncated(parsed) {
        return None;
    }
    let body = std::str::from_utf8(&parsed.body).ok()?;
    let prompt = body.get(parsed.prompt.clone())?;
    read_ids(prompt).or_else(|| read_ids(only_element(prompt)?)).filter(|ids| !ids.is_empty())
}

fn truncated(parsed: &Parsed) -> bool {
    parsed.template_span("truncate_prompt_tokens").is_some() || parsed.template_span("prompt_embeds").is_some()
}

fn read_ids(array: &str) -> Option<Vec<u32>> {
    let inner = array.strip_prefix('[')?.strip_suffix(']')?;
    let mut ids = Vec::with_capacity(inner.len() / 5 + 1);
    for number in inner.split(',') {
        ids.push(number.trim_ascii().parse().ok()?);
    }
    Some(ids)
}

/// The element of an array that has exactly one.
fn only_element(array: &str) -> Option<&str> {
    let mut scanner = Scanner::again(array.as_bytes(), 1, 1);
    if !array.starts_with('[') {
        return None;
    }
    let span = scanner.value().ok()?;
    scanner.skip_space();
    (scanner.peek() == Some(b']')).then(|| &array[span])
}

/// Renders the prompt of `parsed` for `chat`. `body` is the request's body as text.
pub(crate) fn prompt(chat: &Chat, parsed: &Parsed, body: &str) -> Result<Prompt, NoPrompt> {
    if truncated(parsed) {
        return Err(NoPrompt::Unsupported("truncated or embedded prompt"));
    }
    if parsed
        .template_field("kv_transfer_params")
        .is_some_and(|params| memchr::memmem::find(params, b"prompt_token_ids").is_some())
    {
        return Err(NoPrompt::Unsupported("prompt_token_ids"));
    }
    let special = |default| match parsed.template_field("add_special_tokens") {
        Some(value) => value.first() == Some(&b't'),
        None => default,
    };
    match parsed.dialect {
        Dialect::Completions => {
            let text = completion_text(body, parsed.prompt.clone())?.into_owned();
            Ok(Prompt { text, special: special(true) })
        }
        Dialect::Chat => Ok(Prompt { text: chat_text(chat, parsed, body)?, special: special(false) }),
    }
}

fn completion_text(body: &str, span: Range<usize>) -> Result<Cow<'_, str>, NoPrompt> {
    let prompt = &body[span];
    let prompt = if prompt.starts_with('[') { only_element(prompt).unwrap_or("") } else { prompt };
    if !prompt.starts_with('"') {
        return Err(NoPrompt::Unsupported("several prompts"));
    }
    Ok(json::string(prompt, &mut Scanner::again(prompt.as_bytes(), 0, 0))?)
}

fn chat_text(chat: &Chat, parsed: &Parsed, body: &str) -> Result<String, NoPrompt> {
    if parsed.template_span("chat_template").is_some() {
        return Err(NoPrompt::Unsupported("chat_template"));
    }
    let messages = messages::read(body, parsed.prompt.start)?;
    let bare = parsed.tools.is_none() && !parsed.template_fields.iter().any(|(name, _)| changes_rendering(name));
    if bare && let Some(text) = chat.concatenated(&messages) {
        return checked(chat, messages, text);
    }
    let chosen = chat.templates.choose(parsed.tools.is_some()).ok_or(NoPrompt::Unsupported("no template"))?;
    let arguments = Arguments::read(parsed, body)?;
    render(chat, chosen, messages, arguments)
}

/// One in so many concatenated prompts is rendered by the template too.
const CHECK_EVERY: u32 = 256;

/// `text`, the concatenated prompt of `messages`; on a sample the template's, and if they differ the shortcut is over.
fn checked(chat: &Chat, messages: Vec<messages::Message<'_>>, text: String) -> Result<String, NoPrompt> {
    if fastrand::u32(..CHECK_EVERY) != 0 {
        return Ok(text);
    }
    let chosen = chat.templates.choose(false).ok_or(NoPrompt::Unsupported("no template"))?;
    let rendered = render(chat, chosen, messages, Arguments::plain())?;
    if rendered != text {
        tracing::error!("a learned chat template differs from the template: plain chats are rendered in full again");
        chat.forget_learned();
    }
    Ok(rendered)
}

/// Renders a JSON array of messages with the default template and default arguments.
pub(crate) fn render_plain(chat: &Chat, messages: &str) -> Option<String> {
    let chosen = chat.templates.choose(false)?;
    render(chat, chosen, messages::read(messages, 0).ok()?, Arguments::plain()).ok()
}

/// Whether a known chat field reaches the template.
fn changes_rendering(name: &str) -> bool {
    !matches!(name, "tool_choice" | "add_special_tokens" | "kv_transfer_params")
}

/// Everything but the messages that a template is called with.
struct Arguments {
    pairs: Vec<(String, Value)>,
    continue_final: bool,
}

impl Arguments {
    /// Of a request that sets nothing.
    fn plain() -> Self {
        let null = || Value::from(());
        let pairs = [("documents", null()), ("tools", null()), ("add_generation_prompt", Value::from(true))];
        Self { pairs: pairs.map(|(name, value)| (name.to_owned(), value)).into(), continue_final: false }
    }

    fn read(parsed: &Parsed, body: &str) -> Result<Self, NoPrompt> {
        let field = |name: &str| parsed.template_span(name).map(|span| &body[span]);
        let flag = |name: &str, default: bool| field(name).map_or(default, |value| value == "true");
        let (generation, continue_final) = (flag("add_generation_prompt", true), flag("continue_final_message", false));
        if generation && continue_final {
            return Err(NoPrompt::Unsupported("continue_final_message with add_generation_prompt"));
        }
        let mut pairs = Vec::new();
        if let Some(kwargs) = field("chat_template_kwargs") {
            let mut scanner = Scanner::again(kwargs.as_bytes(), 0, 1);
            json::members(kwargs, &mut scanner, |key, scanner| {
                if RESERVED.contains(&key.as_ref()) {
                    return Err(Unreadable::Unsupported("reserved chat_template_kwargs"));
                }
                pairs.push((key.into_owned(), json::read_value(kwargs, scanner, 2)?));
                Ok(())
            })?;
        }
        if let Some(effort) = field("reasoning_effort") {
            let effort = json::read(effort)?;
            if !effort.as_str().is_some_and(|effort| EFFORTS.contains(&effort)) {
                return Err(NoPrompt::Unsupported("reasoning_effort"));
            }
            if !pairs.iter().any(|(key, _)| key == "enable_thinking") {
                pairs.push(("enable_thinking".to_owned(), Value::from(effort.as_str() != Some("none"))));
            }
            pairs.push(("reasoning_effort".to_owned(), effort));
        }
        let documents = field("documents").map(json::read).transpose()?;
        let tools = parsed.tools.clone().map(|span| read_tools(&body[span])).transpose()?;
        pairs.push(("documents".to_owned(), documents.unwrap_or_else(|| Value::from(()))));
        pairs.push(("tools".to_owned(), tools.unwrap_or_else(|| Value::from(()))));
        pairs.push(("add_generation_prompt".to_owned(), Value::from(generation)));
        Ok(Self { pairs, continue_final })
    }
}

/// Renders messages with a template.
fn render(
    chat: &Chat,
    chosen: Chosen<'_>,
    messages: Vec<messages::Message<'_>>,
    arguments: Arguments,
) -> Result<String, NoPrompt> {
    let traits = chosen.traits;
    let mut values = messages::conversation(messages, traits.format, traits.developer_role)?;
    let continued = if arguments.continue_final { Some(tag_last(&mut values)?) } else { None };
    let pairs = chat.special_tokens.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str())));
    let pairs = pairs.chain(arguments.pairs).chain([("messages".to_owned(), Value::from(values))]);
    let mut text = chat.templates.render(chosen, Value::from_pairs(pairs)).map_err(NoPrompt::Failed)?;
    if let Some(last) = continued {
        cut_at_tag(&mut text, &last)?;
    }
    Ok(text)
}

/// Appends the tag to the last message's text and returns that text as it was.
fn tag_last(messages: &mut [Value]) -> Result<String, NoPrompt> {
    const NOTHING: NoPrompt = NoPrompt::Unsupported("nothing to continue");
    let Some(message) = messages.last_mut() else { return Err(NOTHING) };
    let content = message.get_attr("content").map_err(NoPrompt::Failed)?;
    let (text, content) = match content.as_str() {
        Some(text) => (text.to_owned(), Value::from(format!("{text}{CONTINUE_TAG}"))),
        None => {
            let mut parts: Vec<Value> = content.try_iter().map_err(NoPrompt::Failed)?.collect();
            let Some(part) = parts.last_mut() else { return Err(NOTHING) };
            let text = part.get_attr("text").map_err(NoPrompt::Failed)?.to_string();
            *part = with_entry(part, "text", Value::from(format!("{text}{CONTINUE_TAG}")))?;
            (text, Value::from(parts))
        }
    };
    *message = with_entry(message, "content", content)?;
    Ok(text)
}

/// A copy of a map with one entry replaced.
fn with_entry(map: &Value, name: &str, value: Value) -> Result<Value, NoPrompt> {
    let mut pairs = Vec::new();
    for key in map.try_iter().map_err(NoPrompt::Failed)? {
        let old = map.get_item(&key).map_err(NoPrompt::Failed)?;
        let replaced = key.as_str() == Some(name);
        pairs.push((key, if replaced { value.clone() } else { old }));
    }
    Ok(Value::from_pairs(pairs))
}

/// Cuts the rendered text where the continued message ends.
fn cut_at_tag(text: &mut String, last: &str) -> Result<(), NoPrompt> {
    let tag = text.rfind(CONTINUE_TAG.trim_end()).filter(|_| text.contains(last.trim()));
    let tag = tag.ok_or(NoPrompt::Unsupported("the template drops the message to continue"))?;
    let spaced = text[tag..].starts_with(CONTINUE_TAG);
    text.truncate(tag);
    if !spaced {
        // The template trims messages, so the text before the tag is to be trimmed too.
        text.truncate(text.trim_end().len());
    }
    Ok(())
}

/// Tools as the engine hands them to the template: known fields in its order, absent ones as null.
fn read_tools(json: &str) -> Result<Value, NoPrompt> {
    let tools = json::read(json)?;
    let tools = tools.try_iter().map_err(NoPrompt::Failed)?;
    let tools: Vec<Value> = tools.map(|tool| read_tool(&tool)).collect::<Result<_, _>>()?;
    if tools.is_empty() {
        return Err(NoPrompt::Unsupported("empty tools"));
    }
    Ok(Value::from(tools))
}

fn read_tool(tool: &Value) -> Result<Value, NoPrompt> {
    const SHAPE: NoPrompt = NoPrompt::Unsupported("tool");
    let field = |map: &Value, name: &str| map.get_attr(name).ok().filter(|value| !value.is_undefined());
    let present = |map: &Value, name: &str| field(map, name).filter(|value| !value.is_none());
    let function = present(tool, "function").filter(|f| f.kind() == ValueKind::Map).ok_or(SHAPE)?;
    let kind = field(tool, "type");
    if kind.is_some_and(|kind| kind.as_str() != Some("function")) {
        return Err(SHAPE);
    }
    let name = present(&function, "name").filter(|name| name.kind() == ValueKind::String).ok_or(SHAPE)?;
    let typed = |map: &Value, name: &str, kind: ValueKind| match present(map, name) {
        Some(value) if value.kind() != kind => Err(SHAPE),
        value => Ok(value),
    };
    let description = typed(&function, "description", ValueKind::String)?;
    let parameters = typed(&function, "parameters", ValueKind::Map)?;
    let strict = typed(&function, "strict", ValueKind::Bool)?;
    let defer_outer = typed(tool, "defer_loading", ValueKind::Bool)?;
    let defer_inner = typed(&function, "defer_loading", ValueKind::Bool)?.or_else(|| defer_outer.clone());
    let null = || Value::from(());
    let mut pairs = vec![
        ("name", name),
        ("description", description.unwrap_or_else(null)),
        ("parameters", parameters.unwrap_or_else(null)),
    ];
    pairs.extend(strict.map(|strict| ("strict", strict)));
    pairs.extend(defer_inner.map(|defer| ("defer_loading", defer)));
    let mut tool = vec![("type", Value::from("function")), ("function", Value::from_pairs(pairs))];
    tool.extend(defer_outer.map(|defer| ("defer_loading", defer)));
    Ok(Value::from_pairs(tool))
}
