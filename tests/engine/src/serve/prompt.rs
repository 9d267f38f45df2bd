//! The prompts of a call, as ids.

use super::error::ApiError;
use super::fields::wrong_type;
use super::route::Route;
use crate::engine::Life;
use crate::text::{ChatInput, chat_of_messages, chat_of_responses};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Prompts in one completion call.
const MOST_PROMPTS: usize = 1_024;

/// Ids of every prompt of `body`.
pub(super) fn of(life: &Life, route: Route, body: &Map<String, Value>) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let codec = &life.config.codec;
    match route {
        Route::Chat => match given_chat_ids(body)? {
            Some(ids) => Ok(vec![given(life, ids)]),
            None => Ok(vec![chat_ids(life, body)?.into()]),
        },
        Route::Messages => Ok(vec![messages_ids(life, body)?.into()]),
        Route::Responses => {
            let chat = ChatInput::from_request(&chat_of_responses(body)?, codec.wants_content_parts())?;
            Ok(vec![codec.encode(&codec.render(&chat)?, true)?.into()])
        }
        Route::Completion => listed(life, body, "prompt"),
        Route::Generate if body.get("input_ids").is_some_and(|ids| !ids.is_null()) => listed(life, body, "input_ids"),
        Route::Generate => listed(life, body, "text"),
        Route::TokensIn => match body.get("token_ids") {
            Some(Value::Array(list)) if !list.is_empty() => Ok(vec![given(life, ids(list, "token_ids")?)]),
            _ => Err(wrong_type("token_ids", "a list of token ids, at least one")),
        },
    }
}

/// Ids of a chat request's prompt.
pub(super) fn chat_ids(life: &Life, body: &Map<String, Value>) -> Result<Vec<u32>, ApiError> {
    let codec = &life.config.codec;
    let chat = ChatInput::from_request(body, codec.wants_content_parts())?;
    let add_special = body.get("add_special_tokens").and_then(Value::as_bool).unwrap_or(false);
    Ok(codec.encode(&codec.render(&chat)?, add_special)?)
}

/// Ids of an Anthropic conversation.
pub(super) fn messages_ids(life: &Life, body: &Map<String, Value>) -> Result<Vec<u32>, ApiError> {
    chat_ids(life, &chat_of_messages(body, life.config.codec.merges_system())?)
}

/// SGLang and TensorRT-LLM take a chat's ids beside its messages.
fn given_chat_ids(body: &Map<String, Value>) -> Result<Option<Arc<[u32]>>, ApiError> {
    for name in ["input_ids", "prompt_token_ids"] {
        if let Some(Value::Array(list)) = body.get(name) {
            return Ok(Some(ids(list, name)?));
        }
    }
    Ok(None)
}

/// Text, a list of texts, ids or a list of those.
pub(super) fn listed(life: &Life, body: &Map<String, Value>, name: &str) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let invalid = || wrong_type(name, "a string, a list of strings, a list of token ids or a list of those");
    let encode = |text: &str| -> Result<Arc<[u32]>, ApiError> { Ok(life.config.codec.encode(text, true)?.into()) };
    let prompts: Vec<Arc<[u32]>> = match body.get(name) {
        Some(Value::String(text)) => vec![encode(text)?],
        Some(Value::Array(list)) => match list.first() {
            Some(Value::Number(_)) => vec![given(life, ids(list, name)?)],
            _ => list
                .iter()
                .map(|one| match one {
                    Value::String(text) => encode(text),
                    Value::Array(inner) => Ok(given(life, ids(inner, name)?)),
                    _ => Err(invalid()),
                })
                .collect::<Result<_, _>>()?,
        },
        _ => return Err(invalid()),
    };
    if prompts.is_empty() || prompts.iter().any(|prompt| prompt.is_empty()) {
        return Err(ApiError::bad_request("Please provide at least one prompt, none of them empty", Some(name)));
    }
    if prompts.len() > MOST_PROMPTS {
        return Err(ApiError::bad_request(format!("more than {MOST_PROMPTS} prompts"), Some(name)));
    }
    Ok(prompts)
}

fn ids(list: &[Value], name: &str) -> Result<Arc<[u32]>, ApiError> {
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    list.iter().map(id).collect::<Option<_>>().ok_or_else(|| wrong_type(name, "a list of token ids"))
}

/// Counts a prompt that needed no tokenising.
fn given(life: &Life, ids: Arc<[u32]>) -> Arc<[u32]> {
    life.given_prompts.fetch_add(1, Ordering::Relaxed);
    ids
}
