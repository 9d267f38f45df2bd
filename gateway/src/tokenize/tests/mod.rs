//! What the tests of this step share: the real tokenizers where set-up has fetched them, and a tiny one that is always
//! there.
#![expect(clippy::disallowed_methods, reason = "a test's own tasks end with its runtime")]

mod dialects;
mod equal;
mod parts;
mod remember;
mod serve;

use super::model::Local;
use super::{Outcome, TextReason, Tokenizers, request};
use crate::config::resolved;
use crate::parse::{Dialect, Parsed, parse};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

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

pub(super) fn model(name: &str) -> resolved::Model {
    resolved::Model { name: name.to_owned(), ..resolved::Model::default() }
}

pub(super) fn local(name: &str) -> Option<Local> {
    Some(Local::load(&tokenizer_directory(name)?, &model(name)).unwrap())
}

pub(super) fn chat(request: &serde_json::Value) -> Parsed {
    let mut request = request.clone();
    request["model"] = "m".into();
    parse(Dialect::Chat, Bytes::from(request.to_string())).unwrap()
}

/// The request of a fixture's line, byte for byte (its numbers are beyond `serde_json::Value`).
pub(super) fn chat_of(line: &str) -> Parsed {
    #[derive(serde::Deserialize)]
    struct Line<'a> {
        #[serde(borrow)]
        request: &'a serde_json::value::RawValue,
    }
    let line: Line<'_> = serde_json::from_str(line).unwrap();
    parse(Dialect::Chat, Bytes::from(line.request.get().replacen('{', "{\"model\":\"m\",", 1))).unwrap()
}

pub(super) fn text_of(local: &Local, parsed: &Parsed) -> Result<String, String> {
    let body = std::str::from_utf8(&parsed.body).unwrap();
    match request::prompt(&local.chat, parsed, body) {
        Ok(prompt) => Ok(prompt.text),
        Err(no) => Err(format!("{no:?}")),
    }
}

/// A chat in ChatML; like those of many models.
pub(super) const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor \
                                 %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Writes a byte-level tokenizer of some hundred ids, with a chat template, that loads at once.
pub(super) fn write_tiny(directory: &Path) {
    // GPT-2's printable stand-ins for bytes.
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let letters: Vec<char> = (0..256)
        .map(|byte| {
            let stand_in = if printable(byte) { byte } else { next };
            next += u32::from(!printable(byte));
            char::from_u32(stand_in).unwrap()
        })
        .collect();
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        letters.iter().enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
    let mut merges = Vec::new();
    for pair in ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "t h", "th e", "Ġ the", "i n", "e r"] {
        let merged = pair.replace(' ', "");
        let id = vocab.len();
        vocab.insert(merged, id.into());
        merges.push(pair);
    }
    let special = |id: usize, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let first = vocab.len();
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let byte_level =
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(first, "<|im_start|>"), special(first + 1, "<|im_end|>"), special(first + 2, "<s>")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}, byte_level]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [first + 2], "tokens": ["<s>"]}}},
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    });
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config =
        serde_json::json!({"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "chat_template": CHATML});
    std::fs::write(directory.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// Settings of a small pool.
pub(super) fn settings() -> resolved::Tokenize {
    resolved::Tokenize {
        threads: Some(1),
        max_queue: 4,
        deadline: Duration::from_secs(5),
        memo_bytes: 1 << 20,
        parity_sample: 0.0,
    }
}

/// A gateway's tokenizers with the tiny model `tiny`.
pub(super) fn tiny() -> (Tokenizers, prometheus::Registry, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    write_tiny(directory.path());
    let registry = prometheus::Registry::new();
    let mut tiny = model("tiny");
    tiny.tokenizer = Some(directory.path().to_owned());
    (Tokenizers::new(&settings(), &[tiny], &registry).unwrap(), registry, directory)
}

/// Value of a metric with one label value, 0 where it was never touched.
pub(super) fn metric(registry: &prometheus::Registry, name: &str, label: &str) -> f64 {
    let families = registry.gather();
    let metrics = families.iter().filter(|family| family.name() == name).flat_map(|family| family.get_metric());
    let metric = metrics
        .into_iter()
        .find(|metric| label.is_empty() || metric.get_label().iter().any(|pair| pair.value() == label));
    metric.map_or(0.0, |metric| metric.get_counter().get_value() + metric.get_gauge().get_value())
}

/// A far deadline.
pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A request from its JSON, `model` included.
pub(super) fn request(dialect: Dialect, body: serde_json::Value) -> Parsed {
    parse(dialect, Bytes::from(body.to_string())).unwrap()
}

/// The ids, or why there are none.
pub(super) async fn encode(tokenizers: &Tokenizers, parsed: &Parsed) -> Result<Vec<u32>, TextReason> {
    match tokenizers.encode(&parsed.model, parsed, soon()).await.unwrap() {
        Outcome::Tokens(ids) => Ok(ids.to_vec()),
        Outcome::Text(reason) => Err(reason),
    }
}
