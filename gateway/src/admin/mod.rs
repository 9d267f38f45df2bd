//! admin: the operators' listener. What the gateway knows, and the few things that may be changed while it runs.
//!
//! | Path | What |
//! |---|---|
//! | `GET /metrics` | Prometheus text |
//! | `GET /workers` | every worker and every engine that is no worker yet, with loads and ages |
//! | `POST /workers` | `{"url":…}` adds an engine: 202 at once, or with `?wait=true` 200 when it serves |
//! | `DELETE /workers` | `{"url":…}` or `?url=…` drains and removes it: 202 |
//! | `GET /status` | version, models, token sources, feeds, configuration, limits hit |
//! | `POST /explain` | a request's body: which worker it would get and why, without sending it |
//! | `GET /healthz` | 200 while the process runs |
//! | `GET /readyz` | 200 while a worker takes traffic and no drain has begun |
//! | others | as other routers call them, see `rivals` |
//!
//! Who may ask: on loopback and on the Unix socket (mode 0600) whoever reaches them, but for `/explain`, which tells whose
//! prompts are cached where and asks for an operator's key wherever keys are configured; beyond loopback everything but the
//! two probes asks for one, and the configuration refuses such an address without keys.
//!
//! Invariants: requests from a browser are refused, because a page of any origin can reach a loopback port; a worker is
//! only taken from `admin.allow_workers`; connections, heads, bodies and waits are bounded. Failure: an error in OpenAI's shape, never a closed connection without a word.

mod explain;
mod reply;
mod rivals;
mod routes;
mod server;
mod status;
mod workers;

pub use explain::{Candidate, Explanation};
pub use server::{start, start_socket};

use crate::clock::Clock;
use crate::config::reload::Reloader;
use crate::discover::Discovery;
use crate::serve::Gateway;
use crate::signal::cache_events::Feeds;
use forebay_routing::view::WorkerState;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Everything that the handlers read or change.
pub struct Console {
    /// Fleet, tokenizers, metrics, configuration as started.
    pub gateway: Arc<Gateway>,
    /// Where workers are added and removed.
    pub discovery: Discovery,
    /// Where event feeds stand.
    pub feeds: Feeds,
    /// The configuration in force.
    pub reloader: Arc<Reloader>,
    /// The configuration file, where there is one.
    pub file: Option<PathBuf>,
    /// Time.
    pub clock: Clock,
}

impl Console {
    /// From now on `/readyz` says no, so that load balancers send nobody more.
    pub fn start_drain(&self) {
        self.gateway.draining.store(true, Ordering::Release);
    }

    fn is_draining(&self) -> bool {
        self.gateway.draining.load(Ordering::Acquire)
    }

    /// Whether anybody takes traffic.
    pub fn has_ready_worker(&self) -> bool {
        self.gateway.fleet.view().workers.iter().any(|worker| worker.state == WorkerState::Ready)
    }
}
