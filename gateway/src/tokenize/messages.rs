//! The engine's message normalisation: a chat body's `messages` → what its template sees.
//!
//! Every rule here was read off the engine (vLLM 0.32): which fields of a message survive for which role, how parts
//! become text, what happens to tool calls. A shape that the engine would refuse, or that we cannot vouch for, is
//! *unsupported*: such a request is routed by text, never by wrong ids.

use super::content::ContentFormat;
use super::json::{self, RawText, Unreadable};
use crate::parse::{PREAMBLE, Scanner};
use minijinja::Value;
use std::borrow::Cow;

/// One text of a message's content.
#[derive(Clone, Debug)]
pub(super) enum Piece<'a> {
    Raw(RawText<'a>),
    Text(Cow<'a, str>),
}

impl<'a> Piece<'a> {
    /// The string that `json` is.
    pub(super) fn raw(json: &'a str) -> Result<Self, Unreadable> {
        let mut scanner = Scanner::again(json.as_bytes(), 0, 0);
        let raw = scanner.string().map_err(|_| UNSUPPORTED_CONTENT)?;
        Ok(Self::Raw(RawText::new(json, raw)))
    }

    pub(super) fn into_text(self) -> Result<Cow<'a, str>, Unreadable> {
        match self {
            Self::Raw(raw) => raw.text().ok_or(Unreadable::Unsupported("half a surrogate pair")),
            Self::Text(text) => Ok(text),
        }
    }

    pub(super) fn text(&self) -> Result<Cow<'a, str>, Unreadable> {
        match self {
            Self::Raw(raw) => raw.text().ok_or(Unreadable::Unsupported("half a surrogate pair")),
            Self::Text(text) => Ok(text.clone()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Raw(raw) => raw.raw().is_empty(),
            Self::Text(text) => text.is_empty(),
        }
    }
}

/// One message, normalised.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message<'a> {
    pub(super) role: Cow<'a, str>,
    pub(super) pieces: Vec<Piece<'a>>,
    /// `content` was a single string.
    pub(super) single: bool,
    pub(super) content_null: bool,
    pub(super) reasoning: Option<Cow<'a, str>>,
    pub(super) reasoning_old: Option<Cow<'a, str>>,
    pub(super) tool_calls: Option<Value>,
    pub(super) tool_call_id: Option<Value>,
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) task: Option<Cow<'a, str>>,
    pub(super) tools: Option<Value>,
}

const UNSUPPORTED_CONTENT: Unreadable = Unreadable::Unsupported("content");

/// Reads the array of messages that `json`, known to be valid, holds at `start`.
pub(crate) fn read(json: &str, start: usize) -> Result<Vec<Message<'_>>, Unreadable> {
    let mut scanner = Scanner::again(json.as_bytes(), start, 1);
    let mut messages = Vec::new();
    json::elements(&mut scanner, |scanner| {
        messages.push(read_message(json, scanner)?);
        Ok(())
    })?;
    if messages.is_empty() {
        return Err(Unreadable::Unsupported("no messages"));
    }
    Ok(messages)
}

fn read_message<'a>(json: &'a str, scanner: &mut Scanner<'_>) -> Result<Message<'a>, Unreadable> {
    if scanner.peek() != Some(b'{') {
        return Err(Unreadable::Unsupported("message"));
    }
    let mut message = Message::default();
    json::members(json, scanner, |key, scanner| message.read_field(json, &key, scanner))?;
    message.finish()
}

/// A string, or `None` for null.
fn optional_text<'a>(json: &'a str, scanner: &mut Scanner<'_>) -> Result<Option<Cow<'a, str>>, Unreadable> {
    match scanner.peek() {
        Some(b'"') => json::string(json, scanner).map(Some),
        Some(b'n') => scanner.value().map(|_| None).map_err(|_| Unreadable::NotJson),
        _ => Err(Unreadable::Unsupported("field type")),
    }
}

fn required_text<'a>(json: &'a str, scanner: &mut Scanner<'_>) -> Result<Cow<'a, str>, Unreadable> {
    optional_text(json, scanner)?.ok_or(Unreadable::Unsupported("null field"))
}

impl<'a> Message<'a> {
    fn read_field(&mut self, json: &'a str, key: &str, scanner: &mut Scanner<'_>) -> Result<(), Unreadable> {
        match key {
            "role" => self.role = required_text(json, scanner)?,
            "content" => self.read_content(json, scanner)?,
            "name" => self.name = Some(required_text(json, scanner)?),
            "task" => self.task = Some(required_text(json, scanner)?),
            "reasoning" => self.reasoning = optional_text(json, scanner)?,
            "reasoning_content" => self.reasoning_old = optional_text(json, scanner)?,
            "tool_call_id" => self.tool_call_id = Some(Value::from(optional_text(json, scanner)?)),
            "tool_calls" => self.tool_calls = read_tool_calls(json, scanner)?,
            "tools" => self.tools = Some(json::read_value(json, scanner, 3)?),
            _ => {
                scanner.value().map_err(|_| Unreadable::NotJson)?;
            }
        }
        Ok(())
    }

    fn read_content(&mut self, json: &'a str, scanner: &mut Scanner<'_>) -> Result<(), Unreadable> {
        self.pieces.clear();
        (self.single, self.content_null) = (false, false);
        match scanner.peek() {
            Some(b'"') => {
                let raw = scanner.string().map_err(|_| Unreadable::NotJson)?;
                self.pieces.push(Piece::Raw(RawText::new(json, raw)));
                self.single = true;
            }
            Some(b'n') => {
                scanner.value().map_err(|_| Unreadable::NotJson)?;
                self.content_null = true;
            }
            Some(b'[') => json::elements(scanner, |scanner| {
                self.pieces.push(read_part(json, scanner)?);
                Ok(())
            })?,
            _ => return Err(UNSUPPORTED_CONTENT),
        }
        Ok(())
    }

    /// Applies what depends on the role, once all fields are known.
    pub(super) fn finish(mut self) -> Result<Self, Unreadable> {
        if self.role.is_empty() || (self.content_null && self.role != "assistant") {
            return Err(UNSUPPORTED_CONTENT);
        }
        let reasoning_old = self.reasoning_old.take();
        self.reasoning = self.reasoning.take().or(reasoning_old);
        match self.role.as_ref() {
            "assistant" => self.tool_call_id = None,
            "tool" => (self.tool_calls, self.reasoning) = (None, None),
            _ => (self.tool_calls, self.reasoning, self.tool_call_id) = (None, None, None),
        }
        if self.role == "developer" {
            // The template is told of the tools even when there are none.
            self.tools = Some(self.tools.take().unwrap_or_else(|| Value::from(())));
        } else {
            self.tools = None;
        }
        if self.role == "system" {
            self.drop_preamble()?;
        }
        Ok(self)
    }

    fn drop_preamble(&mut self) -> Result<(), Unreadable> {
        let mut kept = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces.drain(..) {
            let text = piece.text()?;
            if !text.starts_with(PREAMBLE) {
                kept.push(piece);
            } else if let Some((_, rest)) = text.split_once('\n').filter(|(_, rest)| !rest.is_empty()) {
                kept.push(Piece::Text(Cow::Owned(rest.to_owned())));
            }
        }
        self.pieces = kept;
        Ok(())
    }

    /// Role.
    pub(crate) fn role(&self) -> &str {
        &self.role
    }

    /// The content, where the message is nothing but a role and one string.
    pub(crate) fn plain(&self) -> Option<RawText<'a>> {
        let bare = self.single
            && self.reasoning.is_none()
            && self.tool_calls.is_none()
            && self.tool_call_id.is_none()
            && self.name.is_none()
            && self.task.is_none();
        match self.pieces.as_slice() {
            [Piece::Raw(raw)] if bare => Some(*raw),
            _ => None,
        }
    }

    /// All text of the content as the engine joins it.
    fn joined(&self) -> Result<String, Unreadable> {
        let mut text = String::new();
        for piece in self.pieces.iter().filter(|piece| !piece.is_empty()) {
            if !text.is_empty() {
                text.push('\n');
            }
            text += &piece.text()?;
        }
        Ok(text)
    }

    /// The content as the template gets it.
    fn content(&self, format: ContentFormat) -> Result<Value, Unreadable> {
        if format == ContentFormat::Text {
            return match self.pieces.as_slice() {
                [piece] => Ok(Value::from(piece.text()?)),
                _ => Ok(Value::from(self.joined()?)),
            };
        }
        let texts: Vec<Cow<'_, str>> = self.pieces.iter().map(Piece::text).collect::<Result<_, _>>()?;
        if self.role == "tool" {
            return Ok(Value::from(texts.join("\n")));
        }
        let parts = texts
            .iter()
            .map(|text| Value::from_pairs([("type", Value::from("text")), ("text", Value::from(text.as_ref()))]));
        Ok(parts.collect())
    }

    /// The message as the template gets it.
    fn value(&self, format: ContentFormat) -> Result<Value, Unreadable> {
        let mut pairs = vec![("role", Value::from(self.role.as_ref())), ("content", self.content(format)?)];
        pairs.extend(self.tool_calls.clone().map(|calls| ("tool_calls", calls)));
        if let Some(reasoning) = &self.reasoning {
            let reasoning = Value::from(reasoning.as_ref());
            pairs.push(("reasoning", reasoning.clone()));
            pairs.push(("reasoning_content", reasoning));
        }
        pairs.extend(self.tool_call_id.clone().map(|id| ("tool_call_id", id)));
        pairs.extend(self.name.as_deref().map(|name| ("name", Value::from(name))));
        pairs.extend(self.task.as_deref().map(|task| ("task", Value::from(task))));
        pairs.extend(self.tools.clone().map(|tools| ("tools", tools)));
        Ok(Value::from_pairs(pairs))
    }
}

/// A content part. Only text can be tokenised without the model's processor.
fn read_part<'a>(json: &'a str, scanner: &mut Scanner<'_>) -> Result<Piece<'a>, Unreadable> {
    if scanner.peek() != Some(b'{') {
        return Err(UNSUPPORTED_CONTENT);
    }
    let (mut kind, mut text, mut refusal) = (Cow::Borrowed(""), None, None);
    json::members(json, scanner, |key, scanner| {
        let slot = match key.as_ref() {
            "type" => {
                kind = required_text(json, scanner)?;
                return Ok(());
            }
            "text" => &mut text,
            "refusal" => &mut refusal,
            // With an id the engine looks for media; other fields reach some templates.
            _ => return Err(UNSUPPORTED_CONTENT),
        };
        if scanner.peek() != Some(b'"') {
            return Err(UNSUPPORTED_CONTENT);
        }
        *slot = Some(scanner.string().map_err(|_| Unreadable::NotJson)?);
        Ok(())
    })?;
    let raw = match kind.as_ref() {
        "text" => text,
        "refusal" => refusal,
        _ => None,
    };
    Ok(Piece::Raw(RawText::new(json, raw.ok_or(UNSUPPORTED_CONTENT)?)))
}

/// Tool calls with their arguments decoded; `None` for null and for an empty list, which the engine drops.
fn read_tool_calls(json: &str, scanner: &mut Scanner<'_>) -> Result<Option<Value>, Unreadable> {
    match scanner.peek() {
        Some(b'[') => {}
        Some(b'n') => return scanner.value().map(|_| None).map_err(|_| Unreadable::NotJson),
        _ => return Err(Unreadable::Unsupported("tool_calls")),
    }
    let mut calls = Vec::new();
    json::elements(scanner, |scanner| {
        calls.push(read_tool_call(json, scanner)?);
        Ok(())
    })?;
    Ok(if calls.is_empty() { None } else { Some(Value::from(calls)) })
}

fn read_tool_call(json: &str, scanner: &mut Scanner<'_>) -> Result<Value, Unreadable> {
    const SHAPE: Unreadable = Unreadable::Unsupported("tool call");
    let (mut id, mut kind, mut name, mut arguments) = (None, None, None, None);
    json::members(json, scanner, |key, scanner| {
        match key.as_ref() {
            "id" => id = Some(required_text(json, scanner)?),
            "type" => kind = Some(required_text(json, scanner)?),
            "function" => json::members(json, scanner, |key, scanner| {
                match key.as_ref() {
                    "name" => name = Some(required_text(json, scanner)?),
                    "arguments" => arguments = Some(required_text(json, scanner)?),
                    _ => {
                        scanner.value().map_err(|_| Unreadable::NotJson)?;
                    }
                }
                Ok(())
            })?,
            _ => {
                scanner.value().map_err(|_| Unreadable::NotJson)?;
            }
        }
        Ok(())
    })?;
    let (Some(id), Some("function"), Some(name), Some(arguments)) = (id, kind.as_deref(), name, arguments) else {
        return Err(SHAPE);
    };
    let function = Value::from_pairs([("arguments", decode_arguments(&arguments)?), ("name", Value::from(name))]);
    Ok(Value::from_pairs([("id", Value::from(id)), ("function", function), ("type", Value::from("function"))]))
}

/// Arguments as an object; what is not a JSON object becomes an empty one, as in the engine.
pub(super) fn decode_arguments(text: &str) -> Result<Value, Unreadable> {
    match json::read(text) {
        Ok(value) if value.kind() == minijinja::value::ValueKind::Map => Ok(value),
        // Python's JSON also reads these.
        Err(Unreadable::NotJson) if text.contains("NaN") || text.contains("Infinity") => {
            Err(Unreadable::Unsupported("tool call arguments"))
        }
        Ok(_) | Err(Unreadable::NotJson) => Ok(Value::from_pairs::<_, &str, Value>([])),
        Err(other) => Err(other),
    }
}

/// Messages for a template of the given traits: developer messages become system messages where it does not know
/// them, and all system messages then move to the front as one.
pub(crate) fn conversation(
    mut messages: Vec<Message<'_>>,
    format: ContentFormat,
    developer_role: bool,
) -> Result<Vec<Value>, Unreadable> {
    if developer_role || !messages.iter().any(|message| message.role == "developer") {
        return messages.iter().map(|message| message.value(format)).collect();
    }
    for message in messages.iter_mut().filter(|message| message.role == "developer") {
        message.role = Cow::Borrowed("system");
        message.tools = None;
    }
    let systems = messages.iter().filter(|message| message.role == "system").count();
    if systems == 1 && messages[0].role == "system" {
        return messages.iter().map(|message| message.value(format)).collect();
    }
    let mut merged = Vec::new();
    let mut values = vec![Value::from(())];
    for message in &messages {
        if message.role != "system" {
            values.push(message.value(format)?);
            continue;
        }
        let text = match format {
            ContentFormat::Text => message.joined()?,
            ContentFormat::Parts => message.pieces.iter().map(Piece::text).collect::<Result<Vec<_>, _>>()?.join("\n"),
        };
        if !text.is_empty() {
            merged.push(text);
        }
    }
    values[0] = Value::from_pairs([("role", Value::from("system")), ("content", Value::from(merged.join("\n\n")))]);
    Ok(values)
}
