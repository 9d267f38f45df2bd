//! The routes of TensorRT-LLM's `trtllm-serve` that generate nothing.

use super::error::ApiError;
use super::info::json_response;
use crate::engine::Life;
use crate::http::{Request, Response};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// The release that is played.
const VERSION: &str = "1.2.0";

pub(super) fn answer(life: &Arc<Life>, request: &Request) -> Result<Response, ApiError> {
    match (request.method(), request.path()) {
        ("GET", "/health") => Ok(Response::empty(200)),
        ("GET", "/version") => Ok(json_response(&json!({ "version": VERSION }))),
        ("GET", "/v1/models") => {
            let card = json!({ "id": life.config.model, "object": "model", "created": 0, "owned_by": "tensorrt_llm" });
            Ok(json_response(&json!({ "object": "list", "data": [card] })))
        }
        // Statistics of iterations, which it gives away once.
        ("GET", "/metrics") => Ok(json_response(&json!([statistics(life)]))),
        ("GET", "/prometheus/metrics") => {
            Ok(Response::new(200, "text/plain; version=0.0.4; charset=utf-8", metrics(life)))
        }
        _ => Err(ApiError::http(404)),
    }
}

fn statistics(life: &Life) -> Value {
    let (load, limits) = (life.ranks[0].load(), &life.config.limits);
    json!({
        "iter": 0, "numActiveRequests": load.running, "numQueuedRequests": load.waiting,
        "kvCacheStats": {
            "usedNumBlocks": load.used_blocks, "maxNumBlocks": limits.blocks,
            "freeNumBlocks": limits.blocks - load.used_blocks.min(limits.blocks), "tokensPerBlock": limits.block_tokens,
        },
    })
}

fn metrics(life: &Life) -> String {
    let (load, limits) = (life.ranks[0].load(), &life.config.limits);
    let mut out = String::new();
    for (name, value) in [
        ("num_requests_running", load.running as f64),
        ("num_requests_waiting", load.waiting as f64),
        ("kv_cache_utilization", load.used_blocks as f64 / limits.blocks as f64),
        ("kv_cache_tokens_per_block", limits.block_tokens as f64),
    ] {
        let labels = format!("engine_type=\"trtllm\",model_name=\"{}\"", life.config.model);
        let _ = writeln!(out, "# TYPE trtllm_{name} gauge\ntrtllm_{name}{{{labels}}} {value:?}");
    }
    out
}
