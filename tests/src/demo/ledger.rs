//! What the gateway wrote of each request, beside what its client saw.

use crate::client::Outcome;
use crate::cluster::Gateway;
use crate::process::Failure;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A request that is answered is in the log soon after; never longer than this.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

/// One line of the access log, as far as the demo reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Chosen worker's URL.
    pub worker: String,
    /// Predicted hit, tokens.
    pub predicted_cached: u32,
}

/// Access-log lines by request id.
#[derive(Default)]
pub struct Ledger {
    entries: HashMap<String, Entry>,
}

impl Ledger {
    /// Reads the log until every outcome that has a request id is in it.
    pub async fn read(gateway: &Gateway, outcomes: &[Outcome]) -> Result<Self, Failure> {
        let deadline = tokio::time::Instant::now() + LOG_TIMEOUT;
        loop {
            let entries: HashMap<String, Entry> = gateway.records().iter().filter_map(entry).collect();
            let missing = outcomes.iter().find(|o| !o.request_id.is_empty() && !entries.contains_key(&o.request_id));
            match missing {
                None => return Ok(Self { entries }),
                Some(outcome) if tokio::time::Instant::now() > deadline => {
                    return Err(Failure(format!(
                        "request {} is not in the access log {}",
                        outcome.request_id,
                        gateway.access_log.display()
                    )));
                }
                Some(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// The line of `outcome`.
    pub fn entry(&self, outcome: &Outcome) -> Option<&Entry> {
        self.entries.get(&outcome.request_id)
    }

    /// Prompt tokens that each worker had to compute.
    pub fn computed_tokens(&self, outcomes: &[Outcome]) -> BTreeMap<String, u64> {
        let mut computed = BTreeMap::new();
        for outcome in outcomes {
            if let Some(entry) = self.entry(outcome) {
                let uncached = outcome.prompt_tokens.saturating_sub(outcome.cached_tokens.unwrap_or(0));
                *computed.entry(entry.worker.clone()).or_insert(0) += u64::from(uncached);
            }
        }
        computed
    }

    /// Requests of each worker.
    pub fn requests(&self, outcomes: &[Outcome]) -> BTreeMap<String, u64> {
        let mut requests = BTreeMap::new();
        for entry in outcomes.iter().filter_map(|outcome| self.entry(outcome)) {
            *requests.entry(entry.worker.clone()).or_insert(0) += 1;
        }
        requests
    }
}

/// How true the predictions of a run were.
#[derive(Clone, Copy, Debug, Default)]
pub struct Truth {
    /// Requests with a prediction and an engine's count.
    pub compared: usize,
    /// Equal to the token.
    pub exact: usize,
    /// Sum of absolute differences, tokens.
    pub error_tokens: u64,
}

impl Truth {
    /// Compares every complete outcome with its prediction.
    pub fn of(ledger: &Ledger, outcomes: &[Outcome]) -> Self {
        let mut truth = Self::default();
        for outcome in outcomes {
            if let (Some(entry), Some(cached)) = (ledger.entry(outcome), outcome.cached_tokens) {
                let error = entry.predicted_cached.abs_diff(cached);
                truth.compared += 1;
                truth.exact += usize::from(error == 0);
                truth.error_tokens += u64::from(error);
            }
        }
        truth
    }

    /// Share of exact predictions.
    pub fn exact_share(&self) -> f64 {
        self.exact as f64 / self.compared.max(1) as f64
    }

    /// Mean absolute error, tokens.
    pub fn mean_error_tokens(&self) -> f64 {
        self.error_tokens as f64 / self.compared.max(1) as f64
    }
}

fn entry(record: &Value) -> Option<(String, Entry)> {
    let predicted = record["predicted_cached_tokens"].as_u64()?;
    Some((
        record["id"].as_str()?.to_owned(),
        Entry { worker: record["worker"].as_str()?.to_owned(), predicted_cached: u32::try_from(predicted).ok()? },
    ))
}
