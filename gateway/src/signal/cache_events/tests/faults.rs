//! A publisher that misbehaves in every way that a network or an engine can: where replays cover what is missing, the index
//! ends up equal to the engine's cache; where they do not, what was known is unconfirmed.

use super::*;
use std::collections::BTreeMap;

/// How the publisher misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Drops,
    Duplicates,
    Reorders,
    Restarts,
    RollsBack,
    Floods,
    Garbage,
}

/// Batches of an ordinary life.
const ROUNDS: usize = 200;

/// Batches of a flood: more than wait for a reader, so that some are lost.
const FLOOD: usize = 5_000;

/// An engine's cache by its own account, and the publisher that tells of it.
struct Engine {
    publisher: Publisher,
    rng: fastrand::Rng,
    /// Copies of each block: prompt → depth → count.
    truth: BTreeMap<u32, Vec<u32>>,
    held_back: Option<(u64, Vec<u8>)>,
}

impl Engine {
    fn start(seed: u64) -> Self {
        let publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
        Self { publisher, rng: fastrand::Rng::with_seed(seed), truth: BTreeMap::new(), held_back: None }
    }

    /// Stores, extends, recomputes, evicts, clears; returns what to publish.
    fn live(&mut self) -> Vec<u8> {
        let mut events = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            let prompt = self.rng.u32(1..20);
            let copies = self.truth.entry(prompt).or_default();
            match self.rng.u32(0..10) {
                0..=4 if copies.len() < 12 => {
                    let from = copies.len();
                    let to = from + self.rng.usize(1..4);
                    copies.resize(to, 1);
                    events.push(stored(prompt, from, to));
                }
                5 if !copies.is_empty() => {
                    *copies.last_mut().expect("not empty") += 1;
                    events.push(stored(prompt, copies.len() - 1, copies.len()));
                }
                6..=8 if !copies.is_empty() => {
                    events.push(removed(prompt, copies.len() - 1));
                    let last = copies.last_mut().expect("not empty");
                    *last -= 1;
                    if *last == 0 {
                        copies.pop();
                    }
                }
                9 if self.rng.u32(0..20) == 0 => {
                    self.truth.clear();
                    events.push(cleared());
                }
                _ => {}
            }
        }
        batch(&events)
    }

    /// One batch, published as `fault` has it.
    fn publish(&mut self, fault: Fault) {
        let payload = self.live();
        let seq = self.publisher.next;
        let strikes = self.rng.u32(0..6) == 0;
        match fault {
            Fault::Drops => self.publisher.send(payload, strikes),
            Fault::Duplicates => {
                self.publisher.send(payload.clone(), false);
                if strikes {
                    self.publisher.publish(seq, &payload);
                    let kept = self.publisher.kept.lock();
                    let older = kept.iter().rev().nth(3).cloned();
                    drop(kept);
                    if let Some((seq, payload)) = older {
                        self.publisher.publish(seq, &payload);
                    }
                }
            }
            Fault::Reorders => {
                let hold = strikes && self.held_back.is_none();
                self.publisher.send(payload.clone(), hold);
                if hold {
                    self.held_back = Some((seq, payload));
                } else if let Some((seq, payload)) = self.held_back.take() {
                    self.publisher.publish(seq, &payload);
                }
            }
            Fault::Garbage => {
                self.publisher.send(payload, false);
                if strikes {
                    let junk: Vec<u8> = std::iter::repeat_with(|| self.rng.u8(..)).take(50).collect();
                    for frames in
                        [vec![junk.clone()], vec![junk.clone(), b"short".to_vec(), junk], vec![Vec::new(); 12]]
                    {
                        self.publisher.events.send_multipart(frames, 0).expect("sent");
                    }
                }
            }
            _ => self.publisher.send(payload, false),
        }
    }

    /// Another process: an empty cache, numbers from 0.
    fn restart(&mut self) {
        self.publisher.restart();
        self.truth.clear();
        self.held_back = None;
    }

    /// What differs between the index and the cache.
    fn differences(&self, rig: &Rig, worker: WorkerId) -> Vec<(u32, usize, u32)> {
        let differ = |(prompt, copies): (&u32, &Vec<u32>)| {
            let held = rig.held(worker, *prompt, 16, None);
            (held as usize != copies.len()).then_some((*prompt, copies.len(), held))
        };
        self.truth.iter().filter_map(differ).collect()
    }
}

async fn live_through(fault: Fault, seed: u64) -> FeedReport {
    let rig = Rig::start();
    let mut engine = Engine::start(seed);
    let handle = rig.listen(&engine.publisher).await;
    rig.wait("connected", |report| report.state == FeedState::Live).await;
    for round in 0..if fault == Fault::Floods { FLOOD } else { ROUNDS } {
        engine.publish(fault);
        if fault != Fault::Floods && round % 10 == 0 {
            // Time to be heard, so that gaps come one by one.
            sleep(Duration::from_millis(2)).await;
        }
        let halfway = round == ROUNDS / 2;
        if halfway && matches!(fault, Fault::Restarts | Fault::RollsBack) {
            rig.wait("heard", |report| report.last_seq.is_some_and(|seq| seq > 10)).await;
            engine.restart();
            if fault == Fault::RollsBack {
                // The new process has published a while before anybody hears of it.
                for _ in 0..5 {
                    let payload = engine.live();
                    engine.publisher.send(payload, true);
                }
            }
        }
    }
    engine.publisher.send(batch(&[]), false);
    let last = engine.publisher.next - 1;
    let asked = tokio::time::Instant::now();
    // A limit for a busy machine; it takes some ten milliseconds.
    let report = rig.wait("caught up", |report| report.last_seq == Some(last) && report.state == FeedState::Live).await;
    eprintln!("{fault:?} {seed}: equal {} ms after the last batch", asked.elapsed().as_millis());
    assert_eq!(engine.differences(&rig, handle.id()), [], "{fault:?} {seed}: {report:?}");
    let blocks: usize = engine.truth.values().map(Vec::len).sum();
    assert_eq!((report.blocks as usize, report.unconfirmed), (blocks, 0), "{fault:?} {seed}: {report:?}");
    assert_eq!((report.cold_starts, report.lost), (0, 0), "{fault:?} {seed}: {report:?}");
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_replays_cover_it_the_index_equals_the_engines_cache() {
    for (seed, fault) in [
        Fault::None,
        Fault::Drops,
        Fault::Duplicates,
        Fault::Reorders,
        Fault::Restarts,
        Fault::RollsBack,
        Fault::Floods,
        Fault::Garbage,
    ]
    .into_iter()
    .enumerate()
    {
        for seed in [seed as u64, seed as u64 + 100] {
            let report = live_through(fault, seed).await;
            let restarts = u64::from(matches!(fault, Fault::Restarts | Fault::RollsBack));
            assert_eq!(report.restarts, restarts, "{fault:?} {seed}: {report:?}");
            match fault {
                Fault::Drops | Fault::Reorders => assert!(report.gaps > 0 && report.replays > 1, "{report:?}"),
                Fault::Duplicates => assert!(report.duplicates > 10, "{report:?}"),
                Fault::Garbage => assert!(report.errors.get("frames").is_some_and(|count| *count > 10), "{report:?}"),
                _ => {}
            }
        }
    }
}

/// What the engine can no longer replay leaves what was known with less credit, and events confirm it again.
#[tokio::test]
async fn a_gap_that_no_replay_fills_leaves_what_was_known_unconfirmed() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    publisher.send(batch(&[stored(1, 0, 8), stored(2, 0, 4)]), false);
    rig.wait("first", |report| report.last_seq == Some(0)).await;
    publisher.keeps = 2;
    for seed in 3..7 {
        publisher.send(batch(&[stored(seed, 0, 1)]), true);
    }
    publisher.send(batch(&[stored(7, 0, 1), removed(2, 3)]), false);
    // They are counted now and then; one of the twelve was removed.
    let report = rig.wait("gone on", |report| report.last_seq == Some(5) && report.unconfirmed == 11).await;
    assert_eq!((report.lost, report.cold_starts, report.state), (1, 0, FeedState::Live), "{report:?}");
    let worker = handle.id();
    let credit = rig.held(worker, 1, 8, None);
    let survival = rig.fleet.index().survival(worker);
    assert!(f64::from(credit) <= 8.0 && f64::from(credit) + 1.0 >= 8.0 * survival, "{credit} of 8 at {survival}");
    assert_eq!([4, 5, 6, 7].map(|seed| rig.held(worker, seed, 1, None)), [0, 0, 1, 1], "what was heard is certain");
    // Stored again: confirmed.
    publisher.send(batch(&[stored(1, 0, 8)]), false);
    let report = rig.wait("confirmed", |report| report.last_seq == Some(6) && report.unconfirmed == 3).await;
    assert_eq!((rig.held(worker, 1, 8, None), report.blocks), (8, 13), "{report:?}");
}

/// Nothing was known, so nothing is unconfirmed: the past is missing.
#[tokio::test]
async fn joining_an_engine_whose_past_is_gone_is_a_cold_start() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    publisher.keeps = 2;
    for seed in 1..6 {
        publisher.send(batch(&[stored(seed, 0, 2)]), false);
    }
    let handle = rig.listen(&publisher).await;
    let report = rig.wait("learned", |report| report.last_seq == Some(4) && report.state == FeedState::Live).await;
    assert_eq!((report.cold_starts, report.lost, report.unconfirmed, report.blocks), (1, 0, 0, 4));
    assert_eq!([3, 4, 5].map(|seed| rig.held(handle.id(), seed, 2, None)), [0, 2, 2]);
}

#[tokio::test]
async fn garbage_in_the_place_of_a_batch_may_have_been_removals() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    rig.listen(&publisher).await;
    publisher.send(batch(&[stored(1, 0, 4)]), false);
    rig.wait("first", |report| report.last_seq == Some(0)).await;
    publisher.send(b"\xc1\x00garbage".to_vec(), false);
    let report = rig.wait("garbage", |report| report.last_seq == Some(1)).await;
    assert_eq!((report.lost, report.unconfirmed), (1, 4), "{report:?}");
}
