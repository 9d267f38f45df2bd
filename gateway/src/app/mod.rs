//! app: the whole gateway put together from a configuration, and taken down again.
//!
//! ```text
//! observe ─► tokenize ─► fleet ─► signal ─► discover ─► serve ─► admin ─► accept       (start, in this order)
//!            configuration changes ─► tokenize, discover, policies                   (apply)
//!            engines that introduce themselves ─► token sources, parity              (introduce)
//! accept (drain) ─► background tasks ─► access log                                    (stop)
//! SIGUSR2 ─► a new process with the same socket, then stop                            (upgrade)
//! ```
//!
//! Invariants: clients are let in last, so that nothing they meet is half built; whatever runs in the background belongs
//! to one of two task groups, and the access log's ends last so that no line is lost. Failure: a part that cannot be
//! had (a port, a key file) ends the start with a reason and an exit code; an engine that cannot be reached does not.

mod announce;
mod apply;
mod introduce;
mod key;
mod notify;
mod parts;
mod sampled;
mod signals;
mod upgrade;

pub use key::KeyError;
pub use parts::Parts;
pub use signals::{Signals, Stop};

use notify::Notifier;
use upgrade::{Inheritance, Successor};

use crate::accept::{BindError, Drained, Ingress};
use crate::admin::{self, Console};
use crate::cli::Exit;
use crate::clock::Clock;
use crate::config::reload::Reloader;
use crate::config::source::NOTIFY_VARIABLE;
use crate::config::{Loaded, Sources};
use crate::doors::{Doors, DoorsError};
use crate::error::Fault;
use crate::observe::Observer;
use crate::observe::access::AccessWriter;
use crate::serve::Gateway;
use crate::tasks::TaskGroup;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::time::Duration;

/// For background work to end after the last connection: nothing of it is worth a longer wait.
const TASKS_TIMEOUT: Duration = Duration::from_secs(5);

/// For what is known of caches to be saved: two million memberships take a second.
const SAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// For the access log to be written: a disk that hangs must not keep the process alive.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// For engines to be ready before a new process takes over; those that are up need a second.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Between two looks at them.
const WORKERS_STEP: Duration = Duration::from_millis(20);

/// A running gateway.
pub struct App {
    console: Arc<Console>,
    ingress: Ingress,
    admin: SocketAddr,
    /// The operators' listeners.
    operators: TaskGroup,
    notifier: Notifier,
    /// Until the process before this one has been told.
    inheritance: Option<Inheritance>,
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
    /// A process before this one, which said that it would hand over.
    #[error("the process before this one did not hand its socket over: {0}")]
    Inherit(std::io::Error),
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
            Self::Listen(_) | Self::Admin { .. } | Self::Socket { .. } | Self::Inherit(_) => Exit::Unavailable,
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
        let inheritance = Inheritance::take(&sources.environment).map_err(StartError::Inherit)?;
        let notifier = Notifier::new(sources.environment.find(NOTIFY_VARIABLE));
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
        });
        let operators = tasks.child();
        let admin = open_admin(&console, &operators).await?;
        apply::start(&console, &tasks);
        introduce::start(&console, introduced, &tasks);
        tasks.spawn("configuration file", console.reloader.clone().watch());
        let inherited = match &inheritance {
            None => None,
            Some(inheritance) => Some(inheritance.listener.try_clone().map_err(StartError::Inherit)?),
        };
        if inherited.is_some() {
            // The process before this one serves until this one can.
            wait_for_workers(&console).await;
        }
        let ingress = Ingress::start(console.gateway.clone(), inherited, &tasks)?;
        Ok(Self { console, ingress, admin, operators, notifier, inheritance, tasks, log_tasks })
    }

    /// Where clients and operators connect.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.ingress.address(), self.admin)
    }

    /// Says what listens now, and once the engines have had time to answer, which did and what is degraded. Whoever started
    /// this process learns that it serves.
    pub fn announce(&mut self) {
        announce::start(&self.console, self.addresses(), &self.tasks);
        if let Some(inheritance) = self.inheritance.take() {
            inheritance.say_ready();
        }
        self.notifier.ready();
    }

    /// Waits until the process is asked to stop, or another one has taken over; `arguments` start that one. SIGHUP is done
    /// meanwhile.
    pub async fn wait(&mut self, signals: &mut Signals, arguments: &[OsString]) -> Stop {
        loop {
            match signals.next().await {
                Stop::Hangup => {
                    tracing::info!("SIGHUP: reading the configuration again");
                    self.notifier.reloading();
                    self.console.reloader.reload_now();
                    self.console.gateway.doors.look_now();
                    self.console.gateway.observer.reopen_log();
                    self.notifier.ready();
                }
                Stop::Upgrade => match self.hand_over(arguments).await {
                    Ok(()) => return Stop::Upgrade,
                    Err(why) => tracing::error!("the new process does not serve: {why}; this one goes on"),
                },
                stop => return stop,
            }
        }
    }

    /// Starts a new process with the listening socket and waits until it serves.
    async fn hand_over(&mut self, arguments: &[OsString]) -> Result<(), String> {
        tracing::info!("SIGUSR2: starting a new process");
        // Its admin address can only be bound once.
        self.operators.cancel();
        let outcome = async {
            let mut successor = Successor::start(arguments).map_err(|error| error.to_string())?;
            successor.hand_over(self.ingress.socket()).await?;
            self.notifier.succeeded_by(successor.pid());
            tracing::info!(pid = successor.pid(), "a new process serves");
            Ok(())
        }
        .await;
        if outcome.is_err() {
            self.operators = self.tasks.child();
            match open_admin_at(&self.console, self.admin, &self.operators).await {
                Ok(admin) => self.admin = admin,
                Err(error) => tracing::error!("{error}"),
            }
        }
        outcome
    }

    /// Takes no new connections, lets what runs finish within `listen.drain_timeout`, then ends everything.
    pub async fn drain(self) -> Drained {
        self.console.start_drain();
        self.notifier.stopping();
        // Load balancers learn from /readyz and /health that nobody should come any more, and need a moment for it.
        tokio::time::sleep(self.console.gateway.config.listen.drain_delay).await;
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

/// The operators' listeners, as configured.
async fn open_admin(console: &Arc<Console>, tasks: &TaskGroup) -> Result<SocketAddr, StartError> {
    open_admin_at(console, console.gateway.config.admin.address, tasks).await
}

async fn open_admin_at(
    console: &Arc<Console>,
    address: SocketAddr,
    tasks: &TaskGroup,
) -> Result<SocketAddr, StartError> {
    let bound = admin::start(address, console.clone(), tasks).await;
    let admin = bound.map_err(|source| StartError::Admin { address, source })?;
    if let Some(path) = console.gateway.config.admin.socket.clone() {
        let bound = admin::start_socket(&path, console.clone(), tasks);
        bound.map_err(|source| StartError::Socket { path, source })?;
    }
    Ok(admin)
}

/// Until a worker takes traffic, or the engines have had their time.
async fn wait_for_workers(console: &Console) {
    let ready = async {
        while !console.has_ready_worker() {
            tokio::time::sleep(WORKERS_STEP).await;
        }
    };
    if tokio::time::timeout(WORKERS_TIMEOUT, ready).await.is_err() {
        tracing::warn!(
            "no engine is ready after {} s; this process takes over all the same",
            WORKERS_TIMEOUT.as_secs()
        );
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
