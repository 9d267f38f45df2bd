//! Are our ids the engine's? Asked with committed probe chats, on a sample of live requests, and by every response's
//! `prompt_tokens`.

use crate::parse::{Dialect, Parsed, parse};
use bytes::Bytes;
use std::sync::atomic::{AtomicU32, Ordering};

/// Chats of the shapes that engines render differently, one request a line.
const PROBES: &str = include_str!("probes.jsonl");

/// Texts that are no chats, for the routes that take those.
const TEXTS: [&str; 6] = [
    "Hello, how are you?",
    "  leading\n\n\ttabs   and trailing \n",
    "Grüße 你好，世界。 こんにちは مرحبا 👩\u{200d}👩\u{200d}👧 e\u{301}",
    "fn main() { println!(\"{:?}\", 1_000_000); }\r\n",
    "<|im_start|>user\nx<|im_end|> <|eot_id|> <|endoftext|></s>[INST]",
    "1234567890 3.14159 $5.00 50% ... --- !?",
];

/// What a differing count weighs against an equal one: one in more than so many may differ.
const WEIGHT: u32 = 16;

/// Three in short order are drift: one may be a request that the engine changed on its own.
const LIMIT: u32 = 3 * WEIGHT;

/// Result of asking an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityReport {
    /// Probe chats compared.
    pub cases: usize,
    /// The first one that differs.
    pub first_difference: Option<Difference>,
}

/// Where ours and the engine's ids part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Number of the probe chat.
    pub case: usize,
    /// Index of the first differing id.
    pub position: usize,
    /// Our id there, `None` past the end.
    pub ours: Option<u32>,
    /// The engine's.
    pub theirs: Option<u32>,
}

/// The probe chats, addressed to `model`.
pub(crate) fn probes(model: &str) -> impl Iterator<Item = Parsed> {
    let model = serde_json::Value::from(model).to_string();
    PROBES.lines().filter(|line| !line.is_empty()).filter_map(move |line| {
        let body = format!("{{\"model\":{model},{}", line.strip_prefix('{')?);
        parse(Dialect::Chat, Bytes::from(body)).ok()
    })
}

/// The probe texts, addressed to `model`.
pub(crate) fn texts(model: &str) -> impl Iterator<Item = Parsed> {
    TEXTS.iter().filter_map(move |text| {
        let body = serde_json::json!({"model": model, "prompt": text}).to_string();
        parse(Dialect::Completions, Bytes::from(body)).ok()
    })
}

/// Where two lists of ids part, if they do.
pub(crate) fn difference(case: usize, ours: &[u32], theirs: &[u32]) -> Option<Difference> {
    if ours == theirs {
        return None;
    }
    let position = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    Some(Difference { case, position, ours: ours.get(position).copied(), theirs: theirs.get(position).copied() })
}

/// Evidence of drift; a leaky count.
#[derive(Debug, Default)]
pub(crate) struct Drift(AtomicU32);

impl Drift {
    /// Takes one comparison; `true` when drift is established by it.
    pub(crate) fn observe(&self, equal: bool) -> bool {
        if equal {
            if self.0.load(Ordering::Relaxed) > 0 {
                let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |score| score.checked_sub(1));
            }
            return false;
        }
        let before = self.0.fetch_add(WEIGHT, Ordering::Relaxed);
        before < LIMIT && before + WEIGHT >= LIMIT
    }

    /// Forgets all evidence.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
