//! Counted limits of the clients' side: connections and buffered bytes.

use crate::config::resolved::Listen;
use crate::error::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::Duration;

/// Faults that say that a limit was hit, by code, and the limit's name: the label of `forebay_limit_hits_total`.
pub const FAULTS: [(&str, &str); 20] = [
    ("queue_full", "upstream.max_queue"),
    ("queue_timeout", "upstream.queue_timeout"),
    ("header_too_large", "listen.max_header_bytes"),
    ("header_timeout", "listen.header_timeout"),
    ("body_too_large", "listen.max_body_bytes"),
    ("body_timeout", "listen.body_timeout"),
    ("buffers_full", "listen.max_buffered_bytes"),
    ("too_many_connections", "listen.max_connections"),
    ("client_stalled", "listen.write_timeout"),
    ("upstream_timeout", "upstream.first_byte_timeout"),
    ("too_many_completions", "requests.max_completions"),
    ("too_many_logprobs", "requests.max_logprobs"),
    ("template_denied", "requests.allow_chat_template"),
    ("embeds_denied", "requests.allow_embeds"),
    ("transfer_denied", "requests.allow_transfer_fields"),
    ("processor_denied", "requests.allow_logit_processors"),
    ("media_denied", "requests.media"),
    ("too_many_media", "requests.max_media"),
    ("regex_too_large", "requests.max_regex_bytes"),
    ("grammar_too_large", "requests.max_grammar_bytes"),
];

/// Shared by every connection of one gateway.
#[derive(Clone, Debug)]
pub struct Limits {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connections: AtomicUsize,
    max_connections: usize,
    serving: AtomicUsize,
    buffered: AtomicUsize,
    max_buffered: usize,
    /// Wakes whoever waits for the last connection to end.
    idle: tokio::sync::Notify,
}

impl Limits {
    /// Limits as configured.
    pub fn new(listen: &Listen) -> Self {
        let shared = Shared {
            connections: AtomicUsize::new(0),
            max_connections: listen.max_connections,
            serving: AtomicUsize::new(0),
            buffered: AtomicUsize::new(0),
            max_buffered: listen.max_buffered_bytes,
            idle: tokio::sync::Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Counts one connection until the slot is dropped; `None` when `max_connections` are open.
    pub fn connect(&self) -> Option<Slot> {
        let slot = Slot { shared: self.shared.clone() };
        let before = self.shared.connections.fetch_add(1, Ordering::AcqRel);
        (before < self.shared.max_connections).then_some(slot)
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Counts one request until the guard is dropped.
    pub fn serve(&self) -> Serving {
        self.shared.serving.fetch_add(1, Ordering::Relaxed);
        Serving { shared: self.shared.clone() }
    }

    /// Requests being served.
    pub fn serving(&self) -> usize {
        self.shared.serving.load(Ordering::Relaxed)
    }

    /// Bytes of bodies held at present.
    pub fn buffered(&self) -> usize {
        self.shared.buffered.load(Ordering::Acquire)
    }

    /// Waits until no connection is open.
    pub async fn idle(&self) {
        loop {
            let notified = self.shared.idle.notified();
            if self.connections() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// An empty share of the buffered bytes.
    pub fn share(&self) -> Share {
        Share { shared: self.shared.clone(), bytes: 0 }
    }
}

/// One counted connection.
#[derive(Debug)]
pub struct Slot {
    shared: Arc<Shared>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.shared.connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.idle.notify_waiters();
        }
    }
}

/// One request being served.
#[derive(Debug)]
pub struct Serving {
    shared: Arc<Shared>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shared.serving.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Buffered bytes of one request, given back on drop.
#[derive(Debug)]
pub struct Share {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Share {
    /// Adds `bytes`; 503 with `Retry-After` when all bodies together would pass `max_buffered_bytes`.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Fault> {
        let before = self.shared.buffered.fetch_add(bytes, Ordering::AcqRel);
        if before.saturating_add(bytes) > self.shared.max_buffered {
            self.shared.buffered.fetch_sub(bytes, Ordering::AcqRel);
            let message = format!(
                "the gateway holds {before} bytes of bodies and this one would pass its limit of {} \
                 (listen.max_buffered_bytes); try again shortly",
                self.shared.max_buffered
            );
            let mut fault = Fault::gateway(503, "buffers_full", message);
            fault.retry_after = Some(Duration::from_secs(1));
            return Err(fault);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Gives everything back early.
    pub fn release(&mut self) {
        self.shared.buffered.fetch_sub(std::mem::take(&mut self.bytes), Ordering::AcqRel);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}
