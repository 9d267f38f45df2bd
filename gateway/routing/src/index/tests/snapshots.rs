//! What is written can be read, and nothing else.

use super::snapshot::{Reader, SnapshotError, Writer};
use super::*;

/// Two workers with shared heads, copies, a shared name, tiers, groups and unsure blocks.
fn scene(index: &PrefixIndex) -> [Ledger; 2] {
    let (mut w, mut v) = (Ledger::new(W), Ledger::new(V));
    let (one, two) = (prompt(1, 200), prompt(2, 70));
    store(&mut w, index, &one);
    store(&mut w, index, &one[..3]);
    store(&mut v, index, &one[..90]);
    ledger_name(&mut v, index, 7, &one[..1]);
    v.unconfirm(index);
    store(&mut v, index, &two);
    let host = Place { tier: Tier::Host, group: 0 };
    v.mirrored(index, host, &[ExternalHash(u64::from(two[69]))]);
    remove(&mut w, index, one[100]);
    [w, v]
}

fn ledger_name(ledger: &mut Ledger, index: &PrefixIndex, name: u64, tokens: &[u32]) {
    ledger.stored(index, &key(), Domain(1), None, &[ExternalHash(name)], tokens, 1);
}

fn written(index: &PrefixIndex, ledgers: &[Ledger]) -> Vec<u8> {
    let key = key();
    let mut writer = Writer::new(&key);
    for (at, ledger) in ledgers.iter().enumerate() {
        assert!(writer.add(format!("worker {at}").as_bytes(), ledger, index));
    }
    writer.finish()
}

fn all_hits(index: &PrefixIndex, tokens: &[u32]) -> (Vec<(WorkerId, u32)>, Option<HitDetail>) {
    let mut out = Hits::default();
    index.lookup(&chain(tokens, 1), 0, false, &mut out);
    let detail = out.detail(V).copied();
    (out.blocks, detail)
}

#[test]
fn a_restored_index_is_equal_and_goes_on_equally() {
    let (before, after) = (PrefixIndex::with_budget(BUDGET), PrefixIndex::with_budget(BUDGET));
    let mut old = scene(&before);
    let bytes = written(&before, &old);
    let key = key();
    let reader = Reader::open(&bytes, &key).expect("whole");
    assert_eq!(reader.sections()[1].meta, b"worker 1");
    // In the other order, as feeds may come.
    let mut v = reader.sections()[1].restore(V, &after);
    let mut w = reader.sections()[0].restore(W, &after);
    let prompts = [prompt(1, 200), prompt(1, 90), prompt(2, 70), prompt(3, 5)];
    let same = |turn: &str| {
        for tokens in &prompts {
            assert_eq!(all_hits(&before, tokens), all_hits(&after, tokens), "{turn}");
        }
        assert_eq!(before.stats().holders, after.stats().holders, "{turn}");
    };
    same("loaded");
    assert_eq!((w.len(), v.len(), v.names()), (old[0].len(), old[1].len(), old[1].names()));
    // Copies: the third block was stored twice. Names: the first block of V has two.
    let removals = [(0, prompts[0][2]), (0, prompts[0][2]), (1, prompts[0][0]), (1, 7)];
    for (at, token) in removals {
        remove(&mut old[at], &before, token);
        remove(if at == 0 { &mut w } else { &mut v }, &after, token);
        same("removed");
    }
    let parent = Some(ExternalHash(u64::from(prompts[0][199])));
    for (ledger, index) in [(&mut old[0], &before), (&mut w, &after)] {
        let applied = ledger.stored(index, &key, Domain(1), parent, &[ExternalHash(8)], &[8], 1);
        assert_eq!(applied.blocks, 1, "children of restored blocks find their parent");
    }
    same("stored");
    for ledger in [&mut w, &mut v] {
        ledger.cleared(&after);
    }
    assert_eq!(after.stats().segments, 0);
}

#[test]
fn groups_come_back() {
    let (before, after) = (PrefixIndex::with_budget(BUDGET), PrefixIndex::with_budget(BUDGET));
    let tokens = prompt(1, 50);
    let mut ledger = Ledger::new(W);
    ledger.learn_group(&before, 3, GroupKind::Window { blocks: 4 });
    ledger.learn_group(&before, 0, GroupKind::Full);
    store(&mut ledger, &before, &tokens);
    let names: Vec<ExternalHash> = tokens[20..30].iter().map(|&token| ExternalHash(u64::from(token))).collect();
    ledger.mirrored(&before, Place { tier: Tier::Device, group: 3 }, &names);
    let bytes = written(&before, &[ledger]);
    Reader::open(&bytes, &key()).expect("whole").sections()[0].restore(W, &after);
    assert_eq!(hits(&before, &tokens, 0, false), [(W, 30)]);
    assert_eq!(hits(&after, &tokens, 0, false), [(W, 30)]);
}

#[test]
fn foreign_files_are_refused_with_the_reason() {
    let index = PrefixIndex::with_budget(BUDGET);
    let bytes = written(&index, &scene(&index));
    let other = HashKey::derive(&[2; 32]);
    let wrong_key = SnapshotError::WrongKey { found: key().id() };
    assert_eq!(Reader::open(&bytes, &other).err(), Some(wrong_key));
    assert!(wrong_key.to_string().contains(&format!("{:016x}", key().id())));
    assert_eq!(Reader::open(b"", &key()).err(), Some(SnapshotError::Foreign));
    assert_eq!(Reader::open(b"PK\x03\x04 and so on and on", &key()).err(), Some(SnapshotError::Foreign));
    let mut later = bytes.clone();
    later[8] = 9;
    assert_eq!(Reader::open(&later, &key()).err(), Some(SnapshotError::Version { found: 9 }));
    assert_eq!(Reader::open(&bytes[..10], &key()).err(), Some(SnapshotError::Damaged));
}

#[test]
fn any_damage_is_found() {
    let index = PrefixIndex::with_budget(BUDGET);
    let mut bytes = written(&index, &scene(&index));
    for cut in (20..bytes.len()).step_by(13) {
        assert_eq!(Reader::open(&bytes[..cut], &key()).err(), Some(SnapshotError::Damaged), "cut at {cut}");
    }
    for at in (20..bytes.len()).step_by(7) {
        bytes[at] ^= 1;
        assert_eq!(Reader::open(&bytes, &key()).err(), Some(SnapshotError::Damaged), "byte {at}");
        bytes[at] ^= 1;
    }
    assert!(Reader::open(&bytes, &key()).is_ok());
}

#[test]
fn what_the_checksum_covers_may_still_be_nonsense() {
    let index = PrefixIndex::with_budget(BUDGET);
    let bytes = written(&index, &scene(&index));
    let body = bytes.len() - 8;
    let fresh = PrefixIndex::with_budget(BUDGET);
    let mut refused = 0;
    for at in (20..body).filter(|at| *at < 100 || at % 7 == 0) {
        for flip in [0x01, 0x80, 0xff] {
            let mut forged = bytes[..body].to_vec();
            forged[at] ^= flip;
            let checksum = key().text(&forged);
            forged.extend(checksum.to_le_bytes());
            match Reader::open(&forged, &key()) {
                Ok(reader) => reader.sections().iter().for_each(|section| {
                    let mut ledger = section.restore(W, &fresh);
                    ledger.cleared(&fresh);
                }),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn limits_of_a_snapshot_hold() {
    let index = PrefixIndex::with_budget(BUDGET);
    let key = key();
    let mut writer = Writer::new(&key);
    assert!(!writer.add(&vec![0; snapshot::MAX_META_BYTES + 1], &Ledger::new(W), &index));
    assert!(writer.add(&[], &Ledger::new(W), &index));
    let bytes = writer.finish();
    assert_eq!(Reader::open(&bytes, &key).expect("whole").sections()[0].names(), 0);
}
