//! The sequence contract of one feed: which batch is applied, when to ask for a replay, what proves a restart. Pure.
//!
//! Batches are numbered from 0 by the publishing process and are applied in order, each once.
//!
//! ```text
//! live: next in order ────────────────► apply
//! live: ahead (first one too) ── gap ─► park it, ask for a replay from the one that is missing
//! live: behind the last live one ─────► restart proven: a new generation, replay from 0
//! live: behind, and published no later than the last live one ─► late (out of order): skip, the replay has it
//! live: behind, but newer than the last live one ─► the replay had it: skip; published later than what was applied last:
//!                                       a restart that no live batch had shown yet
//! replay ends ────────────────────────► parked batches in order; a gap that is left is asked for again, and given up
//!                                       when the engine has it no longer: what was known may be wrong (lost), go on
//! ```
//!
//! One publisher's live batches only ever grow (one TCP stream), which is why "behind" proves another process, unless the
//! batch says that it was published before the last one: then something between reordered them. A clock that was set back
//! could hide a restart so, which is why [`MAX_LATE`] such batches in a row prove one after all. A batch that repeats the
//! last one byte for byte is a duplicate, not a restart.

use std::collections::VecDeque;

/// Batches parked while a replay runs: a busy engine publishes a hundred a second and a replay takes one.
const MAX_PARKED_BATCHES: usize = 4_096;

/// Bytes of parked batches of one feed.
const MAX_PARKED_BYTES: usize = 32 << 20;

/// Replays in a row that bring nothing before a gap is given up.
const MAX_VAIN_REPLAYS: u32 = 3;

/// Late batches in a row that are believed to be out of order.
const MAX_LATE: u32 = 16;

/// What the contract asks of whoever holds the cache's picture.
pub(super) trait Sink {
    /// Batch `seq` is next.
    fn apply(&mut self, seq: u64, payload: &[u8]);
    /// The batch was seen before.
    fn skip(&mut self);
    /// Something is missing: ask the engine for every batch from `from` on.
    fn ask(&mut self, from: u64);
    /// What is missing cannot be had: what was known may be wrong, and what came before is unknown.
    fn lose(&mut self);
    /// Another process publishes: nothing that was known holds.
    fn restart(&mut self);
    /// A batch was ahead of its turn.
    fn note_gap(&mut self);
    /// When the engine published this batch, by its own clock.
    fn published(&self, payload: &[u8]) -> Option<f64>;
}

/// A live batch, by what distinguishes it from its repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    seq: u64,
    fingerprint: u64,
}

#[derive(Debug)]
struct Replay {
    /// Replies so far.
    replies: u64,
    /// Batches applied out of it.
    applied: u64,
    /// Something was lost on the way: ask again.
    hole: bool,
}

/// Where one feed stands.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    can_replay: bool,
    /// The batch to apply next; `None` before the first.
    next: Option<u64>,
    last_live: Option<Seen>,
    /// When that one had been published.
    last_live_published: Option<f64>,
    /// Late batches in a row.
    late: u32,
    /// When the last batch that was applied had been published.
    published: Option<f64>,
    replay: Option<Replay>,
    parked: VecDeque<(u64, Vec<u8>)>,
    parked_bytes: usize,
    vain_replays: u32,
}

impl Sequence {
    pub(super) fn new(can_replay: bool) -> Self {
        Self { can_replay, ..Self::default() }
    }

    /// Last batch applied.
    pub(super) fn last(&self) -> Option<u64> {
        self.next?.checked_sub(1)
    }

    pub(super) fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Goes on after batch `next − 1` of the same process, from a snapshot.
    pub(super) fn resume(&mut self, next: u64, published: Option<f64>, sink: &mut impl Sink) {
        *self = Self { next: Some(next), published, ..Self::new(self.can_replay) };
        self.ask(sink);
    }

    /// Where [`Sequence::resume`] would go on, and when the last batch had been published.
    pub(super) fn position(&self) -> Option<(u64, Option<f64>)> {
        Some((self.next?, self.published))
    }

    /// Begins anew, at the start or when another process was proven from outside.
    pub(super) fn start(&mut self, sink: &mut impl Sink) {
        *self = Self::new(self.can_replay);
        self.ask(sink);
    }

    /// Asks for whatever came since the last batch, to find what was lost while a connection was being made.
    pub(super) fn confirm(&mut self, sink: &mut impl Sink) {
        if self.replay.is_none() {
            self.ask(sink);
        }
    }

    /// A live batch.
    pub(super) fn live(&mut self, seq: u64, payload: &[u8], sink: &mut impl Sink) {
        let seen = Seen { seq, fingerprint: xxhash_rust::xxh3::xxh3_64(payload) };
        if self.last_live == Some(seen) {
            return sink.skip();
        }
        let behind_live = self.last_live.is_some_and(|last| seq <= last.seq);
        let published = sink.published(payload);
        if behind_live && self.is_late(published) {
            // A replay that runs has it; without one it is applied or given up already.
            return sink.skip();
        }
        if behind_live || self.is_later_though_behind(seq, payload, sink) {
            sink.restart();
            self.start(sink);
        }
        (self.last_live, self.last_live_published, self.late) = (Some(seen), published, 0);
        if self.replay.is_some() {
            return self.park(seq, payload);
        }
        let next = self.expected();
        if seq < next {
            sink.skip();
        } else if seq == next {
            self.advance(seq, payload, sink);
        } else {
            sink.note_gap();
            self.vain_replays = 0;
            if self.can_replay {
                self.ask(sink);
                self.park(seq, payload);
            } else {
                sink.lose();
                self.advance(seq, payload, sink);
            }
        }
    }

    /// A batch of the replay that was asked for.
    pub(super) fn replayed(&mut self, seq: u64, payload: &[u8], sink: &mut impl Sink) {
        let next = self.expected();
        let Some(replay) = &mut self.replay else { return };
        replay.replies += 1;
        if seq < next {
            return sink.skip();
        }
        if seq > next {
            if replay.replies > 1 {
                replay.hole = true;
                return;
            }
            // The engine's buffer begins later: what came before cannot be had.
            sink.lose();
        }
        replay.applied += 1;
        self.advance(seq, payload, sink);
    }

    /// The replay ended, or `complete` is false and it broke off. True when the caller should wait before what was asked
    /// through [`Sink::ask`]: the last one was in vain.
    pub(super) fn replay_ended(&mut self, complete: bool, sink: &mut impl Sink) -> bool {
        let Some(replay) = self.replay.take() else { return false };
        self.vain_replays = if replay.applied > 0 { 0 } else { self.vain_replays + 1 };
        // An engine that answers and has nothing is believed at the second time: it may publish before it remembers.
        let allowed = if complete { 2 } else { MAX_VAIN_REPLAYS };
        let again = self.vain_replays < allowed;
        self.settle(again, sink);
        if self.replay.is_none() && again && (replay.hole || !complete) {
            self.ask(sink);
        } else if self.replay.is_none() && !complete && self.next.is_none() {
            sink.lose();
        }
        self.vain_replays > 0
    }

    /// Whether a batch behind the last live one came out of order rather than from another process.
    fn is_late(&mut self, published: Option<f64>) -> bool {
        let Some((published, last)) = published.zip(self.last_live_published) else { return false };
        self.late += 1;
        published <= last && self.late <= MAX_LATE
    }

    /// A batch whose number was applied already can only repeat it, unless it was published after all that was applied.
    fn is_later_though_behind(&self, seq: u64, payload: &[u8], sink: &impl Sink) -> bool {
        let later = |applied| sink.published(payload).is_some_and(|published| published > applied);
        seq < self.expected() && self.published.is_some_and(later)
    }

    /// Applies what is parked, as far as it goes.
    fn settle(&mut self, may_ask: bool, sink: &mut impl Sink) {
        while let Some((seq, _)) = self.parked.front() {
            let next = self.expected();
            if *seq > next && may_ask {
                return self.ask(sink);
            }
            let Some((seq, payload)) = self.parked.pop_front() else { return };
            self.parked_bytes -= payload.len();
            if seq < next {
                sink.skip();
                continue;
            }
            if seq > next {
                sink.lose();
            }
            self.advance(seq, &payload, sink);
        }
    }

    fn advance(&mut self, seq: u64, payload: &[u8], sink: &mut impl Sink) {
        sink.apply(seq, payload);
        self.published = sink.published(payload).or(self.published);
        self.next = Some(seq.saturating_add(1));
    }

    fn ask(&mut self, sink: &mut impl Sink) {
        if self.can_replay {
            self.replay = Some(Replay { replies: 0, applied: 0, hole: false });
            sink.ask(self.expected());
        }
    }

    fn park(&mut self, seq: u64, payload: &[u8]) {
        if self.parked.len() < MAX_PARKED_BATCHES && self.parked_bytes + payload.len() <= MAX_PARKED_BYTES {
            self.parked_bytes += payload.len();
            self.parked.push_back((seq, payload.to_vec()));
        } else if let Some(replay) = &mut self.replay {
            // Lost here; the engine still has it.
            replay.hole = true;
        }
    }

    fn expected(&self) -> u64 {
        self.next.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Default, Debug)]
    struct Log(Vec<String>);

    impl Log {
        fn take(&mut self) -> String {
            std::mem::take(&mut self.0).join(" ")
        }
    }

    impl Sink for Log {
        fn apply(&mut self, seq: u64, _: &[u8]) {
            self.0.push(format!("{seq}"));
        }
        fn skip(&mut self) {
            self.0.push("skip".into());
        }
        fn ask(&mut self, from: u64) {
            self.0.push(format!("ask{from}"));
        }
        fn lose(&mut self) {
            self.0.push("lost".into());
        }
        fn restart(&mut self) {
            self.0.push("restart".into());
        }
        fn note_gap(&mut self) {
            self.0.push("gap".into());
        }
        fn published(&self, payload: &[u8]) -> Option<f64> {
            Some(if payload.starts_with(b"new") { 2.0 } else { 1.0 })
        }
    }

    /// Plays `l5` (live 5), `r5` (replayed 5), `e` (replay complete), `x` (replay broke off), `c` (confirm); returns what was asked of the sink.
    fn play(can_replay: bool, script: &str) -> String {
        let (mut sequence, mut log) = (Sequence::new(can_replay), Log::default());
        sequence.start(&mut log);
        for step in script.split_whitespace() {
            let seq = || step[1..].parse::<u64>().expect("number");
            match &step[..1] {
                "l" => sequence.live(seq(), format!("live {}", seq()).as_bytes(), &mut log),
                // Same number, another process's content.
                "n" => sequence.live(seq(), format!("new {}", seq()).as_bytes(), &mut log),
                "r" => sequence.replayed(seq(), b"", &mut log),
                "e" => {
                    sequence.replay_ended(true, &mut log);
                }
                "x" => {
                    sequence.replay_ended(false, &mut log);
                }
                "c" => sequence.confirm(&mut log),
                other => panic!("{other}"),
            }
        }
        log.take()
    }

    #[test]
    fn scripts() {
        for (can_replay, script, want) in [
            // Contiguous from the start, without and with replay.
            (false, "l0 l1 l2", "0 1 2"),
            (true, "e l0 l1", "ask0 0 1"),
            // A late join learns what is there; live batches wait and repeat the replay's end.
            (true, "l7 r5 r6 r7 l8 e l9", "ask0 lost 5 6 7 skip 8 9"),
            (true, "r0 r1 l1 l2 e l3", "ask0 0 1 skip 2 3"),
            // A gap.
            (true, "e l0 l3 r1 r2 r3 e l4", "ask0 0 gap ask1 1 2 3 skip 4"),
            (false, "l0 l3 l4", "0 gap lost 3 4"),
            (false, "l5 l6", "gap lost 5 6"),
            // A gap that the engine no longer has: asked for twice, then given up.
            (true, "e l0 l9 e e l10", "ask0 0 gap ask1 ask1 lost 9 10"),
            (true, "e l0 l9 r7 r8 e", "ask0 0 gap ask1 lost 7 8 9"),
            // A replay that breaks off is tried three times.
            (true, "x x x l0", "ask0 ask0 ask0 lost 0"),
            (true, "e l0 l9 x x x l10", "ask0 0 gap ask1 ask1 ask1 lost 9 10"),
            (true, "e l0 l5 r1 r2 x r3 r4 e", "ask0 0 gap ask1 1 2 ask3 3 4 5"),
            // A hole inside the replay.
            (true, "r0 r2 r3 e r1 r2 r3 e", "ask0 0 ask1 1 2 3"),
            // Restart: numbers roll back.
            (true, "e l0 l1 l2 n0 e l1", "ask0 0 1 2 restart ask0 0 1"),
            (true, "e l0 l1 l2 n1 r0 r1 e n2", "ask0 0 1 2 restart ask0 0 1 skip 2"),
            (false, "l0 l1 n0 n1", "0 1 restart 0 1"),
            (false, "l5 l6 n2", "gap lost 5 6 restart gap lost 2"),
            (false, "l0 n0", "0 restart 0"),
            // A restart before any live batch was heard: known by the time of publication.
            (true, "r0 r1 r2 e n1 r0 r1 e", "ask0 0 1 2 restart ask0 0 1 skip"),
            // In the middle of a replay.
            (true, "e l0 l5 n2 r0 r1 r2 e", "ask0 0 gap ask1 restart ask0 0 1 2 skip"),
            // Out of order: what comes late was published before. Without a replay it is lost.
            (true, "e l0 l2 l1 r1 r2 e l3", "ask0 0 gap ask1 skip 1 2 skip 3"),
            (false, "l0 l2 l1 l3", "0 gap lost 2 skip 3"),
            // Too many in a row are another process whose clock was set back.
            (
                false,
                "l40 l1 l2 l3 l4 l5 l6 l7 l8 l9 l10 l11 l12 l13 l14 l15 l16 l17 l18",
                "gap lost 40 skip skip skip skip skip skip skip skip skip skip skip skip skip skip skip skip restart gap \
                 lost 17 18",
            ),
            // Duplicates.
            (false, "l0 l0 l1 l1", "0 skip 1 skip"),
            // Batches that came while the connection was being made are found by asking once more.
            (true, "r0 e c r1 r2 e l2 l3", "ask0 0 ask1 1 2 skip 3"),
            (true, "e c e l0", "ask0 ask0 0"),
            // Replies after the end mean nothing.
            (true, "e r5 l0", "ask0 0"),
        ] {
            assert_eq!(play(can_replay, script), want, "{script}");
        }
    }

    #[test]
    fn parking_is_bounded_and_what_did_not_fit_is_asked_for() {
        let (mut sequence, mut log) = (Sequence::new(true), Log::default());
        sequence.start(&mut log);
        let count = MAX_PARKED_BATCHES as u64 + 10;
        for seq in 0..count {
            sequence.live(seq, &[0; 8], &mut log);
        }
        assert_eq!(sequence.parked.len(), MAX_PARKED_BATCHES);
        log.take();
        sequence.replayed(0, b"", &mut log);
        sequence.replay_ended(true, &mut log);
        let asked = format!("ask{MAX_PARKED_BATCHES}");
        assert!(log.take().ends_with(&asked));
        assert_eq!((sequence.parked.len(), sequence.parked_bytes), (0, 0));
        sequence.live(count, &vec![0; MAX_PARKED_BYTES + 1], &mut log);
        assert_eq!(sequence.parked_bytes, 0);
    }

    proptest! {
        /// Whatever arrives: between two forgettings batches are applied in order without repetition or hole, and parked
        /// memory is accounted for.
        #[test]
        fn applied_batches_are_contiguous(can_replay: bool, steps in prop::collection::vec((0_u8..6, 0_u64..12), 0..60)) {
            let (mut sequence, mut log) = (Sequence::new(can_replay), Log::default());
            sequence.start(&mut log);
            for (kind, seq) in steps {
                match kind {
                    0 | 1 => sequence.live(seq, &[kind; 3], &mut log),
                    2 => sequence.replayed(seq, b"", &mut log),
                    3 => { sequence.replay_ended(true, &mut log); }
                    4 => { sequence.replay_ended(false, &mut log); }
                    _ => sequence.confirm(&mut log),
                }
                let bytes: usize = sequence.parked.iter().map(|(_, payload)| payload.len()).sum();
                prop_assert_eq!(bytes, sequence.parked_bytes);
                prop_assert!(sequence.replay.is_some() || sequence.parked.is_empty());
            }
            let mut next = Some(0);
            for step in log.0 {
                match (step.as_str(), next) {
                    ("restart", _) => next = Some(0),
                    ("lost", _) => next = None,
                    (other, expected) => if let Ok(seq) = other.parse::<u64>() {
                        prop_assert!(expected.is_none_or(|expected| expected == seq), "{} after {:?}", seq, expected);
                        next = Some(seq + 1);
                    }
                }
            }
        }
    }
}
