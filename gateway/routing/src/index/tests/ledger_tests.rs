use super::*;

fn setup() -> (PrefixIndex, Ledger) {
    (PrefixIndex::with_budget(BUDGET), Ledger::new(W))
}

#[test]
fn children_take_over_the_domain_of_their_parent() {
    let (index, mut ledger) = setup();
    let salted = Domain(77);
    ledger.stored(&index, &key(), salted, None, &[ExternalHash(1)], &[5], 1);
    // The salt is named at the first block only: this event looks like one of the plain domain.
    assert_eq!(ledger.stored(&index, &key(), Domain(1), Some(ExternalHash(1)), &[ExternalHash(2)], &[6], 1).blocks, 1);
    let mut wanted = Vec::new();
    block::chain(&key(), salted, 1, &[5, 6], &mut wanted);
    let mut out = Hits::default();
    index.lookup(&wanted, 0, false, &mut out);
    assert_eq!(out.of(W), 2);
    assert_eq!(hits(&index, &[5, 6], 0, false), [], "another domain");
}

#[test]
fn a_block_without_its_parent_is_an_orphan() {
    let (index, mut ledger) = setup();
    assert_eq!(
        ledger.stored(
            &index,
            &key(),
            Domain(1),
            Some(ExternalHash(9)),
            &[ExternalHash(1), ExternalHash(2)],
            &[5, 6],
            1
        ),
        Applied { orphans: 2, ..Applied::default() }
    );
    assert_eq!(remove(&mut ledger, &index, 1), Applied { orphans: 1, ..Applied::default() });
    assert_eq!(index.stats().entries, 0);
}

#[test]
fn tokens_that_do_not_fill_their_blocks_are_refused() {
    let (index, mut ledger) = setup();
    for (tokens, block_size) in [(&[1u32, 2, 3][..], 2), (&[], 1), (&[1, 2], 0), (&[1], u32::MAX)] {
        let hashes = [ExternalHash(1), ExternalHash(2)];
        assert_eq!(
            ledger.stored(&index, &key(), Domain(1), None, &hashes, tokens, block_size),
            Applied { refused: 2, ..Applied::default() }
        );
    }
    assert!(ledger.is_empty());
}

#[test]
fn two_copies_need_two_removals() {
    let (index, mut ledger) = setup();
    let tokens = prompt(1, 2);
    store(&mut ledger, &index, &tokens);
    // The prompt of just two blocks comes again: its last block is computed anew.
    ledger.stored(
        &index,
        &key(),
        Domain(1),
        Some(ExternalHash(u64::from(tokens[0]))),
        &[ExternalHash(u64::from(tokens[1]))],
        &tokens[1..],
        1,
    );
    remove(&mut ledger, &index, tokens[1]);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 2)]);
    remove(&mut ledger, &index, tokens[1]);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 1)]);
}

#[test]
fn an_announcement_counted_as_a_copy_is_disbelieved_after_one_response() {
    let (index, mut ledger) = setup();
    let tokens = prompt(1, 2);
    let missed = CacheReport { predicted_blocks: 2, cached_blocks: 0, placed_at_ms: 5, now_ms: 6 };
    store(&mut ledger, &index, &tokens);
    store(&mut ledger, &index, &tokens);
    remove(&mut ledger, &index, tokens[0]);
    remove(&mut ledger, &index, tokens[1]);
    // This is where a plain count is wrong, and would be for ever.
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 2)]);
    index.confirm(W, &chain(&tokens, 1), missed);
    // The engine computed the blocks for that request and tells so: one copy each.
    store(&mut ledger, &index, &tokens);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 2)]);
    remove(&mut ledger, &index, tokens[0]);
    remove(&mut ledger, &index, tokens[1]);
    assert_eq!(hits(&index, &tokens, 0, false), []);
    assert!(ledger.is_empty());
}

#[test]
fn the_store_may_also_come_before_the_response() {
    let (index, mut ledger) = setup();
    let tokens = prompt(1, 1);
    store(&mut ledger, &index, &tokens);
    store(&mut ledger, &index, &tokens);
    remove(&mut ledger, &index, tokens[0]);
    store(&mut ledger, &index, &tokens);
    index.confirm(
        W,
        &chain(&tokens, 1),
        CacheReport { predicted_blocks: 1, cached_blocks: 0, placed_at_ms: 5, now_ms: 6 },
    );
    remove(&mut ledger, &index, tokens[0]);
    assert_eq!(hits(&index, &tokens, 0, false), []);
}

#[test]
fn more_copies_than_the_engine_has_room_fall_back_to_one() {
    let (index, mut ledger) = setup();
    ledger.set_capacity(10);
    let tokens = prompt(1, 4);
    for _ in 0..3 {
        store(&mut ledger, &index, &tokens);
    }
    assert_eq!(ledger.trimmed(), 1);
    for token in &tokens {
        remove(&mut ledger, &index, *token);
    }
    assert_eq!(hits(&index, &tokens, 0, false), []);
    assert!(ledger.is_empty());
}

#[test]
fn announcements_without_end_do_not_grow_anything() {
    let (index, mut ledger) = setup();
    ledger.set_capacity(1_000_000);
    let tokens = prompt(1, 1);
    for _ in 0..u32::from(ledger::MAX_COPIES) * 3 {
        store(&mut ledger, &index, &tokens);
    }
    assert_eq!(ledger.len(), 1);
    for _ in 0..ledger::MAX_COPIES {
        remove(&mut ledger, &index, tokens[0]);
    }
    assert!(ledger.is_empty());
    assert_eq!(index.stats().entries, 0);
}

#[test]
fn a_block_with_two_names_stays_until_the_last_is_removed() {
    let (index, mut ledger) = setup();
    for name in [1, 2, 3] {
        let hashes = [ExternalHash(name)];
        ledger.stored(&index, &key(), Domain(1), None, &hashes, &[5], 1);
    }
    for name in [2, 3] {
        ledger.removed(&index, ExternalHash(name));
        assert_eq!(hits(&index, &[5], 0, false), [(W, 1)]);
    }
    ledger.removed(&index, ExternalHash(1));
    assert_eq!(hits(&index, &[5], 0, false), []);
}

#[test]
fn a_name_of_two_blocks_removes_the_older_and_continues_in_its_domain() {
    let (index, mut ledger) = setup();
    for domain in [Domain(1), Domain(2)] {
        let hashes = [ExternalHash(1)];
        ledger.stored(&index, &key(), domain, None, &hashes, &[5], 1);
    }
    ledger.stored(&index, &key(), Domain(1), Some(ExternalHash(1)), &[ExternalHash(2)], &[6], 1);
    assert_eq!(hits(&index, &[5, 6], 0, false), [(W, 2)]);
    ledger.removed(&index, ExternalHash(1));
    assert_eq!(hits(&index, &[5, 6], 0, false), []);
    assert_eq!(index.stats().holders, 2, "the block of the other domain and the child");
}

#[test]
fn clearing_ends_everything_of_this_worker_alone() {
    let (index, mut ledger) = setup();
    let tokens = prompt(1, 100);
    store(&mut ledger, &index, &tokens);
    store(&mut Ledger::new(V), &index, &tokens);
    ledger.cleared(&index);
    assert_eq!(hits(&index, &tokens, 0, false), [(V, 100)]);
    store(&mut ledger, &index, &tokens[..3]);
    assert_eq!(hits(&index, &tokens, 0, false), [(W, 3), (V, 100)]);
}

#[test]
fn digests_fold_to_what_engines_publish_as_integers() {
    let mut digest = [0xaa; 32];
    digest[24..].copy_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
    assert_eq!(ExternalHash::from_bytes(&digest), ExternalHash(0x0102_0304_0506_0708));
    assert_eq!(ExternalHash::from_bytes(&[1, 2]), ExternalHash(0x0102));
    assert_eq!(ExternalHash::from_bytes(&[]), ExternalHash(0));
}
