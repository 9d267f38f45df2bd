//! The owner under paused time: membership, ejection, publication, draining.

use super::*;
use forebay_routing::view::WorkerState;
use prometheus::Registry;
use std::time::Duration;
use tokio::time::{advance, sleep};

struct Rig {
    fleet: Fleet,
    registry: Registry,
    clock: Clock,
    _tasks: TaskGroup,
}

fn rig() -> Rig {
    rig_with(|_| {})
}

fn rig_with(change: impl FnOnce(&mut Health)) -> Rig {
    let (registry, tasks, clock) = (Registry::new(), TaskGroup::new(), Clock::start());
    let mut health = Health {
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(5),
        failures: 3,
        eject_after: 3,
        eject_for: Duration::from_secs(10),
        eject_share: 0.0,
        eject_ttft_factor: 0.0,
        max_ejected: 1.0,
        slow_start: Duration::ZERO,
        metrics_interval: Duration::from_secs(1),
    };
    change(&mut health);
    let options = Options {
        health,
        key: HashKey::derive(&[7; 32]),
        tokenizer_digests: HashMap::from([("m".into(), vec![1, 2])]),
        clock,
    };
    let fleet = Fleet::start(options, &registry, &tasks).expect("first registration");
    Rig { fleet, registry, clock, _tasks: tasks }
}

impl Rig {
    async fn join(&self, url: &str) -> Arc<Handle> {
        let key = WorkerKey { model: "m".into(), url: url.into(), rank: None };
        self.fleet.join(key, Some(16), Arc::default()).await.expect("room")
    }

    async fn ready(&self, url: &str) -> Arc<Handle> {
        let handle = self.join(url).await;
        let endpoint = Endpoint {
            url: url.into(),
            authority: "h:1".into(),
            address: ([127, 0, 0, 1], 1).into(),
            rank: None,
            secure: None,
            kind: crate::fleet::EngineKind::Vllm,
        };
        self.fleet.locate(&handle, endpoint).await;
        self.fleet.checked(&handle, Ok(()), self.clock.now_ms()).await;
        self.settle().await;
        assert_eq!(self.state(&handle), Some(WorkerState::Ready));
        handle
    }

    /// Every event sent before is applied and, if it asked for it, published.
    async fn settle(&self) {
        self.fleet.describe().await;
    }

    fn state(&self, handle: &Handle) -> Option<WorkerState> {
        self.fleet.view().worker(handle.id()).map(|worker| worker.state)
    }

    async fn fail(&self, handle: &Handle, feedback: Feedback, times: usize) {
        for _ in 0..times {
            self.fleet.feedback(handle.id(), feedback.clone());
        }
        self.settle().await;
        // The batch with the last report publishes after it has answered.
        sleep(Duration::from_millis(6)).await;
    }

    fn served() -> Feedback {
        Feedback::Served {
            prompt_tokens: 1_000,
            cached_tokens: Some(0),
            predicted_tokens: 0,
            sent_ms: 0,
            ttft_ms: 500.0,
            itl_ms: Some(20.0),
            load: LocalLoad::default(),
        }
    }

    fn series(&self) -> String {
        prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).expect("own metrics encode")
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_starts_is_checked_and_serves() {
    let rig = rig();
    let handle = rig.join("http://a:1").await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Starting));
    assert_eq!(rig.fleet.endpoint(handle.id()), None);
    rig.fleet.checked(&handle, Err("refused".into()), 0).await;
    rig.settle().await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Starting), "never answered is not down");
    let handle = rig.ready("http://b:1").await;
    let view = rig.fleet.view();
    assert_eq!(view.models[0].workers.len(), 2);
    assert_eq!(view.models[0].block_sizes, [16]);
    assert!(rig.fleet.endpoint(handle.id()).is_some());
    for _ in 0..3 {
        assert_eq!(rig.state(&handle), Some(WorkerState::Ready));
        rig.fleet.checked(&handle, Err("late".into()), rig.clock.now_ms()).await;
        rig.settle().await;
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Down));
    let status = rig.fleet.describe().await;
    assert_eq!((status[1].problem.as_deref(), status[1].failed_checks), (Some("late"), 3));
    rig.fleet.checked(&handle, Ok(()), rig.clock.now_ms()).await;
    rig.settle().await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn live_successes_overrule_slow_health_checks() {
    let rig = rig();
    let handle = rig.ready("http://a:1").await;
    for _ in 0..10 {
        let started_ms = rig.clock.now_ms();
        advance(Duration::from_secs(5)).await;
        rig.fleet.feedback(handle.id(), Rig::served());
        rig.fleet.checked(&handle, Err("late".into()), started_ms).await;
        rig.settle().await;
    }
    assert_eq!(rig.state(&handle), Some(WorkerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn live_failures_eject_one_probe_decides() {
    let rig = rig();
    let handle = rig.ready("http://a:1").await;
    rig.fail(&handle, Feedback::BackPressure, 50).await;
    rig.fail(&handle, Feedback::Status(503), 50).await;
    rig.fail(&handle, Feedback::Status(404), 50).await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Ready), "busy and the client's own errors never count");
    rig.fail(&handle, Feedback::ConnectFailed, 2).await;
    rig.fail(&handle, Rig::served(), 1).await;
    rig.fail(&handle, Feedback::Broken, 2).await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Ready), "a success between forgives");
    rig.fail(&handle, Feedback::Status(500), 1).await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Ejected));
    assert!(rig.series().contains("forebay_worker_ejections_total{worker=\"http://a:1\"} 1"));

    rig.fleet.checked(&handle, Ok(()), rig.clock.now_ms()).await;
    sleep(Duration::from_secs(9)).await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Ejected), "not before its time");
    tokio::time::timeout(Duration::from_secs(2), handle.probe.notified()).await.expect("the probe is asked for");
    rig.fleet.checked(&handle, Ok(()), rig.clock.now_ms()).await;
    rig.fail(&handle, Rig::served(), 1).await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn two_decisions_between_publications_see_each_other() {
    let rig = rig();
    let (a, b) = (rig.ready("http://a:1").await, rig.ready("http://b:1").await);
    let view = rig.fleet.view();
    let loads = |fleet: &Fleet| {
        let mut out = Vec::new();
        fleet.local_loads(&view, &mut out);
        out.iter().map(|load| (load.requests, load.prefill_tokens)).collect::<Vec<_>>()
    };
    assert_eq!(loads(&rig.fleet), [(0, 0), (0, 0)]);
    let first = rig.fleet.reserve(b.id(), 100, 40, 1);
    assert_eq!(loads(&rig.fleet), [(0, 0), (1, 40)]);
    let second = rig.fleet.reserve(a.id(), 10, 10, 3);
    assert_eq!(loads(&rig.fleet), [(3, 10), (1, 40)]);
    assert!(rig.series().contains("forebay_worker_requests{worker=\"http://a:1\"} 3"));
    drop((first, second));
    assert_eq!(loads(&rig.fleet), [(0, 0), (0, 0)]);
    assert_eq!(rig.fleet.view().version, view.version, "reservations publish nothing");
}

#[tokio::test(start_paused = true)]
async fn removal_drains_and_the_slot_never_answers_to_the_old_name() {
    let rig = rig();
    let handle = rig.ready("http://a:1").await;
    let id = handle.id();
    let guard = rig.fleet.reserve(id, 10, 10, 1);
    rig.fleet.leave(&handle).await;
    rig.settle().await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Draining));
    assert!(rig.fleet.endpoint(id).is_some(), "what runs there may still ask");
    drop(guard);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(rig.state(&handle), None);
    assert_eq!(rig.fleet.endpoint(id), None);
    assert!(!rig.series().contains("http://a:1"), "no series outlives its worker");
    sleep(Duration::from_secs(60)).await;
    let next = rig.ready("http://c:1").await;
    assert_eq!(next.slot, handle.slot);
    assert_ne!(next.id(), id);
    assert_eq!(rig.fleet.endpoint(id), None);
    drop(rig.fleet.reserve(id, 10, 10, 1));
    rig.fail(&handle, Feedback::Broken, 10).await;
    assert_eq!(rig.state(&next), Some(WorkerState::Ready), "the predecessor's failures are not its own");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_comes_back_while_it_drains_is_taken_up_again() {
    let rig = rig();
    let handle = rig.ready("http://a:1").await;
    let _guard = rig.fleet.reserve(handle.id(), 10, 10, 1);
    rig.fleet.leave(&handle).await;
    let again = rig.ready("http://a:1").await;
    assert_eq!(again.slot, handle.slot);
    assert_ne!(again.id(), handle.id(), "what was known of its cache is not carried over");
    let mut loads = Vec::new();
    rig.fleet.local_loads(&rig.fleet.view(), &mut loads);
    assert_eq!(loads[0].requests, 1, "what still runs there counts");
}

#[tokio::test(start_paused = true)]
async fn a_restart_moves_the_generation_once() {
    let rig = rig();
    let handle = rig.ready("http://a:1").await;
    let old = handle.id();
    rig.fleet.restart(old).await;
    let new = handle.id();
    assert_eq!((new.slot, new.generation), (old.slot, old.generation + 1));
    rig.fleet.restart(old).await;
    assert_eq!(handle.id(), new, "the same restart, proven twice");
    assert!(rig.fleet.view().worker(new).is_some());
    assert!(rig.fleet.view().worker(old).is_none());
    assert!(rig.fleet.endpoint(old).is_some(), "a decision made just before still finds its worker");
    let moved = Endpoint { address: ([127, 0, 0, 1], 2).into(), ..(*rig.fleet.endpoint(new).expect("there")).clone() };
    rig.fleet.locate(&handle, moved).await;
    assert_ne!(handle.id(), new, "another address is another process");
}

#[tokio::test(start_paused = true)]
async fn readings_publish_at_most_every_five_milliseconds() {
    let rig = rig();
    let handle = rig.ready("http://a:1").await;
    sleep(Duration::from_secs(1)).await;
    let before = rig.fleet.shared.metrics.publications.get();
    for round in 0..1_000 {
        let load = EngineLoad { running: round, kv_usage: 0.5, at_ms: rig.clock.now_ms(), ..EngineLoad::default() };
        rig.fleet.report_load(handle.id(), load);
        sleep(Duration::from_millis(1)).await;
    }
    let published = rig.fleet.shared.metrics.publications.get() - before;
    assert!((100..=201).contains(&published), "{published} publications in a second");
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.fleet.view().workers[0].engine.map(|load| load.running), Some(999), "the last one is published");
}

#[tokio::test(start_paused = true)]
async fn a_full_channel_drops_reports_and_counts_them() {
    let rig = rig();
    let handle = rig.ready("http://a:1").await;
    // Nothing awaits here, so the owner cannot run in between.
    for _ in 0..MAX_QUEUED_EVENTS + 10 {
        rig.fleet.feedback(handle.id(), Rig::served());
    }
    assert_eq!(rig.fleet.shared.metrics.dropped.get(), 10);
    rig.settle().await;
    assert_eq!(rig.state(&handle), Some(WorkerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn one_function_makes_every_domain() {
    let rig = rig();
    let handle = rig.ready("http://a:1").await;
    let names = vec![ServedName { name: "ad".into(), lora: true }, ServedName { name: "alias".into(), lora: false }];
    rig.fleet.learn_names(&handle, names).await;
    rig.settle().await;
    sleep(Duration::from_millis(6)).await;
    let view = rig.fleet.view();
    let model = |name: &str| &view.models[view.model(name).expect("served") as usize];
    let domain = |name: &str, salt| rig.fleet.domain(model(name), 16, salt);
    assert_eq!(domain("m", None), rig.fleet.block_domain("m", 16, None, None));
    assert_eq!(domain("alias", None), domain("m", None));
    assert_eq!(domain("ad", Some("s")), rig.fleet.block_domain("m", 16, Some("ad"), Some("s")));
    let all = [domain("m", None), domain("m", Some("s")), domain("ad", None), domain("ad", Some("s"))];
    for (at, one) in all.iter().enumerate() {
        assert!(all[..at].iter().all(|other| other != one));
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_comes_back_takes_less_than_its_share_at_first() {
    let rig = rig_with(|health| health.slow_start = Duration::from_secs(10));
    let old = rig.ready("http://a:1").await;
    sleep(Duration::from_secs(11)).await;
    let new = rig.ready("http://b:1").await;
    let there: Vec<_> = (0..10).map(|_| rig.fleet.reserve(old.id(), 1, 1, 1)).collect();
    let taken = || {
        let mut taken = Vec::new();
        while rig.fleet.readiness(new.id()) == Readiness::Willing && taken.len() < 20 {
            taken.push(rig.fleet.reserve(new.id(), 1, 1, 1));
        }
        taken.len()
    };
    assert_eq!(taken(), 1, "one at once");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(taken(), 5, "half of what the other has");
    assert_eq!(rig.fleet.readiness(old.id()), Readiness::Willing, "who is warm is not held back");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(taken(), 20, "warm");
    drop(there);

    rig.fleet.hold(old.id(), Duration::from_secs(3));
    assert_eq!(rig.fleet.readiness(old.id()), Readiness::Reluctant);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(rig.fleet.readiness(old.id()), Readiness::Willing);
}
