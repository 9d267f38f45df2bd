//! Feeds against a real ZMQ publisher: what the index believes is what the publisher holds.

mod faults;
mod polling;
mod sglang;
mod silence;
mod tiers;
mod warming;

use super::*;
use crate::config::resolved::Health;
use crate::fleet::{self, Endpoint};
use forebay_routing::WorkerId;
use forebay_routing::block;
use forebay_routing::event::WorkerKey;
use forebay_routing::index::Hits;
use forebay_routing::view::CacheKnowledge;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::sleep;

const BLOCK: usize = 4;

/// Batches that can be replayed.
type Kept = VecDeque<(u64, Vec<u8>)>;

/// Plays the publishing side of an engine: PUB, and a ROUTER that replays what it keeps.
struct Publisher {
    events: zmq::Socket,
    address: String,
    replay_address: Option<String>,
    kept: Arc<parking_lot::Mutex<Kept>>,
    /// How many batches it keeps.
    keeps: usize,
    next: u64,
    stop: Arc<AtomicBool>,
    replayer: Option<std::thread::JoinHandle<()>>,
}

/// Whether replies carry a topic frame, as releases since 0.2x do, or not.
#[derive(Clone, Copy, PartialEq)]
enum Replay {
    None,
    WithTopic,
    WithoutTopic,
}

impl Publisher {
    fn start(address: &str, replay: Replay) -> Self {
        let context = zmq::Context::new();
        let events = context.socket(zmq::PUB).expect("socket");
        events.set_linger(0).expect("option");
        events.bind(address).expect("bind");
        let address = events.get_last_endpoint().expect("bound").expect("text");
        let (kept, stop) = (Arc::new(parking_lot::Mutex::new(Kept::new())), Arc::new(AtomicBool::new(false)));
        let mut publisher =
            Self { events, address, replay_address: None, kept, keeps: 10_000, next: 0, stop, replayer: None };
        if replay != Replay::None {
            publisher.serve_replay(&context, replay);
        }
        publisher
    }

    fn serve_replay(&mut self, context: &zmq::Context, replay: Replay) {
        let router = context.socket(zmq::ROUTER).expect("socket");
        router.set_linger(0).expect("option");
        router.set_rcvtimeo(20).expect("option");
        router.bind("tcp://127.0.0.1:*").expect("bind");
        self.replay_address = Some(router.get_last_endpoint().expect("bound").expect("text"));
        let (kept, stop) = (self.kept.clone(), self.stop.clone());
        self.replayer = Some(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let Ok(frames) = router.recv_multipart(0) else { continue };
                let [client, delimiter, from] = &frames[..] else { panic!("{} frames", frames.len()) };
                assert!(delimiter.is_empty());
                let from = u64::from_be_bytes(from.as_slice().try_into().expect("eight bytes"));
                let send = |seq: u64, payload: &[u8]| {
                    let seq = seq.to_be_bytes();
                    let mut reply: Vec<&[u8]> = vec![client, b"", b"topic", &seq, payload];
                    if replay == Replay::WithoutTopic {
                        reply.remove(2);
                    }
                    router.send_multipart(reply, 0).expect("sent");
                };
                for (seq, payload) in kept.lock().iter().filter(|(seq, _)| *seq >= from) {
                    send(*seq, payload);
                }
                send(u64::MAX, b"");
            }
        }));
    }

    /// Keeps the batch for replays and publishes it; `lose` leaves out the publishing.
    fn send(&mut self, payload: Vec<u8>, lose: bool) {
        let seq = self.next;
        self.next += 1;
        let mut kept = self.kept.lock();
        kept.push_back((seq, payload.clone()));
        if kept.len() > self.keeps {
            kept.pop_front();
        }
        drop(kept);
        if !lose {
            self.publish(seq, &payload);
        }
    }

    fn publish(&self, seq: u64, payload: &[u8]) {
        self.events.send_multipart([b"kv-events", &seq.to_be_bytes()[..], payload], 0).expect("sent");
    }

    /// Another process takes over the same endpoint: numbers begin at 0.
    fn restart(&mut self) {
        self.next = 0;
        self.kept.lock().clear();
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(replayer) = self.replayer.take() {
            replayer.join().expect("replayer");
        }
    }
}

/// A prompt of `blocks` blocks, distinct by `seed`.
fn prompt(seed: u32, blocks: usize) -> Vec<u32> {
    (0..(blocks * BLOCK) as u32).map(|at| seed * 1_000 + at).collect()
}

/// The hash under which the publisher knows block `at` of a prompt.
fn name(seed: u32, at: usize) -> u64 {
    u64::from(seed) << 32 | at as u64
}

fn event(fields: &[(&str, serde_json::Value)]) -> serde_json::Value {
    fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect::<serde_json::Map<_, _>>().into()
}

/// Blocks `from..to` of prompt `seed` were stored.
fn stored(seed: u32, from: usize, to: usize) -> serde_json::Value {
    let tokens = &prompt(seed, to)[from * BLOCK..];
    event(&[
        ("type", "BlockStored".into()),
        ("block_hashes", (from..to).map(|at| name(seed, at)).collect::<Vec<_>>().into()),
        ("parent_block_hash", if from == 0 { serde_json::Value::Null } else { name(seed, from - 1).into() }),
        ("token_ids", tokens.to_vec().into()),
        ("block_size", BLOCK.into()),
        ("medium", "GPU".into()),
    ])
}

fn removed(seed: u32, at: usize) -> serde_json::Value {
    event(&[("type", "BlockRemoved".into()), ("block_hashes", vec![name(seed, at)].into()), ("medium", "GPU".into())])
}

fn cleared() -> serde_json::Value {
    event(&[("type", "AllBlocksCleared".into())])
}

fn batch(events: &[serde_json::Value]) -> Vec<u8> {
    rmp_serde::to_vec(&(crate::clock::unix_seconds(), events, 0)).expect("encodes")
}

struct Rig {
    fleet: Fleet,
    feeds: Feeds,
    clock: Clock,
    registry: prometheus::Registry,
    tasks: TaskGroup,
}

impl Rig {
    fn start() -> Self {
        let (registry, tasks, clock) = (prometheus::Registry::new(), TaskGroup::new(), Clock::start());
        let fleet = fleet(clock, &registry, &tasks);
        let feeds = Feeds::start(fleet.clone(), clock, &registry, &tasks).expect("starts");
        Self { fleet, feeds, clock, registry, tasks }
    }

    async fn join(&self, url: &str) -> Arc<Handle> {
        join(&self.fleet, url).await
    }
    /// Listens to `publisher` for a new worker.
    async fn listen(&self, publisher: &Publisher) -> Arc<Handle> {
        let handle = self.join(&format!("http://{}", publisher.address.trim_start_matches("tcp://"))).await;
        self.feeds.add(spec(&handle, publisher)).await;
        handle
    }

    fn held(&self, worker: WorkerId, seed: u32, blocks: usize, salt: Option<&str>) -> u32 {
        let domain = self.fleet.block_domain("m", BLOCK as u32, None, salt);
        let mut chain = Vec::new();
        block::chain(self.fleet.hash_key(), domain, BLOCK as u32, &prompt(seed, blocks), &mut chain);
        let mut hits = Hits::default();
        self.fleet.index().lookup(&chain, self.clock.now_ms(), false, &mut hits);
        hits.of(worker)
    }

    /// Waits until `holds`; a generous limit, for the machine may be busy.
    async fn wait(&self, what: &str, holds: impl Fn(&FeedReport) -> bool) -> FeedReport {
        for _ in 0..3_000 {
            if let Some(report) = self.feeds.reports().into_iter().find(|report| holds(report)) {
                return report;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{what} did not come about: {:#?}", self.feeds.reports());
    }
}

fn fleet(clock: Clock, registry: &prometheus::Registry, tasks: &TaskGroup) -> Fleet {
    let health = Health {
        interval: Duration::from_secs(60),
        timeout: Duration::from_secs(5),
        failures: 3,
        eject_after: 3,
        eject_for: Duration::from_secs(10),
        eject_share: 0.0,
        eject_ttft_factor: 0.0,
        max_ejected: 1.0,
        slow_start: Duration::ZERO,
        metrics_interval: Duration::from_secs(60),
    };
    let key = block::HashKey::derive(&[3; 32]);
    let options = fleet::Options { health, key, tokenizer_digests: hashbrown::HashMap::new(), clock };
    Fleet::start(options, registry, tasks).expect("first registration")
}

async fn join(fleet: &Fleet, url: &str) -> Arc<Handle> {
    let key = WorkerKey { model: "m".into(), url: url.into(), rank: None };
    let handle = fleet.join(key, None, Arc::default()).await.expect("room");
    let endpoint = Endpoint {
        url: url.into(),
        authority: "h:1".into(),
        address: ([127, 0, 0, 1], 1).into(),
        rank: None,
        secure: None,
        kind: crate::fleet::EngineKind::Vllm,
    };
    fleet.locate(&handle, endpoint).await;
    handle
}

fn spec(handle: &Arc<Handle>, publisher: &Publisher) -> FeedSpec {
    let connect = |address: &str| Attach::parse(address, "127.0.0.1").expect("valid");
    FeedSpec {
        handle: handle.clone(),
        events: connect(&publisher.address),
        replay: publisher.replay_address.as_deref().map(connect),
        capacity_blocks: Some(1_000),
        block_size: None,
        context_tokens: None,
        process: None,
        peer: None,
    }
}

#[tokio::test]
async fn a_warm_engine_is_learned_and_followed() {
    for replay in [Replay::WithTopic, Replay::WithoutTopic] {
        let rig = Rig::start();
        let mut publisher = Publisher::start("tcp://127.0.0.1:*", replay);
        publisher.send(batch(&[stored(1, 0, 3)]), false);
        publisher.send(batch(&[stored(1, 3, 5), removed(9, 0)]), false);
        let handle = rig.listen(&publisher).await;
        rig.wait("replay", |report| report.last_seq == Some(1) && report.state == FeedState::Live).await;
        assert_eq!(rig.held(handle.id(), 1, 6, None), 5);
        assert_eq!(rig.held(handle.id(), 1, 6, Some("salt")), 0);
        // Published until heard: a subscription takes its time to arrive.
        publisher.send(batch(&[stored(2, 0, 2), stored(2, 2, 4)]), false);
        publisher.send(batch(&[removed(1, 4), removed(2, 3)]), false);
        let report = rig.wait("followed", |report| report.last_seq == Some(3)).await;
        assert_eq!((rig.held(handle.id(), 1, 6, None), rig.held(handle.id(), 2, 4, None)), (4, 3));
        assert_eq!((report.blocks, report.cold_starts, report.restarts), (7, 0, 0));
        rig.fleet.describe().await;
        let view = rig.fleet.view();
        let worker = view.worker(handle.id()).expect("there");
        assert_eq!((worker.cache, worker.block_size), (CacheKnowledge::Events, Some(BLOCK as u32)));
        publisher.send(batch(&[cleared(), stored(3, 0, 1)]), false);
        rig.wait("cleared", |report| report.last_seq == Some(4)).await;
        assert_eq!((rig.held(handle.id(), 1, 6, None), rig.held(handle.id(), 3, 1, None)), (0, 1));
    }
}

#[tokio::test]
async fn a_gap_is_replayed() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    publisher.send(batch(&[stored(1, 0, 4)]), false);
    rig.wait("first", |report| report.last_seq == Some(0)).await;
    publisher.send(batch(&[removed(1, 3)]), true);
    publisher.send(batch(&[stored(2, 0, 2)]), true);
    publisher.send(batch(&[removed(1, 2)]), false);
    let report = rig.wait("filled", |report| report.last_seq == Some(3) && report.state == FeedState::Live).await;
    assert_eq!((rig.held(handle.id(), 1, 4, None), rig.held(handle.id(), 2, 2, None)), (2, 2));
    assert_eq!((report.gaps, report.cold_starts), (1, 0));
}

#[tokio::test]
async fn without_a_replay_endpoint_no_gap_is_filled() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::None);
    let handle = rig.listen(&publisher).await;
    // The subscription needs its time: what was sent to nobody is the gap.
    while rig.feeds.reports().first().is_none_or(|report| report.last_seq.is_none()) {
        publisher.send(batch(&[stored(1, 0, 4)]), false);
        sleep(Duration::from_millis(20)).await;
    }
    publisher.send(batch(&[stored(2, 0, 1)]), true);
    publisher.send(batch(&[stored(3, 0, 1)]), false);
    let last = publisher.next - 1;
    rig.wait("gone on", |report| report.last_seq == Some(last)).await;
    let report = &rig.feeds.reports()[0];
    assert!(report.lost >= 1 && report.unconfirmed == 4, "{report:?}");
    assert_eq!([2, 3].map(|seed| rig.held(handle.id(), seed, 1, None)), [0, 1]);
}

#[tokio::test]
async fn a_rollback_is_a_restart() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    for seed in 1..4 {
        publisher.send(batch(&[stored(seed, 0, 2)]), false);
    }
    rig.wait("three", |report| report.last_seq == Some(2)).await;
    // Its live numbers must have been heard for a rollback to show.
    publisher.send(batch(&[stored(4, 0, 2)]), false);
    rig.wait("four", |report| report.last_seq == Some(3)).await;
    let old = handle.id();
    publisher.restart();
    publisher.send(batch(&[stored(7, 0, 1)]), true);
    publisher.send(batch(&[stored(8, 0, 1)]), false);
    let report = rig.wait("restart", |report| report.restarts == 1 && report.last_seq == Some(1)).await;
    assert_ne!(handle.id(), old);
    let held = [1, 4, 7, 8].map(|seed| rig.held(handle.id(), seed, 1, None));
    assert_eq!(held, [0, 0, 1, 1]);
    assert_eq!(rig.held(old, 4, 1, None), 0);
    assert_eq!((report.blocks, report.cold_starts), (2, 0));
    assert!(rig.fleet.view().worker(handle.id()).is_some(), "the new identity is published");
}

#[tokio::test]
async fn a_restart_proven_elsewhere_empties_and_learns_again() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    for seed in 1..4 {
        publisher.send(batch(&[stored(seed, 0, 2)]), false);
    }
    rig.wait("three", |report| report.last_seq == Some(2)).await;
    publisher.restart();
    publisher.send(batch(&[stored(5, 0, 1)]), true);
    let old = handle.id();
    rig.fleet.restart(old).await;
    assert_eq!(rig.held(old, 1, 2, None), 0, "at once");
    rig.wait("learned again", |report| report.last_seq == Some(0) && report.blocks == 1).await;
    assert_eq!([1, 5].map(|seed| rig.held(handle.id(), seed, 1, None)), [0, 1]);
}

#[tokio::test]
async fn duplicates_change_nothing_and_garbage_is_counted() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    let first = batch(&[stored(1, 0, 4), stored(1, 0, 4)]);
    publisher.send(first.clone(), false);
    rig.wait("first", |report| report.last_seq == Some(0)).await;
    let again = batch(&[removed(1, 3)]);
    publisher.send(again.clone(), false);
    publisher.publish(1, &again);
    publisher.publish(1, &again);
    for frames in [vec![b"x".to_vec()], vec![b"t".to_vec(), b"short".to_vec(), b"p".to_vec()], vec![Vec::new(); 12]] {
        publisher.events.send_multipart(frames, 0).expect("sent");
    }
    publisher.send(batch(&[removed(1, 2)]), false);
    let report = rig.wait("all", |report| report.last_seq == Some(2)).await;
    assert_eq!(rig.held(handle.id(), 1, 4, None), 4, "each block had two copies and lost one at most");
    assert!(report.duplicates >= 2, "{report:?}");
    publisher.send(batch(&[removed(1, 3), removed(1, 2)]), false);
    rig.wait("second copies", |report| report.last_seq == Some(3)).await;
    assert_eq!(rig.held(handle.id(), 1, 4, None), 2);
    publisher.send(b"\xc1\x00garbage".to_vec(), false);
    publisher.send(batch(&[event(&[("type", "BlockStored".into())]), serde_json::Value::from(5)]), false);
    let report = rig.wait("garbage", |report| report.last_seq == Some(5)).await;
    assert_eq!(report.errors.get("frames"), Some(&3));
    assert_eq!(report.errors.get("type"), Some(&2), "{report:?}");
    assert_eq!(report.errors.get("field"), Some(&1));
    let text = prometheus::TextEncoder::new().encode_to_string(&rig.registry.gather()).expect("own metrics encode");
    assert!(text.contains("forebay_feed_errors_total{kind=\"frames\""), "{text}");
}

#[tokio::test]
async fn salts_adapters_and_images_are_kept_apart() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    let with = |mut event: serde_json::Value, key: &str, value: serde_json::Value| {
        event[key] = value;
        event
    };
    let nulls = |salt: &str| serde_json::json!([[salt], null]);
    let salted = with(stored(1, 0, 2), "extra_keys", nulls("s"));
    // A later event of a salted chain does not repeat the salt.
    publisher.send(batch(&[salted, stored(1, 2, 3)]), false);
    let adapter =
        with(with(stored(2, 0, 2), "lora_name", "ad".into()), "extra_keys", serde_json::json!([["ad"], ["ad"]]));
    let image = with(stored(3, 0, 2), "extra_keys", serde_json::json!([null, [["img", 4]]]));
    publisher.send(batch(&[adapter, image]), false);
    let report = rig.wait("both", |report| report.last_seq == Some(1)).await;
    let worker = handle.id();
    assert_eq!((rig.held(worker, 1, 3, Some("s")), rig.held(worker, 1, 3, None)), (3, 0));
    assert_eq!([2, 3].map(|seed| rig.held(worker, seed, 2, None)), [0, 1]);
    let domain = rig.fleet.block_domain("m", BLOCK as u32, Some("ad"), None);
    let (mut chain, mut hits) = (Vec::new(), Hits::default());
    block::chain(rig.fleet.hash_key(), domain, BLOCK as u32, &prompt(2, 2), &mut chain);
    rig.fleet.index().lookup(&chain, rig.clock.now_ms(), false, &mut hits);
    assert_eq!(hits.of(worker), 2);
    let ignored: Vec<_> = report.ignored.into_iter().collect();
    assert_eq!(ignored, [("extra_keys", 1)]);
}

fn bound(handle: &Arc<Handle>, events: Attach) -> FeedSpec {
    FeedSpec {
        handle: handle.clone(),
        events,
        replay: None,
        capacity_blocks: None,
        block_size: None,
        context_tokens: None,
        process: None,
        peer: None,
    }
}

#[tokio::test]
async fn an_engine_that_connects_finds_us_bound() {
    let rig = Rig::start();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound").port();
    let handle = rig.join("http://connecting:1").await;
    let events = Attach::parse(&format!("bind:tcp://127.0.0.1:{free}"), "x").expect("valid");
    rig.feeds.add(bound(&handle, events)).await;
    let context = zmq::Context::new();
    let engine = context.socket(zmq::PUB).expect("socket");
    engine.set_linger(0).expect("option");
    engine.connect(&format!("tcp://127.0.0.1:{free}")).expect("valid");
    let mut seq = 0_u64;
    while rig.feeds.reports().first().is_none_or(|report| report.last_seq.is_none()) {
        engine.send_multipart([b"", &seq.to_be_bytes()[..], &batch(&[stored(1, 0, 2)])], 0).expect("sent");
        seq += 1;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(rig.held(handle.id(), 1, 2, None), 2);
    let taken = rig.join("http://second:1").await;
    let events = Attach::parse(&format!("bind:tcp://127.0.0.1:{free}"), "x").expect("valid");
    rig.feeds.add(bound(&taken, events)).await;
    let report = rig.wait("refused", |report| report.state == FeedState::Failed).await;
    assert!(report.problem.is_some_and(|problem| problem.contains("cannot listen at")));
}

#[tokio::test]
async fn a_feed_that_is_removed_is_forgotten() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    publisher.send(batch(&[stored(1, 0, 4)]), false);
    rig.wait("first", |report| report.last_seq == Some(0)).await;
    rig.feeds.remove(&handle).await;
    rig.fleet.leave(&handle).await;
    for _ in 0..3_000 {
        if rig.feeds.reports().is_empty() && rig.held(handle.id(), 1, 4, None) == 0 {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", rig.feeds.reports());
}

/// The engine takes the request for a replay and never answers: removing the worker ends that at once.
#[tokio::test]
async fn a_removed_workers_recovery_is_cancelled() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::None);
    let context = zmq::Context::new();
    let router = context.socket(zmq::ROUTER).expect("socket");
    router.set_linger(0).expect("option");
    router.set_rcvtimeo(30_000).expect("option");
    router.bind("tcp://127.0.0.1:*").expect("bind");
    publisher.replay_address = Some(router.get_last_endpoint().expect("bound").expect("text"));
    let handle = rig.listen(&publisher).await;
    let asked = tokio::task::spawn_blocking(move || (router.recv_multipart(0).map(|frames| frames.len()), router));
    let (asked, router) = asked.await.expect("joins");
    assert_eq!(asked, Ok(3));
    rig.wait("replaying", |report| report.state == FeedState::Replaying && report.replays == 1).await;
    rig.feeds.remove(&handle).await;
    // A second worker is not held up by what the first one waited for.
    let other = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    rig.listen(&other).await;
    rig.wait("the other alone", |report| report.state == FeedState::Live && report.endpoint == other.address).await;
    assert_eq!(rig.feeds.reports().len(), 1);
    assert_eq!(router.recv_multipart(zmq::DONTWAIT).err(), Some(zmq::Error::EAGAIN), "asked once, not again");
}

#[tokio::test]
async fn a_block_size_is_learned_and_a_contradiction_is_an_alarm() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    let sized = |seed: u32, size: usize, count: usize| {
        let mut event = stored(seed, 0, count);
        event["block_size"] = size.into();
        event["token_ids"] = (0..(size * count) as u32).collect::<Vec<_>>().into();
        event
    };
    // A page that ends with its prompt is shorter and says nothing about the others.
    publisher.send(batch(&[stored(1, 0, 2), sized(2, 3, 1)]), false);
    let report = rig.wait("a tail", |report| report.last_seq == Some(0)).await;
    assert_eq!((report.alarms.len(), report.ignored.get("short_tail")), (0, Some(&1)));
    publisher.send(batch(&[sized(3, 8, 2)]), false);
    let report = rig.wait("another size", |report| report.last_seq == Some(1)).await;
    assert_eq!(report.alarms.iter().copied().collect::<Vec<_>>(), [Alarm::BlockSize]);
    rig.fleet.describe().await;
    assert_eq!(rig.fleet.view().worker(handle.id()).and_then(|worker| worker.block_size), Some(8));
    let text = prometheus::TextEncoder::new().encode_to_string(&rig.registry.gather()).expect("own metrics encode");
    let line = format!("forebay_feed_alarm{{kind=\"block_size\",worker=\"{}\"}} 1", handle.label);
    assert!(text.contains(&line), "{text}");
}

/// More than a message may have, less than what ends the connection.
#[tokio::test]
async fn an_oversized_message_is_counted_and_the_feed_goes_on() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let handle = rig.listen(&publisher).await;
    publisher.send(batch(&[stored(1, 0, 2)]), false);
    rig.wait("first", |report| report.last_seq == Some(0)).await;
    publisher.send(vec![0x90; MAX_MESSAGE_BYTES + 1], false);
    publisher.send(batch(&[stored(1, 2, 3)]), false);
    let report = rig.wait("third", |report| report.last_seq == Some(2)).await;
    assert_eq!(report.errors.get("oversized"), Some(&1), "{report:?}");
    assert_eq!(rig.held(handle.id(), 1, 3, None), 3);
}

/// More engines than one libzmq context has sockets for. Those beyond what the process may open say so.
#[tokio::test]
async fn many_engines_are_heard_at_once() {
    const ENGINES: usize = 600;
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::None);
    let mut handles = Vec::new();
    for at in 0..ENGINES {
        let handle = rig.join(&format!("http://engine-{at}:1")).await;
        rig.feeds.add(spec(&handle, &publisher)).await;
        handles.push(handle);
    }
    let heard = |report: &FeedReport| report.last_seq.is_some() || report.state == FeedState::Failed;
    let mut reports = Vec::new();
    for _ in 0..600 {
        publisher.send(batch(&[stored(1, 0, 3)]), false);
        sleep(Duration::from_millis(100)).await;
        reports = rig.feeds.reports();
        if reports.len() == ENGINES && reports.iter().all(heard) {
            break;
        }
    }
    assert!(reports.len() == ENGINES && reports.iter().all(heard));
    let refused = reports.iter().filter(|report| report.state == FeedState::Failed).count();
    let allowed = Room::of_process().limit();
    assert_eq!(refused, ENGINES.saturating_sub(allowed));
    let full = |report: &FeedReport| report.problem.as_ref().is_some_and(|problem| problem.contains("ulimit -n"));
    assert_eq!(reports.iter().filter(|report| full(report)).count(), refused);
    let held = handles.iter().filter(|handle| rig.held(handle.id(), 1, 3, None) == 3).count();
    assert_eq!(held, ENGINES - refused);
}
