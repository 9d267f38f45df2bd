//! The dialects beside OpenAI's: prompts as vLLM renders them, the life of a stream in each, the other engines' surfaces.

use super::*;
use crate::config::Flavor;
use crate::testing::tokenizer_folder;
use crate::text::{ChatInput, Codec, chat_of_messages, chat_of_responses};
use serde_json::{Map, json};

/// Cases that vLLM renders and that are not played: what the page says under "What it does not".
const NOT_PLAYED: &[&str] = &[
    "assistant tool result",
    "bad effort",
    "assistant incomplete",
    "developer",
    "developer mid",
    "codex",
    "custom tool",
    "web search",
    "reasoning encrypted",
    "output list",
];

#[test]
fn prompts_are_those_that_vllm_rendered() {
    let Some(folder) = tokenizer_folder("qwen3") else { return };
    let codec = Codec::load(&folder).unwrap();
    let recorded = include_str!("../../../fixtures/vllm/dialect_tokens_qwen3.jsonl");
    let (mut compared, mut different) = (0, Vec::new());
    for line in recorded.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (path, name) = (case["path"].as_str().unwrap(), case["case"].as_str().unwrap());
        let body: &Map<String, Value> = case["request"].as_object().unwrap();
        let (chat, special) = match path {
            "/v1/messages" => (chat_of_messages(body, codec.merges_system()), false),
            _ => (chat_of_responses(body), true),
        };
        let ids = chat.and_then(|chat| ChatInput::from_request(&chat, codec.wants_content_parts()));
        let ids = ids.ok().and_then(|chat| codec.encode(&codec.render(&chat).ok()?, special).ok());
        let expected = serde_json::from_value::<Option<Vec<u32>>>(case["token_ids"].clone()).unwrap();
        compared += 1;
        if ids != expected && !NOT_PLAYED.contains(&name) {
            different.push(format!("{path} {name}: {ids:?} instead of {expected:?}"));
        }
    }
    assert!(compared > 80, "{compared}");
    assert!(compared - NOT_PLAYED.len() > 70);
    assert!(different.is_empty(), "{}\n{}", different.len(), different.join("\n"));
}

#[tokio::test]
async fn an_sglang_tells_its_text_so_far_and_takes_ids() {
    let engine = fast().flavor(Flavor::Sglang).start().await.unwrap();
    let mut client = client(&engine).await;
    let ids = json!({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4, "n": 1}, "stream": true});
    let events = events_of(&client.post("/generate", &ids.to_string()).await);
    let texts: Vec<&str> = events.iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert!(texts.windows(2).all(|pair| pair[1].starts_with(pair[0])), "{texts:?}");
    let last = &events.last().unwrap()["meta_info"];
    assert_eq!((&last["prompt_tokens"], &last["completion_tokens"]), (&json!(3), &json!(4)));
    assert_eq!(last["finish_reason"], json!({"type": "length", "length": 4}));
    assert_eq!(engine.given_prompts(), 1);
    let several = json!({"text": ["a", "b"], "sampling_params": {"max_new_tokens": 1}});
    let answer = json_of(&client.post("/generate", &several.to_string()).await);
    assert_eq!(answer.as_array().map(Vec::len), Some(2));
    assert!(client.post("/v1/messages", "{}").await.starts_with("HTTP/1.1 404 "), "not its route");
}

#[tokio::test]
async fn faults_strike_every_generating_route() {
    let engine = fast().start().await.unwrap();
    for (path, body) in [
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 2})),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})),
        ("/inference/v1/generate", json!({"token_ids": [1], "sampling_params": {"max_tokens": 2}})),
    ] {
        let mut client = client(&engine).await;
        client.post("/_ctl", r#"{"faults":[{"kind":"error","status":503,"next":1}]}"#).await;
        assert!(client.post(path, &body.to_string()).await.starts_with("HTTP/1.1 503 "), "{path}");
        assert!(client.post(path, &body.to_string()).await.starts_with("HTTP/1.1 200 "), "{path}");
    }
    let mut client = client(&engine).await;
    client.post("/_ctl", r#"{"faults":[{"kind":"error"}]}"#).await;
    assert!(client.get("/health").await.starts_with("HTTP/1.1 200 "), "and no other");
}

#[tokio::test]
async fn pooled_texts_cost_a_prefill_and_equal_ones_are_equal() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let ask = json!({"input": ["a river", "a dam", "a river"]}).to_string();
    let answer = json_of(&client.post("/v1/embeddings", &ask).await);
    assert_eq!(answer["data"][0]["embedding"], answer["data"][2]["embedding"]);
    assert_ne!(answer["data"][0]["embedding"], answer["data"][1]["embedding"]);
    assert_eq!(engine.served(), 1);
    let ranked = json!({"query": "q", "documents": ["a", "b", "c"]}).to_string();
    let answer = json_of(&client.post("/rerank", &ranked).await);
    let scores: Vec<f64> =
        answer["results"].as_array().unwrap().iter().map(|r| r["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
}
