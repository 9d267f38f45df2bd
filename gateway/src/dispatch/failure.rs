//! What can go wrong with an exchange before its answer is committed.

use crate::error::Fault;
use crate::fleet::Feedback;

/// Why an attempt brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The worker is no longer known.
    Removed,
    /// Connect refused, unreachable or timed out: nothing was sent.
    Unreachable,
    /// Closed or reset before the first byte of an answer.
    Closed,
    /// No first byte, or no further one, within its deadline.
    Late,
    /// The engine was found dead while its answer was awaited: it failed its health checks, or another process took its place.
    Lost,
    /// Answered something that is not HTTP/1.1.
    Garbage,
    /// The answer was cut before it was committed.
    Cut,
}

impl Failure {
    /// Trying again costs nothing: no engine has begun to compute, or it is gone with what it computed.
    pub fn is_free(self) -> bool {
        matches!(self, Self::Removed | Self::Unreachable | Self::Closed | Self::Lost)
    }

    /// Nothing of the request has reached an engine.
    pub fn is_unsent(self) -> bool {
        matches!(self, Self::Removed | Self::Unreachable)
    }

    /// What it says about the worker.
    pub fn feedback(self) -> Option<Feedback> {
        match self {
            // Its health checks have said so.
            Self::Removed | Self::Lost => None,
            Self::Unreachable => Some(Feedback::ConnectFailed),
            Self::Closed | Self::Late | Self::Garbage | Self::Cut => Some(Feedback::Broken),
        }
    }

    /// What the client reads when nothing else can be tried. Names no engine.
    pub fn fault(self, attempts: u32) -> Fault {
        let (status, code, what) = match self {
            Self::Removed => (503, "upstream_removed", "the engine was removed while the request was on its way"),
            Self::Unreachable => (502, "upstream_unreachable", "no engine could be reached"),
            Self::Closed => (502, "upstream_closed", "the engine closed the connection before it answered"),
            Self::Late => (504, "upstream_timeout", "the engine did not answer in time"),
            Self::Lost => (502, "upstream_lost", "the engine stopped answering"),
            Self::Garbage => (502, "upstream_garbage", "the engine's answer is not valid HTTP/1.1"),
            Self::Cut => (502, "upstream_cut", "the engine broke off its answer"),
        };
        Fault::worker(status, code, format!("{what} ({attempts} attempted)"))
    }
}
