//! Whether a chosen worker takes one more request now, and the wait while none does.
//!
//! ```text
//! choose ─► place free? ─ yes ─► reserve
//!    ▲          │ held back or warming up: the next best, if there is one
//!    │          │ full: the next best
//!    └── wait ◄─┴─ all full, until a place is free or the queue's deadline passes
//! ```
//!
//! Full is a rule (`upstream.max_concurrency`); held back (the worker has just said 429 or 503) and warming up (it has just
//! come back) are wishes: where nobody else is left, the request goes there all the same.

use super::{Dispatcher, Outbound};
use crate::error::{Fault, Halt};
use crate::fleet::{Readiness, Reservation};
use crate::stream::{Client, Interrupt, stopping};
use forebay_common::id::WorkerId;
use forebay_routing::{Decision, Refusal};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

/// Workers passed over for one request before it waits: in a fleet whose best eight are full, the ninth rarely helps.
const MAX_PASSED_OVER: usize = 8;
/// A place may be given back between the look and the wait: whoever waits looks again so often.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Chooses workers and learns which choice was taken.
pub trait Chooser {
    /// The best worker that is not among `avoided`.
    fn choose(&mut self, avoided: &[WorkerId]) -> Result<Decision, Refusal>;

    /// The request goes there.
    fn place(&mut self, decision: &Decision);

    /// What was chosen before may no longer be there: the next choice is made anew.
    fn renew(&mut self);

    /// Whose workers these are: the model's position, or any number that stands for all.
    fn model(&self) -> u32;
}

/// Requests that wait for a place, and the bell that is rung when one becomes free.
#[derive(Debug, Default)]
pub(super) struct Places {
    waiting: AtomicUsize,
    freed: Notify,
}

/// One place taken; rings when it is given back.
#[derive(Debug)]
pub(crate) struct Place(Option<Arc<Places>>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(places) = self.0.take().filter(|places| places.waiting.load(Ordering::Acquire) > 0) {
            places.freed.notify_one();
        }
    }
}

/// Counted while it waits.
pub(super) struct Waiting<'a>(&'a Places);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A worker that takes the request, and its share of the worker's load. The reservation goes before the place, so that whoever
/// is woken finds it gone.
pub(crate) struct Admitted {
    pub(super) decision: Decision,
    pub(super) reservation: Reservation,
    pub(super) place: Place,
}

/// Why nobody takes it.
pub(super) enum Blocked {
    /// There is nobody.
    Refused(Refusal),
    /// All that there are have as many requests as they may.
    Full,
}

impl Dispatcher {
    /// The best worker that takes one more request now.
    pub(super) fn try_admit(
        &self,
        outbound: &Outbound<'_>,
        chooser: &mut impl Chooser,
        tried: &[WorkerId],
    ) -> Result<Admitted, Blocked> {
        let mut avoided: SmallVec<[WorkerId; 12]> = tried.iter().copied().collect();
        let (mut second_best, mut full) = (None, false);
        let refusal = loop {
            let decision = match chooser.choose(&avoided) {
                Ok(decision) => decision,
                Err(refusal) => break refusal,
            };
            avoided.push(decision.worker);
            if self.fleet.readiness(decision.worker) == Readiness::Reluctant && second_best.is_none() {
                second_best = Some(decision);
            } else if let Some(reservation) = self.reserve(outbound, &decision) {
                return Ok(self.admitted(chooser, decision, reservation));
            } else {
                full = true;
            }
            if avoided.len() >= tried.len() + MAX_PASSED_OVER {
                break Refusal::AllTried;
            }
        };
        if let Some(decision) = second_best {
            if let Some(reservation) = self.reserve(outbound, &decision) {
                return Ok(self.admitted(chooser, decision, reservation));
            }
            full = true;
        }
        Err(if full { Blocked::Full } else { Blocked::Refused(refusal) })
    }

    /// As [`Self::try_admit`], waiting for a place where there is none. The queue is bounded in requests and in time.
    pub(super) async fn admit(
        &self,
        client: &mut Client,
        outbound: &Outbound<'_>,
        chooser: &mut impl Chooser,
    ) -> Result<Admitted, Halt> {
        match self.try_admit(outbound, chooser, &[]) {
            Ok(admitted) => return Ok(admitted),
            Err(Blocked::Refused(Refusal::NoneReady)) => {
                let admitted = self.outlast(client, outbound, chooser).await?;
                return admitted.ok_or_else(|| super::refused(Refusal::NoneReady));
            }
            Err(Blocked::Refused(refusal)) => return Err(super::refused(refusal)),
            Err(Blocked::Full) => {}
        }
        let Some(_waiting) = self.join_queue() else {
            return Err(full(
                "queue_full",
                "every engine has as many requests as it may, and as many wait (upstream.max_queue)",
            ));
        };
        let due = Instant::now() + self.upstream.queue_timeout;
        loop {
            client.deadline.set(due.min(Instant::now() + LOOK_AGAIN));
            match client.race(self.places.freed.notified()).await {
                Ok(()) => {}
                Err(Interrupt::Gone) => return Err(Halt::Gone),
                Err(Interrupt::Stopped) => return Err(stopping().into()),
                Err(Interrupt::Late) if Instant::now() >= due => {
                    return Err(full("queue_timeout", "no engine had a place in time (upstream.queue_timeout)"));
                }
                Err(Interrupt::Late) => {}
            }
            match self.try_admit(outbound, chooser, &[]) {
                Ok(admitted) => return Ok(admitted),
                Err(Blocked::Refused(refusal)) => return Err(super::refused(refusal)),
                Err(Blocked::Full) => {}
            }
        }
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.places.waiting.load(Ordering::Relaxed)
    }

    /// A place in the queue, if there is one.
    pub(super) fn join_queue(&self) -> Option<Waiting<'_>> {
        let waiting = Waiting(&self.places);
        let before = self.places.waiting.fetch_add(1, Ordering::AcqRel);
        (before < self.upstream.max_queue).then_some(waiting)
    }

    fn reserve(&self, outbound: &Outbound<'_>, decision: &Decision) -> Option<Reservation> {
        let (prompt, uncached) = (outbound.prompt_tokens, decision.uncached_tokens);
        self.fleet.reserve_within(
            self.upstream.max_concurrency,
            decision.worker,
            prompt,
            uncached,
            outbound.completions,
        )
    }

    fn admitted(&self, chooser: &mut impl Chooser, decision: Decision, reservation: Reservation) -> Admitted {
        chooser.place(&decision);
        let bounded = self.upstream.max_concurrency.is_some();
        Admitted { decision, reservation, place: Place(bounded.then(|| self.places.clone())) }
    }
}

fn full(code: &'static str, what: &str) -> Halt {
    let mut fault = Fault::gateway(503, code, what);
    fault.kind = "overloaded_error";
    fault.retry_after = Some(Duration::from_secs(1));
    Halt::Fault(fault)
}
