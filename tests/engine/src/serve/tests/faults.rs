//! Every fault, as a client sees it.

use super::*;
use crate::fault::{Fault, FaultKind};
use serde_json::json;
use std::io::ErrorKind;

const CALL: &str = r#"{"prompt":"0123456789ab","max_tokens":6}"#;
const STREAMED: &str =
    r#"{"prompt":"0123456789ab","max_tokens":6,"stream":true,"stream_options":{"include_usage":true}}"#;

async fn with(fault: Value) -> (EngineHandle, Client) {
    let fault = Fault::from_json(&fault.to_string()).unwrap();
    let engine = fast().fault(fault).start().await.unwrap();
    let client = client(&engine).await;
    (engine, client)
}

/// Nothing arrives for a while, and the connection stays open.
async fn assert_silent(client: &mut Client) {
    let waited = tokio::time::timeout(Duration::from_millis(200), client.until(b"\n")).await;
    assert!(waited.is_err(), "got {waited:?}");
}

#[tokio::test]
async fn errors_come_as_often_as_asked_and_in_the_engines_shape() {
    let (_engine, mut client) = with(json!({ "kind": "error", "status": 503, "next": 2 })).await;
    for _ in 0..2 {
        let answer = client.post("/v1/completions", CALL).await;
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable"), "{answer}");
        assert_eq!(json_of(&answer)["error"]["code"], 503);
    }
    assert!(client.post("/v1/completions", CALL).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn other_paths_fail_only_when_named() {
    let (engine, mut client) = with(json!({ "kind": "error" })).await;
    assert!(client.get("/health").await.starts_with("HTTP/1.1 200"));
    engine.set_faults(vec![Fault { path: Some("/health".to_owned()), ..Fault::new(FaultKind::Error) }]).unwrap();
    assert!(client.get("/health").await.starts_with("HTTP/1.1 500"));
    assert!(client.post("/v1/completions", CALL).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_stall_is_before_the_first_chunk_or_in_the_middle() {
    let (engine, mut client) = with(json!({ "kind": "stall", "next": 1 })).await;
    client.send_post("/v1/completions", "", STREAMED).await;
    assert!(client.until(b"\r\n\r\n").await.starts_with("HTTP/1.1 200"), "the head comes");
    assert_silent(&mut client).await;
    engine.set_faults(vec![Fault { after_chunks: Some(1), ..Fault::new(FaultKind::Stall) }]).unwrap();
    let mut client = super::client(&engine).await;
    client
        .send_post(
            "/v1/chat/completions",
            "",
            r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":6,"stream":true}"#,
        )
        .await;
    assert!(client.until(b"\n\n").await.contains("assistant"), "one chunk comes");
    client.until(b"\r\n").await;
    assert_silent(&mut client).await;
    engine.set_faults(vec![Fault { ms: Some(1), ..Fault::new(FaultKind::Stall) }]).unwrap();
    let mut client = super::client(&engine).await;
    assert!(client.post("/v1/completions", CALL).await.starts_with("HTTP/1.1 200"), "a short one passes");
}

#[tokio::test]
async fn a_stalled_client_that_leaves_is_noticed() {
    let (engine, mut client) = with(json!({ "kind": "stall" })).await;
    client.send_post("/v1/completions", "", CALL).await;
    eventually("it was taken in", || engine.served() == 1).await;
    assert_eq!(engine.in_flight(), 1);
    drop(client);
    // The stall alone would last an hour.
    eventually("it was let go", || engine.in_flight() == 0).await;
}

#[tokio::test]
async fn accepting_is_slow_once() {
    let fault = json!({ "kind": "slow_accept", "ms": 3_600_000, "next": 1 });
    let engine = fast().fault(Fault::from_json(&fault.to_string()).unwrap()).start().await.unwrap();
    let mut first = client(&engine).await;
    first.send("GET /health HTTP/1.1\r\n\r\n").await;
    assert_silent(&mut first).await;
    assert!(client(&engine).await.get("/health").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn streams_are_cut_after_the_asked_chunks_in_either_way() {
    for (how, end) in [("fin", None), ("rst", Some(ErrorKind::ConnectionReset))] {
        let (_engine, mut client) = with(json!({ "kind": "cut", "after_chunks": 2, "how": how })).await;
        // A role chunk, then tokens; two choices make sure that there are more than two chunks.
        let body = r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":6,"n":2,"stream":true}"#;
        client.send_post("/v1/chat/completions", "", body).await;
        let (bytes, ended) = client.rest().await;
        assert_eq!(ended, end, "{how}");
        if end.is_none() {
            let text = String::from_utf8(bytes).unwrap();
            assert_eq!(text.matches("data: ").count(), 2, "{text}");
            assert!(!text.contains("[DONE]") && !text.ends_with("0\r\n\r\n"));
        }
    }
}

#[tokio::test]
async fn whole_answers_are_cut_in_the_middle() {
    let (_engine, mut client) = with(json!({ "kind": "cut" })).await;
    client.send_post("/v1/completions", "", CALL).await;
    let (bytes, end) = client.rest().await;
    assert_eq!(end, None);
    let text = String::from_utf8(bytes).unwrap();
    let announced: usize = text.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    let sent = body_of(&text).len();
    assert_eq!(sent, announced / 2);
}

#[tokio::test]
async fn connections_close_before_any_byte() {
    for (how, end) in [("fin", None), ("rst", Some(ErrorKind::ConnectionReset))] {
        let (_engine, mut client) = with(json!({ "kind": "early_close", "how": how })).await;
        client.send_post("/v1/completions", "", CALL).await;
        let (bytes, ended) = client.rest().await;
        assert_eq!((bytes.len(), ended), (0, end), "{how}");
    }
}

#[tokio::test]
async fn garbage_is_not_http() {
    let (_engine, mut client) = with(json!({ "kind": "garbage" })).await;
    client.send_post("/v1/completions", "", CALL).await;
    let (bytes, _) = client.rest().await;
    assert!(!bytes.is_empty() && !bytes.starts_with(b"HTTP/"));
}

#[tokio::test]
async fn counts_lie_in_streams_and_answers() {
    let (_engine, mut client) = with(json!({ "kind": "wrong_usage", "by": 100 })).await;
    let usage = json_of(&client.post("/v1/completions", CALL).await)["usage"].clone();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(103), &json!(106)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 100);
    let events = events_of(&client.post("/v1/completions", STREAMED).await);
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 106);
}

#[tokio::test]
async fn lengths_lie_both_ways() {
    for by in [-5i64, 7] {
        let (_engine, mut client) = with(json!({ "kind": "wrong_length", "by": by })).await;
        client.send_post("/v1/completions", "", CALL).await;
        let (bytes, _) = client.rest().await;
        let text = String::from_utf8(bytes).unwrap();
        let announced: i64 = text.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        assert_eq!(announced - body_of(&text).len() as i64, by);
    }
}

#[tokio::test]
async fn a_restart_breaks_connections_and_loses_cache_and_sequence() {
    let engine = fast().start().await.unwrap();
    let endpoints = engine.event_endpoints(0);
    let mut client = client(&engine).await;
    let prompt = json!({ "prompt": (0..70).collect::<Vec<u32>>(), "max_tokens": 1 }).to_string();
    client.post("/v1/completions", &prompt).await;
    let started = |page: String| page.lines().find(|l| l.starts_with("process_start_time")).unwrap().to_owned();
    let before = started(client.get("/metrics").await);
    engine.restart(Duration::ZERO).await;
    let (rest, _) = client.rest().await;
    assert!(rest.is_empty(), "the old connection broke");
    let mut client = super::client(&engine).await;
    let page = client.get("/metrics").await;
    assert!(page.contains("vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny\"} 0.0"), "counters begin anew");
    assert_ne!(started(page), before);
    assert_eq!(engine.event_endpoints(0), endpoints, "the same ports");
    let answer = json_of(&client.post("/v1/completions", &prompt).await);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "the cache is lost");
    let replayed = replay(&endpoints.unwrap().1.unwrap());
    assert_eq!(replayed, [0], "sequence numbers begin anew");
}

/// Sequence numbers that a replay from 0 gives.
fn replay(endpoint: &str) -> Vec<u64> {
    let context = zmq::Context::new();
    let dealer = context.socket(zmq::DEALER).unwrap();
    dealer.set_rcvtimeo(30_000).unwrap();
    dealer.connect(endpoint).unwrap();
    dealer.send_multipart([&b""[..], &0u64.to_be_bytes()], 0).unwrap();
    let mut all = Vec::new();
    loop {
        let frames = dealer.recv_multipart(0).expect("a reply in time");
        match u64::from_be_bytes(frames[2].as_slice().try_into().unwrap()) {
            u64::MAX => return all,
            seq => all.push(seq),
        }
    }
}

#[tokio::test]
async fn the_control_endpoint_sets_faults_and_restarts() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let state = json_of(&client.post("/_ctl", r#"{"faults":[{"kind":"error","next":1}]}"#).await);
    assert_eq!(state["faults"], json!([{ "kind": "error", "next": 1 }]));
    let state = json_of(&client.post("/_ctl", r#"{"add_faults":[{"kind":"garbage","path":"/none"}]}"#).await);
    assert_eq!(state["faults"].as_array().unwrap().len(), 2);
    assert!(client.post("/v1/completions", CALL).await.starts_with("HTTP/1.1 500"));
    let state = json_of(&client.get("/_ctl").await);
    assert_eq!(state["faults"].as_array().unwrap().len(), 1, "used up");
    for (body, wanted) in [
        (r#"{"faults":[{"kind":"nonsense"}]}"#, "unknown variant"),
        (r#"{"faults":[{"kind":"cut","ms":4}]}"#, "means nothing"),
        (r#"{"fault":[]}"#, "known are"),
        (r#"{"restart":{"down":4}}"#, "down_ms"),
        (r#"{"restart":{"down_ms":-4}}"#, "down_ms"),
    ] {
        let answer = client.post("/_ctl", body).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(wanted), "{body}: {answer}");
    }
    let answer = client.post("/_ctl", r#"{"restart":{"down_ms":1}}"#).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "answered before it dies: {answer}");
    let (rest, _) = client.rest().await;
    assert!(rest.is_empty());
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "never came back");
        if tokio::net::TcpStream::connect(engine.address()).await.is_ok() {
            let mut client = super::client(&engine).await;
            client.send("GET /_ctl HTTP/1.1\r\n\r\n").await;
            if json_of(&client.response().await)["restarts"] == 1 {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_engine_that_is_down_refuses_connections() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    client.post("/_ctl", r#"{"restart":{"down_ms":3600000}}"#).await;
    let address = engine.address();
    let deadline = Instant::now() + PATIENCE;
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        assert!(Instant::now() < deadline, "still listening");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::timeout(PATIENCE, engine.stop()).await.expect("a stop does not wait for the down time");
}
