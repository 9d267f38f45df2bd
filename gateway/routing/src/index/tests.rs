use super::ledger::{Applied, ExternalHash, Ledger};
use super::*;
use crate::block::{self, Domain, HashKey};

mod engine;
mod groups;
mod ledger_tests;
mod model;
#[cfg(loom)]
mod publish;
mod recent_tests;
mod snapshots;
mod unsure;

const W: WorkerId = WorkerId::new(0, 0);
const V: WorkerId = WorkerId::new(1, 0);
/// More than these tests need.
const BUDGET: usize = 64 << 20;

fn key() -> HashKey {
    HashKey::derive(&[1; 32])
}

fn chain(tokens: &[u32], block_size: u32) -> Vec<ChainHash> {
    let mut out = Vec::new();
    block::chain(&key(), Domain(1), block_size, tokens, &mut out);
    out
}

/// A prompt of `blocks` one-token blocks that differs from those of other seeds from its first block on.
fn prompt(seed: u32, blocks: u32) -> Vec<u32> {
    (0..blocks).map(|at| seed << 16 | at).collect()
}

fn store(ledger: &mut Ledger, index: &PrefixIndex, tokens: &[u32]) -> Applied {
    let hashes: Vec<ExternalHash> = tokens.iter().map(|&token| ExternalHash(u64::from(token))).collect();
    ledger.stored(index, &key(), Domain(1), None, &hashes, tokens, 1)
}

fn remove(ledger: &mut Ledger, index: &PrefixIndex, token: u32) -> Applied {
    ledger.removed(index, ExternalHash(u64::from(token)))
}

fn hits(index: &PrefixIndex, tokens: &[u32], now_ms: u64, own: bool) -> Vec<(WorkerId, u32)> {
    let mut out = Hits::default();
    index.lookup(&chain(tokens, 1), now_ms, own, &mut out);
    out.blocks
}

fn sweep_all(index: &PrefixIndex) -> usize {
    (0..SHARDS / SHARDS_PER_SWEEP).map(|_| index.sweep(0)).sum()
}

#[test]
fn each_worker_is_credited_its_own_prefix() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 200);
    let (mut w, mut v) = (Ledger::new(W), Ledger::new(V));
    store(&mut w, &index, &tokens);
    store(&mut v, &index, &tokens[..70]);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 200), (V, 70)]);
    assert_eq!(hits(&index, &tokens[..30], 0, false), [(W, 30), (V, 30)]);
    assert_eq!(hits(&index, &prompt(2, 5), 0, false), []);
    assert_eq!(hits(&index, &[], 0, false), []);
}

#[test]
fn a_missing_middle_block_ends_the_credit_there() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 200);
    let (mut w, mut v) = (Ledger::new(W), Ledger::new(V));
    store(&mut w, &index, &tokens);
    store(&mut v, &index, &tokens);
    remove(&mut w, &index, tokens[100]);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 100), (V, 200)]);
    remove(&mut v, &index, tokens[0]);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 100)]);
    store(&mut w, &index, &tokens);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 200)]);
}

#[test]
fn a_prompt_finds_what_another_prompt_of_the_same_head_left() {
    let index = PrefixIndex::with_budget(BUDGET);
    let head = prompt(1, 100);
    let mut one = head.clone();
    one.extend(prompt(2, 50));
    let mut two = head.clone();
    two.extend(prompt(3, 50));
    let mut ledger = Ledger::new(W);
    store(&mut ledger, &index, &one);
    assert_eq!(hits(&index, &two, 0, false), [(W, 100)]);
}

#[test]
fn a_forgotten_generation_vanishes_at_once_and_is_swept_later() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 100);
    let mut old = Ledger::new(W);
    store(&mut old, &index, &tokens);
    index.forget(W);
    assert_eq!(hits(&index, &tokens, 0, true), []);
    let next = WorkerId::new(0, 1);
    let mut new = Ledger::new(next);
    store(&mut new, &index, &tokens[..40]);
    store(&mut old, &index, &tokens);
    index.place(W, &chain(&tokens, 1), Retention::Expiring { for_ms: 1_000 }, 0);
    assert_eq!(hits(&index, &tokens, 0, true), [(next, 40)], "what the old feed still says counts for nothing");
    assert_eq!(index.stats().holders, 140);
    // Two segments.
    assert_eq!(sweep_all(&index), 2);
    let stats = index.stats();
    assert_eq!((stats.entries, stats.holders, stats.swept), (40, 40, 2));
    assert_eq!(hits(&index, &tokens, 0, true), [(next, 40)]);
}

#[test]
fn a_slot_beyond_the_table_is_never_credited() {
    let index = PrefixIndex::with_budget(BUDGET);
    let beyond = WorkerId::new(MAX_WORKERS as u32, 0);
    store(&mut Ledger::new(beyond), &index, &prompt(1, 3));
    index.place(beyond, &chain(&prompt(1, 3), 1), Retention::recent(None), 0);
    assert_eq!(hits(&index, &prompt(1, 3), 0, true), []);
    index.forget(beyond);
}

#[test]
fn placements_count_at_once_and_end_by_themselves() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 100);
    index.place(W, &chain(&tokens, 1), Retention::Expiring { for_ms: 1_000 }, 500);
    assert_eq!(hits(&index, &tokens, 500, true), [(W, 100)]);
    assert_eq!(hits(&index, &tokens, 500, false), [], "switched off");
    assert_eq!(hits(&index, &tokens, 1_499, true), [(W, 100)]);
    assert_eq!(hits(&index, &tokens, 1_700, true), []);
    for _ in 0..SHARDS / SHARDS_PER_SWEEP {
        index.sweep(1_700);
    }
    assert_eq!(index.stats().entries, 0);
}

#[test]
fn events_confirm_a_placement_and_evictions_refute_it() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 10);
    let mut ledger = Ledger::new(W);
    index.place(W, &chain(&tokens, 1), Retention::Expiring { for_ms: 1_000 }, 0);
    store(&mut ledger, &index, &tokens);
    assert_eq!(hits(&index, &tokens, 60_000, false), [(W, 10)]);
    remove(&mut ledger, &index, tokens[4]);
    assert_eq!(hits(&index, &tokens, 1, true), [(W, 4)]);
}

#[test]
fn a_held_prefix_continues_in_a_placed_tail() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 100);
    let mut ledger = Ledger::new(W);
    store(&mut ledger, &index, &tokens[..60]);
    index.place(W, &chain(&tokens, 1), Retention::Expiring { for_ms: 1_000 }, 0);
    assert_eq!(hits(&index, &tokens, 1, true), [(W, 100)]);
    assert_eq!(hits(&index, &tokens, 1, false), [(W, 60)]);
}

#[test]
fn the_budget_holds_and_heads_outlive_tails() {
    let index = PrefixIndex::with_budget(1_450 << 10);
    let mut ledger = Ledger::new(W);
    let prompts: Vec<Vec<u32>> = (0..200).map(|seed| prompt(seed, 200)).collect();
    let refused: u64 = prompts.iter().map(|tokens| u64::from(store(&mut ledger, &index, tokens).refused)).sum();
    sweep_all(&index);
    let stats = index.stats();
    assert!(stats.bytes + stats.ledger_bytes <= stats.budget_bytes, "{stats:?}");
    assert!(stats.ledger_bytes > 40_000 * 16 && stats.evicted > 2_000, "{stats:?}");
    let entered = stats.entries as u64 + stats.evicted;
    assert!(
        entered <= 200 * 200 && entered > 39_000,
        "only what follows a block that went at once is left out: {stats:?}"
    );
    assert!(200 * 200 - entered <= refused, "every block left out was said to be: {refused} refused, {stats:?}");
    let heads = prompts.iter().filter(|tokens| !hits(&index, &tokens[..1], 0, false).is_empty()).count();
    assert!(heads > 190, "{heads} of 200 prompts still start with a hit, {stats:?}");
}

#[test]
fn dead_segments_go_before_living_ones() {
    let index = PrefixIndex::with_budget(7 << 19);
    let mut dead = Ledger::new(V);
    for token in 0..5_000 {
        store(&mut dead, &index, &[token]);
    }
    index.forget(V);
    drop(dead);
    let mut ledger = Ledger::new(W);
    for token in 5_000..10_000 {
        store(&mut ledger, &index, &[token]);
    }
    let living = (5_000..10_000).filter(|&token| hits(&index, &[token], 0, false) == [(W, 1)]).count();
    assert!(living > 4_800, "{living}, {:?}", index.stats());
    assert!(index.stats().evicted > 1_000, "{:?}", index.stats());
}

#[test]
fn an_index_without_room_works() {
    let index = PrefixIndex::with_budget(0);
    let mut ledger = Ledger::new(W);
    for seed in 1..5 {
        store(&mut ledger, &index, &prompt(seed, 300));
        index.place(W, &chain(&prompt(seed, 300), 1), Retention::recent(None), 0);
        assert_eq!(index.stats().entries, 0);
    }
    assert_eq!(store(&mut ledger, &index, &prompt(9, 300)).refused, 300, "ledgers count as well");
}

#[test]
fn memory_returns_after_everything_left() {
    let index = PrefixIndex::with_budget(256 << 20);
    let before = index.stats().bytes;
    for round in 0..3 {
        let mut ledgers: Vec<Ledger> = (0..20).map(|slot| Ledger::new(WorkerId::new(slot, 0))).collect();
        for (seed, ledger) in (0..).zip(&mut ledgers) {
            for at in 0..20 {
                store(ledger, &index, &prompt(seed % 7 * 20 + at, 300));
            }
        }
        assert!(index.stats().bytes > 5 * before);
        for (at, ledger) in ledgers.iter_mut().enumerate() {
            // Half of them remove block after block, the others clear.
            if at % 2 == round % 2 {
                ledger.cleared(&index);
            } else {
                let seed = at as u32 % 7;
                for at in 0..20 {
                    for &token in prompt(seed * 20 + at, 300).iter().rev() {
                        remove(ledger, &index, token);
                    }
                }
            }
            assert!(ledger.is_empty());
        }
        sweep_all(&index);
        let stats = index.stats();
        assert_eq!((stats.entries, stats.holders, stats.segments), (0, 0, 0));
        assert!(stats.bytes <= before + before / 10, "{stats:?}, {before} at the start");
    }
    assert_eq!(index.stats().ledger_bytes, 0, "ledgers that are gone have no memory");
}

#[test]
fn readers_and_writers_work_side_by_side() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 500);
    std::thread::scope(|scope| {
        for slot in 0..4 {
            let (index, tokens) = (&index, &tokens);
            scope.spawn(move || {
                let worker = WorkerId::new(slot, 0);
                let mut ledger = Ledger::new(worker);
                for turn in 0..40u32 {
                    store(&mut ledger, index, tokens);
                    remove(&mut ledger, index, tokens[(turn * 7 % 500) as usize]);
                    if turn % 10 == 9 {
                        ledger.cleared(index);
                    }
                }
                store(&mut ledger, index, &tokens[..100 * (slot as usize + 1)]);
            });
            scope.spawn(move || {
                for now_ms in 0..40 {
                    for (_, blocks) in hits(index, tokens, now_ms, true) {
                        assert!((1..=500).contains(&blocks));
                    }
                    index.sweep(now_ms);
                }
            });
        }
    });
    let wanted: Vec<(WorkerId, u32)> = (0..4).map(|slot| (WorkerId::new(slot, 0), 100 * (slot + 1))).collect();
    assert_eq!(hits(&index, &tokens, 0, false), wanted);
}
