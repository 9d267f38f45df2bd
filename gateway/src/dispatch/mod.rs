//! dispatch: decision → upstream exchange.
//!
//! ```text
//! choose ─► reserve ─► attempt (pool or connect, send, head) ─► hold until commit ─► Exchange ─► stream
//!    ▲                     │ failure, busy or 5xx                  │ cut
//!    └──── retry: another worker, while attempts, alternatives and the budget last ◄──┘
//! ```
//!
//! Connections come from pingora's `TransportConnector`; idle ones are kept here, because pingora's pool spawns a task
//! and asks the kernel for the peer's address on every use, and knows no bound per engine.
//!
//! Invariants
//! 1. One reservation per attempt, dropped with it: on retry, on a fault, when the client leaves, at the end.
//! 2. A retry happens only before commit, that is before the client got a byte. Refused and reset are free; everything
//!    else draws on the [`RetryBudget`].
//! 3. A pooled connection that closes before the first byte is no failure of the engine: the request goes out again on a
//!    fresh connection to the same worker.
//! 4. An engine's own answer (4xx, or 5xx and 429 with nobody else left) is passed on as it is. No message names an
//!    engine's address.

mod attempt;
mod budget;
mod connection;
mod failure;
mod pool;

pub use budget::RetryBudget;
pub use connection::{Body, Connection};
pub use failure::Failure;

pub(crate) use attempt::overdue;

use crate::clock::Clock;
use crate::config::Config;
use crate::config::resolved::Upstream;
use crate::doors::Doors;
use crate::error::{Fault, Halt};
use crate::fleet::{Endpoint, Feedback, Fleet, Reservation};
use crate::http1::request::Origin;
use crate::http1::{RequestHead, ResponseHead};
use crate::limits::Share;
use crate::stream::{Client, Grammar, Progress, Reading};
use crate::tasks::TaskGroup;
use bytes::Bytes;
use forebay_common::id::WorkerId;
use forebay_routing::{Decision, Refusal};
use pingora_core::connectors::TransportConnector;
use pool::Pool;
use smallvec::SmallVec;
use std::sync::Arc;
use tokio::time::{Duration, Instant};

/// Between two sweeps of idle connections.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// Everything that sending takes: connections to engines, deadlines, the retry budget.
pub struct Dispatcher {
    fleet: Fleet,
    doors: Arc<Doors>,
    upstream: Upstream,
    max_attempts: u32,
    transport: TransportConnector,
    pool: Pool,
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
            transport: TransportConnector::new(None),
            pool: Pool::new(config.upstream.pool_size, clock),
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

    /// Sends a request to whom `choose` names, and to others while that may help; `choose` is given those already tried.
    pub async fn dispatch(
        &self,
        client: &mut Client,
        outbound: &mut Outbound<'_>,
        mut choose: impl FnMut(&[WorkerId]) -> Result<Decision, Refusal>,
    ) -> Result<Exchange, Halt> {
        let end = Instant::now() + self.upstream.total_timeout;
        let mut tried = SmallVec::<[WorkerId; 4]>::new();
        let mut decision = choose(&tried).map_err(refused)?;
        self.budget.count();
        loop {
            tried.push(decision.worker);
            let retries = tried.len() as u32 - 1;
            let (failure, answer) = match self.attempt(client, outbound, decision.clone(), end, retries).await? {
                Ok(exchange) if !is_refusal(exchange.head.status) => return Ok(exchange),
                Ok(exchange) => (None, Some(exchange)),
                Err(failure) => (Some(failure), None),
            };
            self.report(decision.worker, failure, answer.as_ref());
            let may = (tried.len() as u32) < self.max_attempts && may_repeat(outbound, failure);
            let next = if may { choose(&tried).ok() } else { None };
            let next = next.filter(|_| self.grants(decision.worker, failure, answer.as_ref()));
            match (next, failure, answer) {
                (Some(next), ..) => decision = next,
                (None, _, Some(exchange)) => return Ok(exchange),
                (None, failure, None) => {
                    return Err(failure.unwrap_or(Failure::Closed).fault(tried.len() as u32).into());
                }
            }
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
        let feedback = match answer.map(|exchange| exchange.head.status) {
            Some(status) if is_busy(status) => Some(Feedback::BackPressure),
            Some(status) => Some(Feedback::Status(status)),
            None => failure.and_then(Failure::feedback),
        };
        if let Some(feedback) = feedback {
            self.fleet.feedback(worker, feedback);
        }
    }

    fn grants(&self, worker: WorkerId, failure: Option<Failure>, answer: Option<&Exchange>) -> bool {
        let busy = answer.is_some_and(|exchange| is_busy(exchange.head.status));
        if busy || failure.is_some_and(Failure::is_free) {
            return true;
        }
        self.budget.try_retry(worker, self.in_flight(worker).max(1))
    }

    /// What this gateway has running at `worker`; looked up on failures only.
    fn in_flight(&self, worker: WorkerId) -> u32 {
        let (view, mut loads) = (self.fleet.view(), Vec::new());
        self.fleet.local_loads(&view, &mut loads);
        let position = view.position(worker).map(|position| position as usize);
        position.and_then(|at| loads.get(at)).map_or(0, |load| load.requests)
    }
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
