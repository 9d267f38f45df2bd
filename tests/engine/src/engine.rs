//! An engine and its lives.
//!
//! A life is what a process is to a real engine: listener, ranks, event sockets, counters. A restart ends it (every
//! connection breaks, the cache is lost) and, after the down time, begins another on the same ports. Faults outlive it.
//! All tasks of a life are tracked and waited for.

use crate::clock::{self, Clock};
use crate::config::{EngineConfig, EngineError};
use crate::events::{EventConfig, Publisher, resolve_endpoint};
use crate::fault::{Fault, FaultBoard};
use crate::model::{Load, Model};
use crate::rank::Rank;
use crate::serve::{self, Flavor};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A port freed by a restart may take this long to be free.
const BIND_PATIENCE: Duration = Duration::from_secs(5);
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// Restarts that may wait; one is being served, more make no sense.
const RESTART_QUEUE: usize = 1;

/// What the connections of one life share.
pub(crate) struct Life {
    pub(crate) config: EngineConfig,
    pub(crate) address: SocketAddr,
    pub(crate) ranks: Vec<Arc<Rank>>,
    pub(crate) faults: Arc<FaultBoard>,
    pub(crate) started_unix_s: f64,
    /// Restarts before this life.
    pub(crate) restarts: u64,
    /// Inference calls being answered.
    pub(crate) in_flight: AtomicUsize,
    /// Inference calls accepted.
    pub(crate) served: AtomicU64,
    pub(crate) tokenize_calls: AtomicU64,
    /// Prompts that came as ids.
    pub(crate) given_prompts: AtomicU64,
    restart: mpsc::Sender<Restart>,
    /// Ends all that belongs to this life.
    pub(crate) end: CancellationToken,
}

/// A wish to begin anew.
#[derive(Debug)]
struct Restart {
    down: Duration,
    done: Option<oneshot::Sender<()>>,
}

impl Life {
    /// Asks for a restart; the life ends as soon as the supervisor hears of it.
    pub(crate) fn ask_restart(&self, down: Duration) -> bool {
        self.restart.try_send(Restart { down, done: None }).is_ok()
    }

    /// The rank with the least to do.
    pub(crate) fn idlest_rank(&self) -> Arc<Rank> {
        let weigh = |rank: &&Arc<Rank>| {
            let load = rank.load();
            load.waiting * 4 + load.running
        };
        self.ranks.iter().min_by_key(weigh).unwrap_or(&self.ranks[0]).clone()
    }
}

/// A running engine. Dropping it stops the engine without waiting; [`EngineHandle::stop`] waits.
pub struct EngineHandle {
    address: SocketAddr,
    current: Arc<parking_lot::RwLock<Arc<Life>>>,
    faults: Arc<FaultBoard>,
    restart: mpsc::Sender<Restart>,
    stop: CancellationToken,
    supervisor: TaskTracker,
}

impl EngineHandle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// PUB and replay endpoint of `rank`, as bound.
    pub fn event_endpoints(&self, rank: usize) -> Option<(String, Option<String>)> {
        self.current.read().ranks.get(rank)?.endpoints.clone()
    }

    /// Replaces all faults.
    pub fn set_faults(&self, faults: Vec<Fault>) -> Result<(), String> {
        self.faults.replace(faults)
    }

    /// Ends this life and begins the next after `down`; returns when it answers again.
    pub async fn restart(&self, down: Duration) {
        let (done, ready) = oneshot::channel();
        if self.restart.send(Restart { down, done: Some(done) }).await.is_ok() {
            // An error means that the engine was stopped meanwhile.
            let _ = ready.await;
        }
    }

    /// Load of `rank` as a scrape sees it: what the step under way works on.
    pub fn load(&self, rank: usize) -> Load {
        self.current.read().ranks[rank].load()
    }

    /// What `rank` holds at this instant, a step under way or not. For tests that wait for blocks to be free.
    pub fn model_load(&self, rank: usize) -> Load {
        self.current.read().ranks[rank].model_load()
    }

    /// Inference calls accepted in this life.
    pub fn served(&self) -> u64 {
        self.current.read().served.load(Ordering::Relaxed)
    }

    /// Prompts that came as ids in this life.
    pub fn given_prompts(&self) -> u64 {
        self.current.read().given_prompts.load(Ordering::Relaxed)
    }

    /// Inference calls being answered.
    pub fn in_flight(&self) -> usize {
        self.current.read().in_flight.load(Ordering::Relaxed)
    }

    /// Requests aborted in this life, because their client left.
    pub fn aborted(&self) -> u64 {
        self.current.read().ranks.iter().map(|rank| rank.with_metrics(|m| m.aborted)).sum()
    }

    /// Stops listening, breaks every connection, closes the event sockets.
    pub async fn stop(self) {
        self.stop.cancel();
        self.supervisor.wait().await;
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Starts an engine; it listens when this returns.
pub async fn start(config: EngineConfig) -> Result<EngineHandle, EngineError> {
    if config.ranks == 0 {
        return Err(EngineError::Config("at least one data-parallel rank".to_owned()));
    }
    let has_port = |events: &EventConfig| {
        events.endpoint.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    if config.flavor == Flavor::Sglang && config.ranks > 1 && !config.events.as_ref().is_none_or(has_port) {
        let why = "SGLang names the port of its first rank alone: give its event endpoint a port";
        return Err(EngineError::Config(why.to_owned()));
    }
    let faults = Arc::new(FaultBoard::new(Vec::new(), config.seed));
    faults.replace(config.faults.clone()).map_err(EngineError::Config)?;
    let (restart, restarts) = mpsc::channel(RESTART_QUEUE);
    let ports = Ports { address: format!("{}:{}", config.host, config.port), events: Vec::new() };
    let (life, listener, ports) = begin(config, &faults, &restart, ports, 0).await?;
    let supervisor = TaskTracker::new();
    let stop = CancellationToken::new();
    let current = Arc::new(parking_lot::RwLock::new(life.clone()));
    let handle = EngineHandle {
        address: life.address,
        current: current.clone(),
        faults: faults.clone(),
        restart: restart.clone(),
        stop: stop.clone(),
        supervisor: supervisor.clone(),
    };
    let supervision = Supervision { faults, restart, restarts, stop, current, ports };
    supervisor.spawn(supervision.run(life, listener));
    supervisor.close();
    Ok(handle)
}

/// Where an engine lives: asked for at first, what was got later.
#[derive(Clone)]
struct Ports {
    address: String,
    events: Vec<(String, Option<String>)>,
}

struct Supervision {
    faults: Arc<FaultBoard>,
    restart: mpsc::Sender<Restart>,
    restarts: mpsc::Receiver<Restart>,
    stop: CancellationToken,
    current: Arc<parking_lot::RwLock<Arc<Life>>>,
    ports: Ports,
}

impl Supervision {
    async fn run(mut self, mut life: Arc<Life>, mut listener: TcpListener) {
        loop {
            let tracker = TaskTracker::new();
            for rank in &life.ranks {
                let (end, drive) = (life.end.clone(), rank.clone().drive());
                tracker.spawn(async move { end.run_until_cancelled(drive).await });
            }
            tracker.spawn(serve::accept_all(life.clone(), listener, tracker.clone()));
            let wish = tokio::select! {
                () = self.stop.cancelled() => None,
                wish = self.restarts.recv() => wish,
            };
            life.end.cancel();
            tracker.close();
            tracker.wait().await;
            close_events(&life).await;
            let Some(wish) = wish else { return };
            let (config, count) = (life.config.clone(), life.restarts + 1);
            if self.stop.run_until_cancelled(tokio::time::sleep(wish.down)).await.is_none() {
                return;
            }
            (life, listener) = match self.revive(config, count).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::error!(%error, "restart failed; this engine is gone");
                    return;
                }
            };
            if let Some(done) = wish.done {
                // Nobody waits any more: fine.
                let _ = done.send(());
            }
        }
    }

    async fn revive(&mut self, config: EngineConfig, count: u64) -> Result<(Arc<Life>, TcpListener), EngineError> {
        let (life, listener, ports) = begin(config, &self.faults, &self.restart, self.ports.clone(), count).await?;
        self.ports = ports;
        *self.current.write() = life.clone();
        Ok((life, listener))
    }
}

/// Closes the sockets of all ranks, off the async threads because it waits for them.
async fn close_events(life: &Arc<Life>) {
    let ranks = life.ranks.clone();
    let closed = tokio::task::spawn_blocking(move || ranks.iter().for_each(|rank| rank.close_events())).await;
    if let Err(error) = closed {
        tracing::error!(%error, "closing the KV event sockets");
    }
}

async fn open_events(config: EventConfig, faults: Arc<FaultBoard>) -> Result<Publisher, EngineError> {
    let opened = tokio::task::spawn_blocking(move || Publisher::start(config, faults)).await;
    opened.map_err(|e| EngineError::Events(e.to_string()))?.map_err(EngineError::Events)
}

/// Opens everything that a life needs.
async fn begin(
    config: EngineConfig,
    faults: &Arc<FaultBoard>,
    restart: &mpsc::Sender<Restart>,
    ports: Ports,
    restarts: u64,
) -> Result<(Arc<Life>, TcpListener, Ports), EngineError> {
    let listener = bind(&ports.address, if restarts > 0 { BIND_PATIENCE } else { Duration::ZERO }).await?;
    let listen_error = |source| EngineError::Listen { address: ports.address.clone(), source };
    let address = listener.local_addr().map_err(listen_error)?;
    let clock = Clock::start();
    let mut ranks = Vec::new();
    for index in 0..config.ranks {
        let model = Model::new(config.limits.clone(), config.curve.clone(), config.speedup);
        let model = model.map_err(|e| EngineError::Config(e.to_string()))?;
        let publisher = match &config.events {
            Some(events) => {
                let at = rank_events(events, &config, index, ports.events.get(index as usize));
                let at = at.map_err(EngineError::Events)?;
                Some(open_events(at, faults.clone()).await?)
            }
            None => None,
        };
        ranks.push(Rank::new(index, model, clock, publisher));
    }
    let events = ranks.iter().filter_map(|rank| rank.endpoints.clone()).collect();
    let ports = Ports { address: address.to_string(), events };
    let life = Life {
        config,
        address,
        ranks,
        faults: faults.clone(),
        started_unix_s: clock::unix_seconds(),
        restarts,
        in_flight: AtomicUsize::new(0),
        served: AtomicU64::new(0),
        tokenize_calls: AtomicU64::new(0),
        given_prompts: AtomicU64::new(0),
        restart: restart.clone(),
        end: CancellationToken::new(),
    };
    Ok((Arc::new(life), listener, ports))
}

/// Endpoints of one rank: as configured the first time, where they were before after a restart.
fn rank_events(
    events: &EventConfig,
    config: &EngineConfig,
    rank: u32,
    before: Option<&(String, Option<String>)>,
) -> Result<EventConfig, String> {
    let ranks = config.ranks as u16;
    let offset = config.index.saturating_mul(ranks).saturating_add(rank as u16);
    let resolve = |endpoint: &str| resolve_endpoint(endpoint, &config.host, offset);
    let bound =
        |endpoint: &String| if endpoint.starts_with("tcp://") { format!("@{endpoint}") } else { endpoint.clone() };
    let first = resolve(&events.endpoint)?;
    // What was connected, not bound, is connected again.
    let connects = !first.starts_with('@') && !first.contains('*');
    let (endpoint, replay_endpoint) = match before {
        Some((endpoint, replay)) if !connects => (bound(endpoint), replay.as_ref().map(bound)),
        _ => (first, events.replay_endpoint.as_deref().map(resolve).transpose()?),
    };
    Ok(EventConfig { endpoint, replay_endpoint, ..events.clone() })
}

async fn bind(address: &str, patience: Duration) -> Result<TcpListener, EngineError> {
    let mut waited = Duration::ZERO;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && waited < patience => {
                tokio::time::sleep(BIND_PAUSE).await;
                waited += BIND_PAUSE;
            }
            Err(source) => return Err(EngineError::Listen { address: address.to_owned(), source }),
        }
    }
}
