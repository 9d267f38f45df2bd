//! dispatch: decision → upstream exchange.
//!
//! ```text
//! choose ─► admit ─► attempt (pool or connect, send, head) ─► hold until commit ─► Exchange ─► stream
//!    ▲                     │ failure, busy or 5xx                  │ cut
//!    └──── (back off) retry: another worker, while attempts, alternatives and the budget last ◄──┘
//!    └──── nobody left and nothing computed: wait for somebody to come back (outage)  ◄──────────┘
//! ```
//!
//! Connections are plain sockets, opened and kept here: pingora's connector puts a read buffer of 64 KiB around each, which
//! a stream holds for its whole life, and its pool spawns a task and asks the kernel for the peer's address on every use, and knows
//! no bound per engine.
//!
//! Invariants
//! 1. One reservation per attempt, dropped with it: on retry, on a fault, when the client leaves, at the end.
//! 2. A retry happens only before commit, that is before the client got a byte. Refused and reset are free; everything
//!    else draws on the [`RetryBudget`].
//! 3. A pooled connection that closes before the first byte is no failure of the engine: the request goes out again on a
//!    fresh connection to the same worker.
//! 4. An engine's own answer (4xx, or 5xx and 429 with nobody else left) is passed on as it is. No message names an
//!    engine's address.

mod admission;
mod attempt;
mod budget;
mod connection;
mod failure;
mod outage;
mod pool;

pub use admission::Chooser;
pub use budget::RetryBudget;
pub use connection::{Body, Connection};
pub use failure::Failure;

pub(crate) use attempt::{HEALTH_LOOK, overdue};

use crate::clock::Clock;
use crate::config::Config;
use crate::config::resolved::Upstream;
use crate::doors::Doors;
use crate::error::{Fault, Halt};
use crate::fleet::{Endpoint, Feedback, Fleet, Reservation};
use crate::http1::request::Origin;
use crate::http1::{RequestHead, ResponseHead};
use crate::limits::Share;
use crate::stream::{Client, Grammar, Interrupt, Progress, Reading, stopping};
use crate::tasks::TaskGroup;
use admission::{Place, Places};
use bytes::Bytes;
use forebay_common::id::WorkerId;
use forebay_routing::{Decision, Refusal};
use outage::Outages;
use pool::Pool;
use smallvec::SmallVec;
use std::sync::Arc;
use tokio::time::{Duration, Instant};

/// Between two sweeps of idle connections.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// Before the first retry that draws on the budget, at most; doubles with each, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_millis(250);
/// Longest time for which a worker's `Retry-After` keeps others away: it may have meant one client.
const MAX_HOLD_SECONDS: u64 = 30;

/// Everything that sending takes: connections to engines, deadlines, the retry budget.
pub struct Dispatcher {
    fleet: Fleet,
    doors: Arc<Doors>,
    upstream: Upstream,
    max_attempts: u32,
    pool: Pool,
    places: Arc<Places>,
    outages: Outages,
    budget: RetryBudget,
}

/// What is sent, whoever it is sent to.
pub struct Outbound<'a> {
    /// The client's head.
    pub head: &'a RequestHead,
    /// The client's key stays here.
    pub keep_key: bool,
    /// Where it came from.
    pub origin: Origin,
    /// The request's id.
    pub request_id: &'a str,
    /// Its body, edits applied.
    pub body: Vec<Bytes>,
    /// Its prompt as ids, for engines that take those.
    pub ids: Option<Ids<'a>>,
    /// Share of the buffered bytes; an answer that is held is counted too.
    pub share: Share,
    /// How the answer is read.
    pub reading: Reading,
    /// What its events say.
    pub grammar: Grammar,
    /// Prompt length, for the reservation.
    pub prompt_tokens: u32,
    /// Completions asked for, for the reservation.
    pub completions: u32,
    /// Sending it twice does no harm even if an engine acted on it.
    pub repeatable: bool,
}

/// A body with token ids in it.
pub struct Ids<'a> {
    /// Writes the body for an engine; `None` for one that is to get the body as it is.
    #[expect(clippy::type_complexity, reason = "a function of the engine")]
    pub write: Box<dyn Fn(&Endpoint) -> Option<Vec<Bytes>> + Send + Sync + 'a>,
}

impl Outbound<'_> {
    /// A body with ids for `endpoint`, where it takes them and the limit of buffered bytes allows it.
    fn body_with_ids(&mut self, endpoint: &Endpoint) -> Option<Vec<Bytes>> {
        let body = self.ids.as_ref().and_then(|ids| (ids.write)(endpoint))?;
        self.share.grow(body.iter().map(Bytes::len).sum()).is_ok().then_some(body)
    }
}

/// An exchange whose answer is committed: nothing of it is tried again.
pub struct Exchange {
    pub(crate) connection: Connection,
    pub(crate) head: ResponseHead,
    pub(crate) body: Body,
    /// How far the answer has been read, and what was seen in it.
    pub progress: Progress,
    /// When the whole exchange must be over.
    pub(crate) end: Instant,
    /// Longest silence of the engine.
    pub(crate) idle_timeout: Duration,
    /// When the request was sent.
    pub sent: Instant,
    /// Who serves it.
    pub endpoint: Arc<Endpoint>,
    /// Why it was chosen.
    pub decision: Decision,
    /// Its share of the worker's load.
    pub reservation: Reservation,
    /// Given back after the reservation.
    _place: Place,
    /// Attempts beyond the first.
    pub retries: u32,
}

impl Dispatcher {
    /// No connections yet.
    pub fn new(config: &Config, fleet: Fleet, doors: Arc<Doors>, clock: Clock) -> Self {
        Self {
            fleet,
            doors,
            upstream: config.upstream.clone(),
            max_attempts: config.routing.max_attempts,
            pool: Pool::new(config.upstream.pool_size, clock),
            places: Arc::default(),
            outages: Outages::default(),
            budget: RetryBudget::new(config.routing.retry_budget, clock),
        }
    }

    /// Keeps the pools free of connections that engines have closed, for as long as `tasks` runs.
    pub fn sweep_in(self: &Arc<Self>, tasks: &TaskGroup) {
        let dispatcher = self.clone();
        tasks.spawn("upstream pool", async move {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                dispatcher.pool.sweep();
            }
        });
    }

    /// Sends a request to whom `chooser` names, and to others while that may help.
    pub async fn dispatch(
        &self,
        client: &mut Client,
        outbound: &mut Outbound<'_>,
        chooser: &mut impl Chooser,
    ) -> Result<Exchange, Halt> {
        let end = Instant::now() + self.upstream.total_timeout;
        let mut tried = SmallVec::<[WorkerId; 4]>::new();
        let mut admitted = self.admit(client, outbound, chooser).await?;
        self.budget.count();
        let (mut attempts, mut sent, mut outlasted) = (0, 0, false);
        loop {
            attempts += 1;
            let retries = attempts - 1;
            let worker = admitted.decision.worker;
            tried.push(worker);
            let (failure, answer) = match self.attempt(client, outbound, admitted, end, retries).await? {
                Ok(exchange) if !is_refusal(exchange.head.status) => {
                    if outlasted {
                        self.outages.end(chooser.model());
                    }
                    return Ok(exchange);
                }
                Ok(exchange) => (None, Some(exchange)),
                Err(failure) => (Some(failure), None),
            };
            // A worker that has others' requests before this one is slow, not broken: to send it elsewhere would add to
            // the load that made it late.
            let queued = failure == Some(Failure::Late) && self.has_queue(worker);
            if !queued {
                self.report(worker, failure, answer.as_ref());
            }
            let may = !queued && (tried.len() as u32) < self.max_attempts && may_repeat(outbound, failure);
            let next = if may { self.try_admit(outbound, chooser, &tried).ok() } else { None };
            let free = is_free(failure, answer.as_ref());
            // A failed attempt has given its reservation back, but was in flight too.
            let given_back = u32::from(answer.is_none());
            let next = next.filter(|_| free || self.budget.try_retry(worker, self.in_flight(worker) + given_back));
            match (next, failure, answer) {
                (Some(next), ..) => admitted = next,
                (None, _, Some(exchange)) => return Ok(exchange),
                (None, failure, None) => {
                    let failure = failure.unwrap_or(Failure::Closed);
                    sent += u32::from(!failure.is_unsent());
                    // A request that makes engines die must not do so again and again.
                    let again = may_repeat(outbound, Some(failure)) && sent < self.max_attempts;
                    // What an engine had begun to say when it died is gone with it, but it had computed.
                    let afforded = || {
                        failure == Failure::Cut && self.budget.try_retry(worker, self.in_flight(worker) + given_back)
                    };
                    let waits = again && (failure.is_free() || afforded());
                    let next = if waits { self.outlast(client, outbound, chooser).await? } else { None };
                    admitted = next.ok_or_else(|| failure.fault(attempts))?;
                    // Who comes back is not who failed.
                    tried.clear();
                    outlasted = true;
                    continue;
                }
            }
            if !free {
                self.back_off(client, retries).await?;
            }
        }
    }

    /// Waits before a retry that draws on the budget: what failed for many at once should not come back at once. The whole
    /// pause is random, so that those who failed together part.
    async fn back_off(&self, client: &mut Client, retries: u32) -> Result<(), Halt> {
        let most = FIRST_PAUSE.saturating_mul(1 << retries.min(4)).min(LAST_PAUSE);
        let pause = most.mul_f64(fastrand::f64());
        client.deadline.set(Instant::now() + pause + LAST_PAUSE);
        match client.race(tokio::time::sleep(pause)).await {
            Ok(()) | Err(Interrupt::Late) => Ok(()),
            Err(Interrupt::Gone) => Err(Halt::Gone),
            Err(Interrupt::Stopped) => Err(stopping().into()),
        }
    }

    /// Ends an exchange: its reservation is given back, and its connection is kept where its answer was read to the end.
    pub fn finish(&self, exchange: Exchange) {
        let Exchange { connection, head, body, .. } = exchange;
        if body.is_done() && head.keep_alive && connection.input.is_empty() {
            self.pool.put(connection);
        }
    }

    fn report(&self, worker: WorkerId, failure: Option<Failure>, answer: Option<&Exchange>) {
        let feedback = match answer.map(|exchange| &exchange.head) {
            Some(head) if is_busy(head.status) => {
                // What the engine asks for, within reason; a second where it asks for nothing.
                let wait = head.retry_after().unwrap_or(1).min(MAX_HOLD_SECONDS);
                self.fleet.hold(worker, Duration::from_secs(wait));
                Some(Feedback::BackPressure)
            }
            Some(head) => Some(Feedback::Status(head.status)),
            None => failure.and_then(Failure::feedback),
        };
        if let Some(feedback) = feedback {
            self.fleet.feedback(worker, feedback);
        }
    }

    /// Whether others' requests explain why this one has waited; its own reservation has been given back.
    fn has_queue(&self, worker: WorkerId) -> bool {
        let view = self.fleet.view();
        let waiting = view.worker(worker).and_then(|view| view.engine).map_or(0, |engine| engine.waiting);
        waiting > 0 || self.in_flight(worker) > 0
    }

    /// What this gateway has running at `worker`.
    fn in_flight(&self, worker: WorkerId) -> u32 {
        self.fleet.load_of(worker).requests
    }
}

/// Trying again costs nothing.
fn is_free(failure: Option<Failure>, answer: Option<&Exchange>) -> bool {
    answer.is_some_and(|exchange| is_busy(exchange.head.status)) || failure.is_some_and(Failure::is_free)
}

/// Answers that another worker may better.
fn is_refusal(status: u16) -> bool {
    matches!(status, 429 | 500 | 502 | 503 | 504)
}

/// Busy, as opposed to broken.
fn is_busy(status: u16) -> bool {
    matches!(status, 429 | 503)
}

/// A request that may have been acted on is sent again only where that is harmless.
fn may_repeat(outbound: &Outbound<'_>, failure: Option<Failure>) -> bool {
    outbound.repeatable || failure.is_some_and(Failure::is_unsent)
}

fn refused(refusal: Refusal) -> Halt {
    let (code, what) = match refusal {
        Refusal::NoWorkers => ("no_workers", "no engine serves this model"),
        Refusal::NoneReady => ("none_ready", "no engine of this model is ready"),
        Refusal::AllTried => ("all_tried", "every engine of this model was tried"),
    };
    let mut fault = Fault::gateway(503, code, what);
    fault.retry_after = Some(Duration::from_secs(2));
    Halt::Fault(fault)
}
