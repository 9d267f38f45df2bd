//! Times of the hot path on this machine: `cargo bench -p forebay-routing`. Prints times; asserts nothing.
#![expect(clippy::print_stdout, reason = "a bench reports to its caller")]
#![expect(clippy::disallowed_methods, reason = "measuring needs the clock")]

use forebay_routing::block::{self, Domain, HashKey};
use forebay_routing::event::{Effect, WorkerKey};
use forebay_routing::facts::BlockChain;
use forebay_routing::index::ledger::{ExternalHash, Ledger};
use forebay_routing::index::{Hits, PrefixIndex, Retention};
use forebay_routing::view::WorkerState;
use forebay_routing::{DecideInput, FleetEvent, FleetState, FleetView, LocalLoad, Policy, RequestFacts, decide};
use std::hint::black_box;
use std::time::Instant;

const BLOCK: u32 = 16;
const WORKERS: u32 = 256;
const BLOCKS: usize = 2_500;
/// Prompts of other conversations in the index, so that look-ups do not run in the processor's cache.
const OTHERS: u32 = 400;

fn main() {
    let key = HashKey::derive(&[5; 32]);
    hashing(&key);
    let (index, view, tokens) = fleet(&key);
    println!("index: {:?}", index.stats());
    let mut chain = Vec::new();
    block::chain(&key, Domain(1), BLOCK, &tokens, &mut chain);
    let chains = [BlockChain { block_size: BLOCK, hashes: chain }];
    let mut hits = [Hits::default()];
    report("lookup, 2,500 blocks, 256 holders of different depths", 500, || {
        index.lookup(&chains[0].hashes, 0, true, &mut hits[0])
    });
    let single: Vec<u32> = (0..1_000 * BLOCK).map(|at| at ^ 5 << 20).collect();
    let mut few = Vec::new();
    block::chain(&key, Domain(1), BLOCK, &single, &mut few);
    let mut few_hits = Hits::default();
    report("lookup, 1,000 blocks, 4 holders", 500, || index.lookup(&few, 0, true, &mut few_hits));
    let local = vec![LocalLoad::default(); view.workers.len()];
    for policy in [Policy::Kv, Policy::LeastLoaded, Policy::ConsistentHash, Policy::RoundRobin] {
        let facts = facts(&chains, tokens.len() as u32);
        let input = DecideInput {
            facts: &facts,
            view: &view,
            among: None,
            local: &local,
            hits: &hits,
            exclude: &[],
            cursor: 7,
            now_ms: 0,
        };
        let mut rng = fastrand::Rng::with_seed(1);
        report(&format!("decide {policy:?}, 256 workers"), 2_000, || {
            let _ = black_box(decide(policy, &input, &mut rng));
        });
    }
    let worker = view.workers[9].id;
    let retention = Retention::until_confirmed(100.0);
    report("place, 2,500 blocks", 200, || index.place(worker, &chains[0].hashes, retention, 0));
}

fn hashing(key: &HashKey) {
    let tokens: Vec<u32> = (0..50_000).map(|at| at * 2_654_435_761 % 151_936).collect();
    let mut out = Vec::new();
    report("hash 50,000 tokens in blocks of 16", 500, || {
        out.clear();
        block::chain(key, Domain(1), BLOCK, black_box(&tokens), &mut out);
    });
}

/// Every worker holds the long prompt to another depth, and a share of the other prompts.
fn fleet(key: &HashKey) -> (PrefixIndex, FleetView, Vec<u32>) {
    let index = PrefixIndex::with_budget(1 << 30);
    let mut state = FleetState::new();
    let tokens: Vec<u32> = (0..BLOCKS as u32 * BLOCK).collect();
    let mut stored = 0;
    let started = Instant::now();
    for host in 0..WORKERS {
        let worker_key = WorkerKey { model: "m".into(), url: format!("http://h{host}"), rank: None };
        let joined = FleetEvent::Joined { key: worker_key, hardware: None, block_size: Some(BLOCK), at_ms: 0 };
        let Effect::Joined(worker) = state.apply(joined) else { return (index, state.view(), tokens) };
        state.apply(FleetEvent::StateChanged { worker, state: WorkerState::Ready });
        let mut ledger = Ledger::new(worker);
        let mut store = |tokens: &[u32], salt: u64| {
            let hashes: Vec<ExternalHash> =
                (0..tokens.len() as u64 / u64::from(BLOCK)).map(|at| ExternalHash(salt << 32 | at)).collect();
            stored += ledger.stored(&index, key, Domain(1), None, &hashes, tokens, BLOCK).blocks;
        };
        store(&tokens[..(BLOCKS - 8 * host as usize) * BLOCK as usize], 0);
        for other in (0..OTHERS).filter(|other| other % 64 == host % 64) {
            let tokens: Vec<u32> = (0..1_000 * BLOCK).map(|at| at ^ (other + 1) << 20).collect();
            store(&tokens, u64::from(other) + 1);
        }
    }
    println!(
        "store: {:.2} million blocks/s, hashing included",
        f64::from(stored) / started.elapsed().as_secs_f64() / 1e6
    );
    (index, state.view(), tokens)
}

fn facts(chains: &[BlockChain], prompt_tokens: u32) -> RequestFacts<'_> {
    RequestFacts {
        model: 0,
        prompt_tokens,
        exact: true,
        chains,
        text_hash: 11,
        session: None,
        output_tokens: 100,
        completions: 1,
    }
}

fn report(what: &str, runs: usize, mut run: impl FnMut()) {
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let started = Instant::now();
            run();
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{what}: best {:.1} µs, median {:.1} µs, p99 {:.1} µs", times[0], times[runs / 2], times[runs * 99 / 100]);
}
