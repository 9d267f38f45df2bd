//! SGLang's routes that generate nothing.

use super::error::ApiError;
use super::fields;
use super::info::{detokenize, json_response, tokenize};
use crate::engine::Life;
use crate::http::{Request, Response};
use crate::model::Load;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// The release that is played.
const VERSION: &str = "0.5.6";

pub(super) fn answer(life: &Arc<Life>, request: &Request) -> Result<Response, ApiError> {
    let body = || fields::object(&request.body);
    match (request.method(), request.path()) {
        ("GET", "/health" | "/health_generate") | ("GET" | "POST", "/ping") => Ok(Response::empty(200)),
        ("GET", "/v1/models") => Ok(json_response(&models(life))),
        ("GET", "/get_model_info" | "/model_info") => Ok(json_response(&json!({
            "model_path": life.config.model_root, "tokenizer_path": life.config.model_root, "is_generation": true,
            "preferred_sampling_params": null, "weight_version": "default",
        }))),
        ("GET", "/get_server_info" | "/server_info") => Ok(json_response(&server_info(life))),
        ("GET", "/v1/loads") if life.config.sglang_loads => Ok(json_response(&loads(life))),
        ("GET", "/get_load") => Ok(json_response(&old_loads(life))),
        ("GET", "/metrics") => Ok(Response::new(200, "text/plain; version=0.0.4; charset=utf-8", metrics(life))),
        ("POST", "/tokenize" | "/v1/tokenize") => tokenize(life, &body()?),
        ("POST", "/detokenize" | "/v1/detokenize") => detokenize(life, &body()?, "text"),
        ("GET" | "POST", "/flush_cache") => {
            // Refused while something runs, as by the real one.
            let done = life.ranks.iter().all(|rank| rank.queued() == 0 && rank.reset_prefix_cache());
            Ok(Response::new(if done { 200 } else { 400 }, "text/plain", "Cache flushed.\n"))
        }
        _ => Err(ApiError::http(404)),
    }
}

fn models(life: &Life) -> Value {
    let config = &life.config;
    let names = std::iter::once(config.model.as_str()).chain(config.adapters.iter().map(|name| &**name));
    let card = |(at, id): (usize, &str)| {
        let parent = (at > 0).then_some(&config.model);
        json!({
            "id": id, "object": "model", "created": life.started_unix_s as u64, "owned_by": "sglang", "root": id,
            "parent": parent, "max_model_len": config.limits.max_model_tokens,
        })
    };
    json!({ "object": "list", "data": names.enumerate().map(card).collect::<Vec<_>>() })
}

/// KV capacity in tokens.
fn capacity(life: &Life) -> usize {
    life.config.limits.blocks * life.config.limits.block_tokens
}

fn server_info(life: &Life) -> Value {
    let config = &life.config;
    let running = config.limits.max_sequences;
    json!({
        "served_model_name": config.model, "model_path": config.model_root, "tokenizer_path": config.model_root,
        "page_size": config.limits.block_tokens, "dp_size": config.ranks, "enable_metrics": true,
        "enable_cache_report": config.prompt_tokens_details, "max_total_num_tokens": capacity(life),
        "max_running_requests": running, "instance_id": instance(life), "kv_events": kv_events(life),
        "internal_states": [{ "max_total_num_tokens": capacity(life), "effective_max_running_requests_per_dp": running }],
        "version": VERSION,
    })
}

/// Another name in each life.
fn instance(life: &Life) -> String {
    format!("{}-{}-{:.6}", life.address.port(), life.restarts, life.started_unix_s)
}

/// Rank r is at the base port + r.
fn kv_events(life: &Life) -> Value {
    let Some((endpoint, replay)) = &life.ranks[0].endpoints else { return Value::Null };
    let split = |endpoint: &str| -> Option<(String, u16)> {
        let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    };
    let Some((host, port)) = split(endpoint) else { return Value::Null };
    let mut told = json!({
        "publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": "",
        "block_size": life.config.limits.block_tokens, "dp_size": life.config.ranks,
    });
    if let (Some((host, port)), Value::Object(told)) = (replay.as_deref().and_then(split), &mut told) {
        told.insert("replay_endpoint_host".to_owned(), host.into());
        told.insert("replay_endpoint_port_base".to_owned(), port.into());
    }
    told
}

/// One rank's load in tokens.
struct Tokens {
    load: Load,
    used: usize,
    usage: f64,
}

fn tokens(life: &Life, rank: usize) -> Tokens {
    let load = life.ranks[rank].load();
    let used = load.used_blocks * life.config.limits.block_tokens;
    Tokens { load, used, usage: used as f64 / capacity(life).max(1) as f64 }
}

fn loads(life: &Life) -> Value {
    let one = |rank: usize| {
        let Tokens { load, used, usage } = tokens(life, rank);
        json!({
            "dp_rank": rank, "num_running_reqs": load.running, "num_waiting_reqs": load.waiting,
            "num_waiting_uncached_tokens": 0, "num_used_tokens": used, "num_total_tokens": used,
            "max_total_num_tokens": capacity(life), "token_usage": (usage * 1e4).round() / 1e4, "gen_throughput": 0.0,
            "cache_hit_rate": 0.0, "utilization": 0.0, "max_running_requests": life.config.limits.max_sequences,
        })
    };
    let all: Vec<Value> = (0..life.ranks.len()).map(one).collect();
    json!({ "timestamp": "1970-01-01T00:00:00+00:00", "version": VERSION, "loads": all })
}

fn old_loads(life: &Life) -> Value {
    let one = |rank: usize| {
        let Tokens { load, used, .. } = tokens(life, rank);
        json!({ "dp_rank": rank, "num_reqs": load.running, "num_waiting_reqs": load.waiting, "num_tokens": used })
    };
    (0..life.ranks.len()).map(one).collect()
}

fn metrics(life: &Life) -> String {
    let prefix = life.config.sglang_metrics;
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, value: &dyn Fn(usize) -> f64| {
        let _ = writeln!(out, "# HELP {prefix}{name} As SGLang counts it.\n# TYPE {prefix}{name} {kind}");
        for rank in 0..life.ranks.len() {
            let rank_label = if life.ranks.len() > 1 { format!("dp_rank=\"{rank}\",") } else { String::new() };
            let model = &life.config.model;
            let labels =
                format!("{rank_label}engine_type=\"unified\",model_name=\"{model}\",pp_rank=\"0\",tp_rank=\"0\"");
            let _ = writeln!(out, "{prefix}{name}{{{labels}}} {:?}", value(rank));
        }
    };
    family("num_running_reqs", "gauge", &|rank| tokens(life, rank).load.running as f64);
    family("num_queue_reqs", "gauge", &|rank| tokens(life, rank).load.waiting as f64);
    family("num_used_tokens", "gauge", &|rank| tokens(life, rank).used as f64);
    family("token_usage", "gauge", &|rank| tokens(life, rank).usage);
    family("max_total_num_tokens", "gauge", &|_| capacity(life) as f64);
    let counter = |rank: usize, read: fn(&crate::metrics::Metrics) -> u64| {
        life.ranks[rank].with_metrics(|metrics| read(metrics)) as f64
    };
    family("prompt_tokens_total", "counter", &|rank| counter(rank, |metrics| metrics.prompt_tokens));
    family("generation_tokens_total", "counter", &|rank| counter(rank, |metrics| metrics.generation_tokens));
    family("cached_tokens_total", "counter", &|rank| counter(rank, |metrics| metrics.prefix_hits));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineBuilder;
    use crate::config::Flavor;
    use crate::testing::{Client, body_of};

    #[tokio::test]
    async fn it_tells_its_pages_sockets_and_load() {
        let engine = EngineBuilder::new().flavor(Flavor::Sglang).blocks(64).start().await.unwrap();
        let mut client = Client::connect(engine.address()).await;
        let info: Value = serde_json::from_str(body_of(&client.get("/server_info").await)).unwrap();
        assert_eq!((&info["page_size"], &info["max_total_num_tokens"]), (&json!(16), &json!(1_024)));
        let (endpoint, _) = engine.event_endpoints(0).unwrap();
        let events = &info["kv_events"];
        let host = events["endpoint_host"].as_str().unwrap();
        assert_eq!(endpoint, format!("tcp://{host}:{}", events["endpoint_port_base"]));
        let loads: Value = serde_json::from_str(body_of(&client.get("/v1/loads?include=core").await)).unwrap();
        assert_eq!((&loads["loads"][0]["dp_rank"], &loads["loads"][0]["num_running_reqs"]), (&json!(0), &json!(0)));
        assert!(client.get("/metrics").await.contains("\nsglang:num_running_reqs{"));
        assert!(client.get("/kv_event_sources").await.starts_with("HTTP/1.1 404 "));
        let id_before = info["instance_id"].clone();
        engine.restart(tokio::time::Duration::ZERO).await;
        let mut client = Client::connect(engine.address()).await;
        let info: Value = serde_json::from_str(body_of(&client.get("/get_server_info").await)).unwrap();
        assert_ne!(info["instance_id"], id_before);
    }
}
