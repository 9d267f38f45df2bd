//! Embeddings, pooling, reranking, scoring: a prefill each, then numbers made of the ids. An engine serves these beside
//! generation here, which a real one does not.

use super::error::ApiError;
use super::fields::{self, count, texts, wrong_type};
use super::info::json_response;
use super::parse::{self, Call};
use super::prompt;
use super::route::{Flavor, Route};
use super::{completion, reply};
use crate::clock;
use crate::engine::Life;
use crate::http::{Request, Response};
use crate::model::Domain;
use crate::text::OutputLength;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Numbers of one embedding.
const DIMENSIONS: usize = 8;

/// What is wanted of the texts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Embeddings,
    Pooling,
    Rerank,
    Score,
}

fn want(flavor: Flavor, path: &str) -> Option<Want> {
    Some(match (flavor, path) {
        (Flavor::Vllm | Flavor::Sglang, "/v1/embeddings") => Want::Embeddings,
        (Flavor::Vllm, "/pooling") => Want::Pooling,
        (Flavor::Vllm, "/rerank" | "/v2/rerank") | (Flavor::Vllm | Flavor::Sglang, "/v1/rerank") => Want::Rerank,
        (Flavor::Vllm, "/score") | (Flavor::Vllm | Flavor::Sglang, "/v1/score") => Want::Score,
        _ => return None,
    })
}

/// Whether this is one of the routes here.
pub(super) fn is_served(flavor: Flavor, path: &str) -> bool {
    want(flavor, path).is_some()
}

pub(super) async fn answer(life: &Arc<Life>, request: &Request) -> Result<Response, ApiError> {
    let number = life.served.fetch_add(1, Ordering::Relaxed);
    let want = want(life.config.flavor, request.path()).ok_or_else(|| ApiError::http(404))?;
    let body = fields::object(&request.body)?;
    let (model, _) = parse::served_model(life, &body)?;
    let pairs = match want {
        Want::Embeddings | Want::Pooling => None,
        Want::Rerank => Some((one_text(&body, &["query"])?, required(&body, &["documents"])?)),
        Want::Score => Some((one_text(&body, &["text_1", "queries"])?, required(&body, &["text_2", "documents"])?)),
    };
    let prompts = match &pairs {
        None => prompt::listed(life, &body, "input")?,
        Some((query, documents)) => {
            let ids = |document: &String| Ok(life.config.codec.encode(&format!("{query}\n{document}"), true)?.into());
            documents.iter().map(ids).collect::<Result<_, ApiError>>()?
        }
    };
    let call = prefill(&model, prompts);
    let job = completion::start(life, &completion::choose_rank(life, request)?, &call)?;
    while !job.board.states().iter().all(|state| state.finish.is_some()) {
        job.board.changed().await;
    }
    let usage = usage(&call);
    let id = reply::call_id(Route::Generate, request.header("x-request-id"), number, life.started_unix_s);
    let head = |prefix: &str| {
        json!({ "id": format!("{prefix}-{id}"), "object": "list",
        "created": clock::unix_seconds() as u64, "model": model })
    };
    let mut answer = match (want, pairs) {
        (Want::Rerank, Some((_, documents))) => reranked(&body, head("rerank"), &call, &documents)?,
        (Want::Score, _) => with_data(head("score"), &call, |ids| json!({ "object": "score", "score": score(ids) })),
        (Want::Pooling, _) => {
            let all = |ids: &[u32]| ids.iter().map(|id| json!([number_of(*id, 0)])).collect::<Vec<_>>();
            with_data(head("pool"), &call, |ids| json!({ "object": "pooling", "data": all(ids) }))
        }
        _ => {
            let as_bytes = fields::text(&body, "encoding_format")? == Some("base64");
            with_data(
                head("embd"),
                &call,
                |ids| json!({ "object": "embedding", "embedding": embedding(ids, as_bytes) }),
            )
        }
    };
    answer["usage"] = usage;
    Ok(json_response(&answer))
}

/// Prompts whose one token nobody sees.
fn prefill(model: &str, prompts: Vec<Arc<[u32]>>) -> Call {
    Call {
        route: Route::Completion,
        model: model.to_owned(),
        prompts,
        choices: 1,
        length: OutputLength::Exactly(1),
        stops: Vec::new(),
        domain: Domain::default(),
        stream: false,
        include_usage: false,
        continuous_usage: false,
        return_token_ids: false,
    }
}

fn usage(call: &Call) -> Value {
    let tokens: usize = call.prompts.iter().map(|prompt| prompt.len()).sum();
    json!({ "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": null })
}

fn with_data(mut head: Value, call: &Call, one: impl Fn(&[u32]) -> Value) -> Value {
    let data = call.prompts.iter().enumerate().map(|(index, ids)| {
        let mut one = one(ids);
        one["index"] = index.into();
        one
    });
    head["data"] = data.collect();
    head
}

fn reranked(body: &Map<String, Value>, mut head: Value, call: &Call, documents: &[String]) -> Result<Value, ApiError> {
    let mut scored: Vec<(usize, f64)> = call.prompts.iter().map(|ids| score(ids)).enumerate().collect();
    scored.sort_by(|a, b| b.1.total_cmp(&a.1));
    scored.truncate(count(body, "top_n")?.filter(|top| *top > 0).unwrap_or(scored.len()));
    let one = |(index, score): (usize, f64)| json!({ "index": index, "document": { "text": documents[index] }, "relevance_score": score });
    if let Some(head) = head.as_object_mut() {
        head.remove("object");
        head.remove("created");
    }
    head["results"] = scored.into_iter().map(one).collect();
    Ok(head)
}

/// One text, or the first of a list.
fn one_text(body: &Map<String, Value>, names: &[&str]) -> Result<String, ApiError> {
    let mut all = required(body, names)?;
    Ok(all.swap_remove(0))
}

/// Texts under one of `names`, at least one.
fn required(body: &Map<String, Value>, names: &[&str]) -> Result<Vec<String>, ApiError> {
    for name in names {
        let found = texts(body, name)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(wrong_type(names[0], "a string or a list of strings, at least one"))
}

/// A number between -1 and 1.
fn number_of(id: u32, position: usize) -> f32 {
    let mixed = (u64::from(id) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(position as u32 * 7 + 11);
    (mixed >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
}

fn score(ids: &[u32]) -> f64 {
    let sum: f64 = ids.iter().map(|id| f64::from(number_of(*id, 0))).sum();
    (sum / ids.len().max(1) as f64 + 1.0) / 2.0
}

fn embedding(ids: &[u32], as_bytes: bool) -> Value {
    let one = |position| ids.iter().map(|id| number_of(*id, position)).sum::<f32>() / ids.len().max(1) as f32;
    let numbers: Vec<f32> = (0..DIMENSIONS).map(one).collect();
    if !as_bytes {
        return numbers.into();
    }
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    STANDARD.encode(bytes).into()
}
