//! Events that are fetched, from a small server that forgets what it has answered, as TensorRT-LLM does.

use super::*;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The engine's buffer, and the numbers it gives.
#[derive(Clone, Default)]
struct Buffer {
    events: Arc<parking_lot::Mutex<(u64, Vec<serde_json::Value>)>>,
    broken: Arc<AtomicBool>,
}

impl Buffer {
    fn push(&self, data: serde_json::Value) {
        let (next, events) = &mut *self.events.lock();
        events.push(json!({"event_id": *next, "data": data, "window_size": 4_096}));
        *next += 1;
    }

    /// What the next reader gets and nobody after it.
    fn drain(&self) -> Vec<serde_json::Value> {
        std::mem::take(&mut self.events.lock().1)
    }

    /// Another process.
    fn restart(&self) {
        *self.events.lock() = Default::default();
    }

    async fn serve(&self, tasks: &TaskGroup) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let buffer = self.clone();
        tasks.spawn("engine", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = vec![0; 4096];
                let length = stream.read(&mut head).await.unwrap_or(0);
                assert!(head[..length].starts_with(b"POST /kv_cache_events HTTP/1.1\r\n"));
                let (status, body) = match buffer.broken.load(Ordering::Relaxed) {
                    true => (500, String::new()),
                    false => (200, serde_json::Value::from(buffer.drain()).to_string()),
                };
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Peer { address, authority: address.to_string(), deadline: Duration::from_secs(10), key: None, towards: None }
    }
}

fn blocks(seed: u32, from: usize, to: usize, level: u32) -> serde_json::Value {
    let tokens = prompt(seed, to);
    let block = |at: usize| {
        let ids = tokens[at * BLOCK..(at + 1) * BLOCK].iter();
        let ids: Vec<_> = ids.map(|id| json!({"type": "unique_token", "token_id": id, "token_extra_id": 0})).collect();
        json!({"type": "stored_block", "block_hash": name(seed, at), "tokens": ids, "cache_level": level, "priority": 35})
    };
    let parent = if from == 0 { serde_json::Value::Null } else { name(seed, from - 1).into() };
    json!({"type": "stored", "parent_hash": parent, "blocks": (from..to).map(block).collect::<Vec<_>>()})
}

fn gone(seed: u32, at: usize) -> serde_json::Value {
    json!({"type": "removed", "block_hashes": [name(seed, at)]})
}

/// Listens to `buffer` for a new worker.
async fn poll(rig: &Rig, buffer: &Buffer) -> Arc<Handle> {
    let handle = rig.join("http://polled:1").await;
    let peer = buffer.serve(&rig.tasks).await;
    let events = Attach::parse("poll:/kv_cache_events", "x").expect("valid");
    rig.feeds.add(FeedSpec { peer: Some(peer), ..bound(&handle, events) }).await;
    handle
}

#[tokio::test]
async fn what_an_engine_tells_when_asked_is_what_the_index_holds() {
    let (rig, buffer) = (Rig::start(), Buffer::default());
    buffer.push(json!({"type": "created", "num_blocks_per_cache_level": [100, 20]}));
    buffer.push(blocks(1, 0, 4, 0));
    buffer.push(blocks(2, 0, 2, 0));
    let handle = poll(&rig, &buffer).await;
    rig.wait("asked", |report| report.last_seq == Some(2) && report.state == FeedState::Live).await;
    let worker = handle.id();
    assert_eq!([(1, 4), (2, 2)].map(|(seed, blocks)| rig.held(worker, seed, blocks, None)), [4, 2]);
    rig.fleet.describe().await;
    let view = rig.fleet.view();
    let known = view.worker(worker).expect("there");
    assert_eq!((known.cache, known.block_size), (CacheKnowledge::Events, Some(BLOCK as u32)));

    // A block goes to host memory and comes back, another is evicted, a tail that is not whole is left out.
    let change = |from: u32, to: u32| json!({"type": "updated", "block_hash": name(1, 3), "cache_level": {"new_value": to, "old_value": from}});
    buffer.push(change(0, 1));
    buffer.push(gone(2, 1));
    let mut tail = blocks(3, 0, 2, 0);
    tail["blocks"][1]["tokens"].as_array_mut().expect("tokens").pop();
    buffer.push(tail);
    let report = rig.wait("followed", |report| report.last_seq == Some(5)).await;
    assert_eq!([1, 2, 3].map(|seed| rig.held(worker, seed, 4, None)), [3, 1, 1]);
    assert_eq!(report.ignored.get("short_tail"), Some(&1), "{report:?}");
    buffer.push(change(1, 0));
    rig.wait("back", |report| report.last_seq == Some(6)).await;
    assert_eq!(rig.held(worker, 1, 4, None), 4);
    assert!(rig.feeds.reports()[0].alarms.is_empty());
}

#[tokio::test]
async fn a_second_reader_is_an_alarm_and_what_it_took_is_not_believed_in_full() {
    let (rig, buffer) = (Rig::start(), Buffer::default());
    buffer.push(blocks(1, 0, 4, 0));
    poll(&rig, &buffer).await;
    rig.wait("asked", |report| report.last_seq == Some(0)).await;
    buffer.push(gone(1, 3));
    // Somebody else asks in between; where the feed was faster, it is tried again.
    for _ in 0..200 {
        let stolen = buffer.drain();
        buffer.push(blocks(2, 0, 1, 0));
        if !stolen.is_empty() {
            break;
        }
        buffer.push(gone(1, 3));
    }
    let report = rig.wait("a hole", |report| report.gaps > 0).await;
    assert!(report.alarms.contains(&Alarm::SecondReader), "{report:?}");
    assert!(report.lost == 1 && report.unconfirmed > 0, "{report:?}");
    let text = prometheus::TextEncoder::new().encode_to_string(&rig.registry.gather()).expect("own metrics encode");
    assert!(text.contains("forebay_feed_alarm{kind=\"second_reader\",worker=\"http://polled:1\"} 1"), "{text}");
}

#[tokio::test]
async fn numbers_that_begin_anew_are_another_process_and_failures_are_told() {
    let (rig, buffer) = (Rig::start(), Buffer::default());
    for seed in 1..4 {
        buffer.push(blocks(seed, 0, 2, 0));
    }
    let handle = poll(&rig, &buffer).await;
    rig.wait("asked", |report| report.last_seq == Some(2)).await;
    let old = handle.id();
    buffer.broken.store(true, Ordering::Relaxed);
    let report = rig.wait("a failure", |report| report.problem.is_some()).await;
    assert!(report.problem.is_some_and(|problem| problem.contains("500")), "asked again meanwhile");
    buffer.restart();
    buffer.push(blocks(7, 0, 2, 0));
    buffer.broken.store(false, Ordering::Relaxed);
    let report = rig.wait("restarted", |report| report.restarts == 1 && report.last_seq == Some(0)).await;
    assert_ne!(handle.id(), old);
    assert_eq!([1, 7].map(|seed| rig.held(handle.id(), seed, 2, None)), [0, 2]);
    assert_eq!((report.blocks, report.problem), (2, None));
    // A worker that is taken out is asked no more.
    rig.feeds.remove(&handle).await;
    for _ in 0..3_000 {
        if rig.feeds.reports().is_empty() {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    buffer.push(gone(7, 0));
    sleep(Duration::from_millis(500)).await;
    assert_eq!(buffer.drain().len(), 1, "nobody took it");
}
