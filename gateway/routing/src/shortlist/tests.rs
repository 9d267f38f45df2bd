use super::*;
use crate::block::ChainHash;
use crate::facts::BlockChain;
use crate::view::{CacheKnowledge, ModelView, WorkerView};
use crate::{DecideInput, LocalLoad, decide, rates};
use proptest::prelude::*;

const BLOCK: u32 = 16;

fn worker(slot: u32, state: WorkerState) -> WorkerView {
    WorkerView {
        id: WorkerId::new(slot, 1),
        affinity: u64::from(slot),
        rank: None,
        state,
        block_size: Some(BLOCK),
        capacity_blocks: None,
        cache: CacheKnowledge::Approximate,
        engine: None,
        kernel: None,
        fabric: None,
        rates: rates::PRIOR,
        typical_tokens: 500,
    }
}

fn fleet(count: u32, state: impl Fn(u32) -> WorkerState) -> FleetView {
    let model = ModelView {
        name: "m".into(),
        base: None,
        lora: false,
        workers: (0..count).collect(),
        block_sizes: vec![BLOCK],
    };
    FleetView { version: 1, workers: (0..count).map(|slot| worker(slot, state(slot))).collect(), models: vec![model] }
}

/// The chain of a prompt of 100 blocks.
fn chains() -> [BlockChain; 1] {
    [BlockChain { block_size: BLOCK, hashes: vec![ChainHash(0); 100] }]
}

/// That prompt and one token more.
fn facts(chains: &[BlockChain]) -> RequestFacts<'_> {
    RequestFacts {
        model: 0,
        prompt_tokens: 1_601,
        exact: true,
        chains,
        text_hash: 0,
        session: None,
        output_tokens: 100,
        completions: 1,
    }
}

/// What `draw` gives for a prompt of 100 blocks of which `held` are with whom.
fn draw(policy: Policy, view: &FleetView, held: &[(u32, u32)], cursor: u64, seed: u64) -> Option<Vec<u32>> {
    let chains = chains();
    let facts = facts(&chains);
    let hits = [Hits::from(held.iter().map(|&(slot, blocks)| (WorkerId::new(slot, 1), blocks)).collect::<Vec<_>>())];
    let draw = Draw { policy, facts: &facts, view, hits: &hits, exclude: &[WorkerId::new(7, 1)], cursor };
    let mut out = vec![99];
    shortlist(&draw, &mut fastrand::Rng::with_seed(seed), &mut out).then_some(out)
}

#[test]
fn a_small_fleet_and_a_ring_are_looked_at_whole() {
    let small = fleet(EVERYBODY as u32, |_| WorkerState::Ready);
    let large = fleet(1_000, |_| WorkerState::Ready);
    assert_eq!(draw(Policy::Kv, &small, &[], 0, 1), None);
    assert_eq!(draw(Policy::Session, &large, &[], 0, 1), None);
    assert_eq!(draw(Policy::ConsistentHash, &large, &[], 0, 1), None);
}

#[test]
fn the_longest_holders_are_on_it_and_equals_take_turns() {
    let view = fleet(5_000, |_| WorkerState::Ready);
    let mut held: Vec<(u32, u32)> = (0..4_000).map(|slot| (slot, 5)).collect();
    held[1_234].1 = 80;
    held[3_999].1 = 79;
    let mut known = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let listed = draw(Policy::Kv, &view, &held, 0, seed).unwrap();
        assert!(listed.contains(&1_234) && listed.contains(&3_999));
        known.extend(listed[..MAX_HOLDERS].iter().copied());
    }
    assert!(known.len() > 1_000, "fifty draws of thirty-two: {}", known.len());
}

#[test]
fn round_robin_takes_everybody_in_turn() {
    let view = fleet(300, |slot| if slot % 100 == 50 { WorkerState::Down } else { WorkerState::Ready });
    let mut seen = vec![0; 300];
    for cursor in 0..600 {
        let listed = draw(Policy::RoundRobin, &view, &[], cursor, 1).unwrap();
        assert_eq!(listed.len(), 1);
        seen[listed[0] as usize] += 1;
    }
    assert_eq!((seen[50], seen[7]), (0, 0), "down, and tried already");
    assert_eq!((seen[51], seen[8], seen[9]), (4, 4, 2), "whose turn it is not steps in");
}

#[test]
fn loads_even_out_over_a_large_fleet() {
    let view = fleet(2_000, |_| WorkerState::Ready);
    for policy in [Policy::Kv, Policy::LeastLoaded] {
        let mut loads = vec![LocalLoad::default(); 2_000];
        let chains = chains();
        let facts = facts(&chains);
        let mut rng = fastrand::Rng::with_seed(3);
        let mut among = Vec::new();
        for _ in 0..8_000 {
            let draw = Draw { policy, facts: &facts, view: &view, hits: &[], exclude: &[], cursor: 0 };
            assert!(shortlist(&draw, &mut rng, &mut among));
            let local: Vec<LocalLoad> = among.iter().map(|&position| loads[position as usize]).collect();
            let input = DecideInput {
                facts: &facts,
                view: &view,
                among: Some(&among),
                local: &local,
                hits: &[],
                exclude: &[],
                cursor: 0,
                now_ms: 1,
            };
            let chosen = decide(policy, &input, &mut rng).unwrap().position as usize;
            loads[chosen].requests += 1;
            loads[chosen].prefill_requests += 1;
            loads[chosen].prefill_tokens += 1_601;
        }
        let most = loads.iter().map(|load| load.requests).max().unwrap();
        assert!(most <= 6, "four each on average, {most} at the fullest");
    }
}

proptest! {
    #[test]
    fn only_who_may_be_chosen_is_on_it_and_once(
        states in prop::collection::vec(0_u8..4, 200..600),
        seed: u64,
        cursor: u64,
        held in prop::collection::btree_map(0_u32..700, 1_u32..100, 0..80),
    ) {
        let state = |slot: u32| match states[slot as usize] {
            0 => WorkerState::Down,
            1 => WorkerState::Ejected,
            _ => WorkerState::Ready,
        };
        let view = fleet(states.len() as u32, state);
        let held: Vec<(u32, u32)> = held.into_iter().collect();
        for policy in [Policy::Kv, Policy::LeastLoaded, Policy::PowerOfTwo, Policy::RoundRobin] {
            let listed = draw(policy, &view, &held, cursor, seed).unwrap();
            prop_assert!(!listed.is_empty() && listed.len() <= MAX_HOLDERS + MAX_SAMPLE);
            let may = |&position: &u32| view.workers[position as usize].state == WorkerState::Ready && position != 7;
            prop_assert!(listed.iter().all(may));
            let mut once = listed.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), listed.len());
        }
    }
}
