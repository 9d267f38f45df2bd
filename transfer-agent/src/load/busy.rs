//! Which connections are at work: a connection is not a request, since pools keep idle ones.
//!
//! ```text
//! idle ── received after it sent ──► awaiting ── more than ANSWER_BYTES sent since ──► streaming ── sends no more ──► idle
//! ```
//!
//! From what TCP says of a connection at each dump, and what it said at the one before. An approximation, and which way it errs is
//! known: what comes and goes between two dumps is not seen; an engine that sends more than [`ANSWER_BYTES`] before its first token
//! looks idle until it streams; one request at a time on a connection, so HTTP/2 counts as one however many it carries. A connection
//! streams once it sent between two dumps in a row, so a scrape or a short answer of an instant is none.

use super::sockets::Info;
use forebay_common::kernel::account::ANSWER_BYTES;
use std::collections::HashMap;

/// An answer of which only a head was sent is awaited for so long: then the head was all of it.
pub const HEAD_MS: u32 = 10_000;
/// Connections that are followed; further ones are judged by one dump alone.
pub const MAX_FOLLOWED: usize = 65_536;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Nothing.
    Idle,
    /// A request is in, its answer has not got going.
    Awaiting,
    /// An answer is being sent.
    Streaming,
}

/// Connections by socket cookie, as the last dump had them.
#[derive(Debug, Default)]
pub struct Follower {
    known: HashMap<u64, Known>,
    round: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Bytes that it had sent when the request came that it awaits an answer to.
    awaiting_from: Option<u64>,
    bytes_out: u64,
    /// Whether it sent something between the last two dumps.
    grew: bool,
    round: u32,
}

impl Follower {
    /// A new dump begins.
    pub fn begin(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// What the connection `cookie` does, by what TCP says of it now.
    pub fn judge(&mut self, cookie: u64, info: &Info) -> Activity {
        let before = self.known.get(&cookie).copied();
        let asked = info.bytes_in > 0 && (info.since_received_ms < info.since_sent_ms || info.data_segments_out == 0);
        // An answer that only began with its head keeps the connection awaiting, until enough of it was sent.
        let awaited = before.and_then(|before| before.awaiting_from);
        let only_begun = awaited.is_some_and(|from| info.bytes_out.saturating_sub(from) <= u64::from(ANSWER_BYTES))
            && info.since_sent_ms < HEAD_MS;
        let grew = before.is_some_and(|before| info.bytes_out > before.bytes_out);
        let (activity, awaiting_from) = if asked || only_begun {
            (Activity::Awaiting, awaited.or(Some(info.bytes_out)))
        } else if grew && before.is_some_and(|before| before.grew || before.awaiting_from.is_some()) {
            (Activity::Streaming, None)
        } else {
            (Activity::Idle, None)
        };
        if before.is_some() || self.known.len() < MAX_FOLLOWED {
            let known = Known { awaiting_from, bytes_out: info.bytes_out, grew, round: self.round };
            self.known.insert(cookie, known);
        }
        activity
    }

    /// The dump ends: connections that were not in it are gone.
    pub fn end(&mut self) {
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(follower: &mut Follower, info: Info) -> Activity {
        follower.begin();
        let activity = follower.judge(1, &info);
        follower.end();
        activity
    }

    #[test]
    fn a_request_then_a_head_then_tokens_then_silence() {
        let mut follower = Follower::default();
        let fresh = Info { since_sent_ms: 9, since_received_ms: 9, ..Info::default() };
        assert_eq!(judge(&mut follower, fresh), Activity::Idle, "a pool may open connections ahead");
        let asked = Info { bytes_in: 400, since_sent_ms: 9, since_received_ms: 9, ..Info::default() };
        assert_eq!(judge(&mut follower, asked), Activity::Awaiting, "within the same tick, and nothing was sent yet");
        let head = Info { since_received_ms: 50, since_sent_ms: 10, bytes_out: 200, data_segments_out: 1, ..asked };
        assert_eq!(judge(&mut follower, head), Activity::Awaiting, "a response head is no answer");
        let silent = Info { since_received_ms: 5_000, since_sent_ms: 4_960, ..head };
        assert_eq!(judge(&mut follower, silent), Activity::Awaiting, "a long prefill after an early head");
        let tokens = Info { bytes_out: 900, since_sent_ms: 10, data_segments_out: 5, ..silent };
        assert_eq!(judge(&mut follower, tokens), Activity::Streaming);
        let more = Info { bytes_out: 1_200, ..tokens };
        assert_eq!(judge(&mut follower, more), Activity::Streaming);
        assert_eq!(judge(&mut follower, more), Activity::Idle, "an idle connection in a pool");
        let again = Info { bytes_in: 800, since_received_ms: 1, since_sent_ms: 800, ..more };
        assert_eq!(judge(&mut follower, again), Activity::Awaiting, "the next request on it");
    }

    #[test]
    fn short_exchanges_are_no_streams() {
        let mut follower = Follower::default();
        let scrape = |n: u64| Info {
            bytes_in: 100 * n,
            bytes_out: 8_000 * n,
            data_segments_out: 6 * n as u32,
            since_received_ms: 21,
            since_sent_ms: 20,
            ..Info::default()
        };
        assert_eq!(judge(&mut follower, scrape(1)), Activity::Idle);
        assert_eq!(judge(&mut follower, scrape(1)), Activity::Idle);
        assert_eq!(judge(&mut follower, scrape(2)), Activity::Idle, "once is no stream");
        assert_eq!(judge(&mut follower, scrape(2)), Activity::Idle);
    }

    #[test]
    fn a_head_that_was_all_of_the_answer_is_not_awaited_for_ever() {
        let mut follower = Follower::default();
        let asked = Info { bytes_in: 100, ..Info::default() };
        assert_eq!(judge(&mut follower, asked), Activity::Awaiting);
        let answered = Info { bytes_out: 150, data_segments_out: 1, since_received_ms: 20, since_sent_ms: 10, ..asked };
        assert_eq!(judge(&mut follower, answered), Activity::Awaiting);
        let later = Info { since_received_ms: HEAD_MS + 10, since_sent_ms: HEAD_MS, ..answered };
        assert_eq!(judge(&mut follower, later), Activity::Idle);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut follower = Follower::default();
        judge(&mut follower, Info { bytes_in: 1, ..Info::default() });
        assert_eq!(follower.known.len(), 1);
        follower.begin();
        follower.end();
        assert!(follower.known.is_empty());
    }
}
