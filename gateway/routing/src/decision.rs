//! From facts and view to a decision.
//!
//! Invariants (property tests):
//! - only a worker that is ready and was not tried yet is chosen; there is a refusal only if no such worker exists;
//! - the answer does not depend on the order in which workers are listed (round robin apart, whose order that is);
//! - a worker that is worse in every term never changes the choice by being there, and more queue never makes a worker
//!   more attractive;
//! - a stale reading of an engine decides exactly as none, and a stale report of a node agent likewise;
//! - a false report of a node agent costs at most what `foreign::most_ms` says.
//!
//! No allocation, no I/O, no clock. O(candidates · log hits); about 10 µs at 256 candidates. In a large fleet the candidates are a
//! shortlist ([`crate::shortlist`]) and not all workers, so that a request costs the same at 10,000 workers as at a hundred. Then
//! the second invariant holds for those on it.

#[cfg(test)]
mod tests;

use crate::index::Hits;
use crate::score::{Score, Terms};
use crate::select::{self, Seat};
use crate::view::WorkerState;
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
    /// Positions in [`FleetView::workers`] of those that are looked at; `None`: all of the model.
    pub among: Option<&'a [u32]>,
    /// Own load of each worker, parallel to `among`, or to [`FleetView::workers`] without it.
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

/// Chooses a worker. Draws exactly one number from `rng`, whatever happens.
pub fn decide(policy: Policy, input: &DecideInput<'_>, rng: &mut fastrand::Rng) -> Result<Decision, Refusal> {
    let salt = rng.u64(..);
    let mut seats = select::seats(input);
    let only = match (seats.next(), seats.next()) {
        (None, _) => return Err(refusal(input)),
        (only, None) => only,
        _ => None,
    };
    if let Some(only) = only {
        return Ok(decision(only, only.score(input), Reason::OnlyOne));
    }
    let by_policy = |seat: Seat<'_>| decision(seat, seat.score(input), Reason::Policy);
    let chosen = match policy {
        Policy::Kv if input.facts.exact => select::least_cost(input, salt).map(|(_, seat, score)| {
            let reason = if score.cached_tokens > 0 { Reason::PrefixHit } else { Reason::LeastCost };
            decision(seat, score, reason)
        }),
        Policy::Kv => select::text_affinity(input, salt).map(|(seat, at_home)| {
            let reason = if at_home { Reason::TextAffinity } else { Reason::LeastCost };
            decision(seat, seat.score(input), reason)
        }),
        Policy::LeastLoaded => select::least_loaded(input, salt).map(by_policy),
        Policy::PowerOfTwo => select::power_of_two(input, salt).map(by_policy),
        Policy::RoundRobin => select::round_robin(input).map(by_policy),
        Policy::ConsistentHash => select::consistent_hash(input).map(by_policy),
        Policy::Session => select::session(input).map(by_policy),
    };
    chosen.ok_or(Refusal::NoneReady)
}

/// A worker as [`explain`] shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Position in [`FleetView::workers`].
    pub position: u32,
    /// Its identity.
    pub worker: WorkerId,
    /// Whether it may be chosen.
    pub standing: Standing,
    /// Predicted cached tokens, after the last-token rule.
    pub cached_tokens: u32,
    /// Prompt tokens to compute.
    pub uncached_tokens: u32,
    /// Every term of its cost.
    pub terms: Terms,
    /// Charged for what its engine does not tell; zero where it does.
    pub unknown_ms: f64,
    /// What `kv` compares: the terms and `unknown_ms`.
    pub cost_ms: f64,
    /// What this gateway has in flight there.
    pub local: LocalLoad,
    /// Age of the engine's last reading; too old ones are shown and not used.
    pub load_age_ms: Option<u64>,
    /// Age of the node agent's last report, likewise.
    pub kernel_age_ms: Option<u64>,
    /// Its claim in rendezvous hashing, for the policies that use one; the highest wins unless overloaded.
    pub claim: Option<u64>,
}

/// Whether a worker may be chosen for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Yes.
    Eligible,
    /// Already tried for this request.
    Tried,
    /// Not ready.
    NotReady(WorkerState),
}

/// Shows what [`decide`] sees: every worker of the model with its terms, from the same scoring code, in listed order.
pub fn explain(policy: Policy, input: &DecideInput<'_>) -> Vec<Candidate> {
    let least_added_ms = select::least_added_ms(input);
    let key = match policy {
        Policy::Kv if !input.facts.exact => Some(input.facts.text_hash),
        Policy::Kv | Policy::LeastLoaded | Policy::PowerOfTwo | Policy::RoundRobin => None,
        Policy::ConsistentHash => Some(input.facts.text_hash),
        Policy::Session => Some(input.facts.session.unwrap_or(input.facts.text_hash)),
    };
    let candidate = |seat: Seat<'_>| {
        let score = seat.score(input);
        let unknown_ms = if score.engine_known { 0.0 } else { least_added_ms };
        Candidate {
            position: seat.position,
            worker: seat.worker.id,
            standing: standing(input, &seat),
            cached_tokens: score.cached_tokens,
            uncached_tokens: score.uncached_tokens,
            terms: score.terms,
            unknown_ms,
            cost_ms: score.terms.own_ms() + score.terms.engine_ms() + score.terms.kernel_ms() + unknown_ms,
            local: seat.local,
            load_age_ms: seat.worker.engine.map(|load| input.now_ms.saturating_sub(load.at_ms)),
            kernel_age_ms: seat.worker.kernel.map(|load| input.now_ms.saturating_sub(load.at_ms)),
            claim: key.map(|key| select::claim(seat.worker, key)),
        }
    };
    select::all_seats(input).map(candidate).collect()
}

fn standing(input: &DecideInput<'_>, seat: &Seat<'_>) -> Standing {
    match seat.worker.state {
        WorkerState::Ready if select::may_be_chosen(input, seat) => Standing::Eligible,
        WorkerState::Ready => Standing::Tried,
        state => Standing::NotReady(state),
    }
}

fn decision(seat: Seat<'_>, score: Score, reason: Reason) -> Decision {
    Decision {
        position: seat.position,
        worker: seat.worker.id,
        cached_tokens: score.cached_tokens,
        uncached_tokens: score.uncached_tokens,
        ttft_ms: score.terms.ttft_ms(),
        reason,
    }
}

fn refusal(input: &DecideInput<'_>) -> Refusal {
    let mut listed = select::all_seats(input).peekable();
    if listed.peek().is_none() {
        Refusal::NoWorkers
    } else if listed.any(|seat| seat.worker.state == WorkerState::Ready) {
        Refusal::AllTried
    } else {
        Refusal::NoneReady
    }
}
