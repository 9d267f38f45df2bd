//! Anthropic's and the Responses API's requests → the chat request that vLLM makes of them before its template runs.
//!
//! What is read: text, thinking, tool calls and their results, tools, the switches for thinking. What a template cannot
//! see (cache control, signatures) vanishes; images and documents are refused, as by an engine of a text model.

use super::BadMessage;
use serde_json::{Map, Value, json};

/// First words of the line that Claude Code puts before its system prompt, and that changes with every request.
const PREAMBLE: &str = "x-anthropic-billing-header";

fn bad<T>(param: &str, what: impl Into<String>) -> Result<T, BadMessage> {
    Err(BadMessage { param: param.to_owned(), what: what.into() })
}

/// The chat request of an Anthropic one. `merges_system`: the template takes system messages at the front alone.
pub fn chat_of_messages(body: &Map<String, Value>, merges_system: bool) -> Result<Map<String, Value>, BadMessage> {
    let Some(Value::Array(given)) = body.get("messages") else { return bad("messages", "Field required") };
    let mut leading = system_text(body.get("system"))?;
    let mut messages = Vec::new();
    for message in given {
        if message["role"] == "system" {
            let text = match &message["content"] {
                Value::String(text) if text.starts_with(PREAMBLE) => String::new(),
                content => system_text(Some(content))?,
            };
            if merges_system {
                leading += &text;
            } else if !text.is_empty() {
                messages.push(json!({"role": "system", "content": text}));
            }
            continue;
        }
        read_message(message, &mut messages)?;
    }
    if !leading.is_empty() {
        messages.insert(0, json!({"role": "system", "content": leading}));
    }
    let mut chat = kept(body);
    chat.insert("messages".to_owned(), messages.into());
    if let Some(Value::Array(tools)) = body.get("tools") {
        let tools: Result<Vec<Value>, BadMessage> = tools.iter().map(anthropic_tool).collect();
        chat.insert("tools".to_owned(), tools?.into());
    }
    let effort = match body.get("thinking").map(|thinking| &thinking["type"]) {
        Some(Value::String(kind)) if kind == "disabled" => Some(json!("low")),
        _ => body.get("output_config").map(|config| config["effort"].clone()).filter(|effort| !effort.is_null()),
    };
    if body.get("thinking").is_some_and(|thinking| thinking["type"] == "disabled") {
        set_thinking(&mut chat, false);
    } else if effort.is_some() {
        set_thinking(&mut chat, true);
    }
    Ok(chat)
}

/// Tells the template whether to think, unless the client said so itself.
fn set_thinking(chat: &mut Map<String, Value>, on: bool) {
    let kwargs = chat.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if let Value::Object(kwargs) = kwargs {
        kwargs.entry("enable_thinking").or_insert(on.into());
    }
}

/// What passes from one request to the other as it is.
fn kept(body: &Map<String, Value>) -> Map<String, Value> {
    let names = ["chat_template_kwargs"];
    let kept = names.into_iter().filter_map(|name| Some((name.to_owned(), body.get(name)?.clone())));
    kept.filter(|(_, value)| !value.is_null()).collect()
}

/// A system prompt without its first line, where that changes with every request.
fn stable(text: &str) -> &str {
    if text.starts_with(PREAMBLE) { text.split_once('\n').map_or("", |(_, rest)| rest) } else { text }
}

/// Text of `system`: a string, or text blocks without those that change with every request.
fn system_text(system: Option<&Value>) -> Result<String, BadMessage> {
    match system {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(stable(text).to_owned()),
        Some(Value::Array(blocks)) => {
            let mut all = String::new();
            for block in blocks {
                match (block["type"].as_str(), block["text"].as_str()) {
                    (Some("text"), Some(text)) if !text.starts_with(PREAMBLE) => all += text,
                    (Some("text"), _) => {}
                    _ => return bad("system", "Input should be text blocks"),
                }
            }
            Ok(all)
        }
        Some(_) => bad("system", "Input should be a string or text blocks"),
    }
}

fn read_message(message: &Value, messages: &mut Vec<Value>) -> Result<(), BadMessage> {
    let role = message["role"].as_str().unwrap_or_default();
    if !matches!(role, "user" | "assistant") {
        return bad("messages.role", "Input should be 'user' or 'assistant'");
    }
    let blocks = match &message["content"] {
        Value::String(text) => {
            messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => return bad("messages.content", "Input should be a string or a list of blocks"),
    };
    let (mut texts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    for block in blocks {
        let text = |name: &str| block[name].as_str().unwrap_or_default();
        match text("type") {
            "text" if text("text").is_empty() => {}
            "text" => texts.push(json!({"type": "text", "text": text("text")})),
            "thinking" => reasoning += text("thinking"),
            "redacted_thinking" => {}
            "tool_use" => calls.push(json!({
                "id": text("id"), "type": "function",
                "function": {"name": text("name"), "arguments": block["input"].to_string()},
            })),
            "tool_result" if role == "user" => {
                let content = result_text(&block["content"])?;
                messages.push(json!({"role": "tool", "content": content, "tool_call_id": text("tool_use_id")}));
            }
            kind => return bad("messages.content", format!("this model does not support `{kind}` blocks")),
        }
    }
    if texts.is_empty() && role == "user" {
        return Ok(());
    }
    let content = match texts.as_slice() {
        [] => Value::Null,
        [only] => only["text"].clone(),
        _ => texts.into(),
    };
    let mut out = json!({"role": role, "content": content});
    if !calls.is_empty() {
        out["tool_calls"] = calls.into();
    }
    if !reasoning.is_empty() {
        out["reasoning"] = reasoning.into();
    }
    messages.push(out);
    Ok(())
}

fn result_text(content: &Value) -> Result<String, BadMessage> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) if blocks.iter().all(|block| block["type"] == "text") => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            Ok(texts.join("\n"))
        }
        _ => bad("messages.content", "a tool's result should be text"),
    }
}

fn anthropic_tool(tool: &Value) -> Result<Value, BadMessage> {
    let Some(schema) = tool["input_schema"].as_object() else {
        return bad("tools.input_schema", "Field required");
    };
    let mut schema = schema.clone();
    schema.entry("type").or_insert("object".into());
    Ok(function_tool(tool, &schema.into()))
}

/// OpenAI's shape of a tool.
fn function_tool(tool: &Value, parameters: &Value) -> Value {
    let mut function = json!({"name": tool["name"], "description": tool["description"], "parameters": parameters});
    for name in ["strict", "defer_loading"] {
        if tool[name].is_boolean() {
            function[name] = tool[name].clone();
        }
    }
    json!({"type": "function", "function": function})
}

/// The chat request of a Responses one.
pub fn chat_of_responses(body: &Map<String, Value>) -> Result<Map<String, Value>, BadMessage> {
    let mut messages = Vec::new();
    match body.get("instructions") {
        Some(Value::String(text)) if !text.is_empty() => {
            messages.push(json!({"role": "system", "content": stable(text)}));
        }
        _ => {}
    }
    match body.get("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => {
            for item in items {
                read_item(item, &mut messages)?;
            }
        }
        _ => return bad("input", "Input should be a string or a list of items"),
    }
    if messages.is_empty() {
        return bad("input", "there is nothing to answer");
    }
    let mut chat = kept(body);
    chat.insert("messages".to_owned(), messages.into());
    if let Some(Value::Array(tools)) = body.get("tools") {
        let tools = tools.iter().map(|tool| function_tool(tool, &tool["parameters"]));
        chat.insert("tools".to_owned(), tools.collect());
    }
    if let Some(Value::String(effort)) = body.get("reasoning").map(|reasoning| &reasoning["effort"]) {
        set_thinking(&mut chat, effort != "none");
    }
    Ok(chat)
}

fn read_item(item: &Value, messages: &mut Vec<Value>) -> Result<(), BadMessage> {
    let text = |name: &str| item[name].as_str().unwrap_or_default();
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let role = text("role");
            if !matches!(role, "user" | "assistant" | "system" | "developer") {
                return bad("input.role", format!("unknown role `{role}`"));
            }
            let content = match &item["content"] {
                Value::String(text) => text.clone().into(),
                Value::Array(parts) => parts_of(parts, if role == "assistant" { "output_text" } else { "input_text" })?,
                _ => return bad("input.content", "Input should be a string or a list of parts"),
            };
            if role == "assistant" {
                let content = content.get(0).map_or(content.clone(), |first| first["text"].clone());
                assistant(messages, "content")["content"] = content;
            } else {
                messages.push(json!({"role": role, "content": content}));
            }
        }
        "reasoning" => {
            let first = |name: &str| item[name].get(0).and_then(|part| part["text"].as_str());
            let thought = first("content").or_else(|| first("summary")).unwrap_or_default().to_owned();
            assistant(messages, "reasoning")["reasoning"] = thought.into();
        }
        "function_call" => {
            let function = json!({"name": text("name"), "arguments": text("arguments")});
            let call = json!({"id": text("call_id"), "type": "function", "function": function});
            let message = assistant(messages, "");
            if !message["tool_calls"].is_array() {
                message["tool_calls"] = json!([]);
            }
            if let Some(calls) = message["tool_calls"].as_array_mut() {
                calls.push(call);
            }
        }
        "function_call_output" => {
            messages.push(json!({"role": "tool", "content": text("output"), "tool_call_id": text("call_id")}));
        }
        kind => return bad("input.type", format!("this model does not support `{kind}` items")),
    }
    Ok(())
}

/// The assistant's message at the end unless it has `field` already, else a new one.
fn assistant<'a>(messages: &'a mut Vec<Value>, field: &str) -> &'a mut Value {
    let fits = messages.last().is_some_and(|last| last["role"] == "assistant" && last[field].is_null());
    if !fits {
        messages.push(json!({"role": "assistant"}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn parts_of(parts: &[Value], wanted: &str) -> Result<Value, BadMessage> {
    let part = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some(kind), Some(text)) if kind == wanted => Ok(json!({"type": "text", "text": text})),
        (kind, _) => bad("input.content", format!("this model does not support `{}` parts", kind.unwrap_or_default())),
    };
    parts.iter().map(part).collect()
}
