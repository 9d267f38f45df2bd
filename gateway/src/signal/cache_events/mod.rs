//! What each worker's cache holds, by its own account: KV events of vLLM and SGLang over ZMQ, of TensorRT-LLM over HTTP.
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
//! fill leaves what was known *unconfirmed* (credited less, until answers or new events confirm it) and learning goes on.
//! A feed whose past nobody can tell begins empty: a cold start. Both are counted.
//!
//! Who connects: an engine *binds* its PUB socket when its endpoint has a wildcard (`tcp://*:5557`) or is `ipc://`; then
//! this side connects. Otherwise the engine connects and this side must bind: `kv_events = "bind:tcp://127.0.0.1:5557"`.
//!
//! TensorRT-LLM has no publisher: it is asked at `/kv_cache_events`, which empties its buffer, so that one gateway alone may
//! ask ([`poll`]). Only the configuration can say so: `kv_events = "poll:/kv_cache_events"`.
//!
//! Blocks lie in tiers and attention groups ([`place`]); what is in a memory with a name that is not known, or behind a
//! locality that is not known, does not count. Salts, adapters and images keep chains apart ([`extra`]).
//!
//! Warm start ([`warm`]): with `routing.snapshot_file` what is known is saved every minute and at the end, and taken up again for engines
//! that are provably the same process.
//!
//! Why libzmq (`zmq`) and not the pure-Rust `zeromq` 0.7: `tests/bench/feeds` reads 50,000 events a second through both. The
//! Rust library takes the load with less CPU and fewer files, but believes every length that a peer announces: a frame said
//! to have 64 TiB aborts the process, and it has no limit, heartbeat or high-water mark to set. An engine's network is not
//! a place to trust with that. libzmq has all three and keeps reading in order at a million events a second.
//!
//! A worker that owes events and sends none ([`vigil`]) is guessed from its own placements until it does, alone.
//!
//! Limits: [`MAX_FEEDS`] engines; each takes three file descriptors, and no more are accepted than the process may open.
//! libzmq allows 1,023 sockets a context, so contexts are added as feeds are (one I/O thread each). A message of more than
//! [`MAX_MESSAGE_BYTES`] is counted and dropped; at twice as much libzmq ends the connection.

mod agreement;
mod attach;
mod batch;
mod book;
mod extra;
mod feed;
mod fields;
mod listener;
mod msgpack;
mod place;
mod poll;
mod polled;
mod report;
mod room;
mod sequence;
mod summary;
#[cfg(test)]
mod tests;
mod vigil;
mod warm;

pub use attach::{Attach, AttachError, for_rank};
pub use report::{Alarm, FeedReport, FeedState};
pub use summary::{Summary, summarize, summarize_polled};
pub use warm::WarmError;

use crate::clock::Clock;
use crate::fleet::{Fleet, Handle};
use crate::signal::http::Peer;
use crate::tasks::TaskGroup;
use hashbrown::HashMap;
use listener::{Listener, WAKE};
use mio::{Poll, Waker};
use parking_lot::Mutex;
use report::Reports;
use room::Room;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;
use warm::Warm;

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
    /// Tokens of a block, where configured.
    pub(crate) block_size: Option<u32>,
    /// Longest context, where it is known: attention that sees as much is full.
    pub(crate) context_tokens: Option<u32>,
    /// Names the engine's process, where it has a name or tells when it started.
    pub(crate) process: Option<String>,
    /// Whom to ask, for [`Attach::Poll`].
    pub(crate) peer: Option<Peer>,
}

enum Order {
    Add(Box<FeedSpec>),
    Remove { slot: u32 },
    Polled { slot: u32, answer: poll::Answer },
    Process { slot: u32, process: Option<String> },
    Save { reply: oneshot::Sender<Vec<Vec<u8>>> },
}

/// Between two savings: what a crash may cost is replayed from the engines.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// Handle on the listening threads; cheap to clone.
#[derive(Clone)]
pub struct Feeds {
    shared: Arc<Shared>,
}

struct Shared {
    /// A worker belongs to the listener that its slot names.
    listeners: Vec<Post>,
    reports: Reports,
    fleet: Fleet,
    clock: Clock,
    tasks: TaskGroup,
    /// Running questions, by slot.
    polls: Mutex<HashMap<u32, CancellationToken>>,
    warm: Warm,
    snapshot: Mutex<Option<SnapshotReport>>,
}

/// Where the snapshot file stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SnapshotReport {
    /// As configured.
    pub path: PathBuf,
    /// Feeds in the file that was found at the start.
    pub loaded_feeds: usize,
    /// Why it was refused, or why the last saving failed.
    pub problem: Option<String>,
    /// Feeds saved last.
    pub saved_feeds: usize,
    /// When, ms on the gateway's clock.
    pub saved_at_ms: Option<u64>,
}

/// Where orders for one listening thread go.
#[derive(Clone)]
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
        let (room, stop, warm) = (Room::of_process(), Arc::new(AtomicBool::new(false)), Warm::default());
        let mut end = EndOfThreads { stop: stop.clone(), wakers: Vec::new() };
        let mut listeners = Vec::new();
        for number in 0..std::thread::available_parallelism().map_or(1, usize::from).min(MAX_LISTENERS) {
            let poll = Poll::new().map_err(|error| failed(&error))?;
            let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(|error| failed(&error))?);
            let (orders, inbox) = mpsc::channel(MAX_QUEUED_ORDERS);
            let parts = (fleet.clone(), clock, reports.clone(), room.clone(), warm.clone());
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
        let (polls, snapshot, tasks) = (Mutex::default(), Mutex::default(), tasks.child());
        Ok(Self { shared: Arc::new(Shared { listeners, reports, fleet, clock, tasks, polls, warm, snapshot }) })
    }

    /// Takes up what was saved at `path`, and saves there every minute from now on. A file that cannot be used is refused
    /// with its reason; then every feed starts cold.
    pub async fn remember(&self, path: PathBuf) {
        let (from, key) = (path.clone(), self.shared.fleet.hash_key().clone());
        let read = tokio::task::spawn_blocking(move || Warm::read(&from, &key));
        let mut report = SnapshotReport { path, ..SnapshotReport::default() };
        match read.await {
            Ok(Ok(warm)) => {
                report.loaded_feeds = warm.len();
                self.shared.warm.fill(warm);
            }
            Ok(Err(error)) => report.problem = Some(error.to_string()),
            Err(error) => report.problem = Some(error.to_string()),
        }
        if let Some(problem) = &report.problem {
            tracing::warn!(problem, "routing.snapshot_file is not used: the caches of all engines start unknown");
        }
        *self.shared.snapshot.lock() = Some(report);
        let feeds = self.clone();
        self.shared.tasks.spawn("save feeds", async move {
            loop {
                sleep(SAVE_EVERY).await;
                feeds.save().await;
            }
        });
    }

    /// Saves what is known, if there is a file for it: also at the end.
    pub async fn save(&self) {
        let Some(path) = self.shared.snapshot.lock().as_ref().map(|report| report.path.clone()) else { return };
        let mut parts = Vec::new();
        for post in &self.shared.listeners {
            let (reply, answer) = oneshot::channel();
            post.send(Order::Save { reply }).await;
            parts.append(&mut answer.await.unwrap_or_default());
        }
        let saved_feeds = parts.len();
        let written = tokio::task::spawn_blocking(move || warm::write(&path, &parts)).await;
        let problem = match written {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = &problem {
            tracing::warn!(problem, "routing.snapshot_file cannot be written");
        }
        if let Some(report) = self.shared.snapshot.lock().as_mut() {
            (report.saved_feeds, report.saved_at_ms) = (saved_feeds, Some(self.shared.clock.now_ms()));
            report.problem = problem;
        }
    }

    /// Where the snapshot file stands; `None` without one.
    pub fn snapshot(&self) -> Option<SnapshotReport> {
        self.shared.snapshot.lock().clone()
    }

    /// Listens for one worker, in place of what was listened to for its slot.
    pub(crate) async fn add(&self, spec: FeedSpec) {
        let slot = spec.handle.slot;
        let question = match (&spec.events, &spec.peer) {
            (Attach::Poll(path), Some(peer)) => {
                Some(poll::ask(peer.clone(), path.clone(), slot, self.post(slot).clone()))
            }
            _ => None,
        };
        self.stop_polling(slot);
        self.post(slot).send(Order::Add(Box::new(spec))).await;
        if let Some(question) = question {
            let stop = CancellationToken::new();
            self.shared.polls.lock().insert(slot, stop.clone());
            self.shared.tasks.spawn("poll kv events", async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = question => {}
                }
            });
        }
    }

    /// Stops listening for one worker, whatever its feed is waiting for.
    pub(crate) async fn remove(&self, handle: &Handle) {
        self.stop_polling(handle.slot);
        self.post(handle.slot).send(Order::Remove { slot: handle.slot }).await;
    }

    /// Which process the engine is, where it has a name.
    pub(crate) async fn set_process(&self, handle: &Handle, process: Option<String>) {
        self.post(handle.slot).send(Order::Process { slot: handle.slot, process }).await;
    }

    /// Where every feed stands, ordered by worker.
    pub fn reports(&self) -> Vec<FeedReport> {
        let mut all: Vec<_> = self.shared.reports.all();
        all.sort_by(|a, b| a.worker.cmp(&b.worker));
        all
    }

    fn stop_polling(&self, slot: u32) {
        if let Some(stop) = self.shared.polls.lock().remove(&slot) {
            stop.cancel();
        }
    }

    fn post(&self, slot: u32) -> &Post {
        &self.shared.listeners[slot as usize % self.shared.listeners.len()]
    }
}

impl Post {
    /// Neither fails but at the end of the process.
    async fn send(&self, order: Order) {
        let _ = self.orders.send(order).await;
        let _ = self.waker.wake();
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
