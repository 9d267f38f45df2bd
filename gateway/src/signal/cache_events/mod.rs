//! What each worker's cache holds, by its own account: vLLM's KV events over ZMQ.
//!
//! One thread listens to every engine and is the only writer of event knowledge in the index.
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
//! Limits: [`MAX_FEEDS`] engines; each takes up to four file descriptors, and no more are accepted than the process may
//! open. libzmq allows 1,023 sockets a context, so contexts are added as feeds are (one I/O thread each).

mod attach;
mod batch;
mod book;
mod extra;
mod feed;
mod listener;
mod msgpack;
mod report;
mod sequence;
#[cfg(test)]
mod tests;

pub use attach::{Attach, AttachError, for_rank};
pub use report::{FeedReport, FeedState};

use crate::clock::Clock;
use crate::fleet::{Fleet, Handle};
use crate::tasks::TaskGroup;
use report::Reports;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Engines listened to at once.
pub const MAX_FEEDS: usize = 10_000;

/// Orders that may wait for the listening thread, which takes them at every turn.
const MAX_QUEUED_ORDERS: usize = 256;

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

/// Handle on the listening thread; cheap to clone.
#[derive(Clone)]
pub struct Feeds {
    shared: Arc<Shared>,
}

struct Shared {
    orders: mpsc::Sender<Order>,
    /// A byte here wakes the thread out of its poll; closing it ends the thread.
    wake: UnixStream,
    reports: Reports,
}

/// Why the listening thread did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the KV event listener: {0}")]
pub struct StartError(String);

impl Feeds {
    /// Starts the listening thread; it ends when `tasks` is cancelled. Registers the `forebay_feed_*` metrics.
    pub fn start(
        fleet: Fleet,
        clock: Clock,
        registry: &prometheus::Registry,
        tasks: &TaskGroup,
    ) -> Result<Self, StartError> {
        let failed = |error: &dyn std::fmt::Display| StartError(error.to_string());
        let (wake, woken) = UnixStream::pair().map_err(|error| failed(&error))?;
        wake.set_nonblocking(true).and_then(|()| woken.set_nonblocking(true)).map_err(|error| failed(&error))?;
        let (orders, inbox) = mpsc::channel(MAX_QUEUED_ORDERS);
        let reports = Reports::default();
        let metrics = report::Metrics::new(reports.clone(), clock).map_err(|error| failed(&error))?;
        registry.register(Box::new(metrics)).map_err(|error| failed(&error))?;
        let closing = wake.try_clone().map_err(|error| failed(&error))?;
        let listener = listener::Listener::new(fleet, clock, reports.clone(), inbox, woken);
        std::thread::Builder::new()
            .name("kv-events".to_owned())
            .spawn(move || listener.run())
            .map_err(|error| failed(&error))?;
        let end = EndOfThread(closing);
        tasks.spawn("kv events", async move {
            let _end = end;
            std::future::pending::<()>().await;
        });
        Ok(Self { shared: Arc::new(Shared { orders, wake, reports }) })
    }

    /// Listens for one worker, in place of what was listened to for its slot.
    pub(crate) async fn add(&self, spec: FeedSpec) {
        self.order(Order::Add(Box::new(spec))).await;
    }

    /// Stops listening for one worker.
    pub(crate) async fn remove(&self, handle: &Handle) {
        self.order(Order::Remove { slot: handle.slot }).await;
    }

    /// Where every feed stands, ordered by worker.
    pub fn reports(&self) -> Vec<FeedReport> {
        let mut all: Vec<_> = self.shared.reports.all();
        all.sort_by(|a, b| a.worker.cmp(&b.worker));
        all
    }

    async fn order(&self, order: Order) {
        // Neither fails but at the end of the process. A full wake pipe holds a byte that is not read yet: it will be.
        let _ = self.shared.orders.send(order).await;
        let _ = (&self.shared.wake).write(&[1]);
    }
}

/// Ends the thread when the task group drops it.
struct EndOfThread(UnixStream);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        // The thread reads end of file. An error says that it is gone already.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}
