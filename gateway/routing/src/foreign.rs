//! Load that only the kernel on a worker's node sees: requests of other gateways and of direct clients.
//!
//! The node agent counts connections at work; what this gateway itself has in flight there is taken off when the report comes
//! ([`KernelLoad::new`]). What is left is *foreign*. It adds to a worker's cost what the engine's own report does not tell
//! already, so it can make a worker less attractive and never more:
//!
//! - absent, or older than the report says it may be: nothing is added anywhere, and decisions are those without an agent;
//! - known of some workers only: the others are taken to have the least that any known one has, so silence never attracts;
//! - false: a report counts for at most [`MAX_FOREIGN`] requests, so the worker that is chosen costs at most [`most_ms`] more
//!   than the best one; twice the largest of these where the best one's engine is silent, since silence is charged the least
//!   that others add. Lies push away no further than that, and attract no further.

use crate::score::{HARM_WEIGHT, Terms};
use crate::view::{LocalLoad, Rates, WorkerView};

/// Foreign requests that a report counts for at most. Beyond, a worker is avoided anyway where there is another.
pub const MAX_FOREIGN: u32 = 64;
/// Reports are never used beyond this age, whatever they say of themselves.
pub const MAX_KERNEL_AGE_MS: u64 = 3_000;

/// Connections at work at one worker that are not this gateway's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLoad {
    /// Whose request is in and whose answer has not got going.
    pub awaiting: u32,
    /// Those, and those whose answer is being sent.
    pub busy: u32,
    /// Bytes that have arrived and that the engine has not read, of everybody's connections.
    pub unread_bytes: u64,
    /// When it was so, ms on the gateway's monotonic clock.
    pub at_ms: u64,
    /// How old it may be and still mean something: three periods of its agent.
    pub good_for_ms: u64,
}

impl KernelLoad {
    /// From what an agent counted, `awaiting` and `streaming`, and what is this gateway's own of it.
    pub fn new(awaiting: u32, streaming: u32, own: &LocalLoad, at_ms: u64, good_for_ms: u64) -> Self {
        Self {
            awaiting: awaiting.saturating_sub(own.prefill_requests),
            busy: awaiting.saturating_add(streaming).saturating_sub(own.requests),
            unread_bytes: 0,
            at_ms,
            good_for_ms: good_for_ms.min(MAX_KERNEL_AGE_MS),
        }
    }
}

/// The report if it is young enough to mean anything.
pub fn fresh(kernel: Option<KernelLoad>, now_ms: u64) -> Option<KernelLoad> {
    kernel.filter(|load| now_ms.saturating_sub(load.at_ms) <= load.good_for_ms.min(MAX_KERNEL_AGE_MS))
}

/// Foreign requests at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// That wait for their first token.
    pub awaiting: u32,
    /// All.
    pub busy: u32,
}

/// What a young report says, within [`MAX_FOREIGN`].
pub fn counts(worker: &WorkerView, now_ms: u64) -> Option<Counts> {
    let kernel = fresh(worker.kernel, now_ms)?;
    let awaiting = kernel.awaiting.min(MAX_FOREIGN);
    Some(Counts { awaiting, busy: kernel.busy.min(MAX_FOREIGN).max(awaiting) })
}

/// The least that any of `workers` has by a young report: what those without one are taken to have.
pub fn least<'a>(workers: impl Iterator<Item = &'a WorkerView>, now_ms: u64) -> Option<Counts> {
    let lower = |a: Counts, b: Counts| Counts { awaiting: a.awaiting.min(b.awaiting), busy: a.busy.min(b.busy) };
    workers.filter_map(|worker| counts(worker, now_ms)).reduce(lower)
}

/// What foreign requests add to `terms`, which are complete otherwise, ms: wait behind them and their delay, each beyond what
/// the engine reported of requests that are not this gateway's.
pub fn terms(worker: &WorkerView, terms: &Terms, counts: Counts) -> (f64, f64) {
    let wait_ms = queued_ms(&worker.rates, counts.awaiting, worker.typical_tokens) - terms.waiting_ms;
    let harm_ms = HARM_WEIGHT * terms.prefill_ms * f64::from(counts.busy) - terms.waiting_harm_ms;
    (wait_ms.max(0.0), harm_ms.max(0.0))
}

/// Foreign requests beyond those that the engine reported, for the policies that count requests.
pub fn beyond(counts: Option<Counts>, reported: Option<u32>) -> u32 {
    counts.map_or(0, |counts| counts.busy.saturating_sub(reported.unwrap_or(0)))
}

/// The most that any report adds to the cost of a request whose prefill there takes `prefill_ms`.
pub fn most_ms(worker: &WorkerView, prefill_ms: f64) -> f64 {
    queued_ms(&worker.rates, MAX_FOREIGN, worker.typical_tokens) + HARM_WEIGHT * prefill_ms * f64::from(MAX_FOREIGN)
}

/// Prefill of `requests` usual ones.
fn queued_ms(rates: &Rates, requests: u32, typical_tokens: u32) -> f64 {
    rates.queued_ms(&LocalLoad {
        requests,
        prefill_requests: requests,
        prefill_tokens: requests.saturating_mul(typical_tokens),
        prefill_squares: u64::from(requests).saturating_mul(LocalLoad::squares(typical_tokens, typical_tokens)),
        decode_tokens: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_own_is_not_foreign() {
        let own = LocalLoad { requests: 5, prefill_requests: 2, ..LocalLoad::default() };
        let load = KernelLoad::new(3, 6, &own, 10, 600);
        assert_eq!((load.awaiting, load.busy), (1, 4));
        let less = KernelLoad::new(0, 1, &own, 10, 600);
        assert_eq!((less.awaiting, less.busy), (0, 0), "HTTP/2 carries more requests than connections");
    }

    #[test]
    fn an_old_report_is_none() {
        let load = KernelLoad { at_ms: 1_000, good_for_ms: 600, ..KernelLoad::default() };
        assert_eq!(fresh(Some(load), 1_600), Some(load));
        assert_eq!(fresh(Some(load), 1_601), None);
        let forever = KernelLoad { good_for_ms: u64::MAX, ..load };
        assert_eq!(fresh(Some(forever), 1_001 + MAX_KERNEL_AGE_MS), None, "whatever it says of itself");
    }
}
