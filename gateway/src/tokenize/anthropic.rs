//! Anthropic's conversation → the chat messages that the engine (vLLM 0.32) makes of it.
//!
//! Rules read off the engine: text blocks of `system` become one system message, without the line of Claude Code that
//! changes with every request; a block list of one text is that text; tool results come before the rest of their message;
//! thinking becomes reasoning; what a template cannot see (cache control, signatures, redacted thinking) vanishes. Where
//! the template wants system messages first, those in between are moved there. Images, documents and changes to the list
//! of tools are *unsupported*: such a request is routed by text.

use super::json::{self, Unreadable, spans, text_at};
use super::messages::{Message, Piece};
use crate::parse::{PREAMBLE, Scanner};
use minijinja::Value;
use std::borrow::Cow;

const CONTENT: Unreadable = Unreadable::Unsupported("content block");

/// Reads the JSON values of `system` and `messages`; `merge_system`: the template wants system messages first.
pub(super) fn read<'a>(
    system: Option<&'a str>,
    messages: &'a str,
    merge_system: bool,
) -> Result<Vec<Message<'a>>, Unreadable> {
    let mut reader = Reader { merge_system, leading: Vec::new(), messages: Vec::new() };
    match system {
        Some(text) if text.starts_with('"') => reader.lead(Piece::Text(json::string(text, &mut start(text, 0))?))?,
        Some(list) => reader.leading.extend(system_texts(list)?),
        None => {}
    }
    json::elements(&mut start(messages, 1), |scanner| reader.message(messages, scanner))?;
    reader.finish()
}

fn start(json: &str, depth: u32) -> Scanner<'_> {
    Scanner::again(json.as_bytes(), 0, depth)
}

struct Reader<'a> {
    merge_system: bool,
    /// Parts of the first system message.
    leading: Vec<Piece<'a>>,
    messages: Vec<Message<'a>>,
}

/// What the blocks of one message come to.
#[derive(Default)]
struct Blocks<'a> {
    texts: Vec<Piece<'a>>,
    reasoning: Option<String>,
    calls: Vec<Value>,
}

impl<'a> Reader<'a> {
    fn lead(&mut self, piece: Piece<'a>) -> Result<(), Unreadable> {
        if !piece.text()?.is_empty() {
            self.leading.push(piece);
        }
        Ok(())
    }

    fn message(&mut self, json: &'a str, scanner: &mut Scanner<'_>) -> Result<(), Unreadable> {
        let [role, content] = spans(json, scanner, ["role", "content"])?;
        let role = text_at(json, role)?;
        let content = &json[content.ok_or(CONTENT)?];
        match (role.as_ref(), content.as_bytes().first()) {
            ("system", _) => self.inline_system(content),
            ("user" | "assistant", Some(b'"')) => {
                let text = Piece::raw(content)?;
                self.push(Message { role, pieces: vec![text], single: true, ..Message::default() })
            }
            ("user" | "assistant", Some(b'[')) => self.blocks(role, content),
            _ => Err(CONTENT),
        }
    }

    fn push(&mut self, message: Message<'a>) -> Result<(), Unreadable> {
        self.messages.push(message.finish()?);
        Ok(())
    }

    /// A system message among the others.
    fn inline_system(&mut self, content: &'a str) -> Result<(), Unreadable> {
        let texts = match content.as_bytes().first() {
            Some(b'"') => {
                let text = json::string(content, &mut start(content, 0))?;
                if text.starts_with(PREAMBLE) { Vec::new() } else { vec![Piece::Text(text)] }
            }
            Some(b'[') => system_texts(content)?,
            _ => return Err(CONTENT),
        };
        if self.merge_system {
            return texts.into_iter().try_for_each(|text| self.lead(text));
        }
        match join(&texts)? {
            Some(text) => self.push(system(text)),
            None => Ok(()),
        }
    }

    fn blocks(&mut self, role: Cow<'a, str>, content: &'a str) -> Result<(), Unreadable> {
        let mut blocks = Blocks::default();
        json::elements(&mut start(content, 1), |scanner| self.block(&role, content, scanner, &mut blocks))?;
        let Blocks { texts, reasoning, calls } = blocks;
        if role == "user" && texts.is_empty() {
            return Ok(());
        }
        let single = texts.len() == 1;
        let tool_calls = (!calls.is_empty()).then(|| Value::from(calls));
        let reasoning = reasoning.map(Cow::Owned);
        self.push(Message { role, pieces: texts, single, reasoning, tool_calls, ..Message::default() })
    }

    fn block(
        &mut self,
        role: &str,
        json: &'a str,
        scanner: &mut Scanner<'_>,
        blocks: &mut Blocks<'a>,
    ) -> Result<(), Unreadable> {
        let names = ["type", "text", "thinking", "id", "name", "input", "tool_use_id", "content"];
        let [kind, text, thinking, id, name, input, tool_use_id, content] = spans(json, scanner, names)?;
        match text_at(json, kind)?.as_ref() {
            "text" => {
                if let Some(text) = text {
                    let piece = Piece::raw(&json[text])?;
                    if !piece.is_empty() {
                        blocks.texts.push(piece);
                    }
                }
            }
            "thinking" => {
                if thinking.is_some() {
                    *blocks.reasoning.get_or_insert_default() += &text_at(json, thinking)?;
                }
            }
            "redacted_thinking" => {}
            "tool_use" => {
                let input = input.map_or("{}", |input| &json[input]);
                blocks.calls.push(call(text_at(json, id)?, text_at(json, name)?, input)?);
            }
            "tool_result" if role == "user" => {
                let text = content.map_or(Ok(Cow::Borrowed("")), |content| result_text(&json[content]))?;
                let id = tool_use_id.map_or(Ok(Cow::Borrowed("")), |id| text_at(json, Some(id)))?;
                let (pieces, tool_call_id) = (vec![Piece::Text(text)], Some(Value::from(id)));
                let role = Cow::Borrowed("tool");
                self.push(Message { role, pieces, single: true, tool_call_id, ..Message::default() })?;
            }
            _ => return Err(CONTENT),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Message<'a>>, Unreadable> {
        if let Some(text) = join(&self.leading)? {
            self.messages.insert(0, system(text).finish()?);
        }
        if self.messages.is_empty() {
            return Err(Unreadable::Unsupported("no messages"));
        }
        Ok(self.messages)
    }
}

fn system(text: String) -> Message<'static> {
    let (role, pieces) = (Cow::Borrowed("system"), vec![Piece::Text(Cow::Owned(text))]);
    Message { role, pieces, single: true, ..Message::default() }
}

/// Texts of a list of system blocks, without empty ones and those that change with every request.
fn system_texts(list: &str) -> Result<Vec<Piece<'_>>, Unreadable> {
    let mut texts = Vec::new();
    json::elements(&mut start(list, 1), |scanner| {
        let [kind, text] = spans(list, scanner, ["type", "text"])?;
        if text_at(list, kind)? != "text" {
            return Err(CONTENT);
        }
        if let Some(text) = text {
            let text = text_at(list, Some(text))?;
            if !text.is_empty() && !text.starts_with(PREAMBLE) {
                texts.push(Piece::Text(text));
            }
        }
        Ok(())
    })?;
    Ok(texts)
}

/// All texts as one, `None` where there is none.
fn join(pieces: &[Piece<'_>]) -> Result<Option<String>, Unreadable> {
    let mut all = String::new();
    for piece in pieces {
        all += &piece.text()?;
    }
    Ok((!all.is_empty()).then_some(all))
}

/// Text of a tool's result.
fn result_text(content: &str) -> Result<Cow<'_, str>, Unreadable> {
    if content.starts_with('"') {
        return json::string(content, &mut start(content, 0));
    }
    if !content.starts_with('[') {
        return Err(CONTENT);
    }
    let mut texts = Vec::new();
    json::elements(&mut start(content, 1), |scanner| {
        let [kind, text] = spans(content, scanner, ["type", "text"])?;
        if text_at(content, kind)? != "text" {
            return Err(CONTENT);
        }
        texts.push(text_at(content, text)?);
        Ok(())
    })?;
    Ok(Cow::Owned(texts.join("\n")))
}

/// A tool call as the template sees it.
fn call(id: Cow<'_, str>, name: Cow<'_, str>, input: &str) -> Result<Value, Unreadable> {
    if !input.starts_with('{') {
        return Err(CONTENT);
    }
    let function = Value::from_pairs([("arguments", json::read(input)?), ("name", Value::from(name))]);
    Ok(Value::from_pairs([("id", Value::from(id)), ("function", function), ("type", Value::from("function"))]))
}
