//! One worker as every thread sees it: what is fixed, and the few atomics that are not.

use super::Endpoint;
use super::reservation::Counters;
use arc_swap::ArcSwapOption;
use forebay_routing::WorkerId;
use forebay_routing::event::WorkerKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tokio::sync::Notify;

/// One worker as every thread sees it.
pub(crate) struct Handle {
    pub(crate) slot: u32,
    /// Base URL, with `@rank` where the worker is one rank of several: log field and metric label.
    pub(crate) label: Arc<str>,
    pub(crate) url: Arc<str>,
    pub(crate) rank: Option<u16>,
    /// Model as the engine serves it, never an alias or adapter.
    pub(crate) model: Arc<str>,
    /// Generation of the slot when this worker took it; identifiers from before name somebody else.
    first_generation: u32,
    /// Moved on by the owner alone.
    pub(super) generation: AtomicU32,
    pub(super) counters: Arc<Counters>,
    pub(super) endpoint: ArcSwapOption<Endpoint>,
    /// Rung when an ejected worker is due its one probe.
    pub(crate) probe: Arc<Notify>,
    /// Until when it has asked for a pause, ms.
    pub(super) held_until_ms: AtomicU64,
    /// When it has warmed up, ms.
    pub(super) warm_at_ms: AtomicU64,
    /// When live traffic last went well, ms; 0 = never.
    pub(super) last_success_ms: AtomicU64,
    /// When its last KV event came, ms; 0 = never. Written by its feed.
    heard_ms: AtomicU64,
    /// When the first request was sent that must have made the engine store blocks and that no event has followed yet,
    /// ms; 0 = none.
    owed_since_ms: AtomicU64,
    /// Prompt tokens that were predicted to be cached, and that were.
    predicted_tokens: AtomicU64,
    realised_tokens: AtomicU64,
}

impl Handle {
    /// `before` is the worker of the same key that this one takes over from, with what is in flight there.
    pub(super) fn new(id: WorkerId, key: &WorkerKey, probe: Arc<Notify>, before: Option<&Self>) -> Self {
        let url: Arc<str> = key.url.as_str().into();
        let label = key.rank.map_or_else(|| url.clone(), |rank| format!("{url}@{rank}").into());
        Self {
            slot: id.slot,
            label,
            url,
            rank: key.rank,
            model: key.model.as_str().into(),
            first_generation: before.map_or(id.generation, |before| before.first_generation),
            generation: AtomicU32::new(id.generation),
            counters: before.map_or_else(Arc::default, |before| before.counters.clone()),
            endpoint: ArcSwapOption::empty(),
            probe,
            held_until_ms: AtomicU64::new(0),
            warm_at_ms: AtomicU64::new(0),
            last_success_ms: AtomicU64::new(0),
            heard_ms: AtomicU64::new(0),
            owed_since_ms: AtomicU64::new(0),
            predicted_tokens: AtomicU64::new(0),
            realised_tokens: AtomicU64::new(0),
        }
    }

    pub(crate) fn id(&self) -> WorkerId {
        WorkerId::new(self.slot, self.generation.load(Ordering::Acquire))
    }

    /// Whether live traffic went well since `ms`.
    pub(crate) fn served_since(&self, ms: u64) -> bool {
        let last = self.last_success_ms.load(Ordering::Relaxed);
        last > 0 && last >= ms
    }

    /// A KV event came.
    pub(crate) fn hear_events(&self, now_ms: u64) {
        self.heard_ms.store(now_ms, Ordering::Release);
    }

    /// A request that was sent at `sent_ms` made the engine store new blocks: an event must follow.
    pub(super) fn owe_events(&self, sent_ms: u64) {
        if self.heard_ms.load(Ordering::Acquire) < sent_ms {
            // The oldest debt stands until it is paid.
            _ = self.owed_since_ms.compare_exchange(0, sent_ms, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Whether an event is due since a request was answered and none has come.
    pub(crate) fn owes_events(&self) -> bool {
        let owed_ms = self.owed_since_ms.load(Ordering::Acquire);
        if owed_ms == 0 {
            return false;
        }
        let paid = self.heard_ms.load(Ordering::Acquire) >= owed_ms;
        if paid {
            self.owed_since_ms.store(0, Ordering::Release);
        }
        !paid
    }

    /// What was expected to be cached for one request, and what the engine says was.
    pub(super) fn count_hit(&self, predicted_tokens: u32, realised_tokens: u32) {
        self.predicted_tokens.fetch_add(predicted_tokens.into(), Ordering::Relaxed);
        self.realised_tokens.fetch_add(realised_tokens.into(), Ordering::Relaxed);
    }

    /// Prompt tokens predicted to be cached and found cached, of all requests whose engine told.
    pub(crate) fn hit_tokens(&self) -> (u64, u64) {
        (self.predicted_tokens.load(Ordering::Relaxed), self.realised_tokens.load(Ordering::Relaxed))
    }

    /// Whether `id` is this worker, now or before its engine restarted.
    pub(super) fn answers_to(&self, id: WorkerId) -> bool {
        (self.first_generation..=self.generation.load(Ordering::Acquire)).contains(&id.generation)
    }
}

/// The worker that `id` names, unless its slot changed hands.
pub(super) fn find(handles: &[Option<Arc<Handle>>], id: WorkerId) -> Option<&Arc<Handle>> {
    handles.get(id.slot as usize)?.as_ref().filter(|handle| handle.answers_to(id))
}
