//! Where each feed stands: for `/status` and for metrics, which are read out of the same reports when somebody scrapes.

use super::agreement::Agreement;
use crate::clock::Clock;
use crate::fleet::Handle;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How far a feed has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeedState {
    /// Nothing was heard yet.
    #[default]
    Connecting,
    /// Learns what it missed.
    Replaying,
    /// In order and up to date.
    Live,
    /// Owes events and sends none; the cache is guessed meanwhile.
    Silent,
    /// Cannot listen at all; [`FeedReport::problem`] says why.
    Failed,
}

impl FeedState {
    /// For labels and `/status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Replaying => "replaying",
            Self::Live => "live",
            Self::Silent => "silent",
            Self::Failed => "failed",
        }
    }
}

/// What somebody has to look after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// The worker owes events and sends none.
    Silent,
    /// Its events name blocks of another size than before, or than was configured.
    BlockSize,
    /// Somebody else takes events that can be read but once.
    SecondReader,
    /// Answers find far less in its cache than its events promise, or far more.
    Mismatch,
}

impl Alarm {
    /// Every kind: the closed label set of `forebay_feed_alarm`.
    pub const ALL: [Self; 4] = [Self::Silent, Self::BlockSize, Self::SecondReader, Self::Mismatch];

    /// For labels and `/status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::BlockSize => "block_size",
            Self::SecondReader => "second_reader",
            Self::Mismatch => "mismatch",
        }
    }
}

/// One feed in words and numbers; counts are since it was added.
#[derive(Clone, Debug, Default)]
pub struct FeedReport {
    /// URL, with `@rank` where there are several.
    pub worker: Arc<str>,
    /// ZMQ endpoint.
    pub endpoint: String,
    /// How far it has come.
    pub state: FeedState,
    /// Why it cannot listen.
    pub problem: Option<String>,
    /// Last batch applied.
    pub last_seq: Option<u64>,
    /// When the last batch came, ms on the gateway's clock.
    pub last_event_ms: Option<u64>,
    /// From publication to receipt of the last live batch, by the two machines' clocks.
    pub lag_ms: Option<u64>,
    /// Generation of the worker: how often its engine was proven to be another process.
    pub generation: u32,
    /// Blocks believed to be in the cache.
    pub blocks: u64,
    /// Batches applied.
    pub batches: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Blocks removed.
    pub removed: u64,
    /// Times that the engine dropped its whole cache.
    pub cleared: u64,
    /// Batches that were ahead of their turn.
    pub gaps: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Times that the cache's past could not be told: nothing was known.
    pub cold_starts: u64,
    /// Gaps that could not be filled: what was known became unconfirmed.
    pub lost: u64,
    /// Blocks that are believed with less credit since, until something confirms them.
    pub unconfirmed: u64,
    /// Restarts proven by this feed.
    pub restarts: u64,
    /// Batches seen before.
    pub duplicates: u64,
    /// Prompt tokens that decisions expected to be cached there, of the requests whose engine told what was.
    pub predicted_tokens: u64,
    /// Prompt tokens that were.
    pub realised_tokens: u64,
    /// What is wrong at present.
    pub alarms: BTreeSet<Alarm>,
    /// How often each alarm began.
    pub alarms_raised: BTreeMap<Alarm, u64>,
    /// Messages and events that could not be read, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// Blocks that were not indexed although their event was well-formed, by reason.
    pub ignored: BTreeMap<&'static str, u64>,
}

impl FeedReport {
    /// An alarm begins, unless it stands already.
    pub(super) fn raise(&mut self, alarm: Alarm) {
        if self.alarms.insert(alarm) {
            *self.alarms_raised.entry(alarm).or_default() += 1;
        }
    }
}

/// Reports of all feeds, by slot.
#[derive(Clone, Default)]
pub(super) struct Reports(Arc<Mutex<BTreeMap<u32, Entry>>>);

struct Entry {
    handle: Arc<Handle>,
    report: Arc<Mutex<FeedReport>>,
    agreement: Agreement,
}

impl Entry {
    /// What stands in the report, with what is known of the worker elsewhere.
    fn read(&mut self) -> FeedReport {
        let (predicted, realised) = self.handle.hit_tokens();
        let mut report = self.report.lock();
        match self.agreement.is_broken(predicted, realised) {
            Some(true) => report.raise(Alarm::Mismatch),
            Some(false) => drop(report.alarms.remove(&Alarm::Mismatch)),
            None => {}
        }
        let generation = self.handle.id().generation;
        FeedReport { generation, predicted_tokens: predicted, realised_tokens: realised, ..report.clone() }
    }
}

impl Reports {
    pub(super) fn open(&self, handle: Arc<Handle>, report: FeedReport) -> Arc<Mutex<FeedReport>> {
        let report = Arc::new(Mutex::new(report));
        let (predicted, realised) = handle.hit_tokens();
        let agreement = Agreement::since(predicted, realised);
        self.0.lock().insert(handle.slot, Entry { handle, report: report.clone(), agreement });
        report
    }

    pub(super) fn close(&self, slot: u32) {
        self.0.lock().remove(&slot);
    }

    /// All of them. Whether promises and answers agree is judged here: alarms are for those who ask.
    pub(super) fn all(&self) -> Vec<FeedReport> {
        self.0.lock().values_mut().map(Entry::read).collect()
    }
}

/// Where a counter's value stands in a report.
type ReadCount = fn(&FeedReport) -> u64;

/// Where a gauge's value stands in a report, given the present time in ms; `None` while it is unknown.
type ReadLevel = fn(&FeedReport, u64) -> Option<u64>;

/// `forebay_feed_*`.
pub(super) struct Metrics {
    reports: Reports,
    clock: Clock,
    /// Two scrapes at once would add up.
    one_at_a_time: Mutex<()>,
    counters: Vec<(IntCounterVec, ReadCount)>,
    gauges: Vec<(IntGaugeVec, ReadLevel)>,
    errors: IntCounterVec,
    ignored: IntCounterVec,
    hit_tokens: IntCounterVec,
    state: IntGaugeVec,
    alarm: IntGaugeVec,
    alarms: IntCounterVec,
}

impl Metrics {
    pub(super) fn new(reports: Reports, clock: Clock) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(format!("forebay_feed_{name}_total"), help), labels)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            IntGaugeVec::new(Opts::new(format!("forebay_feed_{name}"), help), labels)
        };
        let one = &["worker"];
        Ok(Self {
            reports,
            clock,
            one_at_a_time: Mutex::new(()),
            counters: vec![
                (counter("batches", "Batches applied", one)?, |report| report.batches),
                (counter("stored_blocks", "Blocks stored", one)?, |report| report.stored),
                (counter("removed_blocks", "Blocks removed", one)?, |report| report.removed),
                (counter("clears", "Times that the engine dropped its whole cache", one)?, |report| report.cleared),
                (counter("gaps", "Batches that were ahead of their turn", one)?, |report| report.gaps),
                (counter("replays", "Replays asked for", one)?, |report| report.replays),
                (
                    counter("cold_starts", "Times that a cache's past could not be told: nothing was known", one)?,
                    |report| report.cold_starts,
                ),
                (
                    counter("lost_gaps", "Gaps that could not be filled: what was known became unconfirmed", one)?,
                    |report| report.lost,
                ),
                (counter("restarts", "Engine restarts proven by the feed", one)?, |report| report.restarts),
                (counter("duplicates", "Batches seen before", one)?, |report| report.duplicates),
            ],
            gauges: vec![
                (gauge("last_sequence", "Number of the last batch that was applied", one)?, |report, _| {
                    report.last_seq
                }),
                (
                    gauge("generation", "How often the worker's engine was proven to be another process", one)?,
                    |report, _| Some(report.generation.into()),
                ),
                (gauge("blocks", "Blocks believed to be in the cache", one)?, |report, _| Some(report.blocks)),
                (
                    gauge(
                        "unconfirmed_blocks",
                        "Of those, blocks believed with less credit since events were lost",
                        one,
                    )?,
                    |report, _| Some(report.unconfirmed),
                ),
                (gauge("lag_ms", "From publication to receipt of the last live batch", one)?, |report, _| {
                    report.lag_ms
                }),
                (gauge("silent_ms", "Since the last batch came", one)?, |report, now_ms| {
                    report.last_event_ms.map(|at_ms| now_ms.saturating_sub(at_ms))
                }),
            ],
            errors: counter("errors", "Messages and events that could not be read", &["worker", "kind"])?,
            ignored: counter(
                "ignored_blocks",
                "Blocks of well-formed events that are not indexed",
                &["worker", "reason"],
            )?,
            hit_tokens: counter(
                "hit_tokens",
                "Prompt tokens that were predicted to be cached at the worker and that were, where its engine said so",
                &["worker", "kind"],
            )?,
            state: gauge("state", "1 for the state a feed is in", &["worker", "state"])?,
            alarm: gauge("alarm", "1 while something is wrong with a feed, by what", &["worker", "kind"])?,
            alarms: counter("alarms", "Times that something went wrong with a feed, by what", &["worker", "kind"])?,
        })
    }

    fn fill(&self, report: &FeedReport, now_ms: u64) {
        let worker = &*report.worker;
        for (counter, read) in &self.counters {
            counter.with_label_values(&[worker]).inc_by(read(report));
        }
        for (gauge, read) in &self.gauges {
            if let Some(value) = read(report, now_ms) {
                gauge.with_label_values(&[worker]).set(i64::try_from(value).unwrap_or(i64::MAX));
            }
        }
        for (kind, count) in &report.errors {
            self.errors.with_label_values(&[worker, kind]).inc_by(*count);
        }
        for (reason, count) in &report.ignored {
            self.ignored.with_label_values(&[worker, reason]).inc_by(*count);
        }
        for (kind, tokens) in [("predicted", report.predicted_tokens), ("realised", report.realised_tokens)] {
            self.hit_tokens.with_label_values(&[worker, kind]).inc_by(tokens);
        }
        self.state.with_label_values(&[worker, report.state.name()]).set(1);
        for alarm in Alarm::ALL {
            self.alarm.with_label_values(&[worker, alarm.name()]).set(report.alarms.contains(&alarm).into());
            let raised = report.alarms_raised.get(&alarm).copied().unwrap_or_default();
            self.alarms.with_label_values(&[worker, alarm.name()]).inc_by(raised);
        }
    }

    fn collectors(&self) -> impl Iterator<Item = &dyn Collector> {
        let counters = self.counters.iter().map(|(counter, _)| counter as &dyn Collector);
        let gauges = self.gauges.iter().map(|(gauge, _)| gauge as &dyn Collector);
        let rest: [&dyn Collector; 6] =
            [&self.errors, &self.ignored, &self.hit_tokens, &self.state, &self.alarm, &self.alarms];
        counters.chain(gauges).chain(rest)
    }
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _turn = self.one_at_a_time.lock();
        self.counters.iter().for_each(|(counter, _)| counter.reset());
        self.gauges.iter().for_each(|(gauge, _)| gauge.reset());
        [&self.errors, &self.ignored, &self.hit_tokens, &self.alarms].into_iter().for_each(IntCounterVec::reset);
        [&self.state, &self.alarm].into_iter().for_each(IntGaugeVec::reset);
        let now_ms = self.clock.now_ms();
        for report in self.reports.all() {
            self.fill(&report, now_ms);
        }
        self.collectors().flat_map(Collector::collect).collect()
    }
}
