//! The wire against what a real engine sent, and the sockets.

use super::*;
use crate::fault::{Fault, FaultBoard, FaultKind};
use crate::model::{BlockHash, CacheEvent, Domain, StoredBlocks, hash};
use base64::Engine as _;
use serde_json::Value;
use std::sync::Arc;

fn stored(tokens: std::ops::Range<u32>) -> StoredBlocks {
    let domain = Domain::default();
    let hashes = hash::chain(&domain, tokens.clone(), 32);
    StoredBlocks { hashes, parent: None, tokens: tokens.collect(), first_index: 0, domain }
}

fn batch(events: Vec<CacheEvent>) -> EventBatch {
    EventBatch { ts: 1.5, events, rank: 0, block_tokens: 32 }
}

/// A batch rebuilt from the decoded form of a recorded one that carries 32-byte hashes.
fn rebuild(decoded: &Value) -> Option<EventBatch> {
    let hash_of = |value: &Value| {
        let hex = value["hex"].as_str().unwrap();
        let bytes: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
        BlockHash::from_bytes(bytes.try_into().unwrap())
    };
    let mut events = Vec::new();
    for event in decoded[1].as_array().unwrap() {
        if event.get("session_id").is_some() {
            return None;
        }
        let hashes: Vec<BlockHash> =
            event["block_hashes"].as_array().map_or(Vec::new(), |all| all.iter().map(hash_of).collect());
        match event["type"].as_str().unwrap() {
            "BlockStored" => {
                let salt = event["extra_keys"][0][0].as_str().map(Into::into);
                events.push(CacheEvent::Stored(StoredBlocks {
                    hashes,
                    parent: event["parent_block_hash"].is_object().then(|| hash_of(&event["parent_block_hash"])),
                    tokens: serde_json::from_value(event["token_ids"].clone()).unwrap(),
                    first_index: 0,
                    domain: Domain { salt, ..Domain::default() },
                }));
            }
            "BlockRemoved" => events.push(CacheEvent::Removed(hashes[0])),
            _ => events.push(CacheEvent::Cleared),
        }
    }
    Some(EventBatch { ts: decoded[0].as_f64().unwrap(), events, rank: 0, block_tokens: 32 })
}

#[test]
fn payloads_equal_recorded_ones_byte_for_byte() {
    let fixture: Value =
        serde_json::from_str(include_str!("../../fixtures/vllm/kv_events_bytes_hash_fixture.json")).unwrap();
    let mut compared = 0;
    for record in fixture["records"].as_array().unwrap() {
        let Some(mut batch) = rebuild(&record["decoded"]) else { continue };
        let payload =
            base64::engine::general_purpose::STANDARD.decode(record["payload_b64"].as_str().unwrap()).unwrap();
        // The JSON form of the time stamp lost its last bit.
        batch.ts = f64::from_be_bytes(payload[2..10].try_into().unwrap());
        assert_eq!(encode_batch(&batch, Wire::Map, HashForm::Bytes), payload, "seq {}", record["seq"]);
        compared += 1;
    }
    assert!(compared >= 3, "only {compared} batches compared");
}

#[test]
fn the_int_form_and_the_salt_look_as_recorded() {
    let fixture: Value = serde_json::from_str(include_str!("../../fixtures/vllm/kv_events_fixture.json")).unwrap();
    let recorded = &fixture["engine_a_chat_and_completions"][2]["decoded"][1][0];
    let domain = Domain { salt: Some("tenant-7".into()), ..Domain::default() };
    let tokens: Vec<u32> = serde_json::from_value(recorded["token_ids"].clone()).unwrap();
    let hashes = hash::chain(&domain, tokens.iter().copied(), 32);
    let stored = StoredBlocks { hashes, parent: None, tokens, first_index: 0, domain };
    let payload = encode_batch(&batch(vec![CacheEvent::Stored(stored)]), Wire::Map, HashForm::Int);
    let ours: Value = rmp_serde::from_slice(&payload).unwrap();
    for key in [
        "type",
        "token_ids",
        "parent_block_hash",
        "extra_keys",
        "block_size",
        "lora_id",
        "lora_name",
        "medium",
        "group_idx",
        "kv_cache_spec_kind",
    ] {
        assert_eq!(ours[1][0][key], recorded[key], "{key}");
    }
    let keys = |event: &Value| event.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&ours[1][0]), keys(recorded), "same keys in the same order");
    assert!(ours[1][0]["block_hashes"][0].is_u64());
}

#[test]
fn older_and_newer_generations_have_their_shapes() {
    let events =
        vec![CacheEvent::Removed(stored(0..32).hashes[0]), CacheEvent::Stored(stored(0..64)), CacheEvent::Cleared];
    let decode =
        |wire| -> Value { rmp_serde::from_slice(&encode_batch(&batch(events.clone()), wire, HashForm::Int)).unwrap() };
    let array = decode(Wire::Array);
    assert_eq!(array[1][0][0], "BlockRemoved");
    assert_eq!((&array[1][1][0], &array[1][1][4], &array[1][1][6]), (&"BlockStored".into(), &32.into(), &"GPU".into()));
    assert_eq!(array[1][2], serde_json::json!(["AllBlocksCleared"]));
    let pages = decode(Wire::Sglang);
    let pages = pages[1].as_array().unwrap();
    assert_eq!(pages.len(), 4, "each page is an event of its own");
    assert_eq!(
        (&pages[1][0], pages[1][3].as_array().unwrap().len(), &pages[1][4]),
        (&"BlockStored".into(), 32, &32.into())
    );
    assert_eq!((&pages[1][2], &pages[2][2]), (&Value::Null, &pages[1][1][0]), "the second follows the first");
    assert_eq!(pages[2][1][0].as_i64(), Some(stored(0..64).hashes[1].high64()));
    assert_eq!(pages[3], serde_json::json!(["AllBlocksCleared"]));
    let outer = decode(Wire::MapOuter);
    assert_eq!((&outer["ts"], &outer["data_parallel_rank"]), (&1.5.into(), &0.into()));
    assert_eq!(outer["events"][1]["type"], "BlockStored");
}

#[test]
fn endpoints_follow_the_engine_and_the_rank() {
    let resolve = |endpoint, offset| resolve_endpoint(endpoint, "127.0.0.1", offset).unwrap();
    assert_eq!(resolve("tcp://*:*", 3), "tcp://127.0.0.1:*");
    assert_eq!(resolve("tcp://127.0.0.1:0", 0), "tcp://127.0.0.1:*");
    assert_eq!(resolve("tcp://*:5557", 2), "@tcp://127.0.0.1:5559");
    assert_eq!(resolve("tcp://10.0.0.1:5557", 1), "tcp://10.0.0.1:5558", "no star: connect");
    assert_eq!(resolve("ipc:///tmp/x", 1), "ipc:///tmp/x");
    assert!(resolve_endpoint("tcp://*:99999", "127.0.0.1", 0).is_err());
    assert!(resolve_endpoint("tcp://*:65535", "127.0.0.1", 1).is_err());
}

/// A subscriber that has certainly joined: it waits for the sequence numbers that `Ping` batches bring.
struct Subscriber {
    socket: zmq::Socket,
    context: zmq::Context,
}

impl Subscriber {
    fn join(publisher: &Publisher) -> Self {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::SUB).unwrap();
        socket.set_rcvtimeo(10_000).unwrap();
        socket.connect(&publisher.endpoint).unwrap();
        socket.set_subscribe(b"").unwrap();
        Self { socket, context }
    }

    fn receive(&self) -> (String, u64, Vec<u8>) {
        let frames = self.socket.recv_multipart(0).expect("a batch within 10 s");
        assert_eq!(frames.len(), 3);
        let seq = u64::from_be_bytes(frames[1].as_slice().try_into().unwrap());
        (String::from_utf8(frames[0].clone()).unwrap(), seq, frames[2].clone())
    }

    /// Publishes until one arrives; returns its sequence number.
    fn synchronise(&self, publisher: &Publisher) -> u64 {
        self.socket.set_rcvtimeo(50).unwrap();
        for _ in 0..200 {
            publisher.publish(batch(vec![CacheEvent::Cleared]));
            if let Ok(frames) = self.socket.recv_multipart(0) {
                self.socket.set_rcvtimeo(10_000).unwrap();
                return u64::from_be_bytes(frames[1].as_slice().try_into().unwrap());
            }
        }
        panic!("never joined");
    }

    fn replay(&self, publisher: &Publisher, start: u64) -> Vec<Vec<Vec<u8>>> {
        let dealer = self.context.socket(zmq::DEALER).unwrap();
        dealer.set_rcvtimeo(10_000).unwrap();
        dealer.connect(publisher.replay_endpoint.as_deref().unwrap()).unwrap();
        dealer.send_multipart([&b""[..], &start.to_be_bytes()], 0).unwrap();
        let mut replies = Vec::new();
        loop {
            let frames = dealer.recv_multipart(0).expect("a reply within 10 s");
            if frames[frames.len() - 2] == [0xff; 8] {
                assert_eq!(frames.last().map(Vec::len), Some(0));
                return replies;
            }
            replies.push(frames);
        }
    }
}

fn publisher(config: EventConfig, faults: Vec<Fault>) -> Publisher {
    let local = |endpoint: &str| resolve_endpoint(endpoint, "127.0.0.1", 0).unwrap();
    let config = EventConfig {
        endpoint: local(&config.endpoint),
        replay_endpoint: config.replay_endpoint.as_deref().map(local),
        ..config
    };
    Publisher::start(config, Arc::new(FaultBoard::new(faults, 1))).unwrap()
}

#[test]
fn batches_are_numbered_and_the_last_ones_can_be_replayed() {
    let publisher = publisher(EventConfig { buffer_batches: 3, ..EventConfig::default() }, Vec::new());
    let subscriber = Subscriber::join(&publisher);
    let mut last = subscriber.synchronise(&publisher);
    for _ in 0..5 {
        publisher.publish(batch(vec![CacheEvent::Stored(stored(0..32))]));
    }
    let mut payload = Vec::new();
    for _ in 0..5 {
        let (topic, seq, bytes) = subscriber.receive();
        assert!(seq > last && topic == "kv-events");
        (last, payload) = (seq, bytes);
    }
    let replies = subscriber.replay(&publisher, 0);
    let seqs: Vec<u64> = replies.iter().map(|f| u64::from_be_bytes(f[2].as_slice().try_into().unwrap())).collect();
    assert_eq!(seqs, [last - 2, last - 1, last], "the buffer holds three");
    assert_eq!(replies[2][1], b"kv-events");
    assert_eq!(replies[2][3], payload);
    assert_eq!(subscriber.replay(&publisher, last).len(), 1);
    assert_eq!(subscriber.replay(&publisher, last + 1).len(), 0);
}

#[test]
fn replay_of_the_array_generation_has_no_topic() {
    let publisher = publisher(EventConfig { wire: Wire::Array, ..EventConfig::default() }, Vec::new());
    let subscriber = Subscriber::join(&publisher);
    subscriber.synchronise(&publisher);
    assert_eq!(subscriber.replay(&publisher, 0)[0].len(), 3);
}

#[test]
fn event_faults_do_what_they_say() {
    let publisher = publisher(EventConfig::default(), Vec::new());
    let subscriber = Subscriber::join(&publisher);
    let start = subscriber.synchronise(&publisher);
    drop(publisher);
    let next = |kind| Fault { next: Some(1), ..Fault::new(kind) };
    let faults = Arc::new(FaultBoard::new(Vec::new(), 1));
    let config = EventConfig {
        endpoint: "tcp://127.0.0.1:*".to_owned(),
        replay_endpoint: Some("tcp://127.0.0.1:*".to_owned()),
        ..EventConfig::default()
    };
    assert!(start < u64::MAX);
    let publisher = Publisher::start(config, faults.clone()).unwrap();
    let subscriber = Subscriber::join(&publisher);
    let first = subscriber.synchronise(&publisher);
    let kinds = [FaultKind::EventDrop, FaultKind::EventGap, FaultKind::EventSilence, FaultKind::EventGarbage];
    faults.replace(kinds.into_iter().map(next).collect()).unwrap();
    for _ in 0..5 {
        publisher.publish(batch(vec![CacheEvent::Cleared]));
    }
    // Batches that `synchronise` had under way come first and are whole.
    let (seq, garbage) = loop {
        let (_, seq, payload) = subscriber.receive();
        if rmp_serde::from_slice::<Value>(&payload).is_err() {
            break (seq, payload);
        }
    };
    assert_eq!(garbage[0], 0xc1);
    let (_, after, _) = subscriber.receive();
    assert_eq!(after, seq + 1);
    let kept: Vec<u64> = subscriber
        .replay(&publisher, first)
        .iter()
        .map(|f| u64::from_be_bytes(f[2].as_slice().try_into().unwrap()))
        .collect();
    // …, drop (kept), gap (not kept), silence (no number), garbage, plain.
    assert!(kept.ends_with(&[seq - 2, seq, seq + 1]) || kept == [seq - 2, seq, seq + 1], "{kept:?} around {seq}");
}

#[test]
fn dropping_a_publisher_frees_its_ports() {
    let first = publisher(EventConfig::default(), Vec::new());
    let config = EventConfig {
        endpoint: format!("@{}", first.endpoint),
        replay_endpoint: first.replay_endpoint.as_ref().map(|at| format!("@{at}")),
        ..EventConfig::default()
    };
    drop(first);
    let again = Publisher::start(config.clone(), Arc::new(FaultBoard::new(Vec::new(), 1))).unwrap();
    assert_eq!(format!("@{}", again.endpoint), config.endpoint);
}
