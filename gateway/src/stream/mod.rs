//! stream: upstream bytes → client bytes.
//!
//! ```text
//! engine ─ read ─► Body (framing) ─► Events (whole frames, what they say) ─► one write to the client per read
//!                                └─► bytes as they are (whole JSON answers, unknown paths)
//! ```
//!
//! An answer is read in one of three ways ([`Reading`]). Nothing is delayed by a timer and nothing is merged: what one read
//! brought goes out in one write, before the next read. Memory per stream is one read and one unfinished frame.
//!
//! Commit. Until [`hold`] returns, the client has got nothing and another engine may be tried. A stream commits with the
//! first event that carries output (content, a tool delta, a finish); head, role-only and comment frames before it are
//! held, at most [`MAX_HELD_EVENTS`] bytes. A whole answer commits when it is complete, or when it is larger than
//! [`MAX_HELD_WHOLE`]. Any other answer commits with its head.
//!
//! After commit an answer is never cut silently: a stream ends in the error event of its [`Grammar`], anything else in a
//! connection that closes before the announced end.

mod client;
mod deadline;
mod drain;
mod events;
mod grammar;
mod hold;
mod http2;
mod relay;
mod socket;
mod usage;

pub use client::{Client, Interrupt};
pub use deadline::Deadline;
pub use drain::Stages;
pub use events::Events;
pub use grammar::Grammar;
pub use hold::hold;
pub use http2::{Endings, Pipe};
pub use relay::{End, relay};
pub(crate) use socket::KEEPALIVE;
pub use socket::{Peer, Rewound, Socket};
pub use usage::Usage;

pub(crate) use client::poll_read_buf;
pub(crate) use drain::{Drain, Stage, stopping};

use crate::http1::ResponseHead;
use tokio::time::Instant;

/// Bytes of frames without output that are held before a stream commits without any.
pub const MAX_HELD_EVENTS: usize = 4 * 1024;
/// Bytes of a whole answer that are held so that a cut can still be retried; larger answers are streamed.
pub const MAX_HELD_WHOLE: usize = 1024 * 1024;

/// What becomes of a client's connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It takes another.
    Keep,
    /// It ends, once what was written has been taken.
    Close,
    /// It ends at once and so that the client cannot take the answer for complete.
    Abort,
}

/// How the answer to a request is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A stream of events; `strip_usage` takes out the usage frame that the client did not ask for.
    Events {
        /// Take the usage frame out.
        strip_usage: bool,
    },
    /// One JSON document.
    Whole,
    /// Unknown: passed on as it comes.
    Through,
}

/// How far an answer has been read, and what was seen in it.
pub struct Progress {
    pub(crate) reading: Reading,
    /// Frames or body bytes read and not yet sent.
    pub(crate) held: Vec<u8>,
    pub(crate) events: Events,
    /// When the first and the latest output came.
    pub first_output: Option<Instant>,
    /// When the latest output came.
    pub last_output: Option<Instant>,
}

impl Progress {
    /// At the start of the body that follows `head`.
    pub fn new(wanted: Reading, grammar: Grammar, head: &ResponseHead) -> Self {
        let success = (200..300).contains(&head.status);
        // An engine says what it sends: an error answers a stream request with JSON.
        let reading = match wanted {
            // A route that an engine lacks is told in the client's own dialect, once all of that is read.
            Reading::Events { .. } | Reading::Whole if head.status == 404 && !head.event_stream => Reading::Whole,
            Reading::Events { .. } | Reading::Whole if !success => Reading::Through,
            Reading::Events { .. } if head.event_stream => wanted,
            Reading::Whole if head.event_stream => Reading::Events { strip_usage: false },
            Reading::Events { .. } => Reading::Whole,
            Reading::Whole | Reading::Through => wanted,
        };
        let strip = matches!(reading, Reading::Events { strip_usage: true });
        Self { reading, held: Vec::new(), events: Events::new(grammar, strip), first_output: None, last_output: None }
    }

    /// Tokens by the engine's count, where it gave one.
    pub fn usage(&self) -> Option<Usage> {
        self.events.usage
    }

    /// Generated tokens: the engine's count, else the frames with output.
    pub fn output_tokens(&self) -> u32 {
        self.usage().and_then(|usage| usage.completion_tokens).unwrap_or(self.events.outputs)
    }

    /// Mean time between outputs, ms.
    pub fn itl_ms(&self) -> Option<f64> {
        let gaps = self.output_tokens().checked_sub(1).filter(|gaps| *gaps > 0)?;
        let span = self.last_output?.checked_duration_since(self.first_output?)?;
        (self.events.outputs > 1).then(|| span.as_secs_f64() * 1e3 / f64::from(gaps))
    }

    /// Notes output that came at `now`.
    pub(crate) fn stamp(&mut self, now: Instant) {
        self.first_output.get_or_insert(now);
        self.last_output = Some(now);
    }
}

#[cfg(test)]
mod tests;
