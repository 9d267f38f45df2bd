//! Background work that drain waits for. Nothing in the gateway is spawned outside a group.

use std::future::Future;
use tokio::time::Duration;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// A named set of tasks with one cancellation signal.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
    tracker: TaskTracker,
    cancel: CancellationToken,
}

impl TaskGroup {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// A group that is cancelled with this one but may be cancelled alone (one worker's tasks, say).
    pub fn child(&self) -> Self {
        Self { tracker: self.tracker.clone(), cancel: self.cancel.child_token() }
    }

    /// Runs `work` until it ends or the group is cancelled. Must be called inside a tokio runtime.
    pub fn spawn(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => tracing::debug!(task = name, "cancelled"),
                () = work => tracing::debug!(task = name, "ended"),
            }
        });
    }

    /// The signal itself, for loops that must tidy up.
    pub fn token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Cancels every task of this group.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Cancels and waits; `false` when `deadline` passed with tasks still running.
    pub async fn drain(&self, deadline: Duration) -> bool {
        self.cancel.cancel();
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }
}
