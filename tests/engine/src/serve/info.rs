//! The routes that generate nothing.

use super::error::ApiError;
use super::fields::{self, flag, text};
use super::parse;
use super::prompt;
use super::reply;
use super::route::Route;
use crate::engine::Life;
use crate::http::{Request, Response};
use crate::metrics::{Metrics, Page, RankPage};
use crate::model::Load;
use crate::rank::Rank;
use crate::text::OutputLength;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The vLLM release that is played.
pub(super) const VERSION: &str = "0.32.0";

pub(super) fn answer(life: &Arc<Life>, request: &Request) -> Result<Response, ApiError> {
    let body = || fields::object(&request.body);
    match (request.method(), request.path()) {
        ("GET", "/health") | ("GET" | "POST", "/ping") => Ok(Response::empty(200)),
        ("GET", "/version") => Ok(json_response(&json!({ "version": VERSION }))),
        ("GET", "/load") => {
            let load = if life.config.load_tracking { life.in_flight.load(Ordering::Relaxed) } else { 0 };
            Ok(json_response(&json!({ "server_load": load })))
        }
        ("GET", "/v1/models") => Ok(json_response(&models(life))),
        ("GET", "/kv_event_sources") => Ok(json_response(&event_sources(life))),
        ("GET", "/metrics") => Ok(Response::new(200, "text/plain; version=1.0.0; charset=utf-8", metrics(life))),
        ("POST", "/v1/messages/count_tokens") => count_tokens(life, &body()?),
        ("POST", "/tokenize") => tokenize(life, &body()?),
        ("POST", "/detokenize") => detokenize(life, &body()?, "prompt"),
        ("POST", "/v1/chat/completions/render") => render(life, Route::Chat, &body()?, request),
        ("POST", "/v1/completions/render") => render(life, Route::Completion, &body()?, request),
        ("POST", "/reset_prefix_cache") => {
            for rank in &life.ranks {
                if !rank.reset_prefix_cache() {
                    tracing::warn!(rank = rank.index, "prefix cache not reset: requests hold blocks");
                }
            }
            Ok(Response::empty(200))
        }
        (_, path) if KNOWN_PATHS.contains(&path) => Err(ApiError::http(405)),
        _ => Err(ApiError::http(404)),
    }
}

const KNOWN_PATHS: [&str; 18] = [
    "/health",
    "/ping",
    "/version",
    "/load",
    "/v1/models",
    "/kv_event_sources",
    "/metrics",
    "/tokenize",
    "/detokenize",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/inference/v1/generate",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/reset_prefix_cache",
];

pub(super) fn json_response(value: &Value) -> Response {
    Response::json(value.to_string())
}

pub(super) fn models(life: &Life) -> Value {
    let config = &life.config;
    let created = life.started_unix_s as u64;
    let permission = json!([{
        "id": "modelperm-0000000000000000", "object": "model_permission", "created": created,
        "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false,
        "allow_view": true, "allow_fine_tuning": false, "organization": "*", "group": null, "is_blocking": false,
    }]);
    let card = |id: &str, root: &str, parent: Option<&str>, context: Option<usize>| {
        json!({
            "id": id, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent,
            "max_model_len": context, "permission": permission,
        })
    };
    let base = card(&config.model, &config.model_root, None, Some(config.limits.max_model_tokens));
    let adapters = config.adapters.iter().map(|name| card(name, name, Some(&config.model), None));
    json!({ "object": "list", "data": std::iter::once(base).chain(adapters).collect::<Vec<_>>() })
}

fn event_sources(life: &Life) -> Value {
    let Some(events) = &life.config.events else { return json!({}) };
    let mut sources = Map::new();
    for rank in &life.ranks {
        let Some((endpoint, replay)) = &rank.endpoints else { continue };
        let source = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay,
            "buffer_steps": events.buffer_batches, "hwm": 100_000, "max_queue_size": 100_000, "topic": events.topic,
        });
        sources.insert(rank.index.to_string(), source);
    }
    sources.into()
}

fn metrics(life: &Life) -> String {
    let read = |rank: &Arc<Rank>| (rank.with_metrics(|metrics| metrics.clone()), rank.load());
    let read: Vec<(Metrics, Load)> = life.ranks.iter().map(read).collect();
    let limits = &life.config.limits;
    let ranks = read.iter().map(|(metrics, load)| RankPage { metrics, load: *load, limits }).collect();
    Page { model: &life.config.model, started_unix_s: life.started_unix_s, ranks }.render()
}

pub(super) fn tokenize(life: &Life, body: &Map<String, Value>) -> Result<Response, ApiError> {
    life.tokenize_calls.fetch_add(1, Ordering::Relaxed);
    parse::served_model(life, body)?;
    let codec = &life.config.codec;
    let ids = match text(body, "prompt")? {
        Some(prompt) => {
            codec.encode(prompt, body.get("add_special_tokens").and_then(Value::as_bool).unwrap_or(true))?
        }
        None => prompt::chat_ids(life, body)?,
    };
    let strings = match flag(body, "return_token_strs")? {
        true => json!(codec.token_strings(&ids)?),
        false => Value::Null,
    };
    Ok(json_response(&json!({
        "count": ids.len(), "max_model_len": life.config.limits.max_model_tokens, "tokens": ids, "token_strs": strings,
    })))
}

/// The text of `tokens`, under `name`.
pub(super) fn detokenize(life: &Life, body: &Map<String, Value>, name: &str) -> Result<Response, ApiError> {
    parse::served_model(life, body)?;
    let ids: Option<Vec<u32>> = body.get("tokens").and_then(|tokens| serde_json::from_value(tokens.clone()).ok());
    let ids =
        ids.ok_or_else(|| ApiError::bad_request("tokens: Input should be a list of token ids", Some("tokens")))?;
    Ok(json_response(&json!({ name: life.config.codec.decode(&ids)? })))
}

fn count_tokens(life: &Life, body: &Map<String, Value>) -> Result<Response, ApiError> {
    parse::served_model(life, body)?;
    let tokens = prompt::messages_ids(life, body)?.len();
    let context = json!({ "original_input_tokens": tokens });
    Ok(json_response(&json!({ "input_tokens": tokens, "context_management": context })))
}

/// The request that the token-in route would take.
fn render(life: &Life, route: Route, body: &Map<String, Value>, request: &Request) -> Result<Response, ApiError> {
    let number = life.tokenize_calls.fetch_add(1, Ordering::Relaxed);
    let call = parse::call(life, route, body)?;
    let id = reply::call_id(route, request.header("x-request-id"), number, life.started_unix_s);
    let max_tokens = match call.length {
        OutputLength::Exactly(tokens) | OutputLength::AtMost(tokens) => tokens,
    };
    let one = |prompt: &Arc<[u32]>| {
        json!({
            "request_id": id, "token_ids": &**prompt, "token_offsets": null, "features": null, "content_parts": null,
            "sampling_params": {
                "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 1.0,
                "top_p": 1.0, "min_p": 0.0, "stop": call.stops, "stop_token_ids": [], "max_tokens": max_tokens,
                "output_kind": 2, "skip_clone": true, "bad_words": [], "skip_reading_prefix_cache": false,
            },
            "model": call.model, "reasoning_ended": null, "reasoning_parser_kwargs": null, "return_token_ids": null,
            "output_mode": "tokens", "stream": call.stream, "stream_options": body.get("stream_options"),
            "cache_salt": call.domain.salt.as_deref(), "priority": 0, "kv_transfer_params": null,
            "ec_transfer_params": null,
        })
    };
    let all: Vec<Value> = call.prompts.iter().map(one).collect();
    Ok(match route {
        Route::Completion => json_response(&all.into()),
        _ => json_response(&all[0]),
    })
}
