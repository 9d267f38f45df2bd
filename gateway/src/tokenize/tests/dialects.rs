//! Conversations of Anthropic's and the Responses API: ids equal to those that vLLM 0.32 rendered for them.

use super::*;
use crate::tokenize::memo::Memo;
use crate::tokenize::request::{self, Prompt};

#[test]
fn qwen3_ids_are_the_engines() {
    let Some(local) = local("qwen3") else { return };
    matches_engine(&local, include_str!("../../../tests/fixtures/vllm/dialect_tokens_qwen3.jsonl"));
    assert!(!local.chat.merges_system());
}

#[test]
fn llama3_ids_are_the_engines() {
    let Some(local) = local("llama3") else { return };
    matches_engine(&local, include_str!("../../../tests/fixtures/vllm/dialect_tokens_llama3.jsonl"));
}

/// Shapes that the engine renders and that are routed by text here, on purpose.
const BY_TEXT: &[&str] = &[
    "/v1/messages empty tools",
    "/v1/messages assistant tool result",
    "/v1/responses assistant incomplete",
    "/v1/responses custom tool",
    "/v1/responses web search",
    "/v1/responses output list",
    "/v1/responses part extra",
];

fn matches_engine(local: &Local, fixture: &str) {
    let memo = Memo::new(1 << 20);
    let (mut differing, mut by_text, mut equal) = (Vec::new(), Vec::new(), 0);
    for line in fixture.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let path = case["path"].as_str().unwrap();
        let name = format!("{path} {}", case["case"].as_str().unwrap());
        let parsed = super::request(Dialect::of_path(path).unwrap(), case["request"].clone());
        let prompt = request::prompt(&local.chat, &parsed, std::str::from_utf8(&parsed.body).unwrap());
        let expected: Option<Vec<u32>> = serde_json::from_value(case["token_ids"].clone()).unwrap();
        match (prompt, expected) {
            // What the engine refuses may come out either way: nothing is computed.
            (_, None) => {}
            (Err(_), Some(_)) => by_text.push(name),
            (Ok(Prompt { text, special }), Some(expected)) => {
                let (ids, _) = local.encoder.encode(&text, special, &memo).unwrap();
                equal += 1;
                if ids != expected {
                    let same = ids.iter().zip(&expected).take_while(|(ours, theirs)| ours == theirs).count();
                    differing.push(format!("{name}: from id {same} of {} in {text:?}", expected.len()));
                }
            }
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
    let unexpected: Vec<_> = by_text.iter().filter(|name| !BY_TEXT.contains(&name.as_str())).collect();
    assert!(unexpected.is_empty(), "routed by text: {unexpected:?}");
    assert!(equal >= 70, "{equal}");
}

#[tokio::test]
async fn ids_are_taken_from_every_dialect_that_gives_them() {
    let (tokenizers, _registry, _directory) = tiny();
    for (dialect, field) in [
        (Dialect::Completions, "prompt"),
        (Dialect::Generate, "input_ids"),
        (Dialect::TokensIn, "token_ids"),
        (Dialect::Embeddings, "input"),
        (Dialect::Pooling, "input"),
    ] {
        for ids in [serde_json::json!([5, 6, 7]), serde_json::json!([[5, 6, 7]])] {
            let body = serde_json::json!({"model": "tiny", field: ids});
            assert_eq!(encode(&tokenizers, &request(dialect, body)).await, Ok(vec![5, 6, 7]), "{dialect:?}");
        }
    }
    let text = |field: &str| serde_json::json!({"model": "tiny", field: "hello world"});
    let expected = encode(&tokenizers, &request(Dialect::Completions, text("prompt"))).await.unwrap();
    for (dialect, field) in [(Dialect::Generate, "text"), (Dialect::Embeddings, "input"), (Dialect::Pooling, "input")] {
        assert_eq!(encode(&tokenizers, &request(dialect, text(field))).await.unwrap(), expected, "{dialect:?}");
    }
}

#[tokio::test]
async fn what_has_no_prefix_or_no_text_goes_by_text() {
    let (tokenizers, _registry, _directory) = tiny();
    let text = "hello";
    for (dialect, body) in [
        (Dialect::Rerank, serde_json::json!({"query": text, "documents": [text]})),
        (Dialect::Score, serde_json::json!({"text_1": text, "text_2": text})),
        (Dialect::Pooling, serde_json::json!({"messages": [{"role": "user", "content": text}]})),
        (Dialect::Embeddings, serde_json::json!({"input": [text, text]})),
        (Dialect::Generate, serde_json::json!({"text": text, "image_data": "x"})),
        (Dialect::Generate, serde_json::json!({"text": text, "input_ids": [1]})),
        (Dialect::Generate, serde_json::json!({"text": [text, text]})),
        (Dialect::TokensIn, serde_json::json!({"token_ids": [1], "features": {"mm_hashes": {}}})),
        (Dialect::Responses, serde_json::json!({"input": text, "previous_response_id": "resp_1"})),
        (Dialect::Messages, serde_json::json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})),
    ] {
        let mut body = body;
        body["model"] = "tiny".into();
        let media = body.get("image_data").is_some() || body.get("features").is_some();
        let reason = if media { TextReason::Media } else { TextReason::Unsupported };
        assert_eq!(encode(&tokenizers, &request(dialect, body)).await, Err(reason), "{dialect:?}");
    }
}

#[tokio::test]
async fn an_alias_uses_the_tokenizer_of_the_model_behind_it() {
    let (tokenizers, _registry, _directory) = tiny();
    assert_eq!(tokenizers.owner("tiny", "other"), "tiny", "its own goes first");
    assert_eq!(tokenizers.owner("alias", "tiny"), "tiny");
    let parsed = request(Dialect::Completions, serde_json::json!({"model": "alias", "prompt": "hello world"}));
    let outcome = tokenizers.encode(tokenizers.owner("alias", "tiny"), &parsed, soon()).await.unwrap();
    assert!(matches!(outcome, Outcome::Tokens(_)));
}
