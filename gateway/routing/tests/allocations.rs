//! Choosing a worker allocates nothing: neither the look-up, once its buffer has grown, nor the decision.
#![expect(unsafe_code, reason = "a counting allocator has to be an allocator")]

use forebay_routing::block::{self, Domain, HashKey};
use forebay_routing::event::{Effect, WorkerKey};
use forebay_routing::facts::BlockChain;
use forebay_routing::index::ledger::{ExternalHash, Ledger};
use forebay_routing::index::{GroupKind, Hits, Place, PrefixIndex, Tier};
use forebay_routing::view::WorkerState;
use forebay_routing::{DecideInput, FleetEvent, FleetState, LocalLoad, Policy, RequestFacts, decide};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Allocations of this thread: the test harness allocates on others meanwhile.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed on to the system allocator with the very arguments that the caller vouches for; counting
// touches a thread-local without destructor, which neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above, so from the system allocator, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: u32 = 16;

/// 64 engines with different parts of one prompt, three in four of them with more than plain blocks in device memory.
#[expect(clippy::panic, reason = "a test that cannot begin has failed")]
fn fleet(index: &PrefixIndex, key: &HashKey, tokens: &[u32]) -> FleetState {
    let hashes: Vec<ExternalHash> = (0..2_000).map(ExternalHash).collect();
    let mut state = FleetState::new();
    for host in 0..64 {
        let worker_key = WorkerKey { model: "m".into(), url: format!("http://h{host}"), rank: None };
        let joined = FleetEvent::Joined { key: worker_key, hardware: None, block_size: Some(BLOCK), at_ms: 0 };
        let Effect::Joined(worker) = state.apply(joined) else { panic!("joins") };
        state.apply(FleetEvent::StateChanged { worker, state: WorkerState::Ready });
        let held = 2_000 - 10 * host as usize;
        let tokens = &tokens[..held * BLOCK as usize];
        let mut ledger = Ledger::new(worker);
        ledger.learn_group(index, 0, GroupKind::Full);
        if host % 4 == 1 {
            ledger.learn_group(index, 1, GroupKind::Window { blocks: 8 });
        }
        ledger.stored(index, key, Domain(1), None, &hashes[..held], tokens, BLOCK);
        match host % 4 {
            1 => assert_eq!(ledger.mirrored(index, Place { tier: Tier::Device, group: 1 }, &hashes[..held]).orphans, 0),
            2 => assert_eq!(ledger.mirrored(index, Place { tier: Tier::Host, group: 0 }, &hashes[..held]).orphans, 0),
            3 => assert!(ledger.unconfirm(index) > 0),
            _ => {}
        }
    }
    state
}

#[test]
fn choosing_allocates_nothing() {
    let key = HashKey::derive(&[3; 32]);
    let index = PrefixIndex::with_budget(64 << 20);
    let tokens: Vec<u32> = (0..2_000 * BLOCK).collect();
    let state = fleet(&index, &key, &tokens);
    let view = state.view();
    let local = vec![LocalLoad::default(); view.workers.len()];
    let mut chain = Vec::new();
    block::chain(&key, Domain(1), BLOCK, &tokens, &mut chain);
    let chains = [BlockChain { block_size: BLOCK, hashes: chain }];
    let mut hits = [Hits::default()];
    let mut choose = |policy: Policy, exact: bool, seed: u64| {
        let before = ALLOCATIONS.get();
        index.lookup(&chains[0].hashes, 0, true, &mut hits[0]);
        let facts = RequestFacts {
            model: 0,
            prompt_tokens: tokens.len() as u32,
            exact,
            chains: &chains,
            text_hash: seed,
            session: Some(seed),
            output_tokens: 100,
            completions: 1,
        };
        let input = DecideInput {
            facts: &facts,
            view: &view,
            among: None,
            local: &local,
            hits: &hits,
            exclude: &[],
            cursor: seed,
            now_ms: 0,
        };
        let chosen = decide(policy, &input, &mut fastrand::Rng::with_seed(seed));
        let allocated = ALLOCATIONS.get() - before;
        (chosen.expect("all are ready").cached_tokens, allocated)
    };
    let (cached, allocated) = choose(Policy::Kv, true, 0);
    assert!(cached > 0 && allocated > 0, "the first look-up grows the buffer, so counting works");
    let policies = [
        Policy::Kv,
        Policy::LeastLoaded,
        Policy::PowerOfTwo,
        Policy::RoundRobin,
        Policy::ConsistentHash,
        Policy::Session,
    ];
    for policy in policies {
        for exact in [true, false] {
            for seed in 0..5 {
                assert_eq!(choose(policy, exact, seed).1, 0, "{policy:?}, exact {exact}, seed {seed}");
            }
        }
    }
}
