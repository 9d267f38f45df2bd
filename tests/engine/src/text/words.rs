//! Output text: words of the model's own vocabulary, chosen by a hash of (prompt, choice, position).
//!
//! Every word re-tokenises to the one id it was made from, alone and after another word, so that a conversation which
//! quotes an earlier answer finds the blocks that decoding filled.

use super::{BYTE_MODE_TOKEN_BYTES, byte_mode_id};
use crate::model::FinishReason;
use std::sync::Arc;

/// Enough different words for text that does not look stuck.
const MOST_WORDS: usize = 4_096;
/// Fewer than this and the vocabulary is not one of words.
const FEWEST_WORDS: usize = 16;
/// Natural answers are this long at least and less than twice as long, tokens.
const NATURAL_TOKENS: u64 = 48;

/// How long an answer is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputLength {
    /// Exactly this many tokens, ended for length.
    Exactly(usize),
    /// As long as the model likes, but not longer than this; ends by itself where it can.
    AtMost(usize),
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Token ids.
    pub ids: Arc<[u32]>,
    /// Text of each token; empty for the end-of-text token.
    pub texts: Vec<Arc<str>>,
    /// Why it ends.
    pub finish: FinishReason,
    /// The stop string that ended it.
    pub stop: Option<String>,
}

impl Output {
    /// Ends the answer where the first of `stops` appears, the stop string cut off.
    pub fn stop_at(&mut self, stops: &[String]) {
        let mut text = String::new();
        for at in 0..self.texts.len() {
            let before = text.len();
            text.push_str(&self.texts[at]);
            let found = stops.iter().filter(|s| !s.is_empty()).filter_map(|s| Some((text.find(s.as_str())?, s))).min();
            let Some((start, stop)) = found else { continue };
            self.ids = self.ids[..=at].into();
            self.texts.truncate(at + 1);
            // Text of earlier tokens that belongs to the stop string goes too.
            let mut end = before + self.texts[at].len();
            for piece in self.texts.iter_mut().rev() {
                let begins = end - piece.len();
                *piece = piece[..start.saturating_sub(begins).min(piece.len())].into();
                end = begins;
                if begins <= start {
                    break;
                }
            }
            (self.finish, self.stop) = (FinishReason::Stop, Some(stop.clone()));
            return;
        }
    }
}

/// Words that may begin an answer, and words that may follow.
pub(super) struct Words {
    openers: Vec<(u32, Arc<str>)>,
    followers: Vec<(u32, Arc<str>)>,
    end: Option<u32>,
}

impl Words {
    /// Lower-case ASCII words of a byte-level vocabulary; `None` when it has too few.
    pub(super) fn from_vocabulary(tokenizer: &fastokens::Tokenizer, end: Option<u32>) -> Option<Self> {
        let (mut openers, mut followers) = (Vec::new(), Vec::new());
        for id in 0..tokenizer.vocab_size() as u32 {
            if followers.len() >= MOST_WORDS {
                break;
            }
            let Some(word) = tokenizer.id_to_token(id).and_then(|token| token.strip_prefix(['Ġ', '▁'])) else {
                continue;
            };
            if !(3..=10).contains(&word.len()) || !word.bytes().all(|b| b.is_ascii_lowercase()) {
                continue;
            }
            let follower = format!(" {word}");
            if tokenizer.encode(&format!("a{follower}{follower}")).is_ok_and(|ids| ids.ends_with(&[id, id])) {
                followers.push((id, follower.into()));
            }
            if let Ok([id]) = tokenizer.encode(word).as_deref() {
                openers.push((*id, word.into()));
            }
        }
        let enough = openers.len() >= FEWEST_WORDS && followers.len() >= FEWEST_WORDS;
        enough.then_some(Self { openers, followers, end })
    }

    /// Words of the byte mode: each is one token of four bytes.
    pub(super) fn of_four_bytes() -> Self {
        let consonants = b"bdfgklmnprstvz";
        let mut words = Vec::new();
        for &first in consonants {
            for &vowel in b"aeiou" {
                for &last in consonants {
                    let bytes = [b' ', first, vowel, last];
                    debug_assert_eq!(bytes.len(), BYTE_MODE_TOKEN_BYTES);
                    words.push((byte_mode_id(&bytes), String::from_utf8_lossy(&bytes).as_ref().into()));
                }
            }
        }
        Self { openers: words.clone(), followers: words, end: Some(0) }
    }

    pub(super) fn compose(&self, prompt: &[u32], choice: u32, length: OutputLength) -> Output {
        let seed = prompt.iter().fold(u64::from(choice) ^ 0xcbf2_9ce4_8422_2325, |hash, &id| {
            (hash ^ u64::from(id)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
        });
        let natural = (NATURAL_TOKENS + mix(seed) % NATURAL_TOKENS) as usize;
        let (tokens, ends) = match length {
            OutputLength::Exactly(tokens) => (tokens, false),
            OutputLength::AtMost(most) => (natural.min(most), natural <= most && self.end.is_some()),
        };
        let mut ids = Vec::with_capacity(tokens);
        let mut texts = Vec::with_capacity(tokens);
        for position in 0..tokens {
            let words = if position == 0 { &self.openers } else { &self.followers };
            let at = mix(seed ^ mix(position as u64 + 1)) % words.len() as u64;
            let (id, text) = &words[at as usize];
            ids.push(*id);
            texts.push(text.clone());
        }
        if let (true, Some(end), Some(id), Some(text)) = (ends, self.end, ids.last_mut(), texts.last_mut()) {
            (*id, *text) = (end, "".into());
        }
        let finish = if ends { FinishReason::Stop } else { FinishReason::Length };
        Output { ids: ids.into(), texts, finish, stop: None }
    }
}

/// A bijection of 64 bits that spreads (splitmix64).
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
