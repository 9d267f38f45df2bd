//! observe: finished records → metrics and access log. A leaf: everybody calls it, it calls nobody.
//!
//! ```text
//! serve ─ finish(Record) ─┬─► families (atomics; label handles cached per model) ─► /metrics
//!                         └─► bounded channel ─► one writer ─► access log
//! other modules ─ registry() ─► their own families
//! ```
//!
//! Invariants: [`Observer::finish`] never waits and formats nothing; the number of series is bounded, because the only
//! free label is a served model's name and at most 64 of those get their own; neither metrics nor log
//! carry prompt text, keys or headers. Failure: a full or failing access log loses lines, never requests, and counts
//! them.

pub mod access;
mod families;
mod labels;
pub mod log;
mod record;
mod sampled;
#[cfg(test)]
mod tests;

pub use families::{ITL_EDGES, TTFT_EDGES};
pub use record::{Outcome, Record, reason_name};
pub use sampled::Unit;

use access::AccessWriter;
use families::Families;
use labels::Models;
use prometheus::core::Collector;
use prometheus::{Encoder as _, Registry, TextEncoder};
use std::sync::Arc;

/// Metrics registry and access log; cheap to clone.
#[derive(Clone)]
pub struct Observer {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    families: Families,
    models: Models,
    access: Option<AccessWriter>,
}

/// Content type of [`Observer::scrape`].
pub const SCRAPE_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Observer {
    /// Registers every family; `access` where each request is logged.
    pub fn new(access: Option<AccessWriter>) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let families = Families::register(&registry)?;
        if let Some(access) = &access {
            registry.register(Box::new(access.lost().clone()))?;
        }
        Ok(Self { shared: Arc::new(Shared { registry, families, models: Models::default(), access }) })
    }

    /// Where other modules register families of their own, `forebay_` first and a unit last.
    pub fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// Exposes a number that somebody else keeps, read at each scrape.
    pub fn sample(
        &self,
        name: &str,
        help: &str,
        unit: Unit,
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        let sampled: Box<dyn Collector> = Box::new(sampled::Sampled::new(name, help, unit, Box::new(read))?);
        self.shared.registry.register(sampled)
    }

    /// Counts and logs a finished request.
    pub fn finish(&self, record: Record) {
        self.shared.families.count(&self.shared.models, &record);
        if let Some(access) = &self.shared.access {
            access.log(record);
        }
    }

    /// Counts that a named limit was hit: the configuration key, or the name of a built-in one.
    pub fn limit_hit(&self, limit: &'static str) {
        self.shared.families.limit_hits.with_label_values(&[limit]).inc();
    }

    /// How often each limit was hit since the start, for `/status`; limits never hit are absent.
    pub fn limits_hit(&self) -> Vec<(String, u64)> {
        families::counts(&self.shared.families.limit_hits)
    }

    /// Counts a change of the configuration: applied or refused.
    pub fn reloaded(&self, applied: bool) {
        let result = if applied { "applied" } else { "refused" };
        self.shared.families.reloads.with_label_values(&[result]).inc();
    }

    /// Everything in Prometheus' text format ([`SCRAPE_TYPE`]).
    pub fn scrape(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.shared.registry.gather(), &mut page)?;
        Ok(page)
    }

    /// Opens the access log's file anew, after it was moved away.
    pub fn reopen_log(&self) {
        if let Some(access) = &self.shared.access {
            access.reopen();
        }
    }

    /// Waits until every line logged so far is written.
    pub async fn flush_log(&self) {
        if let Some(access) = &self.shared.access {
            access.flush().await;
        }
    }
}
