//! The two stages of stopping: asked to, and out of time.

use crate::error::Fault;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::Duration;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Signals that every connection of one listener watches.
#[derive(Clone, Debug, Default)]
pub struct Stages {
    started: CancellationToken,
    over: CancellationToken,
}

impl Stages {
    /// Idle connections end, answers say `Connection: close`.
    pub fn start(&self) {
        self.started.cancel();
    }

    /// Whatever still runs is cut.
    pub fn end(&self) {
        self.started.cancel();
        self.over.cancel();
    }

    /// A connection's view of both.
    pub(crate) fn watch(&self) -> Drain {
        let wait = |token: &CancellationToken| Box::pin(token.clone().cancelled_owned());
        Drain { started: wait(&self.started), over: wait(&self.over), has_started: self.started.clone() }
    }
}

/// How far stopping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing new is taken.
    Started,
    /// What still runs is cut.
    Over,
}

/// One connection's registration with both stages, made once: polling it again costs a comparison of wakers.
pub(crate) struct Drain {
    started: Pin<Box<WaitForCancellationFutureOwned>>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    has_started: CancellationToken,
}

impl Drain {
    pub(super) fn has_started(&self) -> bool {
        self.has_started.is_cancelled()
    }

    /// Waits for the next stage; one that `has_stopped` taking requests knows of the first.
    pub(crate) async fn next(&mut self, has_stopped: bool) -> Stage {
        std::future::poll_fn(|cx| {
            if self.poll_over(cx).is_ready() {
                return Poll::Ready(Stage::Over);
            }
            if has_stopped { Poll::Pending } else { self.poll_started(cx).map(|()| Stage::Started) }
        })
        .await
    }

    pub(super) fn poll_started(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_started() { Poll::Ready(()) } else { self.started.as_mut().poll(cx) }
    }

    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.over.as_mut().poll(cx)
    }
}

/// The fault of a request that the end of the drain cuts.
pub(crate) fn stopping() -> Fault {
    let mut fault = Fault::gateway(503, "stopping", "the gateway is shutting down; send the request again");
    fault.retry_after = Some(Duration::from_secs(1));
    fault
}
