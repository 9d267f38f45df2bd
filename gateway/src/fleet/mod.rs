//! fleet: who is there, what they hold and what is in flight.
//!
//! One owner task applies [`FleetEvent`]s and publishes an `Arc<FleetView>` by atomic swap. Reservations are atomics
//! per worker, read at decision time beside the view, so that two decisions between two publications see each other.

use forebay_routing::index::PrefixIndex;
use forebay_routing::view::EngineLoad;
use forebay_routing::{FleetView, LocalLoad, WorkerId};
use std::sync::Arc;

/// Handle shared by every request; cheap to clone.
#[derive(Clone)]
pub struct Fleet {}

/// Where a worker is reached; fixed for the life of its [`WorkerId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Base URL as configured, for logs and `/workers`.
    pub url: String,
    /// `host:port` for `Host` and connection pools.
    pub authority: String,
    /// Resolved address.
    pub address: std::net::SocketAddr,
    /// Sent as `X-data-parallel-rank`.
    pub rank: Option<u16>,
}

/// What a finished or failed exchange teaches the fleet.
#[derive(Clone, Debug, PartialEq)]
pub enum Feedback {
    /// The exchange reached its end.
    Served {
        /// Prompt tokens by the engine's count.
        prompt_tokens: u32,
        /// Prompt tokens served from its cache, where it said so.
        cached_tokens: Option<u32>,
        /// Time to first token.
        ttft_ms: f64,
        /// Mean inter-token latency.
        itl_ms: Option<f64>,
        /// What was in flight at the worker when this was dispatched.
        load: LocalLoad,
    },
    /// Connect refused or timed out.
    ConnectFailed,
    /// Reset or cut before the end.
    Broken,
    /// Answered with this status ≥ 500.
    Status(u16),
    /// 429 or 503: busy, not broken.
    BackPressure,
}

impl Fleet {
    /// The present view.
    pub fn view(&self) -> Arc<FleetView> {
        unimplemented!()
    }

    /// The shared index.
    pub fn index(&self) -> &PrefixIndex {
        unimplemented!()
    }

    /// Own loads parallel to `view.workers`.
    pub fn local_loads(&self, _view: &FleetView, _out: &mut Vec<LocalLoad>) {
        unimplemented!()
    }

    /// Where `worker` is reached; `None` once it was removed.
    pub fn endpoint(&self, _worker: WorkerId) -> Option<Arc<Endpoint>> {
        unimplemented!()
    }

    /// Counts a request at `worker` until the guard is dropped.
    pub fn reserve(&self, _worker: WorkerId, _prompt_tokens: u32, _uncached_tokens: u32, _n: u32) -> Reservation {
        unimplemented!()
    }

    /// Reports an exchange; never blocks (bounded channel, drops are counted).
    pub fn feedback(&self, _worker: WorkerId, _feedback: Feedback) {
        unimplemented!()
    }

    /// A new reading of an engine's load.
    pub fn report_load(&self, _worker: WorkerId, _load: EngineLoad) {
        unimplemented!()
    }
}

/// One request's share of a worker's load; dropped exactly once on every exit.
pub struct Reservation {}

impl Reservation {
    /// The first token came: prefill work becomes decode work.
    pub fn first_token(&mut self) {
        unimplemented!()
    }

    /// `tokens` more were generated.
    pub fn generated(&mut self, _tokens: u32) {
        unimplemented!()
    }
}
