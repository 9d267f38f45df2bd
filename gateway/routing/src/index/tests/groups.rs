//! Tiers, and the cut that every attention group of a model allows.

use super::*;

const HOST: Place = Place { tier: Tier::Host, group: 0 };
const DISK: Place = Place { tier: Tier::Disk, group: 0 };

fn names(tokens: &[u32]) -> Vec<ExternalHash> {
    tokens.iter().map(|&token| ExternalHash(u64::from(token))).collect()
}

fn store_in(ledger: &mut Ledger, index: &PrefixIndex, group: u32, tokens: &[u32]) -> Applied {
    let place = Place { tier: Tier::Device, group };
    ledger.stored_in(index, &key(), place, Domain(1), None, &names(tokens), tokens, 1)
}

fn detail(index: &PrefixIndex, tokens: &[u32]) -> HitDetail {
    let mut out = Hits::default();
    index.lookup(&chain(tokens, 1), 0, false, &mut out);
    let detail = out.detail(W).copied().unwrap_or_default();
    assert_eq!(out.of(W), detail.device);
    detail
}

#[test]
fn each_tier_reaches_as_far_as_it_and_those_above() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 200);
    let mut ledger = Ledger::new(W);
    store(&mut ledger, &index, &tokens);
    assert_eq!(ledger.mirrored(&index, HOST, &names(&tokens[50..150])).blocks, 100);
    assert_eq!(ledger.mirrored(&index, DISK, &names(&tokens[140..180])).blocks, 40);
    for &token in &tokens[100..] {
        remove(&mut ledger, &index, token);
    }
    let found = detail(&index, &tokens);
    assert_eq!((found.device, found.host, found.disk, found.remote), (100, 150, 180, 180));
    // What left the device can still be named from there: the name is known in host memory.
    assert_eq!(ledger.mirrored(&index, Place { tier: Tier::Remote, group: 0 }, &names(&tokens[149..151])).blocks, 2);
    ledger.removed_from(&index, HOST, ExternalHash(u64::from(tokens[120])));
    let found = detail(&index, &tokens);
    assert_eq!((found.device, found.host, found.disk), (100, 120, 120));
    ledger.cleared(&index);
    assert_eq!(index.stats().entries, 0);
}

#[test]
fn a_worker_with_host_memory_alone_is_no_device_hit() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 80);
    let mut ledger = Ledger::new(W);
    ledger.stored_in(&index, &key(), HOST, Domain(1), None, &names(&tokens), &tokens, 1);
    let mut out = Hits::default();
    index.lookup(&chain(&tokens, 1), 0, false, &mut out);
    assert_eq!(out.blocks, []);
    assert_eq!(out.detail(W).map(|detail| (detail.device, detail.host)), Some((0, 80)));
}

#[test]
fn stores_without_tokens_need_a_known_name() {
    let index = PrefixIndex::with_budget(BUDGET);
    let mut ledger = Ledger::new(W);
    store(&mut ledger, &index, &prompt(1, 2));
    let applied = ledger.mirrored(&index, HOST, &names(&[prompt(1, 1)[0], 77]));
    assert_eq!((applied.blocks, applied.orphans), (1, 1));
}

#[test]
fn a_window_needs_its_last_blocks_alone() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 200);
    let mut ledger = Ledger::new(W);
    ledger.learn_group(&index, 0, GroupKind::Full);
    ledger.learn_group(&index, 1, GroupKind::Window { blocks: 8 });
    store_in(&mut ledger, &index, 0, &tokens);
    store_in(&mut ledger, &index, 1, &tokens);
    assert_eq!(detail(&index, &tokens).device, 200);
    let window = Place { tier: Tier::Device, group: 1 };
    // What is behind the window goes first; nothing is lost with it.
    for &token in &tokens[..150] {
        ledger.removed_from(&index, window, ExternalHash(u64::from(token)));
    }
    assert_eq!(detail(&index, &tokens).device, 200);
    assert_eq!(detail(&index, &tokens[..158]).device, 158);
    assert_eq!(detail(&index, &tokens[..157]).device, 0, "seven blocks of the window and nothing before");
    ledger.removed_from(&index, window, ExternalHash(u64::from(tokens[195])));
    assert_eq!(detail(&index, &tokens).device, 195);
    remove(&mut ledger, &index, tokens[170]);
    assert_eq!(detail(&index, &tokens).device, 170, "the full group ends there");
}

#[test]
fn a_short_prompt_lies_within_the_window() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 5);
    let mut ledger = Ledger::new(W);
    ledger.learn_group(&index, 4, GroupKind::Window { blocks: 8 });
    ledger.learn_group(&index, 2, GroupKind::Full);
    store_in(&mut ledger, &index, 4, &tokens);
    assert_eq!(detail(&index, &tokens).device, 0);
    store_in(&mut ledger, &index, 2, &tokens[..4]);
    assert_eq!(detail(&index, &tokens).device, 4);
}

#[test]
fn a_state_is_there_at_checkpoints_only() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 200);
    let mut ledger = Ledger::new(W);
    ledger.learn_group(&index, 0, GroupKind::State);
    ledger.learn_group(&index, 1, GroupKind::Full);
    store_in(&mut ledger, &index, 1, &tokens);
    for checkpoint in [31, 95, 150] {
        ledger.mirrored(&index, Place { tier: Tier::Device, group: 0 }, &names(&tokens[checkpoint..=checkpoint]));
    }
    assert_eq!(detail(&index, &tokens).device, 151);
    assert_eq!(detail(&index, &tokens[..150]).device, 96);
    assert_eq!(detail(&index, &tokens[..31]).device, 0);
}

#[test]
fn all_groups_must_allow_the_same_cut() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 120);
    let mut ledger = Ledger::new(W);
    ledger.learn_group(&index, 0, GroupKind::Full);
    ledger.learn_group(&index, 1, GroupKind::Window { blocks: 4 });
    ledger.learn_group(&index, 2, GroupKind::State);
    store_in(&mut ledger, &index, 0, &tokens);
    ledger.mirrored(&index, Place { tier: Tier::Device, group: 1 }, &names(&tokens[60..100]));
    for checkpoint in [61, 79, 110] {
        ledger.mirrored(&index, Place { tier: Tier::Device, group: 2 }, &names(&tokens[checkpoint..=checkpoint]));
    }
    // 62 has a checkpoint and two blocks of the window, 111 has a checkpoint beyond it.
    assert_eq!(detail(&index, &tokens).device, 80);
}

#[test]
fn a_group_of_unknown_kind_is_corrected_by_responses() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 100);
    let mut ledger = Ledger::new(W);
    ledger.learn_group(&index, 0, GroupKind::Unknown);
    store_in(&mut ledger, &index, 0, &tokens);
    let found = detail(&index, &tokens);
    assert_eq!((found.device, found.is_corrected), (100, true));
    for _ in 0..60 {
        let predicted_blocks = detail(&index, &tokens).device;
        let report = CacheReport { predicted_blocks, cached_blocks: 40, placed_at_ms: 0, now_ms: 1 };
        index.confirm(W, &chain(&tokens, 1), report);
    }
    let found = detail(&index, &tokens);
    assert!((39..=42).contains(&found.device) && found.is_corrected, "{found:?}");
    index.forget(W);
    assert!((index.correction(W) - 1.0).abs() < 1e-6, "another engine begins without it");
}

#[test]
fn events_of_groups_that_cannot_be_told_apart_are_refused() {
    let index = PrefixIndex::with_budget(BUDGET);
    let mut ledger = Ledger::new(W);
    for group in 0..40 {
        ledger.learn_group(&index, group, GroupKind::Window { blocks: 2 });
    }
    assert_eq!(store_in(&mut ledger, &index, 39, &prompt(1, 3)).refused, 3);
    assert_eq!(store_in(&mut ledger, &index, 0, &prompt(1, 3)).blocks, 3);
    let host = Place { tier: Tier::Host, group: 3 };
    assert_eq!(ledger.mirrored(&index, host, &names(&prompt(1, 3))).refused, 3);
}

/// Whether `kind` can go on behind the first `cut` blocks when it has those of `held`.
fn allows(kind: GroupKind, held: &[bool], cut: usize) -> bool {
    match kind {
        GroupKind::Full | GroupKind::Unknown => held[..cut].iter().all(|has| *has),
        GroupKind::Window { blocks } => held[cut.saturating_sub(blocks as usize)..cut].iter().all(|has| *has),
        GroupKind::State => held[cut - 1],
    }
}

#[test]
fn the_cut_is_the_longest_that_a_plain_search_finds() {
    let mut longest = 0;
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let index = PrefixIndex::with_budget(BUDGET);
        let mut ledger = Ledger::new(W);
        let tokens = prompt(1, rng.u32(1..200));
        let further = (0..rng.u32(0..4)).map(|_| match rng.u32(0..3) {
            0 => GroupKind::Full,
            1 => GroupKind::Window { blocks: rng.u32(1..70) },
            _ => GroupKind::State,
        });
        let kinds: Vec<GroupKind> = std::iter::once(GroupKind::Full).chain(further).collect();
        let mut held = Vec::new();
        for (group, kind) in (0..).zip(&kinds) {
            ledger.learn_group(&index, group, *kind);
            store_in(&mut ledger, &index, group, &tokens);
            let missing = if rng.bool() { 0.0 } else { 0.1 * rng.f64() * rng.f64() };
            let has: Vec<bool> = tokens.iter().map(|_| rng.f64() >= missing).collect();
            for (&token, _) in tokens.iter().zip(&has).filter(|(_, has)| !**has) {
                let place = Place { tier: Tier::Device, group };
                assert_eq!(ledger.removed_from(&index, place, ExternalHash(u64::from(token))).blocks, 1);
            }
            held.push(has);
        }
        let fits = |cut: &usize| kinds.iter().zip(&held).all(|(kind, held)| allows(*kind, held, *cut));
        let want = (1..=tokens.len()).rev().find(fits).unwrap_or(0);
        let mut out = Hits::default();
        index.lookup(&chain(&tokens, 1), 0, false, &mut out);
        assert_eq!(out.of(W) as usize, want, "seed {seed}: {kinds:?} {held:?}");
        longest = longest.max(want);
    }
    assert!(longest > 100, "{longest}");
}

#[test]
fn an_engine_that_drafts_computes_the_last_block_anew() {
    let index = PrefixIndex::with_budget(BUDGET);
    let tokens = prompt(1, 100);
    let mut ledger = Ledger::new(W);
    store(&mut ledger, &index, &tokens);
    ledger.mirrored(&index, HOST, &names(&tokens[..50]));
    index.set_drafts(W, true);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 99)]);
    assert_eq!(hits(&index, &tokens[..40], 0, false), [(W, 39)]);
    assert_eq!(hits(&index, &tokens[..1], 0, false), []);
    index.set_drafts(W, false);
    assert_eq!(hits(&index, &tokens[..40], 0, false), [(W, 40)]);
    index.set_drafts(W, true);
    index.forget(W);
    let next = WorkerId::new(W.slot, W.generation + 1);
    store(&mut Ledger::new(next), &index, &tokens);
    assert_eq!(hits(&index, &tokens, 0, false), [(next, 100)], "another engine may not draft");
}
