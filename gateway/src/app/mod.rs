//! app: the whole gateway put together from a configuration, and taken down again.
//!
//! ```text
//! observe ─► tokenize ─► fleet ─► signal ─► discover ─► serve ─► admin ─► accept       (start, in this order)
//!            configuration changes ─► tokenize, discover, policies                   (apply)
//!            engines that introduce themselves ─► token sources, parity              (introduce)
//! accept (drain) ─► background tasks ─► access log                                    (stop)
//! ```
//!
//! Invariants: clients are let in last, so that nothing they meet is half built; whatever runs in the background belongs
//! to one of two task groups, and the access log's ends last so that no line is lost. Failure: a part that cannot be
//! had (a port, a key file) ends the start with a reason and an exit code; an engine that cannot be reached does not.

mod announce;
mod apply;
mod introduce;
mod key;
mod parts;
mod sampled;
mod signals;

pub use key::KeyError;
pub use parts::Parts;
pub use signals::{Signals, Stop};

use crate::accept::{BindError, Drained, Ingress};
use crate::admin::{self, Console};
use crate::cli::Exit;
use crate::clock::Clock;
use crate::config::reload::Reloader;
use crate::config::{Loaded, Sources};
use crate::doors::{Doors, DoorsError};
use crate::error::Fault;
use crate::observe::Observer;
use crate::observe::access::AccessWriter;
use crate::serve::Gateway;
use crate::tasks::TaskGroup;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::time::Duration;

/// For background work to end after the last connection: nothing of it is worth a longer wait.
const TASKS_TIMEOUT: Duration = Duration::from_secs(5);

/// For what is known of caches to be saved: two million memberships take a second.
const SAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// For the access log to be written: a disk that hangs must not keep the process alive.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// A running gateway.
pub struct App {
    console: Arc<Console>,
    ingress: Ingress,
    admin: SocketAddr,
    tasks: TaskGroup,
    log_tasks: TaskGroup,
}

/// Why the gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The clients' address.
    #[error("listen.address: {0}")]
    Listen(#[from] BindError),
    /// The operators' address.
    #[error("admin.address: cannot listen on {address}: {source}; is another gateway there?")]
    Admin {
        /// As configured.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The Unix socket.
    #[error("admin.socket: cannot listen on {}: {source}; is another gateway there?", path.display())]
    Socket {
        /// As configured.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of keys.
    #[error(transparent)]
    Doors(#[from] DoorsError),
    /// The access log.
    #[error("observe.access_log: cannot open it: {0}; name a file in a folder that exists and may be written")]
    AccessLog(std::io::Error),
    /// The key of the block hashes.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A part of this program.
    #[error("{0}")]
    Internal(String),
}

impl StartError {
    /// For the shell.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Listen(_) | Self::Admin { .. } | Self::Socket { .. } => Exit::Unavailable,
            Self::AccessLog(_) | Self::Key(_) | Self::Doors(_) => Exit::Usage,
            Self::Internal(_) => Exit::Internal,
        }
    }
}

impl From<prometheus::Error> for StartError {
    fn from(error: prometheus::Error) -> Self {
        Self::Internal(format!("a metric cannot be registered: {error}"))
    }
}

impl From<Fault> for StartError {
    fn from(fault: Fault) -> Self {
        Self::Internal(fault.message)
    }
}

impl App {
    /// Builds everything and lets clients in. Must be called inside a tokio runtime.
    pub async fn start(sources: Sources, loaded: Loaded) -> Result<Self, StartError> {
        let clock = Clock::start();
        let (tasks, log_tasks) = (TaskGroup::new(), TaskGroup::new());
        let config = Arc::new(loaded.config.clone());
        let doors = Arc::new(Doors::load(&config)?);
        let access = AccessWriter::start(&config.access_log, &log_tasks).await.map_err(StartError::AccessLog)?;
        let Parts { observer, tokenizers, fleet, feeds, discovery, introduced } =
            Parts::start(&config, access, doors.clone(), clock, &tasks).await?;
        let gateway = Gateway::new(config.clone(), fleet, tokenizers, observer, doors, clock);
        sampled::register(&gateway)?;
        let console = Arc::new(Console {
            file: sources.file.clone(),
            reloader: Arc::new(reloader(sources, loaded, &gateway.observer)),
            gateway,
            discovery,
            feeds,
            clock,
            draining: AtomicBool::new(false),
        });
        let address = config.admin.address;
        let bound = admin::start(address, console.clone(), &tasks).await;
        let admin = bound.map_err(|source| StartError::Admin { address, source })?;
        if let Some(path) = config.admin.socket.clone() {
            let bound = admin::start_socket(&path, console.clone(), &tasks);
            bound.map_err(|source| StartError::Socket { path, source })?;
        }
        let ingress = Ingress::start(console.gateway.clone(), &tasks)?;
        apply::start(&console, &tasks);
        introduce::start(&console, introduced, &tasks);
        tasks.spawn("configuration file", console.reloader.clone().watch());
        Ok(Self { console, ingress, admin, tasks, log_tasks })
    }

    /// Where clients and operators connect.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.ingress.address(), self.admin)
    }

    /// Says what listens now, and once the engines have had time to answer, which did and what is degraded.
    pub fn announce(&self) {
        announce::start(&self.console, self.addresses(), &self.tasks);
    }

    /// Runs until told to stop; SIGHUP reads the configuration again and opens the access log anew.
    pub async fn wait(&self, signals: &mut Signals) -> Stop {
        loop {
            match signals.next().await {
                Stop::Hangup => {
                    tracing::info!("SIGHUP: reading the configuration again");
                    self.console.reloader.reload_now();
                    self.console.gateway.doors.look_now();
                    self.console.gateway.observer.reopen_log();
                }
                stop => return stop,
            }
        }
    }

    /// Takes no new connections, lets what runs finish within `listen.drain_timeout`, then ends everything.
    pub async fn drain(self) -> Drained {
        self.console.start_drain();
        let drained = self.ingress.drain().await;
        if tokio::time::timeout(SAVE_TIMEOUT, self.console.feeds.save()).await.is_err() {
            tracing::warn!("routing.snapshot_file was not written within {} s", SAVE_TIMEOUT.as_secs());
        }
        if !self.tasks.drain(TASKS_TIMEOUT).await {
            tracing::warn!("background work did not end within {} s", TASKS_TIMEOUT.as_secs());
        }
        if tokio::time::timeout(LOG_TIMEOUT, self.console.gateway.observer.flush_log()).await.is_err() {
            tracing::warn!("the access log was not written to its end within {} s", LOG_TIMEOUT.as_secs());
        }
        self.log_tasks.drain(LOG_TIMEOUT).await;
        drained
    }
}

fn reloader(sources: Sources, loaded: Loaded, observer: &Observer) -> Reloader {
    let observer = observer.clone();
    let report = move |outcome: Result<&[&'static str], &str>| {
        observer.reloaded(outcome.is_ok());
        match outcome {
            Ok([]) => tracing::info!("configuration applied"),
            Ok(waiting) => tracing::warn!("configuration applied; needs a restart: {}", waiting.join(", ")),
            Err(error) => tracing::error!("configuration refused, the old one stays in force:\n{error}"),
        }
    };
    Reloader::new(sources, loaded, Box::new(report))
}
