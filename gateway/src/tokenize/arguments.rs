//! Everything but the conversation that a chat template is called with, in each dialect's words.

use super::json::{self, Unreadable};
use super::model::Chat;
use super::request::NoPrompt;
use crate::parse::{Dialect, Parsed, Scanner};
use minijinja::Value;
use minijinja::value::ValueKind;

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

/// Whether a known field reaches the template beside the conversation.
pub(super) fn changes_rendering(name: &str) -> bool {
    !matches!(
        name,
        "tool_choice" | "add_special_tokens" | "kv_transfer_params" | "system" | "instructions" | "metadata" | "echo"
    )
}

/// Everything but the messages that a template is called with.
pub(super) struct Arguments {
    pub(super) pairs: Vec<(String, Value)>,
    pub(super) continue_final: bool,
}

impl Arguments {
    /// Of a request that sets nothing.
    pub(super) fn plain() -> Self {
        let null = || Value::from(());
        let pairs = [("documents", null()), ("tools", null()), ("add_generation_prompt", Value::from(true))];
        Self { pairs: pairs.map(|(name, value)| (name.to_owned(), value)).into(), continue_final: false }
    }

    /// Of a request that asks for `effort` alone.
    pub(super) fn of_effort(effort: &'static str) -> Self {
        let mut arguments = Self::plain();
        arguments.set_effort(Value::from(effort));
        arguments
    }

    /// Of a request.
    pub(super) fn read(chat: &Chat, parsed: &Parsed, body: &str) -> Result<Self, NoPrompt> {
        let field = |name: &str| parsed.template_span(name).map(|span| &body[span]);
        let flag = |name: &str, default: bool| field(name).map_or(default, |value| value == "true");
        let (generation, continue_final) = (flag("add_generation_prompt", true), flag("continue_final_message", false));
        if generation && continue_final {
            return Err(NoPrompt::Unsupported("continue_final_message with add_generation_prompt"));
        }
        let mut arguments = Self { pairs: Vec::new(), continue_final };
        if let Some(kwargs) = field("chat_template_kwargs") {
            let mut scanner = Scanner::again(kwargs.as_bytes(), 0, 1);
            json::members(kwargs, &mut scanner, |key, scanner| {
                if RESERVED.contains(&key.as_ref()) {
                    return Err(Unreadable::Unsupported("reserved chat_template_kwargs"));
                }
                arguments.pairs.push((key.into_owned(), json::read_value(kwargs, scanner, 2)?));
                Ok(())
            })?;
        }
        let (effort, tools): (_, ReadTool) = match parsed.dialect {
            Dialect::Messages | Dialect::CountTokens => {
                (anthropic_effort(chat, field("thinking"), field("output_config"))?, read_anthropic_tool)
            }
            Dialect::Responses => (member(field("reasoning"), "effort")?, read_responses_tool),
            _ => (field("reasoning_effort").map(json::read).transpose()?, read_tool),
        };
        if let Some(effort) = effort {
            if !effort.as_str().is_some_and(|effort| EFFORTS.contains(&effort)) {
                return Err(NoPrompt::Unsupported("reasoning_effort"));
            }
            arguments.set_effort(effort);
        }
        let documents = field("documents").map(json::read).transpose()?;
        let tools = parsed.tools.clone().map(|span| read_tools(&body[span], parsed.dialect, tools)).transpose()?;
        arguments.set("documents", documents.unwrap_or_else(|| Value::from(())));
        arguments.set("tools", tools.flatten().unwrap_or_else(|| Value::from(())));
        arguments.set("add_generation_prompt", Value::from(generation));
        Ok(arguments)
    }

    fn set(&mut self, name: &str, value: Value) {
        self.pairs.push((name.to_owned(), value));
    }

    /// An effort also says whether to think at all, unless the client says that itself.
    fn set_effort(&mut self, effort: Value) {
        if !self.pairs.iter().any(|(key, _)| key == "enable_thinking") {
            self.set("enable_thinking", Value::from(effort.as_str() != Some("none")));
        }
        self.set("reasoning_effort", effort);
    }
}

/// Reads one tool of a dialect.
type ReadTool = fn(&Value) -> Result<Value, NoPrompt>;

/// A member of an optional object; null counts as absent.
fn member(object: Option<&str>, name: &str) -> Result<Option<Value>, NoPrompt> {
    let Some(object) = object else { return Ok(None) };
    let value = json::read(object)?.get_attr(name).map_err(NoPrompt::Failed)?;
    Ok((!value.is_none() && !value.is_undefined()).then_some(value))
}

/// The effort that the engine makes of Anthropic's fields.
fn anthropic_effort(
    chat: &Chat,
    thinking: Option<&str>,
    output_config: Option<&str>,
) -> Result<Option<Value>, NoPrompt> {
    let thinking = member(thinking, "type")?;
    match thinking.as_ref().and_then(Value::as_str) {
        Some("disabled") => Ok(Some(Value::from(chat.disabled_effort()))),
        Some("enabled" | "adaptive") => member(output_config, "effort"),
        None if thinking.is_none() => member(output_config, "effort"),
        _ => Err(NoPrompt::Unsupported("thinking")),
    }
}

/// Tools as the engine hands them to the template: known fields in its order, absent ones as null. An empty list is none
/// in Responses and unproven elsewhere.
fn read_tools(json: &str, dialect: Dialect, read: ReadTool) -> Result<Option<Value>, NoPrompt> {
    let tools = json::read(json)?;
    let tools = tools.try_iter().map_err(NoPrompt::Failed)?;
    let tools: Vec<Value> = tools.map(|tool| read(&tool)).collect::<Result<_, _>>()?;
    match (tools.is_empty(), dialect) {
        (false, _) => Ok(Some(Value::from(tools))),
        (true, Dialect::Responses) => Ok(None),
        (true, _) => Err(NoPrompt::Unsupported("empty tools")),
    }
}

const SHAPE: NoPrompt = NoPrompt::Unsupported("tool");

/// A member that is there.
fn field(map: &Value, name: &str) -> Option<Value> {
    map.get_attr(name).ok().filter(|value| !value.is_undefined())
}

/// A member of the given type; null counts as absent.
fn typed(map: &Value, name: &str, kind: ValueKind) -> Result<Option<Value>, NoPrompt> {
    match field(map, name).filter(|value| !value.is_none()) {
        Some(value) if value.kind() != kind => Err(SHAPE),
        value => Ok(value),
    }
}

/// OpenAI's chat shape: `{"type": "function", "function": {…}}`.
fn read_tool(tool: &Value) -> Result<Value, NoPrompt> {
    let function = typed(tool, "function", ValueKind::Map)?.ok_or(SHAPE)?;
    let kind = field(tool, "type");
    if kind.is_some_and(|kind| kind.as_str() != Some("function")) {
        return Err(SHAPE);
    }
    let defer_outer = typed(tool, "defer_loading", ValueKind::Bool)?;
    let defer_inner = typed(&function, "defer_loading", ValueKind::Bool)?.or_else(|| defer_outer.clone());
    let parameters = typed(&function, "parameters", ValueKind::Map)?;
    tool_value(&function, parameters, defer_inner, defer_outer)
}

/// Anthropic's shape: `{"name", "description", "input_schema"}`.
fn read_anthropic_tool(tool: &Value) -> Result<Value, NoPrompt> {
    let schema = typed(tool, "input_schema", ValueKind::Map)?.ok_or(SHAPE)?;
    let schema = if field(&schema, "type").is_some() { schema } else { with_object_type(&schema)? };
    tool_value(tool, Some(schema), typed(tool, "defer_loading", ValueKind::Bool)?, None)
}

/// A schema without a type is that of an object.
fn with_object_type(schema: &Value) -> Result<Value, NoPrompt> {
    let mut pairs = Vec::new();
    for key in schema.try_iter().map_err(NoPrompt::Failed)? {
        let value = schema.get_item(&key).map_err(NoPrompt::Failed)?;
        pairs.push((key, value));
    }
    pairs.push((Value::from("type"), Value::from("object")));
    Ok(Value::from_pairs(pairs))
}

/// The Responses shape: `{"type": "function", "name", "description", "parameters", "strict"}`. Built-in and custom tools
/// are the engine's to describe.
fn read_responses_tool(tool: &Value) -> Result<Value, NoPrompt> {
    let known = |key: Value| {
        matches!(key.as_str(), Some("type" | "name" | "description" | "parameters" | "strict" | "defer_loading"))
    };
    let function = field(tool, "type").is_some_and(|kind| kind.as_str() == Some("function"));
    if !function || !tool.try_iter().map_err(NoPrompt::Failed)?.all(known) {
        return Err(SHAPE);
    }
    let parameters = typed(tool, "parameters", ValueKind::Map)?;
    tool_value(tool, parameters, typed(tool, "defer_loading", ValueKind::Bool)?, None)
}

/// A tool as the template sees it; name, description and strictness are those of `function`.
fn tool_value(
    function: &Value,
    parameters: Option<Value>,
    defer_inner: Option<Value>,
    defer_outer: Option<Value>,
) -> Result<Value, NoPrompt> {
    let name = typed(function, "name", ValueKind::String)?.ok_or(SHAPE)?;
    let description = typed(function, "description", ValueKind::String)?;
    let strict = typed(function, "strict", ValueKind::Bool)?;
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
