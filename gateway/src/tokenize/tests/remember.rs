//! Turn n+1 of a chat encodes only what is new, with the ids of a full encoding.

use super::*;
use crate::tokenize::encoder::Encoder;
use crate::tokenize::memo::Memo;
use std::fmt::Write;

/// Words that differ from turn to turn.
fn words(rng: &mut fastrand::Rng, bytes: usize) -> String {
    const WORDS: &[&str] = &[
        "river",
        "the",
        "Basin",
        "turbine's",
        "of",
        "water,",
        "gate.",
        "it",
        "is",
        "12",
        "flow",
        "and",
        "pressure\n",
        "don't",
        "été",
        "水",
        "(see",
        "below)",
        "because",
        "measured",
    ];
    let mut text = String::new();
    while text.len() < bytes {
        let _ = write!(text, "{} ", WORDS[rng.usize(..WORDS.len())]);
    }
    text
}

/// Holds a 20-turn chat and checks every turn from the second on; returns the worst share of encoded tokens at the end.
fn hold_chat(local: &Local, message_bytes: usize, with_tools: bool) -> f64 {
    let memo = Memo::new(64 << 20);
    let mut rng = fastrand::Rng::with_seed(message_bytes as u64);
    let mut messages = vec![serde_json::json!({"role": "system", "content": words(&mut rng, 2 * message_bytes)})];
    let mut last_share = 1.0;
    for turn in 1..=21 {
        messages.push(serde_json::json!({"role": "user", "content": words(&mut rng, message_bytes).trim()}));
        let mut body = serde_json::json!({"messages": messages});
        if with_tools {
            body["tools"] = serde_json::json!([{"type": "function", "function": {"name": "look", "parameters": {}}}]);
        }
        let parsed = chat(&body);
        let text = text_of(local, &parsed).unwrap();
        let (ids, effort) = local.encoder.encode(&text, false, &memo).unwrap();
        // The reference is slow: it judges some turns, the last among them.
        if turn % 10 == 1 {
            assert_eq!(ids, local.encoder.reference(&text, false).unwrap(), "turn {turn}");
        }
        assert_eq!(effort.encoded_bytes + effort.reused_bytes, text.len());
        last_share = effort.encoded_tokens as f64 / ids.len() as f64;
        messages.push(serde_json::json!({"role": "assistant", "content": words(&mut rng, message_bytes).trim()}));
    }
    last_share
}

#[test]
fn turn_21_of_a_chat_encodes_at_most_a_tenth_of_its_tokens() {
    let Some(local) = local("qwen3") else { return };
    for (message_bytes, with_tools) in [(120, false), (120, true), (600, false), (2_000, true)] {
        let share = hold_chat(&local, message_bytes, with_tools);
        println!("messages of {message_bytes} B: turn 21 encoded {:.1} % of its tokens", share * 100.0);
        assert!(share <= 0.1, "{message_bytes} B, tools {with_tools}: {share}");
    }
}

/// Texts of random fragments: cut, remembered and whole encodings are the reference's.
pub(super) fn random_texts(encoder: &Encoder) {
    const FRAGMENTS: &[&str] = &[
        "word",
        " a",
        " the",
        "\n",
        "\n\n",
        " ",
        "  ",
        "\t",
        "'s",
        "'LL",
        "don't ",
        "A b C d ",
        "1",
        "12 345",
        "é",
        "e\u{301}",
        "你好，世界。",
        "水坝、",
        "한국어 ",
        "👩‍👩‍👧",
        "<|im_start|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<think>",
        "<",
        "<|",
        "|>",
        "_",
        "x_y z",
        "/",
        "://",
        "{\"k\": [",
        "}\r\n",
        "\u{a0}",
        "\u{3000}",
        "ﬁ",
        "\u{200b}",
        "ZZZ",
        " Zürich ",
        "...",
        "!?",
        " — ",
        "\0",
    ];
    let memo = Memo::new(8 << 20);
    let mut rng = fastrand::Rng::with_seed(11);
    for round in 0..25 {
        let mut text = String::new();
        for _ in 0..rng.usize(1..600) {
            text += FRAGMENTS[rng.usize(..FRAGMENTS.len())];
        }
        let reference = encoder.reference(&text, false).unwrap();
        for pass in 0..2 {
            assert_eq!(
                encoder.encode(&text, false, &memo).unwrap().0,
                reference,
                "round {round}, pass {pass}: {text:?}"
            );
        }
        assert_eq!(encoder.whole(&text, false).unwrap(), reference, "round {round}: {text:?}");
    }
}
