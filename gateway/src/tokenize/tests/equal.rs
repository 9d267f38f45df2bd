//! Ids equal to the engine's, on its own fixtures and on cases from its own code.

use super::*;
use crate::tokenize::memo::Memo;
use crate::tokenize::model::Chat;
use crate::tokenize::request::{self, Prompt};
use std::collections::BTreeMap;

#[test]
fn qwen3_ids_are_the_engines() {
    let Some(local) = local("qwen3") else { return };
    shortcuts_are_proven(&local);
    matches_engine(&local, include_str!("../../../tests/fixtures/chat_tokens_qwen3.jsonl"));
    matches_engine_code("qwen3", &local, (72, 11));
    looks_into_contents(&local);
    remember::random_texts(&local.encoder);
}

#[test]
fn llama3_ids_are_the_engines() {
    let Some(local) = local("llama3") else { return };
    shortcuts_are_proven(&local);
    matches_engine(&local, include_str!("../../../tests/fixtures/chat_tokens_llama3.jsonl"));
    matches_engine_code("llama3", &local, (59, 1));
    remember::random_texts(&local.encoder);
}

/// Fast encoder, cuts and learned template hold for this model.
fn shortcuts_are_proven(local: &Local) {
    assert_eq!((local.encoder.name(), local.encoder.fast_refused.as_deref()), ("fastokens", None));
    assert!(local.encoder.remembers());
    assert!(local.chat.uses_learned());
}

/// Every case of a fixture of the real engine: same text, same ids.
fn matches_engine(local: &Local, fixture: &str) {
    let memo = Memo::new(1 << 20);
    let mut differing = Vec::new();
    let mut cases = 0;
    for line in fixture.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        cases += 1;
        let parsed = chat(&case["request"]);
        let body = std::str::from_utf8(&parsed.body).unwrap();
        let (text, special) = match request::prompt(&local.chat, &parsed, body) {
            Ok(Prompt { text, special }) => (text, special),
            other => {
                differing.push(format!("{}: {other:?}", case["case"]));
                continue;
            }
        };
        let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        for round in 0..2 {
            let (ids, _) = local.encoder.encode(&text, special, &memo).unwrap();
            if ids != expected {
                differing.push(format!("{} (round {round}): {text:?} for {}", case["case"], case["prompt"]));
            }
        }
        assert_eq!(local.encoder.reference(&text, special).unwrap(), expected, "{}", case["case"]);
    }
    assert!(differing.is_empty(), "{} of {cases} differ:\n{}", differing.len(), differing.join("\n"));
    assert_eq!(cases, 31);
}

/// Every case of `name` from the engine's own code: same text, same ids, the same refused.
fn matches_engine_code(name: &str, base: &Local, expected_cases: (usize, usize)) {
    let memo = Memo::new(1 << 20);
    let mut differing = Vec::new();
    let (mut equal, mut refused) = (0, 0);
    for line in include_str!("../../../tests/fixtures/chat_tokens_more.jsonl").lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        if case["tokenizer"] != name {
            continue;
        }
        // Only the template differs where there is one; the encoder need not be loaded again.
        let own = case["template"].as_str().map(|template| {
            let sources = BTreeMap::from([("default".to_owned(), template.to_owned())]);
            Chat::new(sources, base.chat.special_tokens.clone()).unwrap()
        });
        let parsed = match case["raw"].as_str() {
            Some(raw) => parse(Dialect::Chat, Bytes::from(raw.replacen('{', "{\"model\":\"m\",", 1))).unwrap(),
            None => chat_of(line),
        };
        let body = std::str::from_utf8(&parsed.body).unwrap();
        let prompt = request::prompt(own.as_ref().unwrap_or(&base.chat), &parsed, body);
        if case["refused"].is_string() {
            refused += 1;
            if prompt.is_ok() {
                differing.push(format!("{}: the engine refuses it", case["case"]));
            }
            continue;
        }
        let Ok(Prompt { text, special }) = prompt else {
            differing.push(format!("{} {}: {prompt:?}", case["case"], case["tokenizer"]));
            continue;
        };
        let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        if text != case["text"].as_str().unwrap() {
            differing.push(format!(
                "{} {}:\n ours  {text:?}\n their {:?}",
                case["case"],
                case["tokenizer"],
                case["text"].as_str()
            ));
            continue;
        }
        for round in 0..2 {
            if base.encoder.encode(&text, special, &memo).unwrap().0 != expected {
                differing.push(format!("{} {}: ids of round {round}", case["case"], case["tokenizer"]));
            }
        }
        assert_eq!(base.encoder.reference(&text, special).unwrap(), expected, "{}", case["case"]);
        equal += 1;
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
    assert_eq!((equal, refused), expected_cases);
}

/// Contents that the Qwen3 template looks into go through it.
fn looks_into_contents(local: &Local) {
    let short = |content: &str, answer: &str| {
        let messages = serde_json::json!([{"role": "user", "content": content}, {"role": "assistant", "content": answer},
            {"role": "user", "content": content}]);
        let text = messages.to_string();
        let read = crate::tokenize::messages::read(&text, 0).unwrap();
        local.chat.concatenated(&read)
    };
    assert!(short("What is a forebay? a < b", "A basin.").is_some());
    assert!(short("line\n", " spaced ").is_some(), "white space at the ends survives in this template");
    for (content, answer) in [("x", "<think>\na</think>b"), ("<tool_response>x", "y"), ("x", "a</think>"), ("", "y")] {
        assert_eq!(short(content, answer), None, "{content:?} {answer:?}");
    }
}
