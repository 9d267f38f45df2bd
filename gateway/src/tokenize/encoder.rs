//! Text → ids: the fast encoder where a probe has proven it equal to the reference, else the reference.

use super::cuts::Cuts;
use super::memo::{Key, Memo, SECRET_BYTES};
use serde_json::Value;
use std::fmt;

/// Texts of many scripts and shapes, a line of `=====` between two.
const CORPUS: &str = include_str!("corpus.txt");

/// The fast encoder spreads longer texts over threads of its own; ours are the only ones that may encode. Pieces are
/// far shorter; a longer text without any safe cut goes to the reference.
const FAST_MAX_BYTES: usize = 64 * 1024 - 1;

/// Added tokens tried in the probe; they are alike beyond the first few.
const PROBED_TOKENS: usize = 40;

/// Why a tokenizer cannot be used, or a text not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct EncodeError(String);

impl EncodeError {
    fn new(context: &str, error: impl fmt::Display) -> Self {
        Self(format!("{context}: {error}"))
    }
}

/// A model's encoder.
pub(crate) struct Encoder {
    reference: tokenizers::Tokenizer,
    fast: Option<fastokens::Tokenizer>,
    /// Why the fast encoder is not used, where it is not.
    pub(crate) fast_refused: Option<String>,
    cuts: Cuts,
    secret: [u8; SECRET_BYTES],
}

/// How much of a text was encoded and how much remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Bytes of text encoded.
    pub(crate) encoded_bytes: usize,
    /// Ids that came of them.
    pub(crate) encoded_tokens: usize,
    /// Bytes of text whose ids were remembered.
    pub(crate) reused_bytes: usize,
}

impl Encoder {
    /// Builds both encoders from the text of a `tokenizer.json` and probes the fast one.
    pub(crate) fn load(json: &str) -> Result<Self, EncodeError> {
        let parsed: Value = serde_json::from_str(json).map_err(|e| EncodeError::new("tokenizer.json", e))?;
        let mut reference: tokenizers::Tokenizer = json.parse().map_err(|e| EncodeError::new("tokenizer.json", e))?;
        reference.with_padding(None);
        reference.with_truncation(None).map_err(|e| EncodeError::new("tokenizer.json", e))?;
        let cuts = Cuts::derive(&parsed);
        let samples = samples(&parsed);
        let (fast, fast_refused) = match load_fast(parsed, &reference, &samples) {
            Ok(fast) => (Some(fast), None),
            Err(reason) => (None, Some(reason)),
        };
        let mut secret = [0; SECRET_BYTES];
        let mut rng = fastrand::Rng::new();
        rng.fill(&mut secret);
        let mut encoder = Self { reference, fast, fast_refused, cuts, secret };
        if !encoder.cuts_proven(&samples)? {
            tracing::warn!("cut and uncut encodings of the probe differ: prompts of this model are not remembered");
            encoder.cuts = Cuts::default();
        }
        Ok(encoder)
    }

    /// Name of the encoder in use.
    pub(crate) fn name(&self) -> &'static str {
        if self.fast.is_some() { "fastokens" } else { "tokenizers" }
    }

    /// Whether pieces of prompts are remembered.
    pub(crate) fn remembers(&self) -> bool {
        self.cuts.any()
    }

    /// Ids of a whole text by the reference.
    pub(crate) fn reference(&self, text: &str, special: bool) -> Result<Vec<u32>, EncodeError> {
        encode_reference(&self.reference, text, special)
    }

    /// Ids of a whole text, nothing remembered.
    pub(crate) fn whole(&self, text: &str, special: bool) -> Result<Vec<u32>, EncodeError> {
        match &self.fast {
            Some(fast) if text.len() <= FAST_MAX_BYTES => encode_fast(fast, text, special),
            _ => self.reference(text, special),
        }
    }

    /// Plans and finishes in one call.
    #[cfg(test)]
    pub(crate) fn encode(&self, text: &str, special: bool, memo: &Memo) -> Result<(Vec<u32>, Effort), EncodeError> {
        let plan = self.plan(text, special, memo);
        self.finish(text, plan, memo)
    }

    /// Looks up the pieces of `text`; what is missing is left for [`Self::finish`].
    pub(crate) fn plan(&self, text: &str, special: bool, memo: &Memo) -> Plan {
        let mut plan = Plan { ids: Vec::with_capacity(text.len() / 3 + 8), ..Plan::default() };
        // Special tokens go around the whole, so such a text is not cut. Few ask for them.
        if !self.cuts.any() || (special && self.adds_special()) {
            plan.missing.push(Missing { at: 0, start: 0, end: text.len(), key: None });
            plan.missing_bytes = text.len();
            plan.special = special;
            return plan;
        }
        self.cuts.pieces(text, |piece| {
            let key = Key::new(&text[piece.clone()], &self.secret);
            if !memo.append(key, &mut plan.ids) {
                plan.missing_bytes += piece.len();
                let (at, key) = (plan.ids.len(), Some(key));
                plan.missing.push(Missing { at, start: piece.start, end: piece.end, key });
            }
        });
        plan
    }

    /// Encodes what `plan` found missing and puts it in place.
    pub(crate) fn finish(&self, text: &str, plan: Plan, memo: &Memo) -> Result<(Vec<u32>, Effort), EncodeError> {
        let mut effort = Effort {
            encoded_bytes: plan.missing_bytes,
            reused_bytes: text.len() - plan.missing_bytes,
            ..Effort::default()
        };
        if plan.missing.is_empty() {
            return Ok((plan.ids, effort));
        }
        let mut ids = Vec::with_capacity(plan.ids.len() + plan.missing_bytes / 3 + 8);
        let mut copied = 0;
        for missing in &plan.missing {
            ids.extend_from_slice(&plan.ids[copied..missing.at]);
            copied = missing.at;
            let new = self.whole(&text[missing.start..missing.end], plan.special)?;
            if let Some(key) = missing.key {
                memo.insert(key, &new);
            }
            effort.encoded_tokens += new.len();
            ids.extend_from_slice(&new);
        }
        ids.extend_from_slice(&plan.ids[copied..]);
        Ok((ids, effort))
    }

    /// Whether `add_special_tokens` changes anything for this tokenizer.
    fn adds_special(&self) -> bool {
        use tokenizers::PostProcessor;
        self.reference.get_post_processor().is_some_and(|post| post.added_tokens(false) > 0)
    }

    /// Whether the probe's texts, cut, give the reference's ids.
    fn cuts_proven(&self, samples: &[String]) -> Result<bool, EncodeError> {
        let joined = samples.concat();
        for text in samples.iter().chain([&joined]) {
            let mut ids = Vec::new();
            let mut failed = None;
            self.cuts.pieces(text, |piece| match self.whole(&text[piece], false) {
                Ok(piece) => ids.extend(piece),
                Err(error) => failed = Some(error),
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if ids != self.reference(text, false)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A text of which some pieces were remembered.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Ids of the remembered pieces.
    ids: Vec<u32>,
    missing: Vec<Missing>,
    special: bool,
    /// Bytes still to be encoded.
    pub(crate) missing_bytes: usize,
}

/// A piece to encode: its bytes, and where among the remembered ids its own belong.
#[derive(Debug)]
struct Missing {
    at: usize,
    start: usize,
    end: usize,
    key: Option<Key>,
}

fn encode_reference(tokenizer: &tokenizers::Tokenizer, text: &str, special: bool) -> Result<Vec<u32>, EncodeError> {
    let encoding = tokenizer.encode_fast(text, special).map_err(|e| EncodeError::new("tokenizers", e))?;
    Ok(encoding.get_ids().to_vec())
}

fn encode_fast(tokenizer: &fastokens::Tokenizer, text: &str, special: bool) -> Result<Vec<u32>, EncodeError> {
    tokenizer.encode_with_special_tokens(text, special).map_err(|e| EncodeError::new("fastokens", e))
}

/// The fast encoder, or why it must not be used.
fn load_fast(
    json: Value,
    reference: &tokenizers::Tokenizer,
    samples: &[String],
) -> Result<fastokens::Tokenizer, String> {
    let mut fast = fastokens::Tokenizer::from_json(json).map_err(|e| format!("fastokens cannot load it: {e}"))?;
    fast.set_padding(None);
    fast.set_truncation(None);
    for (number, text) in samples.iter().enumerate() {
        for special in [false, true] {
            let ours = encode_fast(&fast, text, special).map_err(|e| e.to_string())?;
            let theirs = encode_reference(reference, text, special).map_err(|e| e.to_string())?;
            if ours != theirs {
                return Err(format!("fastokens differs from tokenizers on probe text {number}"));
            }
        }
    }
    Ok(fast)
}

/// The probe's texts: the corpus, and this tokenizer's own added tokens in awkward places.
fn samples(tokenizer: &Value) -> Vec<String> {
    let mut samples: Vec<String> = CORPUS.split("\n=====\n").map(str::to_owned).collect();
    let added = tokenizer["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    for token in added.iter().filter_map(|token| token["content"].as_str()).take(PROBED_TOKENS) {
        let clipped = token.get(..token.len() - 1).unwrap_or(token);
        samples.push(format!(
            "{token}user\nHi {token} there{token}{token}\n\n{token}  x{clipped} {clipped}{token}é{token}7\t{token}"
        ));
    }
    samples
}
