//! Request bodies → what is to be generated.

use super::error::ApiError;
use crate::engine::Life;
use crate::model::Domain;
use crate::text::{ChatInput, OutputLength};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Choices for one prompt; more is a mistake.
const MOST_CHOICES: usize = 128;
/// Prompts in one completion call.
const MOST_PROMPTS: usize = 1_024;

/// Which of the two generating routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Chat,
    Completion,
}

impl Route {
    pub(super) fn of(path: &str) -> Self {
        if path.contains("/chat/") { Self::Chat } else { Self::Completion }
    }
}

/// A call, understood.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) route: Route,
    /// The model or adapter as the client named it.
    pub(super) model: String,
    pub(super) prompts: Vec<Arc<[u32]>>,
    pub(super) choices: usize,
    pub(super) length: OutputLength,
    pub(super) stops: Vec<String>,
    pub(super) domain: Domain,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) return_token_ids: bool,
}

/// The body as an object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body).map_err(|e| ApiError::not_json(&e))? {
        Value::Object(map) => Ok(map),
        _ => Err(ApiError::bad_request("Input should be a valid dictionary", None)),
    }
}

/// Reads `body` for `route`.
pub(super) fn call(life: &Life, route: Route, body: &Map<String, Value>) -> Result<Call, ApiError> {
    let (model, lora) = served_model(life, body)?;
    let prompts = match route {
        Route::Chat => vec![chat_ids(life, body)?.into()],
        Route::Completion => completion_prompts(life, body)?,
    };
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    let length = output_length(life, route, body, longest)?;
    let choices = count(body, "n")?.unwrap_or(1);
    if !(1..=MOST_CHOICES).contains(&choices) {
        return Err(ApiError::bad_request(format!("n must be between 1 and {MOST_CHOICES}, got {choices}"), Some("n")));
    }
    let options = match body.get("stream_options") {
        None | Some(Value::Null) => &Map::new(),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(wrong_type("stream_options", "a valid dictionary")),
    };
    let salt = text(body, "cache_salt")?.map(Arc::from);
    let include_usage = flag(options, "include_usage")?;
    Ok(Call {
        route,
        model,
        prompts,
        choices,
        length,
        stops: stops(body)?,
        domain: Domain { lora, salt },
        stream: flag(body, "stream")?,
        include_usage,
        continuous_usage: flag(options, "continuous_usage_stats")? && include_usage,
        return_token_ids: flag(body, "return_token_ids")?,
    })
}

/// Ids of a chat request's prompt.
pub(super) fn chat_ids(life: &Life, body: &Map<String, Value>) -> Result<Vec<u32>, ApiError> {
    let codec = &life.config.codec;
    let chat = ChatInput::from_request(body, codec.wants_content_parts())?;
    let add_special = body.get("add_special_tokens").and_then(Value::as_bool).unwrap_or(false);
    Ok(codec.encode(&codec.render(&chat)?, add_special)?)
}

/// The model called for, and the adapter if it is one.
#[expect(clippy::type_complexity, reason = "a name and an optional (number, name)")]
pub(super) fn served_model(
    life: &Life,
    body: &Map<String, Value>,
) -> Result<(String, Option<(u32, Arc<str>)>), ApiError> {
    let config = &life.config;
    let Some(name) = text(body, "model")? else { return Ok((config.model.clone(), None)) };
    if name == config.model {
        return Ok((name.to_owned(), None));
    }
    match config.adapters.iter().position(|adapter| &**adapter == name) {
        Some(at) => Ok((name.to_owned(), Some((at as u32 + 1, config.adapters[at].clone())))),
        None => {
            let mut served = vec![config.model.as_str()];
            served.extend(config.adapters.iter().map(|adapter| &**adapter));
            Err(ApiError::unknown_model(name, &served))
        }
    }
}

fn completion_prompts(life: &Life, body: &Map<String, Value>) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let invalid = || wrong_type("prompt", "a string, a list of strings, a list of token ids or a list of those");
    let encode = |text: &str| -> Result<Arc<[u32]>, ApiError> { Ok(life.config.codec.encode(text, true)?.into()) };
    let ids = |list: &[Value]| -> Option<Arc<[u32]>> {
        list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let prompts: Vec<Arc<[u32]>> = match body.get("prompt") {
        Some(Value::String(text)) => vec![encode(text)?],
        Some(Value::Array(list)) => match list.first() {
            Some(Value::Number(_)) => vec![ids(list).ok_or_else(invalid)?],
            _ => list
                .iter()
                .map(|one| match one {
                    Value::String(text) => encode(text),
                    Value::Array(inner) => ids(inner).ok_or_else(invalid),
                    _ => Err(invalid()),
                })
                .collect::<Result<_, _>>()?,
        },
        _ => return Err(invalid()),
    };
    if prompts.is_empty() || prompts.iter().any(|prompt| prompt.is_empty()) {
        return Err(ApiError::bad_request("Please provide at least one prompt, none of them empty", Some("prompt")));
    }
    if prompts.len() > MOST_PROMPTS {
        return Err(ApiError::bad_request(format!("more than {MOST_PROMPTS} prompts"), Some("prompt")));
    }
    Ok(prompts)
}

fn output_length(
    life: &Life,
    route: Route,
    body: &Map<String, Value>,
    prompt: usize,
) -> Result<OutputLength, ApiError> {
    let context = life.config.limits.max_model_tokens;
    let (asked, param) = match (route, count(body, "max_completion_tokens")?) {
        (Route::Chat, Some(asked)) => (Some(asked), "max_completion_tokens"),
        _ => (count(body, "max_tokens")?, "max_tokens"),
    };
    match asked {
        Some(0) => Err(ApiError::bad_request(format!("{param} must be at least 1, got 0."), Some(param))),
        Some(asked) if asked > context => Err(ApiError::too_many_output_tokens(asked, context, param)),
        Some(asked) if prompt + asked > context => Err(ApiError::too_long(prompt, asked, context)),
        Some(asked) => Ok(OutputLength::Exactly(asked)),
        None if prompt >= context => Err(ApiError::too_long(prompt, 1, context)),
        // The completions route has always stopped at 16.
        None if route == Route::Completion => Ok(OutputLength::Exactly(16.min(context - prompt))),
        None => Ok(OutputLength::AtMost(context - prompt)),
    }
}

fn stops(body: &Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let invalid = || wrong_type("stop", "a string or a list of strings");
    match body.get("stop") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(stop)) => Ok(vec![stop.clone()]),
        Some(Value::Array(list)) => {
            list.iter().map(|stop| stop.as_str().map(str::to_owned).ok_or_else(invalid)).collect()
        }
        Some(_) => Err(invalid()),
    }
}

fn wrong_type(param: &str, wanted: &str) -> ApiError {
    ApiError::bad_request(format!("{param}: Input should be {wanted}"), Some(param))
}

pub(super) fn flag(body: &Map<String, Value>, name: &str) -> Result<bool, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(wrong_type(name, "a valid boolean")),
    }
}

pub(super) fn text<'a>(body: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(wrong_type(name, "a valid string")),
    }
}

fn count(body: &Map<String, Value>, name: &str) -> Result<Option<usize>, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|value| usize::try_from(value).ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(wrong_type(name, "a valid integer, not negative")),
        },
    }
}
