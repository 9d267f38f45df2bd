//! `forebay_worker_*`: one series per worker, labelled by its URL, gone when the worker is gone.

use super::{Handle, Shared};
use forebay_routing::index::PrefixIndex;
use forebay_routing::view::{EngineLoad, KernelLoad, WorkerState};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use std::sync::Weak;

const STATES: [WorkerState; 5] =
    [WorkerState::Starting, WorkerState::Ready, WorkerState::Draining, WorkerState::Ejected, WorkerState::Down];

/// Why live traffic counted against a worker; the closed label set of `forebay_worker_failures_total`.
const FAILURES: [&str; 3] = ["connect", "broken", "status"];

/// The label value of a state.
pub fn state_name(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Starting => "starting",
        WorkerState::Ready => "ready",
        WorkerState::Draining => "draining",
        WorkerState::Ejected => "ejected",
        WorkerState::Down => "down",
    }
}

pub(super) struct Metrics {
    /// Feedback and load readings lost to a full channel.
    pub(super) dropped: IntCounter,
    pub(super) publications: IntCounter,
    state: IntGaugeVec,
    failures: IntCounterVec,
    back_pressure: IntCounterVec,
    ejections: IntCounterVec,
    pardons: IntCounterVec,
    failed_checks: IntCounterVec,
    restarts: IntCounterVec,
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    kv_usage: GaugeVec,
    foreign_awaiting: IntGaugeVec,
    foreign_busy: IntGaugeVec,
    unread_bytes: IntGaugeVec,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        fn keep<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, prometheus::Error> {
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        }
        let gauge = |name, help, labels: &[&str]| keep(registry, IntGaugeVec::new(Opts::new(name, help), labels)?);
        let counter = |name, help, labels: &[&str]| keep(registry, IntCounterVec::new(Opts::new(name, help), labels)?);
        Ok(Self {
            dropped: keep(
                registry,
                IntCounter::new(
                    "forebay_fleet_dropped_reports_total",
                    "Feedback and load readings lost to a full channel",
                )?,
            )?,
            publications: keep(
                registry,
                IntCounter::new("forebay_fleet_publications_total", "Fleet views published")?,
            )?,
            state: gauge("forebay_worker_state", "1 for the state a worker is in", &["worker", "state"])?,
            failures: counter(
                "forebay_worker_failures_total",
                "Exchanges that failed at the worker's fault",
                &["worker", "kind"],
            )?,
            back_pressure: counter(
                "forebay_worker_back_pressure_total",
                "429 and 503 answers: busy, not broken",
                &["worker"],
            )?,
            ejections: counter("forebay_worker_ejections_total", "Passive ejections", &["worker"])?,
            pardons: counter(
                "forebay_worker_pardons_total",
                "Ejections that did not happen, because too many of the model's workers were out",
                &["worker"],
            )?,
            failed_checks: counter("forebay_worker_failed_checks_total", "Health checks that failed", &["worker"])?,
            restarts: counter("forebay_worker_restarts_total", "Engine restarts that were proven", &["worker"])?,
            running: gauge(
                "forebay_worker_engine_running",
                "Requests in the engine's running batch, as it reports",
                &["worker"],
            )?,
            waiting: gauge(
                "forebay_worker_engine_waiting",
                "Requests queued in the engine, as it reports",
                &["worker"],
            )?,
            foreign_awaiting: gauge(
                "forebay_worker_foreign_awaiting",
                "Connections of others that await the engine's answer, as its node's agent sees",
                &["worker"],
            )?,
            foreign_busy: gauge(
                "forebay_worker_foreign_busy",
                "Connections of others at work at the engine, as its node's agent sees",
                &["worker"],
            )?,
            unread_bytes: gauge(
                "forebay_worker_unread_bytes",
                "Bytes that have arrived at the engine and that it has not read, as its node's agent sees",
                &["worker"],
            )?,
            kv_usage: keep(
                registry,
                GaugeVec::new(
                    Opts::new("forebay_worker_engine_kv_usage", "KV cache in use, 0 to 1, as it reports"),
                    &["worker"],
                )?,
            )?,
        })
    }

    pub(super) fn state(&self, worker: &str, state: WorkerState) {
        for each in STATES {
            self.state.with_label_values(&[worker, state_name(each)]).set(i64::from(each == state));
        }
    }

    pub(super) fn failure(&self, worker: &str, kind: &'static str) {
        debug_assert!(FAILURES.contains(&kind));
        self.failures.with_label_values(&[worker, kind]).inc();
    }

    pub(super) fn back_pressure(&self, worker: &str) {
        self.back_pressure.with_label_values(&[worker]).inc();
    }

    pub(super) fn ejected(&self, worker: &str) {
        self.ejections.with_label_values(&[worker]).inc();
    }

    pub(super) fn pardoned(&self, worker: &str) {
        self.pardons.with_label_values(&[worker]).inc();
    }

    pub(super) fn failed_check(&self, worker: &str) {
        self.failed_checks.with_label_values(&[worker]).inc();
    }

    pub(super) fn restarted(&self, worker: &str) {
        self.restarts.with_label_values(&[worker]).inc();
    }

    pub(super) fn engine(&self, worker: &str, load: &EngineLoad) {
        self.running.with_label_values(&[worker]).set(i64::from(load.running));
        self.waiting.with_label_values(&[worker]).set(i64::from(load.waiting));
        self.kv_usage.with_label_values(&[worker]).set(f64::from(load.kv_usage));
    }

    pub(super) fn foreign(&self, worker: &str, load: &KernelLoad) {
        self.foreign_awaiting.with_label_values(&[worker]).set(i64::from(load.awaiting));
        self.foreign_busy.with_label_values(&[worker]).set(i64::from(load.busy));
        self.unread_bytes.with_label_values(&[worker]).set(i64::try_from(load.unread_bytes).unwrap_or(i64::MAX));
    }

    /// The engine's own readings are unknown from now on: no series rather than an old one.
    pub(super) fn forget_engine(&self, worker: &str) {
        for gauge in [&self.running, &self.waiting] {
            // An error says that there was no such series, which is what is wanted.
            let _ = gauge.remove_label_values(&[worker]);
        }
        let _ = self.kv_usage.remove_label_values(&[worker]);
    }

    /// Drops every series of a worker.
    pub(super) fn forget(&self, worker: &str) {
        self.forget_engine(worker);
        for gauge in [&self.foreign_awaiting, &self.foreign_busy, &self.unread_bytes] {
            let _ = gauge.remove_label_values(&[worker]);
        }
        for state in STATES {
            let _ = self.state.remove_label_values(&[worker, state_name(state)]);
        }
        for kind in FAILURES {
            let _ = self.failures.remove_label_values(&[worker, kind]);
        }
        for counter in [&self.back_pressure, &self.ejections, &self.pardons, &self.failed_checks, &self.restarts] {
            let _ = counter.remove_label_values(&[worker]);
        }
    }
}

/// Own reservations and the index, read when somebody scrapes.
pub(super) struct InFlight {
    shared: Weak<Shared>,
    /// Two scrapes at once would add up.
    one_at_a_time: parking_lot::Mutex<()>,
    requests: IntGaugeVec,
    prefill_tokens: IntGaugeVec,
    decode_tokens: IntGaugeVec,
    index_blocks: IntGauge,
    index_holders: IntGauge,
    index_evicted: IntGauge,
    index_bytes: IntGauge,
    index_budget: IntGauge,
}

impl InFlight {
    pub(super) fn new(shared: Weak<Shared>) -> Result<Self, prometheus::Error> {
        let gauge = |name, help| IntGaugeVec::new(Opts::new(name, help), &["worker"]);
        Ok(Self {
            shared,
            one_at_a_time: parking_lot::Mutex::new(()),
            requests: gauge("forebay_worker_requests", "Requests this gateway has in flight at the worker")?,
            prefill_tokens: gauge(
                "forebay_worker_prefill_tokens",
                "Uncached prompt tokens whose first token is awaited",
            )?,
            decode_tokens: gauge("forebay_worker_decode_tokens", "Tokens of requests that are decoding")?,
            index_blocks: IntGauge::new("forebay_index_blocks", "Distinct blocks in the prefix index")?,
            index_holders: IntGauge::new("forebay_index_holders", "Pairs of block and worker in the prefix index")?,
            index_evicted: IntGauge::new(
                "forebay_index_evicted_blocks",
                "Blocks thrown out of the full prefix index since the start",
            )?,
            index_bytes: IntGauge::new("forebay_index_bytes", "Memory of the prefix index and of its feeds' ledgers")?,
            index_budget: IntGauge::new("forebay_index_budget_bytes", "What the prefix index may take")?,
        })
    }

    fn gauges(&self) -> [&IntGaugeVec; 3] {
        [&self.requests, &self.prefill_tokens, &self.decode_tokens]
    }

    fn read(&self, handle: &Handle) {
        let load = handle.counters.load();
        let values = [load.requests, load.prefill_tokens, load.decode_tokens];
        for (gauge, value) in self.gauges().into_iter().zip(values) {
            let series = gauge.with_label_values(&[&*handle.label]);
            series.set(series.get() + i64::from(value));
        }
    }
}

impl InFlight {
    fn index(&self) -> [&IntGauge; 5] {
        [&self.index_blocks, &self.index_holders, &self.index_evicted, &self.index_bytes, &self.index_budget]
    }

    fn read_index(&self, index: &PrefixIndex) {
        let stats = index.stats();
        let bytes = (stats.bytes + stats.ledger_bytes) as u64;
        let values = [stats.entries as u64, stats.holders as u64, stats.evicted, bytes, stats.budget_bytes as u64];
        for (gauge, value) in self.index().into_iter().zip(values) {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}

impl Collector for InFlight {
    fn desc(&self) -> Vec<&Desc> {
        let index = self.index().into_iter().flat_map(Collector::desc);
        self.gauges().into_iter().flat_map(Collector::desc).chain(index).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _turn = self.one_at_a_time.lock();
        for gauge in self.gauges() {
            gauge.reset();
        }
        if let Some(shared) = self.shared.upgrade() {
            // A worker that drains and its successor under the same URL add up.
            for handle in shared.handles.load().iter().flatten() {
                self.read(handle);
            }
            self.read_index(&shared.index);
        }
        let index = self.index().into_iter().flat_map(Collector::collect);
        self.gauges().into_iter().flat_map(Collector::collect).chain(index).collect()
    }
}
