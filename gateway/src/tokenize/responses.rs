//! The Responses API's input → the chat messages that the engine (vLLM 0.32) makes of it.
//!
//! Rules read off the engine: `instructions` are a system message; reasoning, text and function calls that follow each
//! other are one assistant message as far as each of the three was not there yet; of an assistant's parts the first
//! counts. Earlier responses, encrypted reasoning, images and files are *unsupported*: such a request is routed by text.

use super::json::{self, Unreadable, spans, text_at};
use super::messages::{Message, Piece, decode_arguments};
use crate::parse::Scanner;
use minijinja::Value;
use std::borrow::Cow;
use std::ops::Range;

const ITEM: Unreadable = Unreadable::Unsupported("input item");

/// Reads the JSON values of `instructions` and `input`.
pub(super) fn read<'a>(instructions: Option<&'a str>, input: &'a str) -> Result<Vec<Message<'a>>, Unreadable> {
    let mut drafts: Vec<Draft<'a>> = Vec::new();
    if let Some(instructions) = instructions {
        let text = Piece::raw(instructions)?;
        if !text.is_empty() {
            drafts.push(Draft::of(Cow::Borrowed("system"), vec![text], true));
        }
    }
    if input.starts_with('"') {
        drafts.push(Draft::of(Cow::Borrowed("user"), vec![Piece::raw(input)?], true));
    } else {
        let mut last_is_open = false;
        json::elements(&mut Scanner::again(input.as_bytes(), 0, 1), |scanner| {
            let item = Item::read(input, scanner)?;
            last_is_open = item.is_open()?;
            item.append(&mut drafts)
        })?;
        if last_is_open {
            return Err(Unreadable::Unsupported("a message to continue"));
        }
    }
    if drafts.is_empty() {
        return Err(Unreadable::Unsupported("no messages"));
    }
    drafts.into_iter().map(Draft::finish).collect()
}

/// A message that following items may add to.
struct Draft<'a> {
    message: Message<'a>,
    /// An assistant's message has text.
    has_content: bool,
    calls: Vec<Value>,
}

impl<'a> Draft<'a> {
    fn of(role: Cow<'a, str>, pieces: Vec<Piece<'a>>, single: bool) -> Self {
        let message = Message { role, pieces, single, ..Message::default() };
        Self { message, has_content: true, calls: Vec::new() }
    }

    fn finish(self) -> Result<Message<'a>, Unreadable> {
        let Self { mut message, calls, .. } = self;
        message.tool_calls = (!calls.is_empty()).then(|| Value::from(calls));
        message.finish()
    }
}

/// The assistant's message at the end of `drafts` if `fits` it, else a new one without anything.
fn assistant<'a, 'd>(
    drafts: &'d mut Vec<Draft<'a>>,
    fits: impl Fn(&Draft<'a>) -> bool,
) -> Result<&'d mut Draft<'a>, Unreadable> {
    if !drafts.last().is_some_and(|last| last.message.role() == "assistant" && fits(last)) {
        let empty = Draft { has_content: false, ..Draft::of(Cow::Borrowed("assistant"), Vec::new(), false) };
        drafts.push(empty);
    }
    drafts.last_mut().ok_or(ITEM)
}

/// One element of `input`, its members by place.
struct Item<'a> {
    json: &'a str,
    kind: Option<Range<usize>>,
    role: Option<Range<usize>>,
    content: Option<Range<usize>>,
    status: Option<Range<usize>>,
    call_id: Option<Range<usize>>,
    name: Option<Range<usize>>,
    arguments: Option<Range<usize>>,
    output: Option<Range<usize>>,
    summary: Option<Range<usize>>,
    unsupported: bool,
}

impl<'a> Item<'a> {
    fn read(json: &'a str, scanner: &mut Scanner<'_>) -> Result<Self, Unreadable> {
        let names = [
            "type",
            "role",
            "content",
            "status",
            "call_id",
            "name",
            "arguments",
            "output",
            "summary",
            "encrypted_content",
            "namespace",
        ];
        let [kind, role, content, status, call_id, name, arguments, output, summary, encrypted, namespace] =
            spans(json, scanner, names)?;
        let unsupported = encrypted.is_some() || namespace.is_some();
        Ok(Self { json, kind, role, content, status, call_id, name, arguments, output, summary, unsupported })
    }

    /// An unfinished message of the assistant, which the engine continues if it is the last.
    fn is_open(&self) -> Result<bool, Unreadable> {
        match &self.status {
            None => Ok(false),
            status => Ok(matches!(text_at(self.json, status.clone())?.as_ref(), "in_progress" | "incomplete")),
        }
    }

    fn append(self, drafts: &mut Vec<Draft<'a>>) -> Result<(), Unreadable> {
        if self.unsupported {
            return Err(ITEM);
        }
        let kind = match &self.kind {
            Some(kind) => text_at(self.json, Some(kind.clone()))?,
            None => Cow::Borrowed("message"),
        };
        match kind.as_ref() {
            "message" => self.message(drafts),
            "reasoning" => self.reasoning(drafts),
            "function_call" => {
                let text = |span: &Option<Range<usize>>| text_at(self.json, span.clone());
                let arguments = decode_arguments(&text(&self.arguments)?)?;
                let function = Value::from_pairs([("arguments", arguments), ("name", Value::from(text(&self.name)?))]);
                let pairs = [
                    ("id", Value::from(text(&self.call_id)?)),
                    ("function", function),
                    ("type", Value::from("function")),
                ];
                assistant(drafts, |_| true)?.calls.push(Value::from_pairs(pairs));
                Ok(())
            }
            "function_call_output" => {
                let output = Piece::raw(&self.json[self.output.clone().ok_or(ITEM)?])?;
                let mut draft = Draft::of(Cow::Borrowed("tool"), vec![output], true);
                draft.message.tool_call_id = Some(Value::from(text_at(self.json, self.call_id)?));
                drafts.push(draft);
                Ok(())
            }
            _ => Err(ITEM),
        }
    }

    fn message(self, drafts: &mut Vec<Draft<'a>>) -> Result<(), Unreadable> {
        let json = self.json;
        let role = text_at(json, self.role)?;
        let content = &json[self.content.ok_or(ITEM)?];
        let single = content.starts_with('"');
        match role.as_ref() {
            "assistant" => {
                let text =
                    if single { Piece::raw(content)? } else { first_text(content, "output_text")?.ok_or(ITEM)? };
                let draft = assistant(drafts, |last| !last.has_content)?;
                (draft.message.pieces, draft.message.single) = (vec![text], true);
                draft.has_content = true;
            }
            "user" | "system" | "developer" if single => {
                drafts.push(Draft::of(role, vec![Piece::raw(content)?], true));
            }
            "user" | "system" | "developer" => drafts.push(Draft::of(role, texts(content, "input_text")?, false)),
            _ => return Err(ITEM),
        }
        Ok(())
    }

    fn reasoning(self, drafts: &mut Vec<Draft<'a>>) -> Result<(), Unreadable> {
        let of = |span: Option<Range<usize>>, kind| span.map_or(Ok(None), |span| first_text(&self.json[span], kind));
        let summary = of(Some(self.summary.clone().ok_or(ITEM)?), "summary_text")?;
        let text = of(self.content.clone(), "reasoning_text")?.or(summary);
        let text = text.map_or(Ok(Cow::Borrowed("")), |piece| piece.into_text())?;
        assistant(drafts, |last| last.message.reasoning.is_none())?.message.reasoning = Some(text);
        Ok(())
    }
}

/// Texts of a list of parts that all have the type `wanted`.
fn texts<'a>(list: &'a str, wanted: &str) -> Result<Vec<Piece<'a>>, Unreadable> {
    if !list.starts_with('[') {
        return Err(ITEM);
    }
    let mut pieces = Vec::new();
    json::elements(&mut Scanner::again(list.as_bytes(), 0, 1), |scanner| {
        let [kind, text] = spans(list, scanner, ["type", "text"])?;
        if text_at(list, kind)? != wanted {
            return Err(ITEM);
        }
        pieces.push(Piece::raw(&list[text.ok_or(ITEM)?])?);
        Ok(())
    })?;
    Ok(pieces)
}

fn first_text<'a>(list: &'a str, wanted: &str) -> Result<Option<Piece<'a>>, Unreadable> {
    Ok(texts(list, wanted)?.into_iter().next())
}
