//! What discovery and the feeds tell the fleet of a worker: that it came, where it is, what it is, that it went.
//!
//! None of it is dropped: who tells waits for room in the owner's channel.

use super::{Endpoint, Event, Facts, Fleet, Handle, JoinError};
use forebay_routing::WorkerId;
use forebay_routing::event::{ServedName, WorkerKey};
use forebay_routing::view::{CacheKnowledge, FabricLoad};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// What a node agent says of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelReport {
    /// Connections that await an answer, and on which one is being sent, whoever's they are; `None` when it does not say so now.
    pub at_work: Option<(u32, u32)>,
    /// Bytes that the engine has not read.
    pub unread_bytes: u64,
    /// Whether its accept queue is full.
    pub queue_is_full: bool,
    /// The node's fabric.
    pub fabric: Option<FabricLoad>,
    /// When it was so, ms.
    pub at_ms: u64,
    /// How long it means something, ms.
    pub good_for_ms: u64,
}

impl Fleet {
    /// A new report of a node agent; what is this gateway's own of it is taken off as it is now.
    pub fn report_kernel(&self, worker: WorkerId, report: KernelReport) {
        self.report(Event::Kernel { worker, report });
    }

    /// Adds one worker, state `Starting`, or takes up the one of the same key, be it on its way out. `probe` is rung when
    /// it is ejected and due its one check.
    pub(crate) async fn join(
        &self,
        key: WorkerKey,
        block_size: Option<u32>,
        probe: Arc<Notify>,
    ) -> Result<Arc<Handle>, JoinError> {
        let (reply, answer) = oneshot::channel();
        self.tell(Event::Join { key, block_size, probe, reply }).await;
        answer.await.unwrap_or(Err(JoinError::Closed))
    }

    /// Where the worker is; a changed address means another process, hence a new generation.
    pub(crate) async fn locate(&self, handle: &Handle, endpoint: Endpoint) {
        let moved = handle.endpoint.load().as_ref().is_some_and(|before| before.address != endpoint.address);
        if moved {
            self.restart(handle.id()).await;
        }
        handle.endpoint.store(Some(Arc::new(endpoint)));
    }

    /// The engine behind `worker` is proven to have restarted: its entries vanish and its generation moves on, unless
    /// somebody proved the same before.
    pub(crate) async fn restart(&self, worker: WorkerId) {
        self.shared.index.forget(worker);
        let (reply, done) = oneshot::channel();
        self.tell(Event::Restart { worker, reply }).await;
        // An owner that is gone answers nothing; then nothing routes by generations either.
        let _ = done.await;
    }

    /// What was asked of the engine.
    pub(crate) async fn learn(&self, handle: &Handle, facts: Facts) {
        self.tell(Event::Learned { worker: handle.id(), facts: Box::new(facts) }).await;
    }

    /// Its aliases and adapters, where they changed.
    pub(crate) async fn learn_names(&self, handle: &Handle, names: Vec<ServedName>) {
        self.tell(Event::Names { worker: handle.id(), names }).await;
    }

    /// The outcome of a health check that began at `started_ms`.
    pub(crate) async fn checked(&self, handle: &Handle, outcome: Result<(), String>, started_ms: u64) {
        self.tell(Event::Checked { worker: handle.id(), outcome, started_ms }).await;
    }

    /// Takes a worker out: nothing new goes there, what runs there finishes, then the slot is free.
    pub(crate) async fn leave(&self, handle: &Handle) {
        self.tell(Event::Leave { worker: handle.id() }).await;
    }

    /// How the worker's cache is known from now on. From the feed thread: waits for room.
    pub(crate) fn report_cache(&self, worker: WorkerId, knowledge: CacheKnowledge) {
        self.tell_blocking(Event::Cache { worker, knowledge });
    }

    /// The block size that the worker's events carry. From the feed thread: waits for room.
    pub(crate) fn report_block_size(&self, worker: WorkerId, block_size: u32) {
        self.tell_blocking(Event::BlockSize { worker, block_size });
    }

    /// [`Fleet::restart`] from the feed thread: waits for the owner, which never waits for a feed.
    pub(crate) fn restart_blocking(&self, worker: WorkerId) {
        self.shared.index.forget(worker);
        let (reply, done) = oneshot::channel();
        self.tell_blocking(Event::Restart { worker, reply });
        let _ = done.blocking_recv();
    }
}
