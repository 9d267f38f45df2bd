//! Thin engines over real sockets.

use super::*;
use crate::testing::{Client, body_of};
use serde_json::Value;

async fn engine(change: impl FnOnce(&mut ThinConfig)) -> (ThinHandle, Client) {
    let mut config = ThinConfig::new("m");
    change(&mut config);
    let handle = start(config).await.unwrap();
    let client = Client::connect(handle.addresses()[0]).await;
    (handle, client)
}

fn json(response: &str) -> Value {
    serde_json::from_str(body_of(response)).unwrap_or_else(|e| panic!("{e}: {response}"))
}

#[tokio::test]
async fn answers_have_the_asked_number_of_tokens_streamed_or_not() {
    let (_engine, mut client) = engine(|_| {}).await;
    for (path, kind) in [("/v1/chat/completions", "chat.completion"), ("/v1/completions", "text_completion")] {
        let answer = json(&client.post(path, r#"{"max_tokens": 3}"#).await);
        assert_eq!(answer["object"], kind);
        assert_eq!(answer["usage"]["completion_tokens"], 3);
        let stream = client.post(path, r#"{"max_completion_tokens":5,"stream":true}"#).await;
        assert_eq!(stream.matches("~T").count(), 5);
        assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
    }
    let whole = json(&client.post("/generate", r#"{"sampling_params":{"max_new_tokens":2}}"#).await);
    assert_eq!(whole["meta_info"]["completion_tokens"], 2);
    let default = json(&client.post("/v1/completions", "{}").await);
    assert_eq!(default["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn options_are_found_wherever_they_stand_and_never_inside_a_prompt() {
    let (_engine, mut client) = engine(|_| {}).await;
    let long = "x".repeat(5_000);
    let quoted = r#"say \"max_tokens\": 9, \"stream\": true"#;
    for body in [
        format!(r#"{{"max_tokens":2,"prompt":"{long}"}}"#),
        format!(r#"{{"prompt":"{long}","max_tokens":2}}"#),
        format!(r#"{{"max_tokens" : 2, "prompt":"{quoted}"}}"#),
        format!(r#"{{"prompt":"{quoted}","user":"max_tokens","max_tokens":2,"stream":false}}"#),
    ] {
        let answer = json(&client.post("/v1/completions", &body).await);
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{body}");
    }
}

#[tokio::test]
async fn stamps_are_the_monotonic_clock() {
    let (_engine, mut client) = engine(|_| {}).await;
    let stream = client.post("/v1/completions", r#"{"max_tokens":4,"stream":true}"#).await;
    let stamps: Vec<u64> = stream.split("~T").skip(1).map(|rest| rest[..20].parse().unwrap()).collect();
    assert_eq!(stamps.len(), 4);
    assert!(stamps.windows(2).all(|pair| pair[0] <= pair[1]));
}

#[tokio::test]
async fn control_changes_pace_length_and_usage_and_counts() {
    let (_engine, mut client) = engine(|_| {}).await;
    let state = json(&client.post("/_ctl?tokens=2&ttft_us=1000&itl_us=10&usage=omit", "").await);
    assert_eq!(state["reqs"], serde_json::json!([0]));
    let answer = json(&client.post("/v1/completions", "{}").await);
    assert_eq!(answer["choices"][0]["text"], " tok tok");
    assert!(answer.get("usage").is_none());
    assert_eq!(json(&client.post("/_ctl", "").await)["reqs"], serde_json::json!([1]));
    assert_eq!(json(&client.post("/_ctl?reset=1", "").await)["reqs"], serde_json::json!([0]));
    let refused = client.post("/_ctl?pace=1", "").await;
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("pace: unknown"), "{refused}");
    let refused = client.post("/_ctl?tokens=x", "").await;
    assert!(refused.contains("not a number"), "{refused}");
}

#[tokio::test]
async fn usage_in_streams_comes_when_asked_for() {
    let (_engine, mut client) = engine(|_| {}).await;
    let body = r#"{"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}"#;
    assert_eq!(client.post("/v1/chat/completions", body).await.matches("\"usage\"").count(), 1);
    let body = r#"{"max_tokens":1,"stream":true}"#;
    assert_eq!(client.post("/v1/chat/completions", body).await.matches("\"usage\"").count(), 0);
}

#[tokio::test]
async fn each_port_is_an_engine_and_probes_are_answered() {
    let (engine, _) = engine(|config| config.ports = vec![0, 0]).await;
    for address in engine.addresses() {
        let mut client = Client::connect(*address).await;
        for path in ["/health", "/v1/models", "/get_model_info", "/get_server_info", "/get_load", "/version", "/load"] {
            assert!(client.get(path).await.starts_with("HTTP/1.1 200"), "{path}");
        }
        assert!(client.get("/metrics").await.contains("vllm:num_requests_running{"));
        assert!(client.get("/nothing").await.starts_with("HTTP/1.1 404"));
        assert_eq!(json(&client.get("/kv_event_sources").await), serde_json::json!({}));
    }
}

#[tokio::test]
async fn rendering_is_prefix_stable_and_wrapped_as_the_route_wants() {
    let (_engine, mut client) = engine(|_| {}).await;
    let short = json(&client.post("/v1/completions/render", r#"{"prompt":"12345678"}"#).await);
    let long = json(&client.post("/v1/completions/render", r#"{"prompt":"12345678abcd"}"#).await);
    let ids = |page: &Value| page[0]["token_ids"].as_array().unwrap().clone();
    assert_eq!(ids(&long)[..2], ids(&short)[..]);
    let chat =
        json(&client.post("/v1/chat/completions/render", r#"{"messages":[{"role":"user","content":"x"}]}"#).await);
    assert!(chat["token_ids"].is_array());
    assert!(client.post("/tokenize", "{").await.starts_with("HTTP/1.1 400"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_seen_become_events_once_and_evictions_too() {
    let (engine, mut client) = engine(|config| {
        config.events = Some(EventConfig::default());
        config.limits = Limits { blocks: 3, ..Limits::default() };
    })
    .await;
    let context = zmq::Context::new();
    let subscriber = context.socket(zmq::SUB).unwrap();
    subscriber.set_rcvtimeo(10_000).unwrap();
    subscriber.connect(&engine.event_endpoints()[0]).unwrap();
    subscriber.set_subscribe(b"").unwrap();
    let store = |at: u32| serde_json::json!({ "token_ids": (at..at + 33).collect::<Vec<u32>>() }).to_string();
    // The subscription travels; until it has arrived, batches are lost.
    let mut at = 0;
    subscriber.set_rcvtimeo(50).unwrap();
    while subscriber.recv_multipart(0).is_err() {
        at += 100;
        assert!(at < 20_000, "never joined");
        assert_eq!(json(&client.post("/_ctl/store", &store(at)).await)["blocks_stored"], 2);
    }
    subscriber.set_rcvtimeo(10_000).unwrap();
    assert_eq!(json(&client.post("/_ctl/store", &store(at)).await)["blocks_stored"], 0, "stored already");
    // 4 × 48 bytes are three blocks of four-byte tokens: all that the cache has.
    let prompt = "x".repeat(192);
    client.post("/v1/completions", &serde_json::json!({ "prompt": prompt }).to_string()).await;
    let frames = subscriber.recv_multipart(0).expect("a batch within 10 s");
    let batch: Value = rmp_serde::from_slice(&frames[2]).unwrap();
    let kinds: Vec<&str> = batch[1].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.last(), Some(&"BlockStored"));
    assert!(kinds.contains(&"BlockRemoved"));
    assert_eq!(batch[1].as_array().unwrap().last().unwrap()["block_hashes"].as_array().unwrap().len(), 3);
    let state = json(&client.post("/_ctl?events=0", "").await);
    assert_eq!(state["events"]["on"], false);
    client.post("/v1/completions", r#"{"prompt":"not taken in"}"#).await;
    let after = json(&client.post("/_ctl", "").await);
    assert_eq!(after["events"]["seen"], state["events"]["seen"]);
}
