//! One data-parallel rank in real time: drives a [`Model`], hands out what its steps produce, publishes its events.
//!
//! Virtual and real time move together: a step begins where the last one ended, and its results are handed out when
//! the clock gets there. A driver that falls behind (a busy machine) catches up by at most [`CATCH_UP_US`].
//!
//! Nothing queues for a client: the output is known beforehand, so that a step only moves a counter on ([`Progress`]),
//! and a slow reader finds several tokens at once, as with the real engine.

use crate::clock::{self, Clock};
use crate::events::{EventBatch, Publisher};
use crate::metrics::Metrics;
use crate::model::{
    Admitted, CacheEvent, FinishReason, Load, Model, Produced, Refusal, Request, RequestId, StepOutcome,
};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Real time that virtual time may make up for when the driver was late, µs.
const CATCH_UP_US: u64 = 5_000;

/// How far a request is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Tokens produced.
    pub(crate) produced: usize,
    /// Prefix-cache hit at the first admission, tokens.
    pub(crate) cached_tokens: usize,
    /// Set with the last token.
    pub(crate) finish: Option<FinishReason>,
}

/// Where the requests of one HTTP call report to.
#[derive(Debug)]
pub(crate) struct Board {
    changed: Notify,
    states: Mutex<Vec<Progress>>,
}

impl Board {
    pub(crate) fn new(requests: usize) -> Arc<Self> {
        Arc::new(Self { changed: Notify::new(), states: Mutex::new(vec![Progress::default(); requests]) })
    }

    /// Waits until something changed since the last call. Cancel-safe.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// All requests as they are now.
    pub(crate) fn states(&self) -> Vec<Progress> {
        self.states.lock().clone()
    }

    fn update(&self, at: usize, change: impl FnOnce(&mut Progress)) {
        change(&mut self.states.lock()[at]);
        self.changed.notify_one();
    }
}

/// A request in the model. Dropping it aborts what is not finished.
#[derive(Debug)]
pub(crate) struct Ticket {
    rank: Arc<Rank>,
    id: RequestId,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.rank.abort(self.id);
    }
}

/// Who waits for a request, and its times.
#[derive(Debug)]
struct Watcher {
    board: Arc<Board>,
    at: usize,
    choices: usize,
    arrived_us: u64,
    admitted_us: u64,
    first_us: u64,
    last_us: u64,
    prompt_tokens: usize,
    output_tokens: usize,
    cached_tokens: usize,
    preemptions: usize,
}

#[derive(Debug)]
struct Core {
    model: Model,
    watchers: HashMap<RequestId, Watcher>,
    /// Load of the step that is running.
    during: Option<Load>,
    metrics: Metrics,
}

/// See the module page.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) index: u32,
    core: Mutex<Core>,
    wake: Notify,
    clock: Clock,
    next_id: AtomicU64,
    publisher: Mutex<Option<Publisher>>,
    /// PUB and replay endpoint, as bound.
    pub(crate) endpoints: Option<(String, Option<String>)>,
}

impl Rank {
    pub(crate) fn new(index: u32, model: Model, clock: Clock, publisher: Option<Publisher>) -> Arc<Self> {
        let core = Core { model, watchers: HashMap::new(), during: None, metrics: Metrics::default() };
        Arc::new(Self {
            index,
            core: Mutex::new(core),
            wake: Notify::new(),
            clock,
            next_id: AtomicU64::new(0),
            endpoints: publisher.as_ref().map(|p| (p.endpoint.clone(), p.replay_endpoint.clone())),
            publisher: Mutex::new(publisher),
        })
    }

    /// A name for the next request.
    pub(crate) fn next_id(&self) -> RequestId {
        RequestId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Queues `request`, the `at`-th of `choices` that report to `board`.
    pub(crate) fn submit(
        self: &Arc<Self>,
        request: Request,
        board: &Arc<Board>,
        at: usize,
        choices: usize,
    ) -> Result<Ticket, Refusal> {
        let id = request.id();
        let now = self.clock.now_us();
        let watcher = Watcher {
            board: board.clone(),
            at,
            choices,
            arrived_us: now,
            admitted_us: now,
            first_us: now,
            last_us: now,
            prompt_tokens: request.prompt().len(),
            output_tokens: request.output().len(),
            cached_tokens: 0,
            preemptions: 0,
        };
        let mut core = self.core.lock();
        core.model.submit(now, request)?;
        core.watchers.insert(id, watcher);
        drop(core);
        self.wake.notify_one();
        Ok(Ticket { rank: self.clone(), id })
    }

    /// Requests running and waiting.
    pub(crate) fn queued(&self) -> usize {
        let load = self.load();
        load.running + load.waiting
    }

    /// What the model holds at this instant.
    pub(crate) fn model_load(&self) -> Load {
        self.core.lock().model.load()
    }

    /// The load as a scrape sees it.
    pub(crate) fn load(&self) -> Load {
        let core = self.core.lock();
        let now = core.model.load();
        // Requests that this step finishes count as running until it ends; aborted ones do not.
        core.during.map_or(now, |during| Load { waiting: now.waiting, ..during })
    }

    /// Runs `read` on the counters.
    pub(crate) fn with_metrics<T>(&self, read: impl FnOnce(&mut Metrics) -> T) -> T {
        read(&mut self.core.lock().metrics)
    }

    /// Empties the prefix cache, if nothing runs.
    pub(crate) fn reset_prefix_cache(&self) -> bool {
        self.core.lock().model.reset_prefix_cache()
    }

    /// Runs steps until cancelled.
    pub(crate) async fn drive(self: Arc<Self>) {
        let mut virtual_us = 0;
        loop {
            let now = self.clock.now_us();
            let begin = virtual_us.max(now.saturating_sub(CATCH_UP_US));
            let Some(outcome) = self.begin_step(begin) else {
                self.wake.notified().await;
                virtual_us = self.clock.now_us();
                continue;
            };
            virtual_us = outcome.ends_at_us;
            if virtual_us > self.clock.now_us() {
                tokio::time::sleep_until(self.clock.at(virtual_us)).await;
            } else {
                tokio::task::yield_now().await;
            }
            self.end_step(outcome);
        }
    }

    fn begin_step(&self, now_us: u64) -> Option<StepOutcome> {
        let mut core = self.core.lock();
        let outcome = core.model.step(now_us)?;
        core.during = Some(outcome.load);
        Some(outcome)
    }

    fn end_step(&self, outcome: StepOutcome) {
        if !outcome.events.is_empty() {
            self.publish(outcome.events);
        }
        let mut core = self.core.lock();
        let core = &mut *core;
        core.during = None;
        core.metrics.step_tokens.observe((outcome.prefill_tokens + outcome.decode_tokens) as f64);
        core.metrics.preemptions += outcome.preempted.len() as u64;
        for id in &outcome.preempted {
            if let Some(watcher) = core.watchers.get_mut(id) {
                watcher.preemptions += 1;
            }
        }
        for admitted in &outcome.admitted {
            core.admit(admitted, outcome.began_at_us);
        }
        for produced in &outcome.produced {
            core.produce(produced, outcome.ends_at_us);
        }
    }

    fn publish(&self, events: Vec<CacheEvent>) {
        let block_tokens = self.core.lock().model.limits().block_tokens as u32;
        if let Some(publisher) = &*self.publisher.lock() {
            publisher.publish(EventBatch { ts: clock::unix_seconds(), events, rank: self.index, block_tokens });
        }
    }

    /// Closes the event sockets; blocks until the ports are free.
    pub(crate) fn close_events(&self) {
        let publisher = self.publisher.lock().take();
        drop(publisher);
    }

    fn abort(&self, id: RequestId) {
        let mut core = self.core.lock();
        if core.watchers.remove(&id).is_some() {
            core.model.abort(id);
            core.metrics.aborted += 1;
            // The step under way no longer works on it: from here on the present load is nearer the truth.
            core.during = None;
        }
    }
}

impl Core {
    fn admit(&mut self, admitted: &Admitted, now_us: u64) {
        let Some(watcher) = self.watchers.get_mut(&admitted.id) else { return };
        if admitted.resumed {
            return;
        }
        watcher.admitted_us = now_us;
        watcher.cached_tokens = admitted.cached_tokens;
        self.metrics.prefix_queries += admitted.prompt_tokens as u64;
        self.metrics.prefix_hits += admitted.cached_tokens as u64;
        self.metrics.queue_s.observe(seconds(admitted.waited_us));
        watcher.board.update(watcher.at, |progress| progress.cached_tokens = admitted.cached_tokens);
    }

    fn produce(&mut self, produced: &Produced, now_us: u64) {
        let Some(watcher) = self.watchers.get_mut(&produced.id) else { return };
        let metrics = &mut self.metrics;
        metrics.generation_tokens += 1;
        if produced.position == 0 {
            watcher.first_us = now_us;
            metrics.prompt_tokens += watcher.prompt_tokens as u64;
            metrics.first_token_s.observe(seconds(now_us.saturating_sub(watcher.arrived_us)));
        } else {
            metrics.inter_token_s.observe(seconds(now_us - watcher.last_us));
        }
        watcher.last_us = now_us;
        watcher.board.update(watcher.at, |progress| {
            progress.produced = produced.position + 1;
            progress.finish = produced.finish;
        });
        if let Some(finish) = produced.finish
            && let Some(watcher) = self.watchers.remove(&produced.id)
        {
            self.metrics.count_success(finish);
            self.metrics.observe_finished(&watcher);
        }
    }
}

impl Metrics {
    fn observe_finished(&mut self, watcher: &Watcher) {
        let decode = seconds(watcher.last_us - watcher.first_us);
        self.e2e_s.observe(seconds(watcher.last_us.saturating_sub(watcher.arrived_us)));
        self.inference_s.observe(seconds(watcher.last_us.saturating_sub(watcher.admitted_us)));
        self.prefill_s.observe(seconds(watcher.first_us.saturating_sub(watcher.admitted_us)));
        self.decode_s.observe(decode);
        if watcher.output_tokens > 1 {
            self.per_token_s.observe(decode / (watcher.output_tokens - 1) as f64);
        }
        self.request_prompt_tokens.observe(watcher.prompt_tokens as f64);
        self.request_generation_tokens.observe(watcher.output_tokens as f64);
        self.request_max_tokens.observe(watcher.output_tokens as f64);
        self.request_choices.observe(watcher.choices as f64);
        self.request_preemptions.observe(watcher.preemptions as f64);
        self.request_computed_tokens.observe((watcher.prompt_tokens - watcher.cached_tokens) as f64);
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
