//! How long a snapshot of a large fleet takes to write and to load.

use crate::side::spread;
use crate::workload::mix;
use forebay_routing::WorkerId;
use forebay_routing::block::{Domain, HashKey, LocalHash};
use forebay_routing::index::PrefixIndex;
use forebay_routing::index::ledger::{ExternalHash, Ledger};
use forebay_routing::index::snapshot::{Reader, Section, Writer};
use std::time::Instant;

const RUNS: usize = 5;
const DOMAIN: Domain = Domain(1);
/// 2.3 million memberships together.
const WORKERS: u32 = 141;
const PROMPTS: u64 = 128;
const PROMPT_BLOCKS: u64 = 128;
/// Workers that have the same prompts.
const SHARED_BY: u32 = 4;

fn filled(index: &PrefixIndex, key: &HashKey) -> Vec<Ledger> {
    let fill = |slot: u32| {
        let mut ledger = Ledger::new(WorkerId::new(slot, 0));
        for prompt in 0..PROMPTS {
            let first = u64::from(slot / SHARED_BY) << 32 | prompt << 16;
            let names: Vec<ExternalHash> = (0..PROMPT_BLOCKS).map(|at| ExternalHash(mix(first | at))).collect();
            let locals: Vec<LocalHash> = (0..PROMPT_BLOCKS).map(|at| LocalHash(mix(!(first | at)))).collect();
            ledger.stored_hashed(index, key, DOMAIN, None, &names, &locals);
        }
        ledger
    };
    (0..WORKERS).map(fill).collect()
}

/// Prints both times.
pub fn time() {
    let key = HashKey::derive(&[3; 32]);
    let index = PrefixIndex::with_budget(4 << 30);
    let ledgers = filled(&index, &key);
    let started = Instant::now();
    let mut writer = Writer::new(&key);
    for ledger in &ledgers {
        assert!(writer.add(b"worker", ledger, &index), "within the limits");
    }
    let bytes = writer.finish();
    let written_ms = started.elapsed().as_secs_f64() * 1e3;
    let mut names = 0;
    let load = |_| {
        let fresh = PrefixIndex::with_budget(4 << 30);
        let started = Instant::now();
        let reader = Reader::open(&bytes, &key).expect("just written");
        let restore = |(section, slot): (_, u32)| Section::restore(section, WorkerId::new(slot, 0), &fresh);
        let restored: Vec<Ledger> = reader.sections().iter().zip(0..).map(restore).collect();
        let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
        names = restored.iter().map(Ledger::names).sum();
        elapsed_ms
    };
    let (median, least, most) = spread((0..RUNS).map(load).collect());
    println!(
        "\nsnapshot of {names} memberships, {} MB: written in {written_ms:.0} ms, loaded in {median:.0} ms ({least:.0}–{most:.0})",
        bytes.len() >> 20
    );
}
