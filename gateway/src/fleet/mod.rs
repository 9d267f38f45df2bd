//! fleet: who is there, what they hold and what is in flight.
//!
//! One owner task applies events and publishes an `Arc<FleetView>` by atomic swap: at once when membership or a
//! worker's state changes, else at most every 5 ms. Reservations are atomics per worker, read at decision time beside
//! the view, so that two decisions between two publications see each other.
//!
//! ```text
//! discover ─ join, learn, check, leave ─┐                        ┌─► view()         (arc-swap)
//! signal   ─ loads, cache, restarts ────┼─► owner task ──────────┼─► endpoint()     (arc-swap, by slot)
//! serve    ─ feedback (may be dropped) ─┘   (bounded channel)    └─► metrics, /workers
//! serve    ─ reserve() ─► atomics ◄─ local_loads()
//! ```
//!
//! Invariants: a [`WorkerId`] names one engine process: its slot's generation moves on when the slot changes hands or
//! its engine is proven to have restarted. Every failure of a worker is that worker's alone; the owner never waits for
//! the network. When the channel is full, feedback and load readings are dropped and counted; membership waits.

mod ejection;
mod handle;
mod member;
mod metrics;
mod news;
mod owner;
mod reading;
mod reservation;
#[cfg(test)]
mod tests;

pub(crate) use handle::Handle;
pub use member::{EngineKind, Facts, WorkerStatus};
pub use metrics::state_name;
pub use news::KernelReport;
pub use reservation::Reservation;

use crate::clock::Clock;
use crate::config::resolved::Health;
use crate::tasks::TaskGroup;
use arc_swap::ArcSwap;
use forebay_routing::block::{self, Domain, DomainSpec, HashKey};
use forebay_routing::event::{ServedName, WorkerKey};
use forebay_routing::index::PrefixIndex;
use forebay_routing::view::{CacheKnowledge, EngineLoad, ModelView};
use forebay_routing::{FleetView, LocalLoad, WorkerId};
use handle::find;
use hashbrown::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Duration, sleep};

/// Events that may wait for the owner. A busy gateway reports some thousand exchanges a second; this is a second's worth.
const MAX_QUEUED_EVENTS: usize = 8_192;

/// Memory of the index: about four million distinct blocks, which 250 GPUs of 16,384 blocks hold when none are shared.
const MAX_INDEX_BYTES: usize = 512 << 20;

/// Between two sweeps of what forgotten workers left in the index.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Handle shared by every request; cheap to clone.
#[derive(Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

/// What the fleet needs to start.
pub struct Options {
    /// Limits of health checks and ejection.
    pub health: Health,
    /// Keys every routing hash.
    pub key: HashKey,
    /// Digest of the tokenizer files by base model, absent where unknown. Fixed: blocks learned under one digest would
    /// never be found under another.
    pub tokenizer_digests: HashMap<String, Vec<u8>>,
    /// Time.
    pub clock: Clock,
}

/// Where a worker is reached; fixed for the life of its [`WorkerId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Base URL as configured, for logs and `/workers`.
    pub url: String,
    /// `host:port` for `Host` and connection pools.
    pub authority: String,
    /// Resolved address.
    pub address: std::net::SocketAddr,
    /// Sent as `X-data-parallel-rank`.
    pub rank: Option<u16>,
    /// Name that its certificate must be for; `None` in the clear.
    pub secure: Option<Arc<str>>,
    /// Whose server it is, which decides what may be added to a body.
    pub kind: EngineKind,
}

/// What a finished or failed exchange teaches the fleet.
#[derive(Clone, Debug, PartialEq)]
pub enum Feedback {
    /// The exchange reached its end.
    Served {
        /// Prompt tokens by the engine's count.
        prompt_tokens: u32,
        /// Prompt tokens served from its cache, where it said so.
        cached_tokens: Option<u32>,
        /// Prompt tokens that the decision counted as cached.
        predicted_tokens: u32,
        /// When the request was sent, ms.
        sent_ms: u64,
        /// Time to first token.
        ttft_ms: f64,
        /// Mean inter-token latency.
        itl_ms: Option<f64>,
        /// What was in flight at the worker when this was dispatched.
        load: LocalLoad,
    },
    /// Connect refused or timed out.
    ConnectFailed,
    /// Reset or cut before the end.
    Broken,
    /// Answered with this status ≥ 500.
    Status(u16),
    /// 429 or 503: busy, not broken.
    BackPressure,
}

/// Whether a worker would rather not have one more request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It takes what comes.
    Willing,
    /// It has asked for a pause, or has just come back and warms up.
    Reluctant,
}

/// The fleet takes no further worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Every slot is taken, or rests after its last worker left.
    #[error("no room for another worker: run a second gateway with part of them")]
    Full,
    /// The gateway is going down.
    #[error("the gateway is shutting down")]
    Closed,
}

/// What requests, feeds and the owner share.
struct Shared {
    view: ArcSwap<FleetView>,
    /// By slot. Swapped by the owner alone, when membership changes.
    handles: ArcSwap<Vec<Option<Arc<Handle>>>>,
    index: PrefixIndex,
    key: HashKey,
    tokenizer_digests: HashMap<String, Vec<u8>>,
    events: mpsc::Sender<Event>,
    clock: Clock,
    slow_start_ms: u64,
    metrics: metrics::Metrics,
}

/// Everything that changes the fleet.
enum Event {
    Join {
        key: WorkerKey,
        block_size: Option<u32>,
        probe: Arc<Notify>,
        reply: oneshot::Sender<Result<Arc<Handle>, JoinError>>,
    },
    Learned {
        worker: WorkerId,
        facts: Box<Facts>,
    },
    Names {
        worker: WorkerId,
        names: Vec<ServedName>,
    },
    BlockSize {
        worker: WorkerId,
        block_size: u32,
    },
    Checked {
        worker: WorkerId,
        outcome: Result<(), String>,
        started_ms: u64,
    },
    Load {
        worker: WorkerId,
        load: EngineLoad,
    },
    Cache {
        worker: WorkerId,
        knowledge: CacheKnowledge,
    },
    Restart {
        worker: WorkerId,
        reply: oneshot::Sender<()>,
    },
    Feedback {
        worker: WorkerId,
        feedback: Feedback,
    },
    Kernel {
        worker: WorkerId,
        report: KernelReport,
    },
    Leave {
        worker: WorkerId,
    },
    Describe {
        reply: oneshot::Sender<Vec<WorkerStatus>>,
    },
}

impl Fleet {
    /// Starts the owner task in `tasks` and registers the `forebay_worker_*` metrics.
    pub fn start(
        options: Options,
        registry: &prometheus::Registry,
        tasks: &TaskGroup,
    ) -> Result<Self, prometheus::Error> {
        let (events, inbox) = mpsc::channel(MAX_QUEUED_EVENTS);
        let shared = Arc::new(Shared {
            view: ArcSwap::default(),
            handles: ArcSwap::default(),
            index: PrefixIndex::with_budget(MAX_INDEX_BYTES),
            key: options.key,
            tokenizer_digests: options.tokenizer_digests,
            events,
            clock: options.clock,
            slow_start_ms: u64::try_from(options.health.slow_start.as_millis()).unwrap_or(u64::MAX / 2),
            metrics: metrics::Metrics::register(registry)?,
        });
        registry.register(Box::new(metrics::InFlight::new(Arc::downgrade(&shared))?))?;
        tasks.spawn("fleet owner", owner::Owner::new(shared.clone(), options.health).run(inbox));
        let swept = shared.clone();
        tasks.spawn("index sweep", async move {
            loop {
                sleep(SWEEP_EVERY).await;
                swept.index.sweep(swept.clock.now_ms());
            }
        });
        Ok(Self { shared })
    }

    /// The present view.
    pub fn view(&self) -> Arc<FleetView> {
        self.shared.view.load_full()
    }

    /// The shared index.
    pub fn index(&self) -> &PrefixIndex {
        &self.shared.index
    }

    /// The key of every routing hash.
    pub fn hash_key(&self) -> &HashKey {
        &self.shared.key
    }

    /// The domain of a request for `model`, which may be an alias or adapter, at one block size.
    pub fn domain(&self, model: &ModelView, block_size: u32, cache_salt: Option<&str>) -> Domain {
        self.block_domain(model.domain_model(), block_size, model.domain_lora(), cache_salt)
    }

    /// The one place where a domain is made; event feeds know base model and adapter by themselves.
    pub(crate) fn block_domain(
        &self,
        base: &str,
        block_size: u32,
        lora: Option<&str>,
        cache_salt: Option<&str>,
    ) -> Domain {
        let tokenizer_digest = self.shared.tokenizer_digests.get(base).map_or(&[][..], Vec::as_slice);
        block::domain(&self.shared.key, &DomainSpec { model: base, tokenizer_digest, block_size, lora, cache_salt })
    }

    /// Where `worker` is reached; `None` once it was removed.
    pub fn endpoint(&self, worker: WorkerId) -> Option<Arc<Endpoint>> {
        find(&self.shared.handles.load(), worker)?.endpoint.load_full()
    }

    /// Counts a request at `worker` until the guard is dropped.
    pub fn reserve(&self, worker: WorkerId, prompt_tokens: u32, uncached_tokens: u32, n: u32) -> Reservation {
        let counters = find(&self.shared.handles.load(), worker).map(|handle| handle.counters.clone());
        Reservation::take(counters, prompt_tokens, uncached_tokens, n)
    }

    /// As [`Self::reserve`], unless `limit` requests are there already.
    pub fn reserve_within(
        &self,
        limit: Option<u32>,
        worker: WorkerId,
        prompt_tokens: u32,
        uncached_tokens: u32,
        n: u32,
    ) -> Option<Reservation> {
        let counters = find(&self.shared.handles.load(), worker).map(|handle| handle.counters.clone());
        Reservation::take_within(limit, counters, prompt_tokens, uncached_tokens, n)
    }

    /// Keeps requests away from `worker` for `wait`, as far as others can take them: it has just said that it is busy.
    pub fn hold(&self, worker: WorkerId, wait: Duration) {
        if let Some(handle) = find(&self.shared.handles.load(), worker) {
            let until_ms = self.shared.clock.now_ms() + u64::try_from(wait.as_millis()).unwrap_or(u64::MAX / 2);
            handle.held_until_ms.fetch_max(until_ms, Ordering::Relaxed);
        }
    }

    /// Reports an exchange; never blocks (bounded channel, drops are counted).
    pub fn feedback(&self, worker: WorkerId, feedback: Feedback) {
        if let Feedback::Served { prompt_tokens, cached_tokens, predicted_tokens, sent_ms, .. } = feedback
            && let Some(handle) = find(&self.shared.handles.load(), worker)
        {
            // Beside the channel, so that a full one cannot make a serving worker look dead.
            handle.last_success_ms.fetch_max(self.shared.clock.now_ms(), Ordering::Relaxed);
            if let Some(cached) = cached_tokens {
                handle.count_hit(predicted_tokens, cached);
            }
            let cached = cached_tokens.unwrap_or(predicted_tokens);
            let block_size = self.view().worker(worker).and_then(|worker| worker.block_size);
            if block_size.is_some_and(|size| prompt_tokens / size > cached.div_ceil(size)) {
                handle.owe_events(sent_ms);
            }
        }
        self.report(Event::Feedback { worker, feedback });
    }

    /// A new reading of an engine's load; what is in flight there now is taken for this gateway's part of it.
    pub fn report_load(&self, worker: WorkerId, mut load: EngineLoad) {
        if let Some(handle) = find(&self.shared.handles.load(), worker) {
            let own = handle.counters.load();
            (load.own_requests, load.own_waiting) = (own.requests, own.prefill_requests);
        }
        self.report(Event::Load { worker, load });
    }

    /// Every worker in words and numbers, for `/workers` and `/status`, ordered by URL and rank.
    pub async fn describe(&self) -> Vec<WorkerStatus> {
        let (reply, answer) = oneshot::channel();
        self.tell(Event::Describe { reply }).await;
        answer.await.unwrap_or_default()
    }

    fn report(&self, event: Event) {
        if self.shared.events.try_send(event).is_err() {
            self.shared.metrics.dropped.inc();
        }
    }

    /// Fails only while the process ends, when the owner is gone: nothing is left to tell then.
    async fn tell(&self, event: Event) {
        let _ = self.shared.events.send(event).await;
    }

    fn tell_blocking(&self, event: Event) {
        let _ = self.shared.events.blocking_send(event);
    }
}
