//! Ids against those of a real engine, and the pieces of text handling.

use super::*;
use crate::model::FinishReason;
use std::path::PathBuf;

/// The tokenizer folder `name` of this checkout; `None`, said aloud, where it was not set up.
fn tokenizer_folder(name: &str) -> Option<PathBuf> {
    let found = crate::testing::tokenizer_folder(name);
    if found.is_none() {
        eprintln!("skipped: .cache/tokenizers/{name} is absent (deploy/setup.sh fetches it)");
    }
    found
}

/// Loading a vocabulary takes seconds in an unoptimised build, so everything about one tokenizer is one test.
fn check_tokenizer(name: &str, engine_cases: &str) {
    let Some(folder) = tokenizer_folder(name) else { return };
    let codec = Codec::load(&folder).unwrap();
    ids_equal_the_engines(&codec, engine_cases);
    output_is_deterministic_and_retokenises_to_its_ids(&codec);
    if name == "qwen3" {
        a_later_turn_quotes_an_answer_with_the_same_ids(&codec);
    }
}

#[test]
fn qwen3_text_is_the_engines() {
    check_tokenizer("qwen3", include_str!("../../fixtures/vllm/chat_tokens_qwen3.jsonl"));
}

#[test]
fn llama3_text_is_the_engines() {
    check_tokenizer("llama3", include_str!("../../fixtures/vllm/chat_tokens_llama3.jsonl"));
}

fn ids_equal_the_engines(codec: &Codec, cases: &str) {
    let mut checked = 0;
    for line in cases.lines().filter(|line| !line.trim().is_empty()) {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["case"].as_str().unwrap();
        if case["tokenize_status"] != 200 {
            continue;
        }
        let body = case["request"].as_object().unwrap();
        let chat = ChatInput::from_request(body, codec.wants_content_parts()).unwrap();
        let ids = codec.encode(&codec.render(&chat).unwrap(), false).unwrap();
        let engine_ids: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        assert_eq!(ids, engine_ids, "{name}");
        assert_eq!(codec.decode(&ids).unwrap(), case["prompt"].as_str().unwrap(), "{name}: decoded");
        checked += 1;
    }
    assert!(checked >= 20, "only {checked} cases");
}

fn output_is_deterministic_and_retokenises_to_its_ids(codec: &Codec) {
    let prompt = codec.encode("What is a forebay?", false).unwrap();
    let output = codec.compose(&prompt, 0, OutputLength::Exactly(200));
    assert_eq!(output, codec.compose(&prompt, 0, OutputLength::Exactly(200)));
    assert_ne!(output.ids, codec.compose(&prompt, 1, OutputLength::Exactly(200)).ids, "choices differ");
    assert_eq!(output.finish, FinishReason::Length);
    let text: String = output.texts.iter().map(|t| &**t).collect();
    assert_eq!(codec.decode(&output.ids).unwrap(), text);
    assert_eq!(codec.encode(&text, false).unwrap(), &*output.ids, "{text}");
    let shorter = codec.compose(&prompt, 0, OutputLength::Exactly(50));
    assert_eq!(output.ids[..50], *shorter.ids, "length changes nothing before it");
    let natural = codec.compose(&prompt, 0, OutputLength::AtMost(10_000));
    assert_eq!(natural.finish, FinishReason::Stop);
    assert_eq!(natural.texts.last().map(|t| t.len()), Some(0), "the last token is the end of text");
    let cut = codec.compose(&prompt, 0, OutputLength::AtMost(5));
    assert_eq!((cut.ids.len(), cut.finish), (5, FinishReason::Length));
}

fn a_later_turn_quotes_an_answer_with_the_same_ids(codec: &Codec) {
    let ids_of = |messages: Value| {
        let body = serde_json::json!({ "messages": messages });
        let chat = ChatInput::from_request(body.as_object().unwrap(), false).unwrap();
        codec.encode(&codec.render(&chat).unwrap(), false).unwrap()
    };
    let first = ids_of(serde_json::json!([{"role": "user", "content": "hi"}]));
    let answer = codec.compose(&first, 0, OutputLength::AtMost(1_000));
    let text: String = answer.texts.iter().map(|t| &**t).collect();
    let second = ids_of(serde_json::json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": text},
        {"role": "user", "content": "more"}]));
    let together: Vec<u32> = first.iter().chain(answer.ids.iter()).copied().collect();
    assert_eq!(second[..together.len()], together, "end of text included");
}

#[test]
fn stop_strings_end_the_answer_even_across_tokens() {
    let codec = Codec::bytes();
    let whole = codec.compose(&[1, 2, 3], 0, OutputLength::Exactly(20));
    let text: String = whole.texts.iter().map(|t| &**t).collect();
    let stop = text[10..14].to_owned();
    let first = text.find(&stop).unwrap();
    let mut output = whole.clone();
    output.stop_at(&["never".to_owned(), String::new(), stop.clone()]);
    let left: String = output.texts.iter().map(|t| &**t).collect();
    assert_eq!(left, text[..first]);
    assert_eq!((output.finish, output.stop), (FinishReason::Stop, Some(stop)));
    assert_eq!(output.ids.len(), (first + 4).div_ceil(4));
}

#[test]
fn floats_print_as_python_prints_them() {
    let cases = [
        (1.5, "1.5"),
        (2.0, "2.0"),
        (-0.0, "-0.0"),
        (1e20, "1e+20"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1e-4, "0.0001"),
        (1e-5, "1e-05"),
        (1.25e-7, "1.25e-07"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e300, "1e+300"),
    ];
    for (value, expected) in cases {
        assert_eq!(python::float(value), expected);
    }
}

#[test]
fn bad_messages_name_the_field() {
    let reason = |body: Value| ChatInput::from_request(body.as_object().unwrap(), false).unwrap_err().param;
    assert_eq!(reason(serde_json::json!({})), "messages");
    assert_eq!(reason(serde_json::json!({"messages": 3})), "messages");
    assert_eq!(reason(serde_json::json!({"messages": [3]})), "messages[0]");
    assert_eq!(reason(serde_json::json!({"messages": [{"content": "x"}]})), "messages[0].role");
    let image =
        serde_json::json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]});
    assert_eq!(reason(image), "messages[0].content[0]");
    let tools = serde_json::json!({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]});
    assert_eq!(reason(tools), "tools[0].function");
    let call = serde_json::json!({"messages": [{"role": "assistant", "content": null,
        "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]});
    assert_eq!(reason(call), "messages[0].tool_calls[0].function.arguments");
}

#[test]
fn the_byte_mode_is_prefix_stable_and_says_what_it_cannot() {
    let codec = Codec::bytes();
    let short = codec.encode("12345678", false).unwrap();
    let long = codec.encode("12345678abcd", false).unwrap();
    assert_eq!(short.len(), 2);
    assert_eq!(long[..2], short);
    assert!(matches!(codec.decode(&short), Err(TextError::NotInvertible)));
    assert!(!codec.is_real());
}

#[test]
fn templates_can_refuse_and_cannot_run_for_ever() {
    let of =
        |source: &str| Template::from_config(&serde_json::json!({ "chat_template": source }), None).unwrap().unwrap();
    let chat = ChatInput::default();
    let refused = of("{{ raise_exception('roles must alternate') }}").render(&chat).unwrap_err();
    assert!(refused.to_string().contains("roles must alternate"), "{refused}");
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a*b }}{% endfor %}{% endfor %}";
    assert!(of(endless).render(&chat).unwrap_err().to_string().contains("fuel"));
    assert!(of("{% for c in message['content'] %}{% endfor %}").wants_content_parts());
    assert!(!of("{{ message.content }}").wants_content_parts());
}
