//! The committed chat sessions, and the text that fills them.

use crate::process::{Failure, repository};
use serde::Deserialize;
use std::fmt::Write as _;

/// Words of filler text. Common ones, so that a tokenizer splits them as it splits real prose.
const WORDS: &str = "the of and to in is that for it as was with be by on not he this are or his from at which but have an they you were \
her she there would their we him been has when who will more no if out so said what up its about into than them can only other new some \
could time these two may then do first any my now such like our over man me even most made after also did many before must through back \
years where much your way well down should because each just those people how too little state good very make world still own see men work \
long get here between both life being under never day same another know while last might us great old year off come since against go came \
right used take three water river basin turbine gate level flow pressure engine queue block cache token prefix batch measure plan error \
report table column value number limit reason answer question section chapter summary detail example note figure change season morning";

/// Words of each shared system prompt.
const SYSTEM_WORDS: u32 = 1_300;

/// One chat session as committed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Position in the file, from 0.
    pub session: u32,
    /// Which system prompt it opens with.
    pub system: u32,
    /// First turn, seconds after the start at the file's own pace.
    pub arrival_s: f64,
    /// What the user says and how long the answers are.
    pub turns: Vec<Turn>,
}

/// One question and its answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// Words of the question.
    pub words: u32,
    /// Tokens of the answer.
    pub answer_tokens: u32,
    /// Seconds since the answer before, at the file's own pace.
    pub think_s: f64,
}

/// Reads the first `limit` sessions.
pub fn load(limit: usize) -> Result<Vec<Session>, Failure> {
    let path = repository().join("tests/data/demo_workload.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|e| Failure(format!("{}: {e}", path.display())))?;
    let sessions: Result<Vec<Session>, _> = text.lines().take(limit).map(serde_json::from_str).collect();
    sessions.map_err(|e| Failure(format!("{}: {e}", path.display())))
}

/// The system prompt with this number.
pub fn system_text(system: u32) -> String {
    prose(u64::from(system) | 1 << 40, SYSTEM_WORDS)
}

/// What the user says in a turn; no two turns share their beginning.
pub fn user_text(session: &Session, turn: usize) -> String {
    let seed = u64::from(session.session) << 8 | turn as u64;
    prose(seed, session.turns[turn].words)
}

/// `words` words in sentences, the same for the same seed on every machine.
fn prose(seed: u64, words: u32) -> String {
    let vocabulary: Vec<&str> = WORDS.split_whitespace().collect();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut text = format!("Item {seed}:");
    for position in 0..words {
        // xorshift64*: written out, because the file's prompts must not change with a library's generator.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let pick = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        let word = vocabulary[pick as usize % vocabulary.len()];
        let end = if position % 14 == 13 { "." } else { "" };
        let _ = write!(text, " {word}{end}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_file_is_a_demo() {
        let sessions = load(usize::MAX).unwrap();
        assert!(sessions.len() >= 200);
        assert!(sessions.iter().all(|s| s.turns.len() >= 3), "several turns each");
        assert!(sessions.windows(2).all(|pair| pair[0].arrival_s < pair[1].arrival_s), "in order of arrival");
        let systems: std::collections::BTreeSet<u32> = sessions.iter().map(|s| s.system).collect();
        assert!(systems.len() > 1 && systems.len() * 10 < sessions.len(), "system prompts are shared");
    }

    #[test]
    fn texts_are_stable_and_distinct() {
        let sessions = load(3).unwrap();
        assert_eq!(user_text(&sessions[0], 0), user_text(&sessions[0], 0));
        assert_ne!(user_text(&sessions[0], 0)[..20], user_text(&sessions[1], 0)[..20]);
        assert_ne!(user_text(&sessions[0], 0)[..20], user_text(&sessions[0], 1)[..20]);
        assert_ne!(system_text(0)[..40], system_text(1)[..40]);
        assert_eq!(system_text(0).split_whitespace().count(), SYSTEM_WORDS as usize + 2);
    }
}
