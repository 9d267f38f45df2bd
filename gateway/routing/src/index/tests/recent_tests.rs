use super::*;

fn recent(capacity_blocks: u32) -> Retention {
    Retention::Recent { capacity_blocks }
}

fn report(predicted: u32, cached: u32, placed_at_ms: u64) -> CacheReport {
    CacheReport { predicted_blocks: predicted, cached_blocks: cached, placed_at_ms, now_ms: placed_at_ms + 10 }
}

#[test]
fn the_most_recently_used_blocks_are_kept() {
    let index = PrefixIndex::with_budget(BUDGET);
    let (a, b, c) = (prompt(1, 100), prompt(2, 100), prompt(3, 100));
    index.place(W, &chain(&a, 1), recent(250), 1);
    index.place(W, &chain(&b, 1), recent(250), 2);
    index.place(W, &chain(&a, 1), recent(250), 3);
    index.place(W, &chain(&c, 1), recent(250), 4);
    // `b` was used longest ago and lost its tail.
    assert_eq!(hits(&index, &a, 5, false), [(W, 100)]);
    assert_eq!(hits(&index, &b, 5, false), [(W, 50)]);
    assert_eq!(hits(&index, &c, 1 << 40, false), [(W, 100)], "no expiry");
    assert_eq!(index.stats().entries, 250);
}

#[test]
fn a_prompt_larger_than_the_cache_keeps_its_head() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 300);
    index.place(W, &chain(&tokens, 1), recent(120), 1);
    assert_eq!(hits(&index, &tokens, 1, true), [(W, 120)]);
}

#[test]
fn a_proven_miss_takes_everything_older_with_it() {
    let index = PrefixIndex::with_budget(BUDGET);
    let (a, b, c) = (prompt(1, 10), prompt(2, 10), prompt(3, 10));
    for (tokens, at_ms) in [(&b, 0), (&a, 100), (&c, 300)] {
        index.place(W, &chain(tokens, 1), recent(1_000), at_ms);
        index.confirm(W, &chain(tokens, 1), report(0, 0, at_ms));
    }
    // The engine restarted after all that, unseen. `a` comes again.
    index.place(W, &chain(&a, 1), recent(1_000), 400);
    index.confirm(W, &chain(&a, 1), report(10, 0, 400));
    assert_eq!(hits(&index, &b, 500, true), [], "used before `a` was: gone");
    assert_eq!(hits(&index, &a, 500, true), [(W, 10)], "just computed");
    assert_eq!(hits(&index, &c, 500, true), [(W, 10)], "used later: may be there");
}

#[test]
fn siblings_in_flight_prove_nothing() {
    let index = PrefixIndex::with_budget(BUDGET);
    let (a, b) = (prompt(1, 10), prompt(2, 10));
    index.place(W, &chain(&b, 1), recent(1_000), 0);
    index.place(W, &chain(&a, 1), recent(1_000), 1);
    index.place(W, &chain(&a, 1), recent(1_000), 2);
    index.confirm(W, &chain(&a, 1), report(0, 0, 1));
    // The sibling was sent before that prefill ended, counted on it and missed.
    index.confirm(W, &chain(&a, 1), report(10, 0, 2));
    assert_eq!(hits(&index, &b, 20, true), [(W, 10)]);
}

#[test]
fn an_engine_that_caches_nothing_loses_its_credit_and_may_regain_it() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 50);
    let held = |index: &PrefixIndex| hits(index, &tokens, 0, true).first().map_or(0, |hit| hit.1);
    let mut at_ms = 0;
    let mut turn = |cached: &dyn Fn(u32) -> u32| {
        at_ms += 100;
        let predicted = held(&index);
        index.place(W, &chain(&tokens, 1), recent(60), at_ms);
        index.confirm(W, &chain(&tokens, 1), report(predicted, cached(predicted), at_ms));
    };
    for _ in 0..60 {
        turn(&|_| 0);
    }
    assert!(held(&index) <= 1, "{}", held(&index));
    for _ in 0..60 {
        turn(&|_| 50);
    }
    assert_eq!(held(&index), 50);
}

#[test]
fn events_take_over_from_guesses() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 10);
    index.place(W, &chain(&tokens, 1), recent(100), 0);
    index.forget_placements(W);
    assert_eq!(hits(&index, &tokens, 0, true), []);
    assert_eq!(index.stats().entries, 0);
}

#[test]
fn many_touches_of_few_blocks_stay_small() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 10);
    for at_ms in 0..10_000 {
        index.place(W, &chain(&tokens, 1), recent(100), at_ms);
    }
    let recent = index.recent[0].lock();
    assert!(recent.as_ref().expect("placed").marks() < 1_100);
}
