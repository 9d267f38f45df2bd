//! What the engine makes of a chat request before the template sees it.
//!
//! Roles, content and tool calls are brought to one shape: `developer` becomes `system`, text parts are joined by a
//! line break (unless the template walks over parts itself), a missing content becomes empty text, tool-call
//! arguments become objects, `reasoning` is known under both its names, tools get their declared fields in order.

use serde_json::{Map, Value};

/// A conversation ready for the template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatInput {
    /// Normalised messages.
    pub messages: Vec<Value>,
    /// Tool declarations.
    pub tools: Option<Vec<Value>>,
    /// Ask for the head of an assistant message at the end.
    pub add_generation_prompt: bool,
    /// The last message is to be continued.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`.
    pub template_kwargs: Map<String, Value>,
}

/// A field of the wrong shape: which, and what was wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{param}: {what}")]
pub struct BadMessage {
    /// Path of the field, `messages[2].content` say.
    pub param: String,
    /// What was wanted.
    pub what: String,
}

fn bad<T>(param: impl Into<String>, what: impl Into<String>) -> Result<T, BadMessage> {
    Err(BadMessage { param: param.into(), what: what.into() })
}

impl ChatInput {
    /// Reads `messages`, `tools` and the template options of a request. `keep_parts` leaves content parts a list.
    pub fn from_request(body: &Map<String, Value>, keep_parts: bool) -> Result<Self, BadMessage> {
        let Some(Value::Array(messages)) = body.get("messages") else {
            return bad("messages", "Input should be a valid list");
        };
        if messages.is_empty() {
            return bad("messages", "at least one message is needed");
        }
        let messages: Result<Vec<Value>, BadMessage> =
            messages.iter().enumerate().map(|(at, message)| normalise(at, message, keep_parts)).collect();
        let template_kwargs = match body.get("chat_template_kwargs") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(kwargs)) => kwargs.clone(),
            Some(_) => return bad("chat_template_kwargs", "Input should be a valid dictionary"),
        };
        Ok(Self {
            messages: messages?,
            tools: declared_tools(body)?,
            add_generation_prompt: flag(body, "add_generation_prompt", true)?,
            continue_final_message: flag(body, "continue_final_message", false)?,
            template_kwargs,
        })
    }
}

fn flag(body: &Map<String, Value>, name: &str, default: bool) -> Result<bool, BadMessage> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => bad(name, "Input should be a valid boolean"),
    }
}

fn normalise(at: usize, message: &Value, keep_parts: bool) -> Result<Value, BadMessage> {
    let path = |field: &str| format!("messages[{at}].{field}");
    let Value::Object(message) = message else { return bad(format!("messages[{at}]"), "Input should be an object") };
    let Some(Value::String(role)) = message.get("role") else {
        return bad(path("role"), "Input should be a valid string");
    };
    let role = if role == "developer" { "system" } else { role };
    let mut out = Map::new();
    out.insert("role".to_owned(), role.into());
    out.insert("content".to_owned(), content(&path("content"), message.get("content"), keep_parts)?);
    if role == "assistant" {
        if let Some(calls) = tool_calls(&path("tool_calls"), message.get("tool_calls"))? {
            out.insert("tool_calls".to_owned(), calls);
        }
        let reasoning = message.get("reasoning").or_else(|| message.get("reasoning_content"));
        if let Some(text @ Value::String(_)) = reasoning {
            out.insert("reasoning".to_owned(), text.clone());
            out.insert("reasoning_content".to_owned(), text.clone());
        }
    }
    for name in ["tool_call_id", "name"] {
        let wanted = name == "name" || role == "tool";
        if let (true, Some(text @ Value::String(_))) = (wanted, message.get(name)) {
            out.insert(name.to_owned(), text.clone());
        }
    }
    Ok(Value::Object(out))
}

fn content(path: &str, content: Option<&Value>, keep_parts: bool) -> Result<Value, BadMessage> {
    let parts = match content {
        None | Some(Value::Null) => &[][..],
        Some(Value::String(text)) if keep_parts => return Ok(serde_json::json!([{"type": "text", "text": text}])),
        Some(Value::String(text)) => return Ok(text.clone().into()),
        Some(Value::Array(parts)) => parts,
        Some(_) => return bad(path, "Input should be a valid string or a list of content parts"),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        match (part, part.get("type").and_then(Value::as_str), part.get("text")) {
            (Value::String(text), _, _) | (_, None | Some("text"), Some(Value::String(text))) => {
                texts.push(text.as_str())
            }
            (_, Some("refusal"), _) if part["refusal"].is_string() => {
                texts.push(part["refusal"].as_str().unwrap_or_default());
            }
            (_, Some(kind), _) if kind != "text" => {
                return bad(format!("{path}[{at}]"), format!("this model does not support `{kind}` input"));
            }
            _ => return bad(format!("{path}[{at}].text"), "Input should be a valid string"),
        }
    }
    if keep_parts {
        let parts: Vec<Value> = texts.iter().map(|text| serde_json::json!({"type": "text", "text": text})).collect();
        return Ok(parts.into());
    }
    Ok(texts.join("\n").into())
}

fn tool_calls(path: &str, calls: Option<&Value>) -> Result<Option<Value>, BadMessage> {
    let calls = match calls {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(calls)) if calls.is_empty() => return Ok(None),
        Some(Value::Array(calls)) => calls,
        Some(_) => return bad(path, "Input should be a valid list"),
    };
    let mut out = Vec::with_capacity(calls.len());
    for (at, call) in calls.iter().enumerate() {
        let mut call = call.clone();
        let Some(Value::Object(function)) = call.get_mut("function") else {
            return bad(format!("{path}[{at}].function"), "Field required");
        };
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(Value::String(text)) if text.is_empty() => Value::Object(Map::new()),
            Some(Value::String(text)) => match serde_json::from_str(text) {
                Ok(parsed) => parsed,
                Err(e) => return bad(format!("{path}[{at}].function.arguments"), format!("not JSON: {e}")),
            },
            Some(other) => other.clone(),
        };
        function.insert("arguments".to_owned(), arguments);
        out.push(call);
    }
    Ok(Some(out.into()))
}

/// Tools as the engine re-writes them: declared fields first and always there, others after.
fn declared_tools(body: &Map<String, Value>) -> Result<Option<Vec<Value>>, BadMessage> {
    let tools = match body.get("tools") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(tools)) if tools.is_empty() => return Ok(None),
        Some(Value::Array(tools)) => tools,
        Some(_) => return bad("tools", "Input should be a valid list"),
    };
    let mut out = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let (Value::Object(tool), Some(Value::Object(function))) = (tool, tool.get("function")) else {
            return bad(format!("tools[{at}].function"), "Field required");
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return bad(format!("tools[{at}].function.name"), "Input should be a valid string");
        }
        let function =
            ordered(function, &[("name", Value::Null), ("description", Value::Null), ("parameters", Value::Null)]);
        let mut declared = ordered(tool, &[("type", "function".into()), ("function", Value::Null)]);
        declared.insert("function".to_owned(), function.into());
        out.push(declared.into());
    }
    Ok(Some(out))
}

fn ordered(given: &Map<String, Value>, declared: &[(&str, Value)]) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, default) in declared {
        out.insert((*name).to_owned(), given.get(*name).unwrap_or(default).clone());
    }
    for (name, value) in given {
        if !out.contains_key(name) {
            out.insert(name.clone(), value.clone());
        }
    }
    out
}
