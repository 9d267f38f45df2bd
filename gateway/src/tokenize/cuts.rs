//! Where a prompt may be cut so that its pieces, encoded one by one, give the ids of the whole.
//!
//! Two kinds of cuts are provably safe:
//!
//! - *before an added token* (`<|im_start|>`, …): the tokenizer splits there before it does anything else. Safe when
//!   the token's first byte occurs in no added token but at its start (then no match can span the cut), and when no
//!   token that starts with that byte strips white space, wants word boundaries or is matched after normalisation;
//! - *inside text*, between an ASCII letter and a space that an ASCII letter follows, or between a Han character and
//!   its full stop or comma: in the patterns of the GPT-2, Llama 3, Qwen and o200k families every match that contains a
//!   letter ends with letters, and what follows starts a match of its own. Nothing that NFC composes crosses either.
//!
//! Anything else (position-dependent pre-tokenizers, prefixing normalizers, unknown patterns) gets no cuts, and the
//! start-up probe compares cut and uncut encodings on varied text before any cut is used.
//!
//! Cuts depend only on the text before them, so that two prompts with a common beginning are cut alike there.

use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;

/// Pieces are at least so long (but the last): shorter ones cost more to look up than to encode.
const MIN_PIECE: usize = 48;

/// In long text a piece ends at the first safe place after so many bytes.
const SOFT_PIECE: usize = 1_024;

/// Patterns whose matches end with letters where they contain any.
const LETTER_PATTERNS: &[&str] = &[
    // Llama 3 (cl100k), Qwen 2 and 3, GPT-4o (o200k).
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// An entry of `added_tokens` in `tokenizer.json`.
#[derive(Clone, Debug, Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    normalized: bool,
}

/// Where a model's prompts may be cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts {
    /// Tokens before which a cut is safe.
    tokens: Vec<Box<[u8]>>,
    /// Their first bytes, at most three.
    firsts: Vec<u8>,
    /// Their second bytes, sorted: most `<` in code are told apart by these.
    seconds: Vec<u8>,
    soft: bool,
}

impl Cuts {
    /// Derives the safe cuts from a parsed `tokenizer.json`.
    pub(crate) fn derive(tokenizer: &Value) -> Self {
        let added: Vec<AddedToken> = serde_json::from_value(tokenizer["added_tokens"].clone()).unwrap_or_default();
        if !context_free(tokenizer) {
            return Self::default();
        }
        let mut firsts: Vec<u8> = Vec::new();
        for token in &added {
            if let Some(&first) = token.content.as_bytes().first()
                && !firsts.contains(&first)
                && firsts.len() < 3
                && added.iter().all(|other| splits_cleanly(other, first))
            {
                firsts.push(first);
            }
        }
        let tokens = added.iter().map(|token| token.content.as_bytes());
        let tokens = tokens.filter(|token| token.first().is_some_and(|first| firsts.contains(first)));
        let tokens: Vec<Box<[u8]>> = tokens.map(Box::from).collect();
        let mut seconds: Vec<u8> = tokens.iter().filter_map(|token| token.get(1).copied()).collect();
        seconds.sort_unstable();
        seconds.dedup();
        if tokens.iter().any(|token| token.len() == 1) {
            seconds = (0..=u8::MAX).collect();
        }
        let inside = |token: &AddedToken| soft_cut(token.content.as_bytes(), 1).is_some();
        Self {
            tokens,
            firsts,
            seconds,
            soft: letters_end_matches(&tokenizer["pre_tokenizer"]) && !added.iter().any(inside),
        }
    }

    /// Whether there is any place to cut at.
    pub(crate) fn any(&self) -> bool {
        self.soft || !self.firsts.is_empty()
    }

    /// Splits `text` into consecutive pieces.
    pub(crate) fn pieces(&self, text: &str, mut each: impl FnMut(Range<usize>)) {
        let bytes = text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let end = self.next(bytes, start);
            each(start..end);
            start = end;
        }
    }

    /// The end of the piece that starts at `start`.
    fn next(&self, bytes: &[u8], start: usize) -> usize {
        let soft_from = if self.soft { start + SOFT_PIECE } else { usize::MAX };
        let mut from = start + MIN_PIECE;
        while from < bytes.len() {
            // Search for tokens up to where text may be cut, then for whichever comes first.
            let window = bytes.len().min(from.max(soft_from).saturating_add(SOFT_PIECE));
            let token = self.next_token(bytes, from, window);
            let soft = (soft_from < window).then(|| soft_cut(&bytes[..window], from.max(soft_from))).flatten();
            match (token, soft) {
                (Some(token), Some(soft)) => return token.min(soft),
                (Some(cut), None) | (None, Some(cut)) => return cut,
                (None, None) => from = window,
            }
        }
        bytes.len()
    }

    /// The first token in `bytes[from..window]`.
    fn next_token(&self, bytes: &[u8], from: usize, window: usize) -> Option<usize> {
        let haystack = &bytes[from..window];
        let starts_token = |at: &usize| {
            let rest = &bytes[from + at..];
            rest.get(1).is_some_and(|second| self.seconds.binary_search(second).is_ok())
                && self.tokens.iter().any(|token| rest.starts_with(token))
        };
        let found = match self.firsts.as_slice() {
            [] => None,
            [a] => memchr::memchr_iter(*a, haystack).find(starts_token),
            [a, b] => memchr::memchr2_iter(*a, *b, haystack).find(starts_token),
            [a, b, c, ..] => memchr::memchr3_iter(*a, *b, *c, haystack).find(starts_token),
        };
        found.map(|at| from + at)
    }
}

/// Whether `other` cannot make a cut before a token that starts with `first` unsafe.
fn splits_cleanly(other: &AddedToken, first: u8) -> bool {
    let bytes = other.content.as_bytes();
    let starts = bytes.first() == Some(&first);
    let plain = !other.single_word && !other.lstrip && !other.normalized;
    !bytes.iter().skip(1).any(|byte| *byte == first) && (!starts || plain)
}

/// The first place at or after `from` where text may be cut. Never looks at or behind `bytes[0]` alone.
fn soft_cut(bytes: &[u8], from: usize) -> Option<usize> {
    let from = from.max(1);
    let space = memchr::memchr_iter(b' ', bytes.get(from..)?)
        .map(|at| from + at)
        .find(|&at| bytes[at - 1].is_ascii_alphabetic() && bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic));
    // A text in another script has few such spaces: look there for its own punctuation, as far as the space.
    let until = space.unwrap_or(bytes.len());
    (from..until).find(|&at| bytes[at] >= 0xe3 && han_stop(bytes, at)).or(space)
}

/// Whether a Han character ends, and `。`, `、`, `，`, `！`, `？`, `：` or `；` starts, at `at`.
fn han_stop(bytes: &[u8], at: usize) -> bool {
    let stop = matches!(
        bytes.get(at..at + 3),
        Some([0xe3, 0x80, 0x81 | 0x82] | [0xef, 0xbc, 0x81 | 0x8c | 0x9a | 0x9b | 0x9f])
    );
    // U+4E00..U+9FFF, its first and last rows left out.
    stop && at >= 3 && matches!(bytes[at - 3..at], [0xe5..=0xe8, 0x80..=0xbf, 0x80..=0xbf])
}

/// Whether a piece of text is encoded the same wherever it stands: no prefixing, no position-dependent step.
fn context_free(tokenizer: &Value) -> bool {
    let nfc = |normalizer: &Value| normalizer.is_null() || normalizer["type"] == "NFC";
    let normalizer = &tokenizer["normalizer"];
    let normalizer = match normalizer["normalizers"].as_array() {
        Some(steps) if normalizer["type"] == "Sequence" => steps.iter().all(nfc),
        _ => nfc(normalizer),
    };
    let step = |step: &Value| match step["type"].as_str() {
        Some("Split") => step["behavior"] == "Isolated" || step["behavior"] == "Removed",
        Some("ByteLevel") => step["add_prefix_space"] != true,
        Some("Digits") => true,
        _ => false,
    };
    let pre = &tokenizer["pre_tokenizer"];
    let pre_tokenizer = match pre["pretokenizers"].as_array() {
        Some(steps) if pre["type"] == "Sequence" => steps.iter().all(step),
        _ => step(pre),
    };
    let model = &tokenizer["model"];
    normalizer && pre_tokenizer && model["type"] == "BPE" && model["dropout"].as_f64().unwrap_or(0.0) == 0.0
}

/// Whether the pre-tokenizer is one of those whose matches end with letters where they contain any.
fn letters_end_matches(pre: &Value) -> bool {
    match pre["type"].as_str() {
        Some("ByteLevel") => pre["use_regex"] != false,
        Some("Sequence") => {
            let steps = pre["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice);
            let [split, byte_level] = steps else { return false };
            split["type"] == "Split"
                && split["behavior"] == "Isolated"
                && split["invert"] != true
                && split["pattern"]["Regex"].as_str().is_some_and(|regex| LETTER_PATTERNS.contains(&regex))
                && byte_level["type"] == "ByteLevel"
                && byte_level["use_regex"] == false
        }
        _ => false,
    }
}
