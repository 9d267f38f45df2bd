//! A parsed request → the prompt text that the engine would tokenise.

use super::arguments::{Arguments, changes_rendering};
use super::json::{self, Unreadable};
use super::messages::{self, Message};
use super::model::Chat;
use super::template::Chosen;
use super::{anthropic, responses};
use crate::parse::{Dialect, Parsed, Scanner};
use minijinja::Value;
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

/// What the engine appends to the message that it is to continue, to find its end in the rendered text.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Ids of a prompt that needs no tokenizer at all.
pub(crate) fn given_ids(parsed: &Parsed) -> Option<Vec<u32>> {
    let may = matches!(
        parsed.dialect,
        Dialect::Completions | Dialect::Generate | Dialect::TokensIn | Dialect::Embeddings | Dialect::Pooling
    );
    if !may || altered(parsed).is_some() {
        return None;
    }
    let body = std::str::from_utf8(&parsed.body).ok()?;
    let prompt = body.get(parsed.prompt.clone())?;
    read_ids(prompt).or_else(|| read_ids(only_element(prompt)?)).filter(|ids| !ids.is_empty())
}

/// What makes the engine's prompt another than the text or the ids that are there: it may be cut, or go on in what is no
/// text. Images, audio and embeddings are such: routing by text then keeps equal prompts together, and promises no hit.
fn altered(parsed: &Parsed) -> Option<&'static str> {
    const ALTERING: [&str; 9] = [
        "truncate_prompt_tokens",
        "prompt_embeds",
        "image_data",
        "audio_data",
        "video_data",
        "features",
        "previous_response_id",
        "previous_input_messages",
        // A second prompt: which of the two counts is the engine's to say.
        "input_ids",
    ];
    if parsed.guarded.iter().any(|(name, _)| *name == "input_embeds") {
        return Some("input_embeds");
    }
    ALTERING.into_iter().find(|name| parsed.template_span(name).is_some())
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
    if let Some(what) = altered(parsed) {
        return Err(NoPrompt::Unsupported(what));
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
        // A list of messages here has another template and no answer to prompt for.
        Dialect::Embeddings | Dialect::Pooling if parsed.prompt_field == "messages" => {
            Err(NoPrompt::Unsupported("pooled chat"))
        }
        Dialect::Completions | Dialect::Generate | Dialect::Embeddings | Dialect::Pooling => {
            let text = completion_text(body, parsed.prompt.clone())?.into_owned();
            Ok(Prompt { text, special: special(true) })
        }
        Dialect::Chat | Dialect::Messages | Dialect::CountTokens => {
            Ok(Prompt { text: chat_text(chat, parsed, body)?, special: special(false) })
        }
        // The engine's Responses path leaves the tokenizer's special tokens on, template or not.
        Dialect::Responses => Ok(Prompt { text: chat_text(chat, parsed, body)?, special: true }),
        Dialect::TokensIn => Err(NoPrompt::Unsupported("token_ids")),
        Dialect::Rerank | Dialect::Score => Err(NoPrompt::Unsupported("pairs of texts")),
        Dialect::Tokenize | Dialect::Detokenize => Err(NoPrompt::Unsupported("nothing is computed")),
    }
}

/// The conversation of `parsed`, as the engine hands it to the chat template.
fn conversation<'a>(chat: &Chat, parsed: &Parsed, body: &'a str) -> Result<Vec<Message<'a>>, Unreadable> {
    match parsed.dialect {
        Dialect::Messages | Dialect::CountTokens => {
            let system = parsed.template_span("system").map(|span| &body[span]);
            anthropic::read(system, &body[parsed.prompt.clone()], chat.merges_system())
        }
        Dialect::Responses => {
            let instructions = parsed.template_span("instructions").map(|span| &body[span]);
            responses::read(instructions, &body[parsed.prompt.clone()])
        }
        _ => messages::read(body, parsed.prompt.start),
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

pub(crate) fn chat_text(chat: &Chat, parsed: &Parsed, body: &str) -> Result<String, NoPrompt> {
    if parsed.template_span("chat_template").is_some() {
        return Err(NoPrompt::Unsupported("chat_template"));
    }
    let messages = conversation(chat, parsed, body)?;
    let bare = parsed.tools.is_none() && !parsed.template_fields.iter().any(|(name, _)| changes_rendering(name));
    if bare && let Some(text) = chat.concatenated(&messages) {
        return checked(chat, messages, text);
    }
    let chosen = chat.templates.choose(parsed.tools.is_some()).ok_or(NoPrompt::Unsupported("no template"))?;
    let arguments = Arguments::read(chat, parsed, body)?;
    render(chat, chosen, messages, arguments)
}

/// One in so many concatenated prompts is rendered by the template too.
const CHECK_EVERY: u32 = 256;

/// `text`, the concatenated prompt of `messages`; on a sample the template's, and if they differ the shortcut is over.
fn checked(chat: &Chat, messages: Vec<Message<'_>>, text: String) -> Result<String, NoPrompt> {
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
    render_with(chat, messages, Arguments::plain())
}

/// The effort that the engine asks for where Anthropic's clients turn thinking off: `low` for a template that refuses or
/// ignores `none`.
pub(crate) fn disabled_effort(chat: &Chat) -> &'static str {
    const PROBE: &str = r#"[{"role":"user","content":"Hi"}]"#;
    let with = |effort| render_with(chat, PROBE, Arguments::of_effort(effort));
    let Some(none) = with("none") else { return "low" };
    let ignored =
        ["low", "medium", "high", "xhigh", "max"].into_iter().any(|effort| with(effort).as_ref() == Some(&none));
    if ignored { "low" } else { "none" }
}

fn render_with(chat: &Chat, messages: &str, arguments: Arguments) -> Option<String> {
    let chosen = chat.templates.choose(false)?;
    render(chat, chosen, messages::read(messages, 0).ok()?, arguments).ok()
}

/// Renders messages with a template.
fn render(
    chat: &Chat,
    chosen: Chosen<'_>,
    messages: Vec<Message<'_>>,
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
