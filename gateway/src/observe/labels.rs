//! Label handles of each model, made once, and the cap on how many models get their own.

use super::families::Families;
use super::record::{Outcome, Record};
use arc_swap::ArcSwap;
use hashbrown::HashMap;
use parking_lot::Mutex;
use prometheus::{Histogram, IntCounter, IntCounterVec};
use std::sync::{Arc, OnceLock};

/// Models with series of their own; each has some 200. Further models share the label `other`, counted as a hit of this
/// limit.
pub(super) const MAX_MODELS: usize = 64;

/// Name of the limit in `forebay_limit_hits_total`.
const LIMIT: &str = "observe.models";

/// Label of models beyond the cap.
const OTHER: &str = "other";

/// Label of requests that no worker was chosen for and whose model is not known to be served: what a client writes there
/// must not become a label.
const NONE: &str = "none";

const DIALECTS: [&str; 3] = ["chat", "completions", "other"];
const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Series of one model label.
pub(super) struct ModelSeries {
    pub(super) label: Box<str>,
    pub(super) requests: Requests,
    pub(super) ttft: Histogram,
    pub(super) itl: Histogram,
    pub(super) total: Histogram,
    pub(super) queue: Histogram,
    pub(super) overhead: Histogram,
    pub(super) tokenize: Histogram,
    pub(super) prompt: IntCounter,
    pub(super) cached: IntCounter,
    pub(super) generated: IntCounter,
    pub(super) predicted: IntCounter,
    pub(super) realised: IntCounter,
    pub(super) exact: IntCounter,
    pub(super) over: IntCounter,
    pub(super) under: IntCounter,
    pub(super) error: Histogram,
    pub(super) retries: IntCounter,
}

/// By dialect, outcome and status class; made when first seen, so that the page holds no rows of zeroes.
pub(super) type Requests = [[[OnceLock<IntCounter>; CLASSES.len()]; Outcome::COUNT]; DIALECTS.len()];

impl ModelSeries {
    pub(super) fn no_requests() -> Requests {
        Requests::default()
    }

    pub(super) fn count_request(&self, family: &IntCounterVec, record: &Record) {
        let dialect = DIALECTS.iter().position(|known| *known == record.dialect).unwrap_or(DIALECTS.len() - 1);
        let class = usize::from(record.status / 100);
        let class = if class < CLASSES.len() { class } else { 0 };
        let counter = &self.requests[dialect][record.outcome as usize][class];
        let labels = || [&*self.label, DIALECTS[dialect], record.outcome.name(), CLASSES[class]];
        counter.get_or_init(|| family.with_label_values(&labels())).inc();
    }
}

/// Series by model name. Read without a lock; a new model copies the map, at most [`MAX_MODELS`] times.
#[derive(Default)]
pub(super) struct Models {
    known: ArcSwap<HashMap<Arc<str>, Arc<ModelSeries>>>,
    growing: Mutex<()>,
    other: OnceLock<ModelSeries>,
    none: OnceLock<ModelSeries>,
}

impl Models {
    /// Hands the record's series to `count`.
    pub(super) fn with(&self, families: &Families, record: &Record, count: impl FnOnce(&ModelSeries)) {
        if let Some(series) = self.known.load().get(&record.model) {
            return count(series);
        }
        if record.worker.is_none() || record.model.is_empty() {
            return count(self.none.get_or_init(|| families.series(NONE)));
        }
        match self.admit(families, &record.model) {
            Some(series) => count(&series),
            None => {
                families.limit_hits.with_label_values(&[LIMIT]).inc();
                count(self.other.get_or_init(|| families.series(OTHER)));
            }
        }
    }

    fn admit(&self, families: &Families, model: &Arc<str>) -> Option<Arc<ModelSeries>> {
        let _one_at_a_time = self.growing.lock();
        let known = self.known.load_full();
        if let Some(series) = known.get(model) {
            return Some(series.clone());
        }
        if known.len() >= MAX_MODELS {
            return None;
        }
        let series = Arc::new(families.series(model));
        let mut grown = (*known).clone();
        grown.insert(model.clone(), series.clone());
        self.known.store(Arc::new(grown));
        Some(series)
    }
}
