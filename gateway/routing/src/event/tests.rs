use super::*;
use crate::view::LocalLoad;
use proptest::prelude::*;
use std::collections::HashSet;

fn key(model: &str, host: u32) -> WorkerKey {
    WorkerKey { model: model.into(), url: format!("http://10.0.0.{host}:8000"), rank: None }
}

fn join(state: &mut FleetState, model: &str, host: u32, at_ms: u64) -> WorkerId {
    let joined = state.apply(FleetEvent::Joined { key: key(model, host), hardware: None, block_size: Some(16), at_ms });
    match joined {
        Effect::Joined(id) => id,
        other => panic!("{other:?}"),
    }
}

fn load(waiting: u32, at_ms: u64) -> EngineLoad {
    EngineLoad { running: 1, waiting, kv_usage: 0.5, at_ms, ..EngineLoad::default() }
}

#[test]
fn a_worker_joins_and_is_seen() {
    let mut state = FleetState::new();
    let id = join(&mut state, "m", 1, 0);
    let view = state.view();
    assert_eq!(view.models[0].name, "m");
    assert_eq!(view.models[0].workers, [0]);
    assert_eq!(view.models[0].block_sizes, [16]);
    let worker = view.worker(id).expect("joined");
    assert_eq!((worker.state, worker.cache), (WorkerState::Starting, CacheKnowledge::Approximate));
    assert_eq!(worker.rates, crate::rates::PRIOR);
    assert_eq!(state.find(&key("m", 1)), Some(id));
}

#[test]
fn joining_twice_changes_nothing() {
    let mut state = FleetState::new();
    let id = join(&mut state, "m", 1, 0);
    let version = state.version();
    let again = state.apply(FleetEvent::Joined { key: key("m", 1), hardware: None, block_size: None, at_ms: 5 });
    assert_eq!(again, Effect::Known(id));
    assert_eq!(state.version(), version);
}

#[test]
fn ranks_of_one_url_are_workers_of_their_own() {
    let mut state = FleetState::new();
    for rank in 0..2 {
        let key = WorkerKey { rank: Some(rank), ..key("m", 1) };
        let joined = state.apply(FleetEvent::Joined { key, hardware: None, block_size: None, at_ms: 0 });
        assert!(matches!(joined, Effect::Joined(_)));
    }
    let view = state.view();
    assert_eq!(view.workers.len(), 2);
    assert_ne!(view.workers[0].affinity, view.workers[1].affinity);
}

#[test]
fn a_freed_slot_rests_and_comes_back_under_the_next_generation() {
    let mut state = FleetState::new();
    let old = join(&mut state, "m", 1, 0);
    assert_eq!(state.apply(FleetEvent::Left { worker: old, at_ms: 1_000 }), Effect::Left(old));
    assert_eq!(join(&mut state, "m", 2, 1_001).slot, 1, "slot 0 rests");
    let reused = join(&mut state, "m", 3, 1_000 + SLOT_REST_MS);
    assert_eq!(reused, WorkerId::new(0, old.generation + 1));
    assert_eq!(
        state.apply(FleetEvent::StateChanged { worker: old, state: WorkerState::Down }),
        Effect::Refused(EventRefusal::UnknownWorker)
    );
}

#[test]
fn a_model_keeps_its_position_when_its_workers_are_gone() {
    let mut state = FleetState::new();
    let a = join(&mut state, "a", 1, 0);
    join(&mut state, "b", 2, 0);
    state.apply(FleetEvent::Left { worker: a, at_ms: 0 });
    let view = state.view();
    assert_eq!((view.model("a"), view.model("b")), (Some(0), Some(1)));
    assert!(view.models[0].workers.is_empty());
    assert_eq!(view.models[1].workers, [0]);
}

#[test]
fn a_restart_moves_the_generation_and_forgets_the_load() {
    let mut state = FleetState::new();
    let old = join(&mut state, "m", 1, 0);
    state.apply(FleetEvent::LoadReported { worker: old, load: load(3, 10) });
    let Effect::Restarted { new, .. } = state.apply(FleetEvent::Restarted { worker: old }) else { panic!() };
    assert_eq!(new, WorkerId::new(old.slot, old.generation + 1));
    let view = state.view();
    assert_eq!(view.worker(old), None);
    assert_eq!(view.worker(new).expect("goes on").engine, None);
    assert_eq!(state.find(&key("m", 1)), Some(new));
}

#[test]
fn adapters_hash_under_their_base_and_aliases_as_their_base() {
    let mut state = FleetState::new();
    let id = join(&mut state, "base", 1, 0);
    let names =
        vec![ServedName { name: "adapter".into(), lora: true }, ServedName { name: "alias".into(), lora: false }];
    assert_eq!(state.apply(FleetEvent::NamesLearned { worker: id, names: names.clone() }), Effect::Changed);
    assert_eq!(state.apply(FleetEvent::NamesLearned { worker: id, names }), Effect::Unchanged);
    let view = state.view();
    let domain = |name: &str| {
        let model = &view.models[view.model(name).expect("listed") as usize];
        (model.domain_model().to_owned(), model.domain_lora().map(str::to_owned), model.workers.clone())
    };
    assert_eq!(domain("base"), ("base".into(), None, vec![0]));
    assert_eq!(domain("adapter"), ("base".into(), Some("adapter".into()), vec![0]));
    assert_eq!(domain("alias"), ("base".into(), None, vec![0]));
    state.apply(FleetEvent::NamesLearned { worker: id, names: Vec::new() });
    let view = state.view();
    assert!(view.models[view.model("adapter").expect("kept") as usize].workers.is_empty());
}

#[test]
fn one_name_has_one_meaning() {
    let mut state = FleetState::new();
    let a = join(&mut state, "a", 1, 0);
    join(&mut state, "b", 2, 0);
    let names = vec![ServedName { name: "b".into(), lora: true }];
    assert_eq!(state.apply(FleetEvent::NamesLearned { worker: a, names }), Effect::Refused(EventRefusal::NameLeftOut));
    assert_eq!(state.view().models[1].workers, [1]);
}

#[test]
fn old_and_absurd_readings_are_not_taken() {
    let mut state = FleetState::new();
    let id = join(&mut state, "m", 1, 0);
    assert_eq!(state.apply(FleetEvent::LoadReported { worker: id, load: load(3, 10) }), Effect::Changed);
    assert_eq!(state.apply(FleetEvent::LoadReported { worker: id, load: load(9, 5) }), Effect::Unchanged);
    let nan = EngineLoad { kv_usage: f32::NAN, ..load(1, 20) };
    assert_eq!(state.apply(FleetEvent::LoadReported { worker: id, load: nan }), Effect::Refused(EventRefusal::Absurd));
    assert_eq!(state.view().workers[0].engine, Some(load(3, 10)));
    assert_eq!(state.apply(FleetEvent::LoadLost { worker: id }), Effect::Changed);
    assert_eq!(state.view().workers[0].engine, None);
    let zero = FleetEvent::CacheLearned { worker: id, block_size: Some(0), capacity_blocks: None };
    assert_eq!(state.apply(zero), Effect::Refused(EventRefusal::Absurd));
}

#[test]
fn workers_of_one_class_learn_together() {
    let mut state = FleetState::new();
    let one = join(&mut state, "m", 1, 0);
    join(&mut state, "m", 2, 0);
    join(&mut state, "other", 3, 0);
    for _ in 0..50 {
        let observation = Observation {
            cached_tokens: 0,
            uncached_tokens: 2_000,
            ttft_ms: Some(500.0),
            itl_ms: Some(50.0),
            load: LocalLoad::default(),
        };
        state.apply(FleetEvent::Observed { worker: one, observation });
    }
    let view = state.view();
    let prefill = |at: usize| view.workers[at].rates.prefill_ms(0, 2_000);
    assert!(prefill(0) > 400.0, "{}", prefill(0));
    assert!(prefill(1) > 300.0, "never used, same class: {}", prefill(1));
    assert!(prefill(2) < 60.0, "another model: {}", prefill(2));
}

#[test]
fn a_foreign_queue_hides_the_speed() {
    let mut state = FleetState::new();
    let id = join(&mut state, "m", 1, 0);
    state.apply(FleetEvent::LoadReported { worker: id, load: load(5, 10) });
    let observation = Observation {
        cached_tokens: 0,
        uncached_tokens: 2_000,
        ttft_ms: Some(9_000.0),
        itl_ms: None,
        load: LocalLoad::default(),
    };
    assert_eq!(state.apply(FleetEvent::Observed { worker: id, observation }), Effect::Unchanged);
}

fn any_event() -> impl Strategy<Value = FleetEvent> {
    let worker = (0u32..6, 0u32..4).prop_map(|(slot, generation)| WorkerId::new(slot, generation));
    let name = prop::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        3 => (name.clone(), 0u32..5, any::<Option<u16>>(), any::<Option<u32>>(), any::<u64>()).prop_map(
            |(model, host, rank, block_size, at_ms)| FleetEvent::Joined {
                key: WorkerKey { rank: rank.map(|rank| rank % 2), ..key(model, host) },
                hardware: rank.map(|rank| format!("h{}", rank % 3)),
                block_size,
                at_ms,
            }
        ),
        2 => (worker.clone(), any::<u64>()).prop_map(|(worker, at_ms)| FleetEvent::Left { worker, at_ms }),
        1 => worker.clone().prop_map(|worker| FleetEvent::Restarted { worker }),
        1 => (worker.clone(), prop::collection::vec((name, any::<bool>()), 0..4)).prop_map(|(worker, names)| {
            let names = names.into_iter().map(|(name, lora)| ServedName { name: name.into(), lora }).collect();
            FleetEvent::NamesLearned { worker, names }
        }),
        1 => (worker.clone(), prop::sample::select(vec![WorkerState::Ready, WorkerState::Down]))
            .prop_map(|(worker, state)| FleetEvent::StateChanged { worker, state }),
        1 => (worker.clone(), any::<(u32, u32, f32, u64)>()).prop_map(|(worker, (running, waiting, kv_usage, at_ms))| {
            let load = EngineLoad { running, waiting, kv_usage, at_ms, ..EngineLoad::default() };
            FleetEvent::LoadReported { worker, load }
        }),
        1 => (worker.clone(), any::<Option<u32>>(), any::<Option<u32>>()).prop_map(
            |(worker, block_size, capacity_blocks)| FleetEvent::CacheLearned { worker, block_size, capacity_blocks }
        ),
        1 => (worker, any::<(u32, u32, f64, f64)>()).prop_map(|(worker, (cached, uncached, ttft, itl))| {
            let observation = Observation {
                cached_tokens: cached,
                uncached_tokens: uncached,
                ttft_ms: Some(ttft),
                itl_ms: Some(itl),
                load: LocalLoad::default(),
            };
            FleetEvent::Observed { worker, observation }
        }),
    ]
}

proptest! {
    #[test]
    fn any_sequence_keeps_the_invariants(events in prop::collection::vec(any_event(), 0..120)) {
        let mut state = FleetState::new();
        let mut gone = HashSet::new();
        let mut names: Vec<String> = Vec::new();
        for event in events {
            let before = state.version();
            match state.apply(event) {
                Effect::Left(worker) | Effect::Restarted { old: worker, .. } => {
                    gone.insert(worker);
                }
                Effect::Joined(worker) => prop_assert!(!gone.contains(&worker), "{} was given twice", worker),
                Effect::Unchanged | Effect::Known(_) => prop_assert_eq!(state.version(), before),
                Effect::Changed | Effect::Refused(_) => {}
            }
            let view = state.view();
            prop_assert!(view.workers.is_sorted_by(|one, two| one.id.slot < two.id.slot));
            for worker in &view.workers {
                prop_assert!(!gone.contains(&worker.id));
                prop_assert_eq!(state.find(state.key(worker.id).expect("in view")), Some(worker.id));
                prop_assert!(worker.rates.prefill_ms(10, 10).is_finite());
            }
            for model in &view.models {
                prop_assert!(model.workers.is_sorted_by(|one, two| one < two));
                prop_assert!(model.workers.iter().all(|&at| (at as usize) < view.workers.len()));
                prop_assert!(model.block_sizes.is_sorted_by(|one, two| one < two));
            }
            let now: Vec<String> = view.models.iter().map(|model| model.name.clone()).collect();
            prop_assert!(now.starts_with(&names));
            names = now;
        }
    }
}
