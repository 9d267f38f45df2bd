//! What each worker's cache holds, by its own account: vLLM's KV events over ZMQ.
//!
//! A few threads share the engines between them; each is the only writer of what its engines' events say.
//!
//! ```text
//! SUB socket ─ [topic, seq, payload] ─► sequence (gap? restart?) ─► batch (msgpack) ─► book ─► index ledger
//!                                           │ ask
//! DEALER ◄─ ["", from] ─────────────────────┘   replies ["", topic?, seq, payload]…, end marker seq = 2⁶⁴−1
//! ```
//!
//! Events are hints: they decide how well requests are routed, never whether they are served. So nothing here fails a
//! worker: a broken message is counted by kind, an unreachable endpoint is tried again, a gap that the engine can no longer
//! fill empties that worker's picture (a cold start, counted) and learning goes on.
//!
//! Who connects: an engine *binds* its PUB socket when its endpoint has a wildcard (`tcp://*:5557`) or is `ipc://`; then
//! this side connects. Otherwise the engine connects and this side must bind: `kv_events = "bind:tcp://127.0.0.1:5557"`.
//!
//! A worker that owes events and sends none ([`vigil`]) is guessed from its own placements until it does, alone.
//!
//! Limits: [`MAX_FEEDS`] engines; each takes three file descriptors, and no more are accepted than the process may open.
//! libzmq allows 1,023 sockets a context, so contexts are added as feeds are (one I/O thread each). A message of more than
//! [`MAX_MESSAGE_BYTES`] is counted and dropped; at twice as much libzmq ends the connection.

mod attach;
mod batch;
mod book;
mod extra;
mod feed;
mod fields;
mod listener;
mod msgpack;
mod report;
mod room;
mod sequence;
mod summary;
#[cfg(test)]
mod tests;
mod vigil;

pub use attach::{Attach, AttachError, for_rank};
pub use report::{Alarm, FeedReport, FeedState};
pub use summary::{Summary, summarize};

use crate::clock::Clock;
use crate::fleet::{Fleet, Handle};
use crate::tasks::TaskGroup;
use listener::{Listener, WAKE};
use mio::{Poll, Waker};
use report::Reports;
use room::Room;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// Engines listened to at once.
pub const MAX_FEEDS: usize = 10_000;

/// Orders that may wait for a listening thread, which takes them at every turn.
const MAX_QUEUED_ORDERS: usize = 256;

/// Listening threads: one takes in 50,000 events a second with room to spare, so a few are enough for any fleet.
const MAX_LISTENERS: usize = 4;

/// Bytes of one message: a million-token prompt is 5 MB.
const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// What to listen to for one worker.
#[derive(Clone)]
pub(crate) struct FeedSpec {
    pub(crate) handle: Arc<Handle>,
    /// The PUB side.
    pub(crate) events: Attach,
    /// The ROUTER side, where the engine has one.
    pub(crate) replay: Option<Attach>,
    /// KV capacity, where it is known: there cannot be more copies of blocks than that.
    pub(crate) capacity_blocks: Option<u32>,
}

enum Order {
    Add(Box<FeedSpec>),
    Remove { slot: u32 },
}

/// Handle on the listening threads; cheap to clone.
#[derive(Clone)]
pub struct Feeds {
    shared: Arc<Shared>,
}

struct Shared {
    /// A worker belongs to the listener that its slot names.
    listeners: Vec<Post>,
    reports: Reports,
}

/// Where orders for one listening thread go.
struct Post {
    orders: mpsc::Sender<Order>,
    waker: Arc<Waker>,
}

/// Why the listening thread did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the KV event listener: {0}")]
pub struct StartError(String);

impl Feeds {
    /// Starts the listening threads; they end when `tasks` is cancelled. Registers the `forebay_feed_*` metrics.
    pub fn start(
        fleet: Fleet,
        clock: Clock,
        registry: &prometheus::Registry,
        tasks: &TaskGroup,
    ) -> Result<Self, StartError> {
        let failed = |error: &dyn std::fmt::Display| StartError(error.to_string());
        let reports = Reports::default();
        let metrics = report::Metrics::new(reports.clone(), clock).map_err(|error| failed(&error))?;
        registry.register(Box::new(metrics)).map_err(|error| failed(&error))?;
        let (room, stop) = (Room::of_process(), Arc::new(AtomicBool::new(false)));
        let mut end = EndOfThreads { stop: stop.clone(), wakers: Vec::new() };
        let mut listeners = Vec::new();
        for number in 0..std::thread::available_parallelism().map_or(1, usize::from).min(MAX_LISTENERS) {
            let poll = Poll::new().map_err(|error| failed(&error))?;
            let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(|error| failed(&error))?);
            let (orders, inbox) = mpsc::channel(MAX_QUEUED_ORDERS);
            let parts = (fleet.clone(), clock, reports.clone(), room.clone());
            let listener = Listener::new(parts, inbox, stop.clone(), poll);
            std::thread::Builder::new()
                .name(format!("kv-events-{number}"))
                .spawn(move || listener.run())
                .map_err(|error| failed(&error))?;
            end.wakers.push(waker.clone());
            listeners.push(Post { orders, waker });
        }
        tasks.spawn("kv events", async move {
            let _end = end;
            std::future::pending::<()>().await;
        });
        Ok(Self { shared: Arc::new(Shared { listeners, reports }) })
    }

    /// Listens for one worker, in place of what was listened to for its slot.
    pub(crate) async fn add(&self, spec: FeedSpec) {
        self.order(spec.handle.slot, Order::Add(Box::new(spec))).await;
    }

    /// Stops listening for one worker, whatever its feed is waiting for.
    pub(crate) async fn remove(&self, handle: &Handle) {
        self.order(handle.slot, Order::Remove { slot: handle.slot }).await;
    }

    /// Where every feed stands, ordered by worker.
    pub fn reports(&self) -> Vec<FeedReport> {
        let mut all: Vec<_> = self.shared.reports.all();
        all.sort_by(|a, b| a.worker.cmp(&b.worker));
        all
    }

    async fn order(&self, slot: u32, order: Order) {
        let post = &self.shared.listeners[slot as usize % self.shared.listeners.len()];
        // Neither fails but at the end of the process.
        let _ = post.orders.send(order).await;
        let _ = post.waker.wake();
    }
}

/// Ends the threads when the task group drops it.
struct EndOfThreads {
    stop: Arc<AtomicBool>,
    wakers: Vec<Arc<Waker>>,
}

impl Drop for EndOfThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for waker in &self.wakers {
            // An error says that the thread is gone already; without the bell it ends at its next turn.
            let _ = waker.wake();
        }
    }
}
