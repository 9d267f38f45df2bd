//! What is known after events were lost.

use super::*;
use hashbrown::HashSet;

const RATE: f64 = 0.75;

fn lost(blocks: u32) -> (PrefixIndex, Ledger, Vec<u32>) {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, blocks);
    let mut ledger = Ledger::new(W);
    store(&mut ledger, &index, &tokens);
    assert_eq!(ledger.unconfirm(&index), u64::from(blocks));
    (index, ledger, tokens)
}

fn credit(index: &PrefixIndex, tokens: &[u32]) -> (u32, u32) {
    let mut out = Hits::default();
    index.lookup(&chain(tokens, 1), 0, false, &mut out);
    (out.of(W), out.detail(W).map_or(0, |detail| detail.unconfirmed))
}

fn respond(index: &PrefixIndex, tokens: &[u32], predicted_blocks: u32, cached_blocks: u32) {
    let report = CacheReport { predicted_blocks, cached_blocks, placed_at_ms: 0, now_ms: 1 };
    index.confirm(W, &chain(tokens, 1), report);
}

#[test]
fn unsure_blocks_are_credited_at_the_survival_rate() {
    let (index, ledger, tokens) = lost(200);
    assert!((index.survival(W) - RATE).abs() < 1e-6);
    assert_eq!(credit(&index, &tokens), (150, 200));
    assert_eq!(ledger.unconfirmed(&index), 200);
    assert_eq!(ledger.len(), 200, "nothing was dropped");
}

#[test]
fn a_response_that_counted_them_confirms() {
    let (index, ledger, tokens) = lost(200);
    respond(&index, &tokens, 150, 199);
    assert_eq!(credit(&index, &tokens[..199]), (199, 0));
    assert_eq!(ledger.unconfirmed(&index), 1, "the last block is computed anew: nothing is known of it");
    assert!(index.survival(W) > RATE);
}

#[test]
fn a_response_that_missed_them_shortens() {
    let (index, mut ledger, tokens) = lost(200);
    respond(&index, &tokens, 150, 100);
    assert_eq!(credit(&index, &tokens), (100, 0));
    assert!(index.survival(W) < RATE);
    // The engine had stored them under these names; removals that follow are of what is gone already.
    remove(&mut ledger, &index, tokens[150]);
    store(&mut ledger, &index, &tokens);
    assert_eq!(credit(&index, &tokens), (200, 0));
    remove(&mut ledger, &index, tokens[199]);
    assert_eq!(credit(&index, &tokens), (199, 0), "one copy");
}

#[test]
fn survival_is_learned() {
    for (survivors, range) in [(20, 0.0..0.2), (180, 0.85..1.0)] {
        let (index, mut ledger, tokens) = lost(200);
        for _ in 0..60 {
            let (predicted, _) = credit(&index, &tokens);
            respond(&index, &tokens, predicted, survivors);
            store(&mut ledger, &index, &tokens);
            ledger.unconfirm(&index);
        }
        assert!(range.contains(&index.survival(W)), "{}", index.survival(W));
    }
}

#[test]
fn a_child_proves_its_parents() {
    let (index, mut ledger, tokens) = lost(200);
    let child = prompt(9, 1);
    let parent = Some(ExternalHash(u64::from(tokens[149])));
    ledger.stored(&index, &key(), Domain(1), parent, &[ExternalHash(5)], &child, 1);
    assert_eq!(ledger.unconfirmed(&index), 50);
    let mut path = tokens[..150].to_vec();
    path.extend(child);
    assert_eq!(credit(&index, &path), (151, 0));
    assert_eq!(credit(&index, &tokens), (150 + 37, 50));
}

#[test]
fn a_store_confirms_and_is_the_only_copy() {
    let (index, mut ledger, tokens) = lost(10);
    store(&mut ledger, &index, &tokens);
    assert_eq!(credit(&index, &tokens), (10, 0));
    remove(&mut ledger, &index, tokens[9]);
    assert_eq!(credit(&index, &tokens), (9, 0));
}

#[test]
fn a_full_report_decides() {
    let (index, mut ledger, tokens) = lost(100);
    let held: HashSet<ExternalHash> = tokens[..60].iter().map(|&token| ExternalHash(u64::from(token))).collect();
    assert_eq!(ledger.reconcile(&index, &held).blocks, 40);
    assert_eq!(credit(&index, &tokens), (60, 0));
    assert_eq!((ledger.len(), ledger.unconfirmed(&index)), (60, 0));
}

#[test]
fn more_than_fits_cannot_be_there() {
    let (index, mut ledger, tokens) = lost(160);
    ledger.set_capacity(160);
    store(&mut ledger, &index, &prompt(2, 40));
    assert_eq!(ledger.len(), 150, "down to a sixteenth of the capacity");
    assert_eq!(hits(&index, &prompt(2, 40), 0, false), [(W, 40)], "what is sure stays");
    assert_eq!(ledger.unconfirmed(&index), 110);
    assert!(credit(&index, &tokens).0 <= 110);
}

#[test]
fn a_clear_ends_the_doubt() {
    let (index, mut ledger, tokens) = lost(10);
    ledger.cleared(&index);
    assert_eq!(index.stats().entries, 0);
    store(&mut ledger, &index, &tokens);
    assert_eq!(credit(&index, &tokens), (10, 0));
}
