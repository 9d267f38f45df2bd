use super::*;
use crate::block::ChainHash;
use crate::facts::BlockChain;
use crate::foreign;
use crate::rates::PRIOR;
use crate::score::MAX_LOAD_AGE_MS;
use crate::view::{CacheKnowledge, EngineLoad, KernelLoad, ModelView, WorkerView};
use proptest::prelude::*;

const NOW_MS: u64 = 100_000;
const BLOCK: u32 = 16;
const POLICIES: [Policy; 6] =
    [Policy::Kv, Policy::LeastLoaded, Policy::PowerOfTwo, Policy::RoundRobin, Policy::ConsistentHash, Policy::Session];

/// A fleet of one model, a request for it, and all that a decision reads.
#[derive(Clone, Debug)]
struct Scene {
    workers: Vec<WorkerView>,
    local: Vec<LocalLoad>,
    /// Blocks held by each worker.
    blocks: Vec<u32>,
    exclude: Vec<WorkerId>,
    prompt_tokens: u32,
    exact: bool,
    text_hash: u64,
    session: Option<u64>,
    cursor: u64,
}

fn worker(slot: u32) -> WorkerView {
    WorkerView {
        id: WorkerId::new(slot, 0),
        affinity: u64::from(slot) * 7_919,
        rank: None,
        state: WorkerState::Ready,
        block_size: Some(BLOCK),
        capacity_blocks: Some(16_384),
        cache: CacheKnowledge::Events,
        engine: None,
        kernel: None,
        fabric: None,
        rates: PRIOR,
        typical_tokens: 512,
    }
}

fn engine(running: u32, waiting: u32, kv_usage: f32) -> Option<EngineLoad> {
    Some(EngineLoad { running, waiting, kv_usage, at_ms: NOW_MS, ..EngineLoad::default() })
}

/// `queued` requests of 1,000 tokens wait, `decoding` run.
fn load(queued: u32, decoding: u32) -> LocalLoad {
    LocalLoad {
        requests: queued + decoding,
        prefill_requests: queued,
        prefill_tokens: queued * 1_000,
        prefill_squares: u64::from(queued) * 1_000_000,
        decode_tokens: decoding * 1_000,
    }
}

impl Scene {
    fn new(count: u32) -> Self {
        Self {
            workers: (0..count).map(worker).collect(),
            local: vec![LocalLoad::default(); count as usize],
            blocks: vec![0; count as usize],
            exclude: Vec::new(),
            prompt_tokens: 3_200,
            exact: true,
            text_hash: 42,
            session: None,
            cursor: 0,
        }
    }

    fn with<T>(&self, look: impl FnOnce(&DecideInput<'_>) -> T) -> T {
        let model = ModelView {
            name: "m".into(),
            base: None,
            lora: false,
            workers: (0..self.workers.len() as u32).collect(),
            block_sizes: vec![BLOCK],
        };
        let view = FleetView { version: 1, workers: self.workers.clone(), models: vec![model] };
        let mut blocks: Vec<(WorkerId, u32)> =
            self.workers.iter().map(|worker| worker.id).zip(self.blocks.iter().copied()).collect();
        blocks.retain(|hit| hit.1 > 0);
        blocks.sort();
        let hits = [Hits::from(blocks)];
        let chains =
            [BlockChain { block_size: BLOCK, hashes: vec![ChainHash(0); (self.prompt_tokens / BLOCK) as usize] }];
        let facts = RequestFacts {
            model: 0,
            prompt_tokens: self.prompt_tokens,
            exact: self.exact,
            chains: if self.exact { &chains } else { &[] },
            text_hash: self.text_hash,
            session: self.session,
            output_tokens: 200,
            completions: 1,
        };
        look(&DecideInput {
            facts: &facts,
            view: &view,
            among: None,
            local: &self.local,
            hits: if self.exact { &hits } else { &[] },
            exclude: &self.exclude,
            cursor: self.cursor,
            now_ms: NOW_MS,
        })
    }

    fn decide(&self, policy: Policy, seed: u64) -> Result<Decision, Refusal> {
        self.with(|input| decide(policy, input, &mut fastrand::Rng::with_seed(seed)))
    }

    fn slot(&self, policy: Policy, seed: u64) -> u32 {
        self.decide(policy, seed).expect("somebody is ready").worker.slot
    }
}

#[test]
fn the_holder_of_the_prefix_is_chosen() {
    let mut scene = Scene::new(4);
    scene.blocks[2] = 150;
    let chosen = scene.decide(Policy::Kv, 1).expect("ready");
    assert_eq!((chosen.worker.slot, chosen.cached_tokens, chosen.uncached_tokens), (2, 2_400, 800));
    assert_eq!(chosen.reason, Reason::PrefixHit);
    assert!(chosen.ttft_ms < PRIOR.prefill_ms(0, 3_200));
}

#[test]
fn the_last_token_is_never_credited() {
    let mut scene = Scene::new(2);
    scene.prompt_tokens = 64;
    scene.blocks[1] = 4;
    assert_eq!(scene.decide(Policy::Kv, 1).expect("ready").cached_tokens, 48);
    scene.prompt_tokens = 65;
    assert_eq!(scene.decide(Policy::Kv, 1).expect("ready").cached_tokens, 64);
    scene.prompt_tokens = 0;
    assert_eq!(scene.decide(Policy::Kv, 1).expect("ready").cached_tokens, 0);
}

#[test]
fn a_hot_prefix_spreads_once_its_queue_costs_more_than_computing_it() {
    let mut scene = Scene::new(3);
    scene.prompt_tokens = 6_400;
    scene.blocks[0] = 390;
    let mut queued = 0;
    while scene.slot(Policy::Kv, 1) == 0 {
        queued += 1;
        assert!(queued < 50, "the holder is never left");
        scene.local[0] = load(queued, 0);
    }
    assert!(queued > 1, "one waiting request does not outweigh 6,240 cached tokens");
    assert_eq!(scene.decide(Policy::Kv, 1).expect("ready").reason, Reason::LeastCost);
}

#[test]
fn each_worker_is_scored_at_its_own_block_size() {
    let mut scene = Scene::new(2);
    scene.blocks = vec![10, 10];
    scene.workers[1].block_size = Some(32);
    scene.workers[0].state = WorkerState::Down;
    assert_eq!(scene.decide(Policy::Kv, 1).expect("ready").cached_tokens, 0, "no chain of that size was hashed");
    scene.workers[1].block_size = None;
    assert_eq!(scene.decide(Policy::Kv, 1).expect("ready").cached_tokens, 0, "not learned yet");
}

#[test]
fn running_decodes_are_worth_sparing() {
    let mut scene = Scene::new(2);
    scene.local[0] = load(0, 1);
    assert_eq!(scene.slot(Policy::Kv, 1), 1);
    scene.blocks[0] = 199;
    assert_eq!(scene.slot(Policy::Kv, 1), 0, "hardly any prefill: hardly any harm");
}

#[test]
fn long_contexts_are_kept_apart() {
    let mut scene = Scene::new(2);
    // Nothing to compute anywhere, as many requests on both sides, but one side reads ten times as much for every token.
    scene.blocks = vec![200, 200];
    scene.local =
        vec![LocalLoad { decode_tokens: 80_000, ..load(0, 4) }, LocalLoad { decode_tokens: 8_000, ..load(0, 4) }];
    assert_eq!(scene.slot(Policy::Kv, 1), 1);
    let shown = scene.with(|input| explain(Policy::Kv, input));
    assert!(shown[0].terms.decode_ms > 9.0 * shown[1].terms.decode_ms);
    assert_eq!(shown[0].terms.crowd_ms, shown[1].terms.crowd_ms);
}

#[test]
fn own_requests_that_a_reading_counted_are_not_counted_twice() {
    let mut scene = Scene::new(2);
    let told =
        |own_requests, own_waiting| engine(6, 2, 0.2).map(|load| EngineLoad { own_requests, own_waiting, ..load });
    scene.local = vec![load(2, 6), load(2, 6)];
    scene.workers[0].engine = told(8, 2);
    scene.workers[1].engine = told(6, 1);
    assert_eq!(scene.slot(Policy::Kv, 1), 0, "two of the other's are somebody else's");
    // What has ended since the reading is no request of others.
    scene.local[0] = LocalLoad::default();
    let shown = scene.with(|input| explain(Policy::Kv, input));
    assert_eq!((shown[0].terms.waiting_ms, shown[0].terms.waiting_harm_ms), (0.0, 0.0));
}

#[test]
fn equals_are_told_apart_by_the_session_in_every_gateway() {
    let mut scene = Scene::new(8);
    let mut homes = [0; 8];
    for session in 0..400 {
        scene.session = Some(session * 0x9e37_79b9);
        let home = scene.slot(Policy::Kv, 1);
        assert_eq!(scene.slot(Policy::Kv, 2), home, "whatever the gateway's own randomness");
        homes[home as usize] += 1;
    }
    assert!(homes.iter().all(|count| (20..=90).contains(count)), "{homes:?}");
    let home = scene.slot(Policy::Kv, 1) as usize;
    scene.local[home] = load(0, 1);
    assert_ne!(scene.slot(Policy::Kv, 1) as usize, home, "a hint weighs nothing beside a cost");
}

#[test]
fn a_full_cache_costs_the_wait_for_room() {
    let mut scene = Scene::new(2);
    scene.workers[0].engine = engine(10, 0, 0.999);
    scene.workers[1].engine = engine(10, 0, 0.5);
    let terms: Vec<Terms> =
        scene.with(|input| explain(Policy::Kv, input)).into_iter().map(|candidate| candidate.terms).collect();
    assert!(terms[0].room_ms > 0.0 && terms[1].room_ms == 0.0, "{terms:?}");
    assert_eq!(scene.slot(Policy::Kv, 1), 1);
}

#[test]
fn requests_of_others_count() {
    for policy in [Policy::Kv, Policy::LeastLoaded, Policy::PowerOfTwo] {
        let mut scene = Scene::new(2);
        scene.workers[0].engine = engine(4, 6, 0.2);
        scene.workers[1].engine = engine(1, 0, 0.2);
        assert_eq!(scene.slot(policy, 1), 1, "{policy:?}");
    }
}

#[test]
fn silence_is_not_idleness() {
    for policy in [Policy::Kv, Policy::LeastLoaded] {
        let mut scene = Scene::new(3);
        for at in 0..2 {
            scene.workers[at].engine = engine(2 + at as u32, 3, 0.2);
        }
        // Known and unknown: the unknown one is taken for no better than the best known, so both are chosen.
        let chosen: Vec<u32> = (0..64).map(|seed| scene.slot(policy, seed)).collect();
        assert!(chosen.contains(&0) && chosen.contains(&2) && !chosen.contains(&1), "{policy:?}: {chosen:?}");
    }
}

#[test]
fn ties_are_spread_evenly() {
    let scene = Scene::new(4);
    for policy in [Policy::Kv, Policy::LeastLoaded, Policy::PowerOfTwo] {
        let mut counts = [0; 4];
        for seed in 0..2_000 {
            counts[scene.slot(policy, seed) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (400..600).contains(count)), "{policy:?}: {counts:?}");
    }
}

#[test]
fn round_robin_takes_turns_among_the_ready() {
    let mut scene = Scene::new(4);
    scene.workers[1].state = WorkerState::Draining;
    let turns: Vec<u32> = (0..6)
        .map(|cursor| {
            scene.cursor = cursor;
            scene.slot(Policy::RoundRobin, cursor)
        })
        .collect();
    assert_eq!(turns, [0, 2, 3, 0, 2, 3]);
}

#[test]
fn the_less_loaded_of_two_is_taken() {
    let mut scene = Scene::new(3);
    scene.local = vec![load(0, 9), load(0, 1), load(0, 5)];
    let mut counts = [0; 3];
    for seed in 0..300 {
        counts[scene.slot(Policy::PowerOfTwo, seed) as usize] += 1;
    }
    assert_eq!(counts[0], 0, "the worst of all loses against both others");
    assert!(counts[1] > 150 && counts[2] > 50, "{counts:?}");
}

#[test]
fn the_ring_keeps_a_head_on_its_worker_until_that_is_overloaded() {
    let mut scene = Scene::new(4);
    let home = scene.slot(Policy::ConsistentHash, 1);
    assert_eq!(scene.slot(Policy::ConsistentHash, 2), home);
    scene.local = vec![load(0, 10); 4];
    scene.local[home as usize] = load(0, 12);
    assert_eq!(scene.slot(Policy::ConsistentHash, 1), home, "a little above the mean");
    scene.local[home as usize] = load(0, 30);
    let next = scene.slot(Policy::ConsistentHash, 1);
    assert_ne!(next, home);
    scene.exclude = vec![WorkerId::new(home, 0)];
    assert_eq!(scene.slot(Policy::ConsistentHash, 1), next, "the same second choice whatever the reason");
}

#[test]
fn the_ring_moves_only_the_keys_of_a_worker_that_leaves() {
    let mut scene = Scene::new(5);
    let homes: Vec<u32> = (0..200)
        .map(|key| {
            scene.text_hash = key * 0x9e37_79b9;
            scene.slot(Policy::ConsistentHash, 1)
        })
        .collect();
    scene.workers[3].state = WorkerState::Down;
    for (key, home) in (0..).zip(&homes) {
        scene.text_hash = key * 0x9e37_79b9;
        let now = scene.slot(Policy::ConsistentHash, 1);
        assert!(now == *home || *home == 3, "key {key} moved from {home} to {now}");
    }
    for slot in 0..5 {
        let share = homes.iter().filter(|&&home| home == slot).count();
        assert!((20..=65).contains(&share), "worker {slot} owns {share} of 200 keys");
    }
}

#[test]
fn a_session_stays_and_falls_back_to_the_head() {
    let mut scene = Scene::new(4);
    let by_head = scene.slot(Policy::ConsistentHash, 1);
    assert_eq!(scene.slot(Policy::Session, 1), by_head);
    scene.session = (0..).find(|&session| {
        scene.session = Some(session);
        scene.slot(Policy::Session, 1) != by_head
    });
    let home = scene.slot(Policy::Session, 1);
    scene.text_hash = 4_711;
    assert_eq!(scene.slot(Policy::Session, 2), home, "another head, the same session");
    scene.local = vec![load(0, 10); 4];
    scene.local[home as usize] = load(0, 20);
    assert_eq!(scene.slot(Policy::Session, 1), home, "loads that would move a head");
}

#[test]
fn text_goes_home_unless_home_costs_more_than_it_can_save() {
    let mut scene = Scene::new(4);
    scene.exact = false;
    let home = scene.slot(Policy::ConsistentHash, 1);
    let chosen = scene.decide(Policy::Kv, 1).expect("ready");
    assert_eq!((chosen.worker.slot, chosen.reason, chosen.cached_tokens), (home, Reason::TextAffinity, 0));
    scene.local[home as usize] = load(1, 0);
    assert_eq!(scene.slot(Policy::Kv, 1), home);
    scene.local[home as usize] = load(7, 0);
    let chosen = scene.decide(Policy::Kv, 1).expect("ready");
    assert_ne!(chosen.worker.slot, home);
    assert_eq!(chosen.reason, Reason::LeastCost);
}

#[test]
fn refusals_say_why() {
    let mut scene = Scene::new(0);
    for policy in POLICIES {
        assert_eq!(scene.decide(policy, 1), Err(Refusal::NoWorkers));
    }
    scene = Scene::new(2);
    scene.workers[0].state = WorkerState::Ejected;
    scene.workers[1].state = WorkerState::Starting;
    for policy in POLICIES {
        assert_eq!(scene.decide(policy, 1), Err(Refusal::NoneReady));
    }
    scene.workers[1].state = WorkerState::Ready;
    for policy in POLICIES {
        let only = scene.decide(policy, 1).expect("one is ready");
        assert_eq!((only.worker.slot, only.reason), (1, Reason::OnlyOne));
    }
    scene.exclude = vec![WorkerId::new(1, 0)];
    for policy in POLICIES {
        assert_eq!(scene.decide(policy, 1), Err(Refusal::AllTried));
    }
    let unknown = scene.with(|input| {
        let facts = RequestFacts { model: 9, ..input.facts.clone() };
        decide(Policy::Kv, &DecideInput { facts: &facts, ..*input }, &mut fastrand::Rng::with_seed(1))
    });
    assert_eq!(unknown, Err(Refusal::NoWorkers));
}

#[test]
fn the_explanation_shows_what_decided() {
    let mut scene = Scene::new(4);
    scene.blocks[1] = 100;
    scene.workers[2].state = WorkerState::Draining;
    scene.workers[3].engine =
        Some(EngineLoad { at_ms: NOW_MS - MAX_LOAD_AGE_MS - 1, ..engine(9, 9, 0.9).expect("some") });
    scene.exclude = vec![WorkerId::new(0, 0)];
    let shown = scene.with(|input| explain(Policy::Kv, input));
    let standings: Vec<Standing> = shown.iter().map(|candidate| candidate.standing).collect();
    let not_ready = Standing::NotReady(WorkerState::Draining);
    assert_eq!(standings, [Standing::Tried, Standing::Eligible, not_ready, Standing::Eligible]);
    assert_eq!((shown[1].cached_tokens, shown[1].uncached_tokens), (1_600, 1_600));
    assert_eq!(shown[3].load_age_ms, Some(MAX_LOAD_AGE_MS + 1));
    assert_eq!(shown[3].terms.engine_ms(), 0.0, "too old to count");
    assert!(scene.with(|input| explain(Policy::Session, input))[0].claim.is_some());
}

fn any_worker() -> impl Strategy<Value = (WorkerView, LocalLoad, u32)> {
    let state = prop_oneof![
        5 => Just(WorkerState::Ready),
        1 => prop::sample::select(vec![
            WorkerState::Starting, WorkerState::Draining, WorkerState::Ejected, WorkerState::Down,
        ]),
    ];
    let own = (0u32..20, 0u32..20);
    let engine = prop::option::of((0u32..20, 0u32..20, 0.0f32..1.0, 0u64..2 * MAX_LOAD_AGE_MS, own).prop_map(
        |(running, waiting, kv_usage, age_ms, (own_requests, own_waiting))| EngineLoad {
            running,
            waiting,
            kv_usage,
            at_ms: NOW_MS - age_ms,
            own_requests,
            own_waiting,
        },
    ));
    let kernel = prop::option::of((0u32..80, 0u32..80, 0u64..1_200).prop_map(|(awaiting, streaming, age_ms)| {
        KernelLoad::new(awaiting, streaming, &LocalLoad::default(), NOW_MS - age_ms, 600)
    }));
    let told = (engine, kernel);
    // Few distinct values, so that ties happen.
    (state, told, 0u32..4, 0u32..4, prop::sample::select(vec![0u32, 0, 50, 100, 199]), any::<u64>()).prop_map(
        |(state, (engine, kernel), queued, decoding, blocks, affinity)| {
            (WorkerView { state, engine, kernel, affinity, ..worker(0) }, load(queued, decoding), blocks)
        },
    )
}

fn any_scene() -> impl Strategy<Value = Scene> {
    (
        prop::collection::vec(any_worker(), 1..10),
        prop::collection::vec(0u32..10, 0..3),
        any::<bool>(),
        any::<(u64, Option<u64>, u64)>(),
    )
        .prop_map(|(workers, exclude, exact, (text_hash, session, cursor))| {
            let mut scene = Scene::new(0);
            for (slot, (worker, local, blocks)) in (0..).zip(workers) {
                scene.workers.push(WorkerView { id: WorkerId::new(slot, 0), ..worker });
                scene.local.push(local);
                scene.blocks.push(blocks);
            }
            scene.exclude = exclude.into_iter().map(|slot| WorkerId::new(slot, 0)).collect();
            Scene { exact, text_hash, session, cursor, ..scene }
        })
}

fn seen_own(at: usize) -> LocalLoad {
    load(at as u32 % 3, at as u32)
}

#[test]
fn requests_that_only_the_kernel_sees_send_elsewhere() {
    let mut scene = Scene::new(3);
    let seen = |awaiting, streaming| Some(KernelLoad::new(awaiting, streaming, &LocalLoad::default(), NOW_MS, 600));
    scene.workers[0].kernel = seen(8, 8);
    scene.workers[1].kernel = seen(0, 1);
    assert_ne!(scene.slot(Policy::LeastLoaded, 1), 0);
    let shown = scene.with(|input| explain(Policy::Kv, input));
    assert!(shown[0].terms.foreign_ms > 0.0 && shown[0].terms.ttft_ms() > shown[1].terms.ttft_ms());
    assert_eq!(shown[1].cost_ms, shown[2].cost_ms, "who has no agent is taken for the least that another has");
    assert_ne!(scene.slot(Policy::Kv, 1), 0);
    // What the engine reports already is not counted twice.
    scene.workers[0].engine = engine(8, 8, 0.0);
    let told = scene.with(|input| explain(Policy::Kv, input));
    assert_eq!((told[0].terms.foreign_ms, told[0].terms.foreign_harm_ms), (0.0, 0.0));
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(POLICIES.to_vec())
}

proptest! {
    #[test]
    fn only_the_ready_and_untried_are_chosen(scene in any_scene(), policy in any_policy(), seed in any::<u64>()) {
        let may = |worker: &WorkerView| worker.state == WorkerState::Ready && !scene.exclude.contains(&worker.id);
        match scene.decide(policy, seed) {
            Ok(chosen) => {
                let worker = &scene.workers[chosen.position as usize];
                prop_assert_eq!(worker.id, chosen.worker);
                prop_assert!(may(worker));
                prop_assert_eq!(chosen.cached_tokens + chosen.uncached_tokens, scene.prompt_tokens);
                prop_assert!(chosen.ttft_ms.is_finite() && chosen.ttft_ms >= 0.0);
            }
            Err(_) => prop_assert!(!scene.workers.iter().any(may)),
        }
    }

    #[test]
    fn permuting_workers_permutes_the_answer(
        scene in any_scene(), policy in any_policy(), seed in any::<u64>(), shuffle in any::<u64>(),
    ) {
        prop_assume!(policy != Policy::RoundRobin);
        let mut order: Vec<usize> = (0..scene.workers.len()).collect();
        fastrand::Rng::with_seed(shuffle).shuffle(&mut order);
        let mut other = scene.clone();
        other.workers = order.iter().map(|&at| scene.workers[at].clone()).collect();
        other.local = order.iter().map(|&at| scene.local[at]).collect();
        other.blocks = order.iter().map(|&at| scene.blocks[at]).collect();
        let worker = |answer: Result<Decision, Refusal>| answer.map(|chosen| (chosen.worker, chosen.reason));
        prop_assert_eq!(worker(scene.decide(policy, seed)), worker(other.decide(policy, seed)));
    }

    #[test]
    fn a_strictly_worse_worker_changes_nothing(
        scene in any_scene(), least_loaded in any::<bool>(), seed in any::<u64>(), like in any::<prop::sample::Index>(),
    ) {
        let policy = if least_loaded { Policy::LeastLoaded } else { Policy::Kv };
        let scene = Scene { exact: true, ..scene };
        let Ok(before) = scene.decide(policy, seed) else { return Ok(()) };
        // Worse than an eligible one in every term, and as talkative as it.
        let eligible: Vec<usize> = (0..scene.workers.len())
            .filter(|&at| scene.workers[at].state == WorkerState::Ready)
            .filter(|&at| !scene.exclude.contains(&scene.workers[at].id))
            .collect();
        let like = eligible[like.index(eligible.len())];
        let mut more = scene.clone();
        let engine = scene.workers[like].engine.map(|load| EngineLoad {
            running: load.running + 5, waiting: load.waiting + 5, ..load
        });
        more.workers.push(WorkerView { id: WorkerId::new(99, 0), engine, ..scene.workers[like].clone() });
        let queued = scene.local[like].prefill_requests + 1;
        more.local.push(load(queued, scene.local[like].decoding() + 1));
        more.blocks.push(scene.blocks[like].saturating_sub(1));
        prop_assert_eq!(more.decide(policy, seed).map(|chosen| chosen.worker), Ok(before.worker));
    }

    #[test]
    fn more_queue_never_makes_a_worker_more_attractive(
        scene in any_scene(), policy in any_policy(), seed in any::<u64>(), at in any::<prop::sample::Index>(),
        (own, tokens, waiting, running) in (0u32..5, 0u32..3_000, 0u32..5, 0u32..5),
    ) {
        prop_assume!(!matches!(policy, Policy::RoundRobin));
        let at = at.index(scene.workers.len());
        let Ok(before) = scene.decide(policy, seed) else { return Ok(()) };
        prop_assume!(before.position as usize != at);
        let mut busier = scene.clone();
        let local = &mut busier.local[at];
        local.requests += own;
        local.decode_tokens += own * tokens / 2;
        local.prefill_requests += own;
        local.prefill_tokens += own * tokens;
        local.prefill_squares += u64::from(own) * LocalLoad::squares(tokens, tokens);
        if let Some(engine) = &mut busier.workers[at].engine {
            engine.waiting += waiting;
            engine.running += running;
        }
        let after = busier.decide(policy, seed).expect("the same are ready");
        prop_assert!(after.position as usize != at, "{:?} then {:?}", before, after);
    }

    #[test]
    fn a_stale_reading_decides_as_none(scene in any_scene(), policy in any_policy(), seed in any::<u64>()) {
        let mut stale = scene.clone();
        let mut absent = scene;
        for (stale, absent) in stale.workers.iter_mut().zip(&mut absent.workers) {
            if let Some(load) = &mut stale.engine
                && load.waiting % 2 == 0
            {
                load.at_ms = NOW_MS - MAX_LOAD_AGE_MS - 1 - load.at_ms % 1_000;
                absent.engine = None;
            }
        }
        prop_assert_eq!(stale.decide(policy, seed), absent.decide(policy, seed));
    }

    #[test]
    fn a_stale_report_of_an_agent_decides_as_none(scene in any_scene(), policy in any_policy(), seed in any::<u64>()) {
        let mut stale = scene.clone();
        let mut absent = scene;
        for (stale, absent) in stale.workers.iter_mut().zip(&mut absent.workers) {
            if let Some(load) = &mut stale.kernel
                && load.busy % 2 == 0
            {
                load.at_ms = NOW_MS - load.good_for_ms - 1;
                absent.kernel = None;
            }
        }
        prop_assert_eq!(stale.decide(policy, seed), absent.decide(policy, seed));
    }

    /// Whatever agents say, true or not: the worker that is chosen costs at most so much more than the best one, by all that
    /// is known without them, as a report can add at the best one.
    #[test]
    fn a_false_report_does_bounded_harm(scene in any_scene(), seed in any::<u64>()) {
        let lied_to = Scene { exact: true, ..scene };
        let mut honest = lied_to.clone();
        honest.workers.iter_mut().for_each(|worker| worker.kernel = None);
        let (Ok(chosen), Ok(best)) = (lied_to.decide(Policy::Kv, seed), honest.decide(Policy::Kv, seed)) else {
            return Ok(());
        };
        let shown = honest.with(|input| explain(Policy::Kv, input));
        let of = |worker| shown.iter().find(|candidate| candidate.worker == worker).expect("shown");
        let (chosen, best) = (of(chosen.worker), of(best.worker));
        let most = shown
            .iter()
            .map(|one| foreign::most_ms(&honest.workers[one.position as usize], one.terms.prefill_ms))
            .fold(0.0, f64::max);
        let silent = honest.workers[best.position as usize].engine.is_none_or(|load| NOW_MS - load.at_ms > MAX_LOAD_AGE_MS);
        let most = if silent { 2.0 * most } else { most };
        prop_assert!(chosen.cost_ms <= best.cost_ms + most + 1e-6, "{} against {}", chosen.cost_ms, best.cost_ms);
    }

    /// Reports that see nothing foreign are as good as none, and one gateway alone sees nothing foreign.
    #[test]
    fn nothing_foreign_decides_as_no_report(scene in any_scene(), policy in any_policy(), seed in any::<u64>()) {
        let mut seen = scene.clone();
        let mut unseen = scene;
        for (at, (seen, unseen)) in seen.workers.iter_mut().zip(&mut unseen.workers).enumerate() {
            let own = seen_own(at);
            seen.kernel = Some(KernelLoad::new(own.prefill_requests, own.decoding(), &own, NOW_MS, 600));
            unseen.kernel = None;
        }
        prop_assert_eq!(seen.decide(policy, seed), unseen.decide(policy, seed));
    }

    #[test]
    fn the_choice_is_the_cheapest_explained(scene in any_scene(), seed in any::<u64>()) {
        let scene = Scene { exact: true, ..scene };
        let shown = scene.with(|input| explain(Policy::Kv, input));
        let Ok(chosen) = scene.decide(Policy::Kv, seed) else { return Ok(()) };
        let eligible = || shown.iter().filter(|candidate| candidate.standing == Standing::Eligible);
        let least = eligible().map(|candidate| candidate.cost_ms).fold(f64::INFINITY, f64::min);
        let shown = eligible().find(|candidate| candidate.worker == chosen.worker).expect("eligible");
        prop_assert!(shown.cost_ms <= least + 1e-6, "{} against {}", shown.cost_ms, least);
        prop_assert_eq!(shown.cached_tokens, chosen.cached_tokens);
        prop_assert_eq!(shown.terms.ttft_ms(), chosen.ttft_ms);
    }
}
