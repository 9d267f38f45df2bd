//! How long a decision takes on this machine: the one thing here that is measured and not simulated.

use forebay_routing::block::ChainHash;
use forebay_routing::event::{Effect, WorkerKey};
use forebay_routing::facts::BlockChain;
use forebay_routing::index::Hits;
use forebay_routing::view::WorkerState;
use forebay_routing::{DecideInput, FleetEvent, FleetState, LocalLoad, Policy, RequestFacts, decide};
use std::hint::black_box;
use std::time::Instant;

const WORKERS: u32 = 256;
const BLOCKS: u32 = 2_500;
const BLOCK_TOKENS: u32 = 16;
const REPEATS: usize = 2_000;

/// Median time of a decision among 256 workers that hold different parts of a prompt of 2,500 blocks, µs.
#[expect(clippy::disallowed_methods, reason = "a measurement needs the clock")]
pub(crate) fn decision_us() -> f64 {
    let mut state = FleetState::new();
    let mut hits = Vec::new();
    for host in 0..WORKERS {
        let key = WorkerKey { model: "m".to_owned(), url: format!("http://w{host}"), rank: None };
        let joined = FleetEvent::Joined { key, hardware: None, block_size: Some(BLOCK_TOKENS), at_ms: 0 };
        if let Effect::Joined(worker) = state.apply(joined) {
            state.apply(FleetEvent::StateChanged { worker, state: WorkerState::Ready });
            hits.push((worker, BLOCKS - 8 * host));
        }
    }
    let view = state.view();
    let local = vec![LocalLoad { requests: 3, decode_tokens: 9_000, ..LocalLoad::default() }; view.workers.len()];
    let chains = [BlockChain { block_size: BLOCK_TOKENS, hashes: (0..u64::from(BLOCKS)).map(ChainHash).collect() }];
    let hits = [Hits::from(hits)];
    let facts = RequestFacts {
        model: 0,
        prompt_tokens: BLOCKS * BLOCK_TOKENS,
        exact: true,
        chains: &chains,
        text_hash: 0,
        session: None,
        output_tokens: 200,
        completions: 1,
    };
    let input = DecideInput {
        facts: &facts,
        view: &view,
        local: &local,
        hits: &hits,
        exclude: &[],
        among: None,
        cursor: 0,
        now_ms: 0,
    };
    let mut rng = fastrand::Rng::with_seed(1);
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let started = Instant::now();
            let _ = black_box(decide(Policy::Kv, black_box(&input), &mut rng));
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[REPEATS / 2]
}
