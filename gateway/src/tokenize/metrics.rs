//! Counters of this step, resolved once so that a request pays an atomic addition each.

use super::{Outcome, TextReason};
use crate::tokenize::encoder::Effort;
use prometheus::{Error, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// `forebay_tokenize_*`. The `model` label is bounded by [`super::MAX_MODELS`].
pub(crate) struct Metrics {
    outcomes: Vec<(&'static str, IntCounter)>,
    pub(crate) encoded_bytes: IntCounter,
    pub(crate) encoded_tokens: IntCounter,
    pub(crate) reused_bytes: IntCounter,
    pub(crate) memo_bytes: IntGauge,
    pub(crate) queue_depth: IntGauge,
    pub(crate) jobs_run: IntCounter,
    pub(crate) jobs_skipped: IntCounter,
    pub(crate) jobs_late: IntCounter,
    pub(crate) jobs_refused: IntCounter,
    pub(crate) drift: IntCounterVec,
    pub(crate) forwarded: IntCounterVec,
    pub(crate) source: IntGaugeVec,
}

impl TextReason {
    /// Every reason.
    pub const ALL: [Self; 6] =
        [Self::NoTokenizer, Self::Late, Self::Media, Self::Unsupported, Self::Failed, Self::Drift];

    /// Metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::NoTokenizer => "no_tokenizer",
            Self::Late => "late",
            Self::Media => "media",
            Self::Unsupported => "unsupported",
            Self::Failed => "failed",
            Self::Drift => "drift",
        }
    }
}

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// When a name is taken in `registry`.
    pub(crate) fn register(registry: &Registry) -> Result<Self, Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(format!("forebay_tokenize_{name}"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, Error>(counter)
        };
        let counters = |name: &str, help: &str, label: &str| {
            let counters = IntCounterVec::new(Opts::new(format!("forebay_tokenize_{name}"), help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, Error>(counters)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(format!("forebay_tokenize_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, Error>(gauge)
        };
        let requests = counters("requests_total", "Requests by what came out: tokens, or why by text.", "outcome")?;
        let jobs = counters("jobs_total", "Jobs of the tokenizing pool: run, skipped, late or refused.", "outcome")?;
        let source = Opts::new("forebay_tokenize_source", "1 for the source of a model's token ids.");
        let source = IntGaugeVec::new(source, &["model", "source"])?;
        registry.register(Box::new(source.clone()))?;
        let labels = TextReason::ALL.iter().map(|reason| reason.label()).chain(["tokens"]);
        Ok(Self {
            outcomes: labels.map(|label| (label, requests.with_label_values(&[label]))).collect(),
            encoded_bytes: counter("encoded_bytes_total", "Bytes of prompt text encoded.")?,
            encoded_tokens: counter("encoded_tokens_total", "Token ids that encoding gave.")?,
            reused_bytes: counter("reused_bytes_total", "Bytes of prompt text whose ids were remembered.")?,
            memo_bytes: gauge("memo_bytes", "Bytes of remembered ids.")?,
            queue_depth: gauge("queue_depth", "Jobs that wait for the tokenizing pool.")?,
            jobs_run: jobs.with_label_values(&["run"]),
            jobs_skipped: jobs.with_label_values(&["skipped"]),
            jobs_late: jobs.with_label_values(&["late"]),
            jobs_refused: jobs.with_label_values(&["refused"]),
            drift: counters("drift_total", "Requests whose ids differed from the engine's, by model.", "model")?,
            forwarded: counters(
                "forwarded_total",
                "Requests that were to be sent as ids: sent, or unproven and sent as text.",
                "outcome",
            )?,
            source,
        })
    }

    /// Counts what came out.
    pub(crate) fn count(&self, outcome: &Outcome) {
        let label = match outcome {
            Outcome::Tokens(_) => "tokens",
            Outcome::Text(reason) => reason.label(),
        };
        if let Some((_, counter)) = self.outcomes.iter().find(|(name, _)| *name == label) {
            counter.inc();
        }
    }

    /// Counts what it took.
    pub(crate) fn spend(&self, effort: Effort) {
        self.encoded_bytes.inc_by(effort.encoded_bytes as u64);
        self.encoded_tokens.inc_by(effort.encoded_tokens as u64);
        self.reused_bytes.inc_by(effort.reused_bytes as u64);
    }
}
