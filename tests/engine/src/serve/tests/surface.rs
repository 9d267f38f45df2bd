//! Routes and shapes, against recorded ones.

use super::*;
use crate::serve::info::VERSION;
use crate::text::Codec;
use serde_json::json;
use std::sync::Arc;

/// The value with whatever may differ between two runs taken out: texts, ids, numbers, lengths of lists.
fn shape(value: &Value) -> Value {
    const FIXED: [&str; 7] = ["object", "finish_reason", "role", "owned_by", "type", "publisher", "output_mode"];
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, inner)| {
                let inner = match inner {
                    Value::String(_) if FIXED.contains(&key.as_str()) => inner.clone(),
                    // The mock gives no log probabilities.
                    _ if key == "logprobs" => Value::Null,
                    _ => shape(inner),
                };
                (key.clone(), inner)
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(list) => list.first().map_or(json!([]), |first| json!([shape(first)])),
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
        other => other.clone(),
    }
}

/// Shapes as text, so that the order of keys counts; runs of equal ones are one, since tokens may share a chunk.
fn shapes(events: &[Value]) -> Vec<String> {
    let mut all: Vec<String> = events.iter().map(|event| shape(event).to_string()).collect();
    all.dedup();
    all
}

fn assert_same_stream(ours: &str, recorded: &str) {
    assert_eq!(shapes(&events_of(ours)), shapes(&events_of(recorded)));
}

#[tokio::test]
async fn streams_have_the_recorded_shape() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let chat = r#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"max_tokens":4,"stream":true,
        "stream_options":{"include_usage":true}}"#;
    let stream = client.post("/v1/chat/completions", chat).await;
    assert!(stream.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(stream.contains("content-type: text/event-stream; charset=utf-8\r\n"));
    assert_same_stream(&stream, include_str!("../../../fixtures/vllm/chat_stream.sse"));
    let detailed = r#"{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3,"stream":true,"return_token_ids":true,
        "stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    let stream = client.post("/v1/chat/completions", detailed).await;
    assert_same_stream(&stream, include_str!("../../../fixtures/vllm/chat_stream_ids.sse"));
    let text = r#"{"prompt":"a","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}"#;
    let stream = client.post("/v1/completions", text).await;
    assert_same_stream(&stream, include_str!("../../../fixtures/vllm/completions_stream.sse"));
}

#[tokio::test]
async fn usage_comes_only_when_asked_for_and_counts_right() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let body = r#"{"prompt":"0123456789abcdef","max_tokens":5,"stream":true}"#;
    let events = events_of(&client.post("/v1/completions", body).await);
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let continuous = r#"{"prompt":"0123456789abcdef","max_tokens":5,"stream":true,
        "stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    let events = events_of(&client.post("/v1/completions", continuous).await);
    let counts: Vec<i64> = events.iter().map(|e| e["usage"]["completion_tokens"].as_i64().unwrap()).collect();
    assert!(counts.windows(2).all(|pair| pair[0] <= pair[1]), "{counts:?}");
    let last = &events.last().unwrap()["usage"];
    assert_eq!(
        (&last["prompt_tokens"], &last["completion_tokens"], &last["total_tokens"]),
        (&json!(4), &json!(5), &json!(9))
    );
}

#[tokio::test]
async fn whole_answers_have_the_recorded_shape() {
    let recorded: Value = serde_json::from_str(include_str!("../../../fixtures/vllm/answers.json")).unwrap();
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let chat = r#"{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4}"#;
    let ours = json_of(&client.post("/v1/chat/completions", chat).await);
    assert_eq!(shape(&ours).to_string(), shape(&recorded["chat"]).to_string());
    let ours = json_of(&client.post("/v1/completions", r#"{"prompt":"a","max_tokens":4}"#).await);
    assert_eq!(shape(&ours).to_string(), shape(&recorded["completion"]).to_string());
}

#[tokio::test]
async fn errors_are_the_recorded_bytes() {
    let mut builder = slow().max_queued_requests(1);
    builder.config_mut().limits.max_model_tokens = 8_192;
    let engine = builder.start().await.unwrap();
    let mut busy = client(&engine).await;
    busy.send_post("/v1/completions", "", r#"{"prompt":"a","max_tokens":5}"#).await;
    eventually("the first request runs", || engine.load(0).running == 1).await;
    let mut client = client(&engine).await;
    let chat = |extra: &str| format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{extra}}}"#);
    for (body, recorded) in [
        (chat(r#""model":"nope""#), include_str!("../../../fixtures/vllm/err_404.txt")),
        (chat(r#""max_tokens":100000"#), include_str!("../../../fixtures/vllm/err_400.txt")),
        (chat(r#""max_tokens":5"#), include_str!("../../../fixtures/vllm/err_503.txt")),
    ] {
        let ours = client.post("/v1/chat/completions", &body).await;
        let recorded_body = recorded.trim().lines().last().unwrap();
        assert_eq!(body_of(&ours), recorded_body);
        let code = json_of(&ours)["error"]["code"].to_string();
        assert!(ours.starts_with(&format!("HTTP/1.1 {code} ")), "{ours}");
    }
    assert!(client.get("/metrics").await.contains("reason=\"max_num_queued_reqs\"} 1.0"));
}

#[tokio::test]
async fn plain_pages_have_the_recorded_shape() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    for (path, recorded) in [
        ("/v1/models", include_str!("../../../fixtures/vllm/models.json")),
        ("/version", include_str!("../../../fixtures/vllm/version.json")),
        ("/load", include_str!("../../../fixtures/vllm/load.json")),
        ("/kv_event_sources", include_str!("../../../fixtures/vllm/kv_event_sources_b.json")),
    ] {
        let ours = json_of(&client.get(path).await);
        let recorded: Value = serde_json::from_str(recorded).unwrap();
        assert_eq!(shape(&ours).to_string(), shape(&recorded).to_string(), "{path}");
    }
    assert_eq!(json_of(&client.get("/version").await)["version"], VERSION);
    assert!(client.get("/health").await.starts_with("HTTP/1.1 200 OK"));
    let chat = r#"{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3}"#;
    for (path, body, recorded) in [
        ("/tokenize", chat, include_str!("../../../fixtures/vllm/tokenize_chat.json")),
        ("/v1/chat/completions/render", chat, include_str!("../../../fixtures/vllm/render_chat.json")),
    ] {
        let ours = json_of(&client.post(path, body).await);
        let mut recorded: Value = serde_json::from_str(recorded).unwrap();
        if let Some(max) = recorded.pointer_mut("/sampling_params/stop") {
            *max = json!([]);
        }
        assert_eq!(shape(&ours).to_string(), shape(&recorded).to_string(), "{path}");
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_refused_as_the_framework_does() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    assert_eq!(body_of(&client.get("/nope").await), r#"{"detail":"Not Found"}"#);
    let wrong = client.get("/v1/chat/completions").await;
    assert!(wrong.starts_with("HTTP/1.1 405"), "{wrong}");
    assert_eq!(body_of(&wrong), r#"{"detail":"Method Not Allowed"}"#);
}

#[tokio::test]
async fn prompts_come_as_text_ids_or_lists_of_either() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    for (prompt, choices, tokens) in [
        (json!("0123456789ab"), 1, 3),
        (json!(["0123", "01234567"]), 2, 3),
        (json!([5, 6, 7, 8]), 1, 4),
        (json!([[5, 6], [7], [8]]), 3, 4),
    ] {
        let body = json!({ "prompt": prompt, "max_tokens": 2 }).to_string();
        let answer = json_of(&client.post("/v1/completions", &body).await);
        assert_eq!(answer["choices"].as_array().unwrap().len(), choices, "{prompt}");
        assert_eq!(answer["usage"]["prompt_tokens"], tokens, "{prompt}");
        assert_eq!(answer["usage"]["completion_tokens"], 2 * choices, "{prompt}");
    }
}

#[tokio::test]
async fn choices_stops_lengths_and_ids_do_what_they_say() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let chat = |extra: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "hello" }] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body.to_string()
    };
    let three = json_of(&client.post("/v1/chat/completions", &chat(json!({ "n": 3, "max_tokens": 6 }))).await);
    let texts: Vec<&str> = (0..3).map(|i| three["choices"][i]["message"]["content"].as_str().unwrap()).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(three["usage"]["completion_tokens"], 18);
    let again = json_of(&client.post("/v1/chat/completions", &chat(json!({ "max_completion_tokens": 6 }))).await);
    assert_eq!(again["choices"][0]["message"]["content"], texts[0], "the same prompt gives the same text");
    assert_eq!(again["choices"][0]["finish_reason"], "length");
    let stop = &texts[0][8..12];
    let stopped = json_of(&client.post("/v1/chat/completions", &chat(json!({ "max_tokens": 6, "stop": stop }))).await);
    assert_eq!(stopped["choices"][0]["message"]["content"], texts[0][..8]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["stop_reason"], stop);
    let natural = json_of(&client.post("/v1/chat/completions", &chat(json!({}))).await);
    assert_eq!(natural["choices"][0]["finish_reason"], "stop");
    let streamed = events_of(
        &client.post("/v1/chat/completions", &chat(json!({ "n": 2, "max_tokens": 6, "stream": true }))).await,
    );
    for (index, whole) in texts.iter().take(2).enumerate() {
        let of = streamed.iter().filter(|event| event["choices"][0]["index"] == index);
        let text: String = of.map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
        assert_eq!(text, *whole);
    }
    client.send_post("/v1/chat/completions", "x-request-id: abc\r\n", &chat(json!({ "max_tokens": 1 }))).await;
    assert_eq!(json_of(&client.response().await)["id"], "chatcmpl-abc");
}

#[tokio::test]
async fn bad_input_is_answered_with_the_field_and_the_connection_lives_on() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    for (path, body, param) in [
        ("/v1/chat/completions", "{not json", None),
        ("/v1/chat/completions", "[1]", None),
        ("/v1/chat/completions", "{}", Some("messages")),
        ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":5}]}"#, Some("messages[0].content")),
        ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"x"}],"stream":1}"#, Some("stream")),
        ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":-1}"#, Some("max_tokens")),
        ("/v1/completions", r#"{"prompt":5}"#, Some("prompt")),
        ("/v1/completions", r#"{"prompt":[]}"#, Some("prompt")),
        ("/v1/completions", r#"{"prompt":[1,"a"]}"#, Some("prompt")),
        ("/v1/completions", r#"{"prompt":"x","n":0}"#, Some("n")),
        ("/v1/completions", r#"{"prompt":"x","max_tokens":0}"#, Some("max_tokens")),
        ("/v1/completions", r#"{"prompt":"x","model":7}"#, Some("model")),
        ("/detokenize", r#"{"tokens":"x"}"#, Some("tokens")),
        ("/detokenize", r#"{"tokens":[1]}"#, None),
    ] {
        let answer = client.post(path, body).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{body}: {answer}");
        let error = &json_of(&answer)["error"];
        assert_eq!(error["param"].as_str(), param, "{body}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    let long = json!({ "prompt": vec![1; 131_072], "max_tokens": 1 }).to_string();
    let answer = client.post("/v1/completions", &long).await;
    assert!(body_of(&answer).contains("maximum context length is 131072 tokens"), "{answer}");
    assert_eq!(engine.served(), 13, "each call was counted");
}

#[tokio::test]
async fn bodies_of_any_framing_and_size_are_read() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let large = json!({ "prompt": "x".repeat(4 << 20), "max_tokens": 1 }).to_string();
    let answer = client.post("/tokenize", &large).await;
    assert_eq!(json_of(&answer)["count"], 1 << 20);
    client.send("POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{\"prompt\r\n9;x=y\r\n\":\"abcd\"}\r\n0\r\n\r\n").await;
    assert_eq!(json_of(&client.response().await)["count"], 1);
    client.send("POST /tokenize HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 17\r\n\r\n").await;
    assert_eq!(client.until(b"\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send(r#"{"prompt":"abcd"}"#).await;
    assert_eq!(json_of(&client.response().await)["count"], 1);
    client.send("GET /health HTTP/1.1\r\n\r\nGET /version HTTP/1.1\r\n\r\n").await;
    assert!(client.response().await.starts_with("HTTP/1.1 200"));
    assert_eq!(json_of(&client.response().await)["version"], VERSION);
    for (bytes, status) in [
        ("POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "400"),
        ("not http\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", "413"),
    ] {
        let mut fresh = super::client(&engine).await;
        fresh.send(bytes).await;
        let (answer, _) = fresh.rest().await;
        assert!(answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{bytes:?}: {answer:?}");
    }
}

#[tokio::test]
async fn metrics_and_load_follow_requests() {
    let mut builder = slow();
    builder.config_mut().load_tracking = true;
    let engine = builder.start().await.unwrap();
    let mut working = client(&engine).await;
    working.send_post("/v1/completions", "", r#"{"prompt":"a","max_tokens":5}"#).await;
    eventually("it runs", || engine.load(0).running == 1).await;
    let mut client = client(&engine).await;
    let page = client.get("/metrics").await;
    assert!(page.contains("vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 1.0"), "{page}");
    assert_eq!(json_of(&client.get("/load").await)["server_load"], 1);
    drop(working);
    eventually("it is gone", || engine.load(0).running == 0).await;
    let page = client.get("/metrics").await;
    assert!(
        page.contains("vllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"tiny\"} 0.0")
    );
}

#[tokio::test]
async fn a_real_tokenizer_serves_real_ids() {
    let Some(folder) = crate::testing::tokenizer_folder("qwen3") else {
        eprintln!("skipped: .cache/tokenizers/qwen3 is absent (deploy/setup.sh fetches it)");
        return;
    };
    let engine = fast().codec(Arc::new(Codec::load(&folder).unwrap())).start().await.unwrap();
    let mut client = client(&engine).await;
    let ours = json_of(&client.post("/tokenize", r#"{"prompt":"Hello wörld","return_token_strs":true}"#).await);
    let recorded: Value = serde_json::from_str(include_str!("../../../fixtures/vllm/tokenize_prompt.json")).unwrap();
    assert_eq!((&ours["tokens"], &ours["token_strs"]), (&recorded["tokens"], &recorded["token_strs"]));
    let back = json_of(&client.post("/detokenize", &json!({ "tokens": ours["tokens"] }).to_string()).await);
    assert_eq!(back["prompt"], "Hello wörld");
    let chat = r#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"max_tokens":3}"#;
    let rendered = json_of(&client.post("/v1/chat/completions/render", chat).await);
    let recorded: Value = serde_json::from_str(include_str!("../../../fixtures/vllm/render_chat.json")).unwrap();
    assert_eq!(rendered["token_ids"], json!([151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198]));
    assert_eq!(rendered["token_ids"], recorded["token_ids"]);
}
