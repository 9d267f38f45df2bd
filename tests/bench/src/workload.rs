//! The requests of one run, in order, as bytes ready to send.
//!
//! Bodies depend on the test's name, the repetition and the shape alone: every router gets the same ones. Group texts
//! (mode `session`) do not depend on the repetition, so they stay known to whoever has seen them; everything else is
//! drawn anew in each repetition and has never been seen.

use crate::text::Vocabulary;
use fastrand::Rng;
use std::io::Write as _;

/// What prompts have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// One prompt, again and again.
    Fixed,
    /// Prompts that share nothing but the chat template.
    Distinct,
    /// Each prompt begins with the text of its group.
    Session,
}

/// The shape of a run's requests. Byte counts are of prompt text inside the JSON string.
#[derive(Clone, Debug)]
pub struct Shape {
    /// What prompts have in common.
    pub mode: Mode,
    /// Bytes of each prompt.
    pub prompt_bytes: usize,
    /// Groups in mode `session`.
    pub groups: usize,
    /// Bytes that a group shares in mode `session`; less than `prompt_bytes`.
    pub shared_bytes: usize,
    /// `max_tokens`.
    pub max_tokens: u32,
    /// Whether a stream is asked for.
    pub stream: bool,
    /// `model`.
    pub model: String,
    /// Port, for the `Host` line.
    pub port: u16,
}

/// Draws requests. Keep one per run.
#[derive(Debug)]
pub struct Workload {
    shape: Shape,
    words: Vocabulary,
    rng: Rng,
    issued: usize,
    group_texts: Vec<Vec<u8>>,
    fixed: Vec<u8>,
    prompt: Vec<u8>,
}

impl Workload {
    /// The requests of `test` in repetition `rep`.
    pub fn new(shape: Shape, test: &str, rep: u64) -> Self {
        let words = Vocabulary::default();
        let seed = seed_of(test);
        let group_texts = match shape.mode {
            Mode::Session => (0..shape.groups).map(|group| group_text(&words, &shape, seed, group)).collect(),
            Mode::Fixed | Mode::Distinct => Vec::new(),
        };
        let mut fixed = Vec::new();
        words.write(&mut Rng::with_seed(seed), shape.prompt_bytes, &mut fixed);
        let rng = Rng::with_seed(seed ^ rep.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Self { shape, words, rng, issued: 0, group_texts, fixed, prompt: Vec::new() }
    }

    /// Replaces `out` with the next request, head and body.
    pub fn write_request(&mut self, out: &mut Vec<u8>) {
        self.prompt.clear();
        match self.shape.mode {
            Mode::Fixed => self.prompt.extend_from_slice(&self.fixed),
            Mode::Distinct => self.write_fresh_text(),
            Mode::Session => {
                // Each group once in order, so that a warm-up of `groups` requests shows them all; then at random.
                let group =
                    if self.issued < self.shape.groups { self.issued } else { self.rng.usize(..self.shape.groups) };
                self.prompt.extend_from_slice(&self.group_texts[group]);
                self.write_fresh_text();
            }
        }
        self.issued += 1;
        let Shape { model, max_tokens, stream, port, .. } = &self.shape;
        let before = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":""#);
        let after = format!(r#""}}],"max_tokens":{max_tokens},"temperature":0.7,"stream":{stream}}}"#);
        let length = before.len() + self.prompt.len() + after.len();
        out.clear();
        write!(
            out,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
             accept: */*\r\nuser-agent: lg\r\ncontent-length: {length}\r\n\r\n{before}"
        )
        .expect("a Vec takes every write");
        out.extend_from_slice(&self.prompt);
        out.extend_from_slice(after.as_bytes());
    }

    /// Fills the prompt up to its size with text never seen, a random number first.
    fn write_fresh_text(&mut self) {
        write!(self.prompt, "{:016x} ", self.rng.u64(..)).expect("a Vec takes every write");
        let rest = self.shape.prompt_bytes.saturating_sub(self.prompt.len());
        self.words.write(&mut self.rng, rest, &mut self.prompt);
    }
}

fn group_text(words: &Vocabulary, shape: &Shape, seed: u64, group: usize) -> Vec<u8> {
    let mut text = format!("group {group} ").into_bytes();
    let rest = shape.shared_bytes.saturating_sub(text.len());
    words.write(&mut Rng::with_seed(seed.wrapping_add(1 + group as u64)), rest, &mut text);
    text
}

/// FNV-1a of a test's name.
fn seed_of(test: &str) -> u64 {
    test.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(mode: Mode) -> Shape {
        Shape {
            mode,
            prompt_bytes: 1_000,
            groups: 3,
            shared_bytes: 600,
            max_tokens: 4,
            stream: true,
            model: "m".into(),
            port: 1,
        }
    }

    fn prompts(mode: Mode, test: &str, rep: u64, count: usize) -> Vec<String> {
        let (mut workload, mut request) = (Workload::new(shape(mode), test, rep), Vec::new());
        (0..count)
            .map(|_| {
                workload.write_request(&mut request);
                let text = std::str::from_utf8(&request).unwrap();
                let (head, body) = text.split_once("\r\n\r\n").unwrap();
                assert!(head.contains(&format!("content-length: {}", body.len())));
                let json: serde_json::Value = serde_json::from_str(body).unwrap();
                assert_eq!((json["max_tokens"].as_u64(), json["stream"].as_bool()), (Some(4), Some(true)));
                let raw = body.split("\"content\":\"").nth(1).unwrap();
                assert_eq!(raw.split("\"}]").next().unwrap().len(), 1_000);
                json["messages"][0]["content"].as_str().unwrap().to_owned()
            })
            .collect()
    }

    #[test]
    fn the_same_test_and_rep_give_the_same_bodies() {
        assert_eq!(prompts(Mode::Distinct, "a", 1, 5), prompts(Mode::Distinct, "a", 1, 5));
        assert_ne!(prompts(Mode::Distinct, "a", 1, 5), prompts(Mode::Distinct, "a", 2, 5));
        assert_ne!(prompts(Mode::Distinct, "a", 1, 5), prompts(Mode::Distinct, "b", 1, 5));
    }

    #[test]
    fn fixed_prompts_are_equal_and_distinct_ones_share_no_start() {
        let fixed = prompts(Mode::Fixed, "a", 1, 3);
        assert!(fixed.iter().all(|prompt| *prompt == fixed[0]));
        let mut starts: Vec<String> =
            prompts(Mode::Distinct, "a", 1, 100).iter().map(|prompt| prompt[..16].to_owned()).collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 100);
    }

    #[test]
    fn sessions_share_their_group_across_repetitions_and_nothing_else() {
        let (first, second) = (prompts(Mode::Session, "a", 1, 9), prompts(Mode::Session, "a", 2, 9));
        // Escaped paragraph breaks make the decoded text shorter than 600 bytes; 500 are surely shared.
        for group in 0..3 {
            assert_eq!(first[group][..500], second[group][..500]);
            assert_ne!(first[group][650..], second[group][650..]);
            assert!(first[group].starts_with(&format!("group {group} ")));
        }
        assert!(first[3..].iter().all(|prompt| first[..3].iter().any(|known| known[..500] == prompt[..500])));
    }
}
