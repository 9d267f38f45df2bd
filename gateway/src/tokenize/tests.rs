use super::encoder::Encoder;
use super::memo::Memo;
use super::model::Local;
use super::request::{self, Prompt};
use crate::config::resolved;
use crate::parse::{Dialect, Parsed, parse};
use bytes::Bytes;
use std::path::PathBuf;

/// The repository's tokenizer folder of `name`; `None`, said aloud, where set-up has not fetched it.
pub(crate) fn tokenizer_directory(name: &str) -> Option<PathBuf> {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    loop {
        let directory = root.join(".cache/tokenizers").join(name);
        if directory.join("tokenizer.json").exists() {
            return Some(directory);
        }
        if !root.pop() {
            break;
        }
    }
    let required = option_env!("FOREBAY_REQUIRE") == Some("all");
    assert!(!required, "tokenizer {name} is required: run deploy/setup.sh");
    eprintln!("skipped: no .cache/tokenizers/{name}; run deploy/setup.sh");
    None
}

fn model(name: &str) -> resolved::Model {
    resolved::Model { name: name.to_owned(), tokenizer: None, chat_template: None, policy: None }
}

fn local(name: &str) -> Option<Local> {
    Some(Local::load(&tokenizer_directory(name)?, &model(name)).unwrap())
}

fn chat(request: &serde_json::Value) -> Parsed {
    let mut request = request.clone();
    request["model"] = "m".into();
    parse(Dialect::Chat, Bytes::from(request.to_string())).unwrap()
}

fn text_of(local: &Local, parsed: &Parsed) -> Result<String, String> {
    let body = std::str::from_utf8(&parsed.body).unwrap();
    match request::prompt(local, parsed, body) {
        Ok(prompt) => Ok(prompt.text),
        Err(no) => Err(format!("{no:?}")),
    }
}

/// Every case of a fixture of the real engine: same text, same ids.
fn matches_engine(name: &str, fixture: &str) {
    let Some(local) = local(name) else { return };
    let memo = Memo::new(1 << 20);
    let mut differing = Vec::new();
    let mut cases = 0;
    for line in fixture.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        cases += 1;
        let parsed = chat(&case["request"]);
        let body = std::str::from_utf8(&parsed.body).unwrap();
        let (text, special) = match request::prompt(&local, &parsed, body) {
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

#[test]
fn equals_the_engine_on_every_qwen3_case() {
    matches_engine("qwen3", include_str!("../../tests/fixtures/chat_tokens_qwen3.jsonl"));
}

#[test]
fn equals_the_engine_on_every_llama3_case() {
    matches_engine("llama3", include_str!("../../tests/fixtures/chat_tokens_llama3.jsonl"));
}

#[test]
fn the_fast_encoder_the_cuts_and_the_templates_of_both_models_are_proven() {
    for name in ["qwen3", "llama3"] {
        let Some(local) = local(name) else { return };
        let encoder: &Encoder = &local.encoder;
        assert_eq!((encoder.name(), encoder.fast_refused.as_deref()), ("fastokens", None), "{name}");
        assert!(encoder.remembers(), "{name}");
        assert!(local.learned.is_some(), "{name}");
        let plain = chat(&serde_json::json!({"messages": [{"role": "user", "content": "hi"}]}));
        assert!(text_of(&local, &plain).is_ok());
    }
}
