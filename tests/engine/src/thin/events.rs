//! KV events of thin engines: a second thread, outside the request path.
//!
//! It gets the bodies that the engines answered, tokenises them, runs each prompt through a real block cache
//! ([`BlockPool`]) of its engine and publishes what that cache stores and evicts. A full queue drops bodies and counts
//! them: the request path never waits.

use super::ThinConfig;
use crate::clock;
use crate::events::{EventBatch, EventConfig, Publisher, resolve_endpoint};
use crate::fault::FaultBoard;
use crate::model::{BlockPool, Domain, StoredBlocks, hash};
use crate::text::{ChatInput, Codec};
use bytes::Bytes;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tokio::sync::oneshot;

/// Bodies that may wait to be tokenised; a burst of long prompts waits here, an overload is dropped.
const QUEUE_BODIES: usize = 4_096;

/// A body to be taken in.
struct Seen {
    engine: usize,
    body: Bytes,
    /// Where to tell how many blocks were stored.
    done: Option<oneshot::Sender<Result<usize, String>>>,
}

#[derive(Debug, Default)]
struct Counts {
    seen: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    blocks: AtomicU64,
}

/// The way to the thread.
#[derive(Debug)]
pub(super) struct Feed {
    sender: SyncSender<Seen>,
    counts: Arc<Counts>,
    on: AtomicBool,
    endpoints: Vec<(String, Option<String>)>,
}

impl Feed {
    pub(super) fn start(config: &ThinConfig, events: &EventConfig) -> Result<Self, String> {
        let faults = Arc::new(FaultBoard::new(Vec::new(), 1));
        let mut caches = Vec::new();
        for index in 0..config.ports.len() {
            let resolve = |endpoint: &str| resolve_endpoint(endpoint, &config.host, index as u16);
            let events = EventConfig {
                endpoint: resolve(&events.endpoint)?,
                replay_endpoint: events.replay_endpoint.as_deref().map(resolve).transpose()?,
                ..events.clone()
            };
            let publisher = Publisher::start(events, faults.clone())?;
            let pool = BlockPool::new(config.limits.blocks, config.limits.block_tokens);
            caches.push(Cache { pool, publisher, block_tokens: config.limits.block_tokens });
        }
        let endpoints = caches.iter().map(|c| (c.publisher.endpoint.clone(), c.publisher.replay_endpoint.clone()));
        let endpoints = endpoints.collect();
        let (sender, receiver) = sync_channel(QUEUE_BODIES);
        let counts = Arc::new(Counts::default());
        let (codec, shared) = (config.codec.clone(), counts.clone());
        std::thread::Builder::new()
            .name("thin-events".to_owned())
            .spawn(move || run(&receiver, &codec, caches, &shared))
            .map_err(|e| format!("no thread for thin events: {e}"))?;
        Ok(Self { sender, counts, on: AtomicBool::new(true), endpoints })
    }

    /// PUB and replay endpoint of each engine.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &(String, Option<String>)> {
        self.endpoints.iter()
    }

    /// Takes in what `engine` was asked, if on and if there is room.
    pub(super) fn offer(&self, engine: usize, body: &Bytes) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        // The copy lets the connection reuse its buffer.
        let seen = Seen { engine, body: Bytes::copy_from_slice(body), done: None };
        if self.sender.try_send(seen).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes in `body`, on or off, and tells how many blocks that stored.
    pub(super) async fn store(&self, engine: usize, body: &Bytes) -> Result<usize, String> {
        let (done, stored) = oneshot::channel();
        let seen = Seen { engine, body: body.clone(), done: Some(done) };
        self.sender.try_send(seen).map_err(|_| "too many prompts wait to be stored".to_owned())?;
        stored.await.map_err(|_| "the event thread is gone".to_owned())?
    }

    pub(super) fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    pub(super) fn state(&self) -> Value {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        serde_json::json!({
            "on": self.on.load(Ordering::Relaxed), "seen": read(&self.counts.seen),
            "dropped": read(&self.counts.dropped), "failed": read(&self.counts.failed),
            "blocks_stored": read(&self.counts.blocks),
        })
    }
}

struct Cache {
    pool: BlockPool,
    publisher: Publisher,
    block_tokens: usize,
}

fn run(bodies: &Receiver<Seen>, codec: &Codec, mut caches: Vec<Cache>, counts: &Counts) {
    while let Ok(seen) = bodies.recv() {
        counts.seen.fetch_add(1, Ordering::Relaxed);
        let stored = tokens(codec, &seen.body).map(|(tokens, salt)| caches[seen.engine].take_in(&tokens, salt));
        match &stored {
            Ok(blocks) => counts.blocks.fetch_add(*blocks as u64, Ordering::Relaxed),
            Err(_) => counts.failed.fetch_add(1, Ordering::Relaxed),
        };
        if let Some(done) = seen.done {
            // Nobody waits any more: fine.
            let _ = done.send(stored);
        }
    }
}

impl Cache {
    /// Runs one prompt through the cache and publishes what changed; the number of blocks stored.
    fn take_in(&mut self, tokens: &[u32], salt: Option<Arc<str>>) -> usize {
        let size = self.block_tokens;
        let domain = Domain { salt, ..Domain::default() };
        let hashes = hash::chain(&domain, tokens.iter().copied(), size);
        let mut held = self.pool.longest_prefix(&hashes, tokens.len() + 1);
        let first = held.len();
        if first < hashes.len() {
            let Some(fresh) = self.pool.acquire(&held, hashes.len() - first) else { return 0 };
            held.extend(&fresh);
            let stored = StoredBlocks {
                hashes: hashes[first..].to_vec(),
                parent: first.checked_sub(1).map(|before| hashes[before]),
                tokens: tokens[first * size..hashes.len() * size].to_vec(),
                first_index: first,
                domain,
            };
            self.pool.publish(&fresh, stored);
        } else if self.pool.acquire(&held, 0).is_none() {
            return 0;
        }
        self.pool.release(&held);
        let events = self.pool.take_events();
        if !events.is_empty() {
            let block_tokens = size as u32;
            self.publisher.publish(EventBatch { ts: clock::unix_seconds(), events, rank: 0, block_tokens });
        }
        hashes.len() - first
    }
}

/// Prompt ids and cache salt of a chat request, a completion request or a bare `{"token_ids": […]}`.
pub(super) fn tokens(codec: &Codec, body: &[u8]) -> Result<(Vec<u32>, Option<Arc<str>>), String> {
    let body: Map<String, Value> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    let salt = body.get("cache_salt").and_then(Value::as_str).map(Arc::from);
    let ids = |list: &Value| serde_json::from_value::<Vec<u32>>(list.clone()).map_err(|e| e.to_string());
    let tokens = match (body.get("token_ids"), body.get("prompt")) {
        (Some(list), _) => ids(list)?,
        (None, Some(Value::String(text))) => codec.encode(text, true).map_err(|e| e.to_string())?,
        (None, Some(list)) => ids(list)?,
        (None, None) => {
            let chat = ChatInput::from_request(&body, codec.wants_content_parts()).map_err(|e| e.to_string())?;
            let prompt = codec.render(&chat).map_err(|e| e.to_string())?;
            codec.encode(&prompt, false).map_err(|e| e.to_string())?
        }
    };
    Ok((tokens, salt))
}
