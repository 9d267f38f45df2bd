//! From facts and view to a decision.

use crate::index::Hits;
use crate::{FleetView, LocalLoad, RequestFacts, WorkerId};

/// How workers are chosen. One enum, matched exhaustively; no registry, no names at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Least predicted cost in time from cache hits, load and rates.
    #[default]
    Kv,
    /// Fewest requests in flight.
    LeastLoaded,
    /// The less loaded of two random workers.
    PowerOfTwo,
    /// In turn.
    RoundRobin,
    /// Ring by prompt head.
    ConsistentHash,
    /// Ring by session hint, falling back to the prompt head.
    Session,
}

/// Everything `decide` may look at.
pub struct DecideInput<'a> {
    /// The request.
    pub facts: &'a RequestFacts<'a>,
    /// The fleet.
    pub view: &'a FleetView,
    /// Own load of each worker, parallel to [`FleetView::workers`].
    pub local: &'a [LocalLoad],
    /// Prefixes held, one entry per block size in `facts.chains` (same order).
    pub hits: &'a [Hits],
    /// Workers already tried for this request.
    pub exclude: &'a [WorkerId],
    /// Round-robin cursor: the caller adds one per request.
    pub cursor: u64,
    /// Monotonic time.
    pub now_ms: u64,
}

/// A choice and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Position of the chosen worker in [`FleetView::workers`].
    pub position: u32,
    /// Its identity.
    pub worker: WorkerId,
    /// Predicted cached tokens there, after the engine's last-token rule.
    pub cached_tokens: u32,
    /// Prompt tokens it must compute.
    pub uncached_tokens: u32,
    /// Predicted time to first token, ms.
    pub ttft_ms: f64,
    /// What decided.
    pub reason: Reason,
}

/// What decided; a metric label, so the set is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Least predicted cost, with a prefix hit.
    PrefixHit,
    /// Least predicted cost, nobody held a prefix worth the wait.
    LeastCost,
    /// Policy without prefix knowledge.
    Policy,
    /// Routed by text hash because tokens were late or missing.
    TextAffinity,
    /// The only worker that may be picked.
    OnlyOne,
}

/// Why nobody could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The model has no workers at all.
    NoWorkers,
    /// All are down, draining, starting or ejected.
    NoneReady,
    /// Every ready worker was already tried for this request.
    AllTried,
}

/// Chooses a worker.
pub fn decide(_policy: Policy, _input: &DecideInput<'_>, _rng: &mut fastrand::Rng) -> Result<Decision, Refusal> {
    unimplemented!()
}
