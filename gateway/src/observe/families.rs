//! The request families: names, help, buckets, and how a record becomes numbers.

use super::labels::{ModelSeries, Models};
use super::record::{Record, blame_name, reason_name};
use crate::config::policy_name;
use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Bucket edges of vLLM's `time_to_first_token_seconds`, so that both can be laid over each other.
pub const TTFT_EDGES: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];

/// Bucket edges of vLLM's `inter_token_latency_seconds`.
pub const ITL_EDGES: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];

/// Of whole requests: TTFT's range is that of an answer's length too, from a refusal in a millisecond upwards.
const TOTAL_EDGES: [f64; 22] = TTFT_EDGES;

/// Of the gateway's own work: from the 10 µs of a round robin to a template gone wild.
const OWN_EDGES: [f64; 16] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0,
];

/// Of |predicted − realised| in tokens: 0 is exact, 16 one usual block.
const ERROR_EDGES: [f64; 9] = [0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0];

/// Text reasons that mean a named limit was hit.
const LIMIT_TEXT_REASONS: [(&str, &str); 1] = [("late", "tokenize.deadline")];

pub(super) struct Families {
    requests: IntCounterVec,
    ttft: HistogramVec,
    itl: HistogramVec,
    total: HistogramVec,
    queue: HistogramVec,
    overhead: HistogramVec,
    tokenize: HistogramVec,
    tokens: IntCounterVec,
    hit_tokens: IntCounterVec,
    predictions: IntCounterVec,
    prediction_error: HistogramVec,
    retries: IntCounterVec,
    decisions: IntCounterVec,
    faults: IntCounterVec,
    text_routed: IntCounterVec,
    pub(super) limit_hits: IntCounterVec,
    pub(super) reloads: IntCounterVec,
}

impl Families {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        fn keep<C: Collector + Clone + 'static>(registry: &Registry, family: C) -> Result<C, prometheus::Error> {
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        }
        let counter = |name: &str, help: &str, labels: &[&str]| {
            keep(registry, IntCounterVec::new(Opts::new(format!("forebay_{name}_total"), help), labels)?)
        };
        let histogram = |name: &str, help: &str, edges: &[f64]| {
            let opts = HistogramOpts::new(format!("forebay_{name}"), help).buckets(edges.to_vec());
            keep(registry, HistogramVec::new(opts, &["model"])?)
        };
        Ok(Self {
            requests: counter("requests", "Requests ended, by how", &["model", "dialect", "outcome", "status"])?,
            ttft: histogram(
                "time_to_first_token_seconds",
                "From the request's arrival to its first token",
                &TTFT_EDGES,
            )?,
            itl: histogram("inter_token_latency_seconds", "Mean time between two tokens of one answer", &ITL_EDGES)?,
            total: histogram("request_seconds", "From the request's arrival to the end of its answer", &TOTAL_EDGES)?,
            queue: histogram("queue_seconds", "From the decision until an engine had the request", &OWN_EDGES)?,
            overhead: histogram("overhead_seconds", "The gateway's own work before dispatch", &OWN_EDGES)?,
            tokenize: histogram("tokenize_seconds", "Of the overhead: rendering and encoding the prompt", &OWN_EDGES)?,
            tokens: counter(
                "tokens",
                "Tokens by the engines' count: prompt, of those cached, and generated",
                &["model", "kind"],
            )?,
            hit_tokens: counter(
                "hit_tokens",
                "Prompt tokens that were predicted to be cached and that were, where the engine said so",
                &["model", "kind"],
            )?,
            predictions: counter(
                "predictions",
                "Predicted against realised hits, where the engine said so: exact, over or under",
                &["model", "result"],
            )?,
            prediction_error: histogram("prediction_error_tokens", "How far a predicted hit was off", &ERROR_EDGES)?,
            retries: counter("retries", "Attempts beyond the first", &["model"])?,
            decisions: counter("decisions", "Choices of a worker, by what decided", &["policy", "reason"])?,
            faults: counter(
                "faults",
                "Requests that ended in an error, by its code and whose fault it was",
                &["code", "blame"],
            )?,
            text_routed: counter("text_routed", "Requests routed by text instead of tokens, by why", &["reason"])?,
            limit_hits: counter("limit_hits", "Times a named limit was hit", &["limit"])?,
            reloads: counter("config_reloads", "Changes of the configuration: applied or refused", &["result"])?,
        })
    }

    /// The series of one model label.
    pub(super) fn series(&self, model: &str) -> ModelSeries {
        let histogram = |family: &HistogramVec| family.with_label_values(&[model]);
        let counter = |family: &IntCounterVec, label: &str| family.with_label_values(&[model, label]);
        ModelSeries {
            label: model.into(),
            requests: ModelSeries::no_requests(),
            ttft: histogram(&self.ttft),
            itl: histogram(&self.itl),
            total: histogram(&self.total),
            queue: histogram(&self.queue),
            overhead: histogram(&self.overhead),
            tokenize: histogram(&self.tokenize),
            prompt: counter(&self.tokens, "prompt"),
            cached: counter(&self.tokens, "cached"),
            generated: counter(&self.tokens, "generated"),
            predicted: counter(&self.hit_tokens, "predicted"),
            realised: counter(&self.hit_tokens, "realised"),
            exact: counter(&self.predictions, "exact"),
            over: counter(&self.predictions, "over"),
            under: counter(&self.predictions, "under"),
            error: histogram(&self.prediction_error),
            retries: self.retries.with_label_values(&[model]),
        }
    }

    /// Turns one record into numbers.
    pub(super) fn count(&self, models: &Models, record: &Record) {
        models.with(self, record, |series| self.count_model(series, record));
        if let Some(reason) = record.reason {
            let policy = record.policy.map_or("none", policy_name);
            self.decisions.with_label_values(&[policy, reason_name(reason)]).inc();
        }
        if let Some(code) = record.fault {
            self.faults.with_label_values(&[code, blame_name(record.blame)]).inc();
        }
        if let Some(reason) = record.text_reason {
            self.text_routed.with_label_values(&[reason]).inc();
            self.count_limit(&LIMIT_TEXT_REASONS, reason);
        }
    }

    fn count_limit(&self, table: &[(&str, &str)], code: &str) {
        if let Some((_, limit)) = table.iter().find(|(known, _)| *known == code) {
            self.limit_hits.with_label_values(&[limit]).inc();
        }
    }

    fn count_model(&self, series: &ModelSeries, record: &Record) {
        series.count_request(&self.requests, record);
        series.total.observe(record.total_ms / 1e3);
        let observe_if = |histogram: &prometheus::Histogram, value_ms: Option<f64>| {
            if let Some(value_ms) = value_ms {
                histogram.observe(value_ms / 1e3);
            }
        };
        observe_if(&series.ttft, record.ttft_ms);
        observe_if(&series.itl, record.itl_ms);
        observe_if(&series.queue, record.queue_ms);
        if record.worker.is_some() {
            series.overhead.observe(record.overhead_ms / 1e3);
        }
        if record.tokenize_ms > 0.0 {
            series.tokenize.observe(record.tokenize_ms / 1e3);
        }
        series.prompt.inc_by(record.prompt_tokens.into());
        series.generated.inc_by(record.output_tokens.into());
        if record.retries > 0 {
            series.retries.inc_by(record.retries.into());
        }
        let Some(cached) = record.cached_tokens else { return };
        series.cached.inc_by(cached.into());
        series.predicted.inc_by(record.predicted_cached.into());
        series.realised.inc_by(cached.into());
        series.error.observe(record.predicted_cached.abs_diff(cached).into());
        match record.predicted_cached.cmp(&cached) {
            std::cmp::Ordering::Equal => series.exact.inc(),
            std::cmp::Ordering::Greater => series.over.inc(),
            std::cmp::Ordering::Less => series.under.inc(),
        }
    }
}

/// Value of every series of a family with one label, by that label.
pub(super) fn counts(family: &IntCounterVec) -> Vec<(String, u64)> {
    let families = family.collect();
    let series = families.iter().flat_map(prometheus::proto::MetricFamily::get_metric);
    series
        .filter_map(|metric| {
            let label = metric.get_label().first()?.value().to_owned();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter of whole events")]
            Some((label, metric.get_counter().get_value() as u64))
        })
        .collect()
}
