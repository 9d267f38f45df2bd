//! Discovery and event feeds against the mock engine: what the index predicts is what the engine served from its cache.
#![expect(
    clippy::panic,
    reason = "a wait that fails must show what it saw; only `#[test]` functions are exempt by themselves"
)]

use bytes::Bytes;
use forebay::clock::Clock;
use forebay::config::resolved::{Health, Worker};
use forebay::discover::{self, Discovery};
use forebay::fleet::{self, Fleet, WorkerStatus};
use forebay::signal::cache_events::{FeedReport, FeedState, Feeds};
use forebay::signal::http::Peer;
use forebay::tasks::TaskGroup;
use forebay_engine::{EngineBuilder, EngineHandle};
use forebay_routing::block::{self, HashKey};
use forebay_routing::index::Hits;
use forebay_routing::view::{CacheKnowledge, WorkerState};
use std::time::Duration;
use tokio::time::sleep;

const BLOCK: usize = 16;

struct Rig {
    fleet: Fleet,
    feeds: Feeds,
    discovery: Discovery,
    clock: Clock,
    _tasks: TaskGroup,
}

fn rig() -> Rig {
    let (registry, tasks, clock) = (prometheus::Registry::new(), TaskGroup::new(), Clock::start());
    let health = Health {
        interval: Duration::from_millis(50),
        timeout: Duration::from_secs(5),
        failures: 3,
        eject_after: 3,
        eject_for: Duration::from_secs(1),
        eject_share: 0.0,
        eject_ttft_factor: 0.0,
        max_ejected: 1.0,
        slow_start: Duration::ZERO,
        metrics_interval: Duration::from_millis(50),
    };
    let options = fleet::Options {
        health: health.clone(),
        key: HashKey::derive(&[9; 32]),
        tokenizer_digests: hashbrown::HashMap::new(),
        clock,
    };
    let fleet = Fleet::start(options, &registry, &tasks).expect("first registration");
    let feeds = Feeds::start(fleet.clone(), clock, &registry, &tasks).expect("starts");
    let options = discover::Options {
        fleet: fleet.clone(),
        feeds: feeds.clone(),
        health,
        clock,
        introductions: None,
        doors: std::sync::Arc::new(forebay::doors::Doors::open()),
        agents: None,
    };
    let discovery = Discovery::start(options, &registry, &tasks).expect("first registration");
    Rig { fleet, feeds, discovery, clock, _tasks: tasks }
}

fn worker(url: String) -> Worker {
    Worker {
        url,
        server_name: None,
        model: None,
        ranks: None,
        kv_events: None,
        kv_replay: None,
        block_size: None,
        agent: None,
    }
}

impl Rig {
    /// Waits until fleet and feeds are as `holds` says; a generous limit, for the machine may be busy.
    async fn wait(&self, what: &str, holds: impl Fn(&[WorkerStatus], &[FeedReport]) -> bool) -> Vec<WorkerStatus> {
        for _ in 0..3_000 {
            let (workers, feeds) = (self.fleet.describe().await, self.feeds.reports());
            if holds(&workers, &feeds) {
                return workers;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{what} did not come about: {:#?}", (self.fleet.describe().await, self.feeds.reports()));
    }

    async fn live(&self, count: usize) -> Vec<WorkerStatus> {
        self.wait("every worker ready and heard", |workers, feeds| {
            workers.len() == count
                && feeds.len() == count
                && workers.iter().all(|worker| worker.view.state == WorkerState::Ready)
                && workers.iter().all(|worker| worker.view.cache == CacheKnowledge::Events)
                && feeds.iter().all(|feed| feed.state == FeedState::Live)
        })
        .await
    }

    /// Tokens that the index promises for `prompt` at `worker`; the last token is never served from a cache.
    fn promised(&self, worker: &WorkerStatus, prompt: &[u32]) -> u32 {
        let view = self.fleet.view();
        let model = &view.models[view.model(&worker.model).expect("served") as usize];
        let domain = self.fleet.domain(model, BLOCK as u32, None);
        let (mut chain, mut hits) = (Vec::new(), Hits::default());
        block::chain(self.fleet.hash_key(), domain, BLOCK as u32, &prompt[..prompt.len() - 1], &mut chain);
        self.fleet.index().lookup(&chain, self.clock.now_ms(), false, &mut hits);
        hits.of(worker.id) * BLOCK as u32
    }

    /// Waits until the feed has applied all that the engine has published.
    async fn catch_up(&self, engine: &EngineHandle) {
        let last = published(engine);
        self.wait("caught up", |_, feeds| {
            let (endpoint, _) = engine.event_endpoints(0).expect("events");
            feeds.iter().any(|feed| feed.endpoint == endpoint && feed.last_seq >= last && feed.state == FeedState::Live)
        })
        .await;
    }
}

/// Number of the last batch that the engine has published, by its own replay.
fn published(engine: &EngineHandle) -> Option<u64> {
    let (_, replay) = engine.event_endpoints(0).expect("events");
    let dealer = zmq::Context::new().socket(zmq::DEALER).expect("socket");
    dealer.set_linger(0).expect("option");
    dealer.connect(&replay.expect("replay")).expect("valid");
    dealer.send_multipart([&b""[..], &0_u64.to_be_bytes()], 0).expect("sent");
    let mut last = None;
    loop {
        let frames = dealer.recv_multipart(0).expect("reply");
        let seq = u64::from_be_bytes(frames[frames.len() - 2].as_slice().try_into().expect("eight bytes"));
        if seq == u64::MAX {
            return last;
        }
        last = Some(seq);
    }
}

/// Sends token ids; returns how many the engine had in its cache.
async fn complete(engine: &EngineHandle, model: &str, prompt: &[u32]) -> u32 {
    let address = engine.address();
    let peer =
        Peer { address, authority: address.to_string(), deadline: Duration::from_secs(60), key: None, towards: None };
    let body = serde_json::json!({"model": model, "prompt": prompt, "max_tokens": 4}).to_string();
    let answer = peer.post_json("/v1/completions", Bytes::from(body)).await.expect("answers");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status.is_success(), "{text}");
    let usage: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let cached = usage["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("reported");
    u32::try_from(cached).expect("a count")
}

/// Turn after turn of `sessions` conversations, drawn at random: each prompt begins with what was said before.
fn conversations(sessions: u32, requests: usize, longest: usize, rng: &mut fastrand::Rng) -> Vec<Vec<u32>> {
    let mut said: Vec<Vec<u32>> = (0..sessions).map(|_| (0..40).map(|at| 1 + at % 7).collect()).collect();
    (0..requests)
        .map(|_| {
            let session = rng.usize(0..said.len());
            if said[session].len() > longest {
                said[session].truncate(40);
            }
            for _ in 0..rng.usize(1..40) {
                said[session].push(rng.u32(1..200));
            }
            said[session].clone()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predicted_hits_are_the_engines_after_evictions_too() {
    let rig = rig();
    let engine = EngineBuilder::new().model("m").blocks(96).speedup(1_000.0).start().await.expect("starts");
    rig.discovery.reconcile(vec![worker(engine.url())]).expect("valid URL");
    let workers = rig.live(1).await;
    assert_eq!((workers[0].view.block_size, workers[0].view.capacity_blocks), (Some(BLOCK as u32), Some(96)));
    let (mut hits, mut misses) = (0, 0);
    for (at, prompt) in conversations(12, 150, 400, &mut fastrand::Rng::with_seed(5)).iter().enumerate() {
        let promised = rig.promised(&workers[0], prompt);
        let cached = complete(&engine, "m", prompt).await;
        assert_eq!(promised, cached, "request {at} of {} tokens", prompt.len());
        if cached > 40 {
            hits += 1
        } else {
            misses += 1
        }
        rig.catch_up(&engine).await;
    }
    let report = &rig.feeds.reports()[0];
    assert!(hits > 20 && misses > 20 && report.removed > 50, "{hits} hits, {misses} misses: {report:?}");
    assert_eq!((report.cold_starts, report.restarts, report.errors.len()), (0, 0, 0), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_engine_is_known_and_a_restarted_one_is_cold() {
    let rig = rig();
    let engine = EngineBuilder::new().model("m").speedup(1_000.0).start().await.expect("starts");
    let prompt: Vec<u32> = (1..200).collect();
    complete(&engine, "m", &prompt).await;
    rig.discovery.reconcile(vec![worker(engine.url())]).expect("valid URL");
    let before = rig.live(1).await;
    rig.catch_up(&engine).await;
    assert_eq!(rig.promised(&before[0], &prompt), 192);
    engine.restart(Duration::from_millis(200)).await;
    let after = rig
        .wait("another generation", |workers, feeds| {
            workers.len() == 1
                && workers[0].id != before[0].id
                && workers[0].view.state == WorkerState::Ready
                && feeds.iter().all(|feed| feed.state == FeedState::Live)
        })
        .await;
    assert_eq!(rig.promised(&before[0], &prompt) + rig.promised(&after[0], &prompt), 0);
    assert_eq!(complete(&engine, "m", &prompt).await, 0);
    rig.catch_up(&engine).await;
    let now = rig.fleet.describe().await;
    assert_eq!(rig.promised(&now[0], &prompt), 192);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_and_adapters_are_kept_apart() {
    let rig = rig();
    let engine = EngineBuilder::new().model("m").adapter("ad").ranks(2).speedup(1_000.0).start().await.expect("starts");
    rig.discovery.reconcile(vec![worker(engine.url())]).expect("valid URL");
    let workers = rig.live(2).await;
    let prompt: Vec<u32> = (1..100).collect();
    complete(&engine, "ad", &prompt).await;
    rig.wait("stored", |_, feeds| feeds.iter().map(|feed| feed.stored).sum::<u64>() >= 6).await;
    let view = rig.fleet.view();
    let mut held = Vec::new();
    for name in ["m", "ad"] {
        let model = &view.models[view.model(name).expect("served") as usize];
        assert_eq!(model.workers.len(), 2);
        let domain = rig.fleet.domain(model, BLOCK as u32, None);
        let (mut chain, mut hits) = (Vec::new(), Hits::default());
        block::chain(rig.fleet.hash_key(), domain, BLOCK as u32, &prompt, &mut chain);
        rig.fleet.index().lookup(&chain, rig.clock.now_ms(), false, &mut hits);
        held.push(workers.iter().map(|worker| hits.of(worker.id)).sum::<u32>());
    }
    assert_eq!(held, [0, 6], "the adapter's blocks, at the one rank that computed them");
}
