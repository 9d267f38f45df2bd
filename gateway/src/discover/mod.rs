//! discover: where workers come from.
//!
//! ```text
//! configuration file ─ reconcile() ─┐
//! operators          ─ add, remove ─┼─► wanted set ─ diff ─► one site task per URL ─► fleet, event feeds
//! DNS names          ─ dns tasks ───┘
//! ```
//!
//! A site asks its engine who it is (models, block size, event sources), makes one worker of each data-parallel rank, and
//! watches over them until it is taken out. Discovery never blocks serving: an engine that cannot be reached stays
//! `Starting` or `Down` and is asked again with growing pauses; a DNS name that cannot be resolved keeps its last answer.
//! Where two sources name the same URL, the file goes before operators, operators before DNS.

mod address;
mod dns;
pub mod probe;
mod server_info;
mod site;
#[cfg(test)]
mod tests;

pub use address::{UrlError, WorkerUrl};

use crate::clock::Clock;
use crate::config::resolved::{DnsPool, Health, Worker};
use crate::doors::Doors;
use crate::fleet::Fleet;
use crate::signal::cache_events::Feeds;
use crate::signal::http::Peer;
use crate::signal::kernel::Agents;
use crate::tasks::TaskGroup;
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// An engine that has just told who it is: the moment to compare tokens with it.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// Base URL.
    pub url: Arc<str>,
    /// Model as the engine serves it.
    pub model: Arc<str>,
    /// How to ask it.
    pub peer: Peer,
}

/// Source of a wanted worker, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    File,
    Operator,
    Dns(String),
}

/// One running site.
struct Running {
    worker: Worker,
    stop: CancellationToken,
    status: Arc<Mutex<SiteStatus>>,
}

/// A site in words; says why an engine is no worker yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteStatus {
    /// URL as configured.
    pub url: String,
    /// Whether the engine has told who it is.
    pub introduced: bool,
    /// Why not, or what went wrong last.
    pub problem: Option<String>,
}

#[derive(Default)]
struct State {
    wanted: BTreeMap<Source, Vec<Worker>>,
    /// URLs that an operator took out; the next file may bring them back.
    removed: BTreeSet<String>,
    running: BTreeMap<String, Running>,
    /// DNS names that are watched, and how to stop.
    names: BTreeMap<String, (DnsPool, CancellationToken)>,
}

/// Handle on discovery; cheap to clone.
#[derive(Clone)]
pub struct Discovery {
    shared: Arc<Shared>,
}

struct Shared {
    fleet: Fleet,
    feeds: Feeds,
    health: Health,
    clock: Clock,
    introductions: Option<mpsc::Sender<Introduction>>,
    doors: Arc<Doors>,
    agents: Option<Agents>,
    dns_failures: IntCounterVec,
    tasks: TaskGroup,
    state: Mutex<State>,
}

/// What discovery needs to start.
pub struct Options {
    /// Where workers go.
    pub fleet: Fleet,
    /// Where their KV events are listened to.
    pub feeds: Feeds,
    /// Limits of health checks.
    pub health: Health,
    /// Time.
    pub clock: Clock,
    /// Who wants to know when an engine has told who it is; never waited for.
    pub introductions: Option<mpsc::Sender<Introduction>>,
    /// How engines with TLS are trusted.
    pub doors: Arc<Doors>,
    /// Where node agents are heard; `None` hears none.
    pub agents: Option<Agents>,
}

impl Discovery {
    /// Starts with no workers; sites and DNS look-ups run in `tasks`.
    pub fn start(
        options: Options,
        registry: &prometheus::Registry,
        tasks: &TaskGroup,
    ) -> Result<Self, prometheus::Error> {
        let opts = prometheus::Opts::new(
            "forebay_discover_dns_failures_total",
            "DNS look-ups that failed; the last answer stays",
        );
        let dns_failures = IntCounterVec::new(opts, &["name"])?;
        registry.register(Box::new(dns_failures.clone()))?;
        let Options { fleet, feeds, health, clock, introductions, doors, agents } = options;
        let tasks = tasks.child();
        Ok(Self {
            shared: Arc::new(Shared {
                fleet,
                feeds,
                health,
                clock,
                introductions,
                doors,
                agents,
                dns_failures,
                tasks,
                state: Mutex::default(),
            }),
        })
    }

    /// Makes `workers` the configuration's: what is new starts, what is gone drains, what changed does both, the rest is
    /// left alone. Workers of other sources stay.
    pub fn reconcile(&self, workers: Vec<Worker>) -> Result<(), UrlError> {
        for worker in &workers {
            WorkerUrl::parse(&worker.url)?;
        }
        let mut state = self.shared.state.lock();
        state.removed.clear();
        state.wanted.insert(Source::File, workers);
        self.apply(&mut state);
        Ok(())
    }

    /// Adds one worker by hand; false when its URL is there already. The worker serves once it has answered.
    pub fn add(&self, worker: Worker) -> Result<bool, UrlError> {
        WorkerUrl::parse(&worker.url)?;
        let mut state = self.shared.state.lock();
        state.removed.remove(site_key(&worker.url));
        let known = state.wanted.values().flatten().any(|other| site_key(&other.url) == site_key(&worker.url));
        if !known {
            state.wanted.entry(Source::Operator).or_default().push(worker);
        }
        self.apply(&mut state);
        Ok(!known)
    }

    /// Takes one worker out by hand: it drains. False when no such URL is there.
    pub fn remove(&self, url: &str) -> bool {
        let url = site_key(url);
        let mut state = self.shared.state.lock();
        let known = state.running.contains_key(url);
        if known {
            state.removed.insert(url.to_owned());
            if let Some(workers) = state.wanted.get_mut(&Source::Operator) {
                workers.retain(|worker| site_key(&worker.url) != url);
            }
            self.apply(&mut state);
        }
        known
    }

    /// Makes `pools` the DNS names that are watched: workers of a name that is no longer there drain.
    pub fn reconcile_names(&self, pools: Vec<DnsPool>) {
        let mut state = self.shared.state.lock();
        state.names.retain(|_, (pool, stop)| {
            let stays = pools.contains(pool);
            if !stays {
                stop.cancel();
            }
            stays
        });
        let State { names, wanted, .. } = &mut *state;
        wanted.retain(|source, _| !matches!(source, Source::Dns(name) if !names.contains_key(name)));
        for pool in pools {
            if !names.contains_key(&pool.name) {
                let stop = CancellationToken::new();
                names.insert(pool.name.clone(), (pool.clone(), stop.clone()));
                let watch = dns::watch(self.clone(), pool);
                self.shared.tasks.spawn("dns", async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = watch => {}
                    }
                });
            }
        }
        self.apply(&mut state);
    }

    /// Every site, ordered by URL.
    pub fn sites(&self) -> Vec<SiteStatus> {
        self.shared.state.lock().running.values().map(|site| site.status.lock().clone()).collect()
    }

    /// The answer of one DNS name.
    fn replace_dns(&self, pool: &DnsPool, workers: Vec<Worker>) {
        let mut state = self.shared.state.lock();
        // An answer may come while its name is being taken out.
        if state.names.get(&pool.name).is_some_and(|(watched, _)| watched == pool) {
            state.wanted.insert(Source::Dns(pool.name.clone()), workers);
            self.apply(&mut state);
        }
    }

    /// Brings what runs in line with what is wanted.
    fn apply(&self, state: &mut State) {
        let mut wanted: BTreeMap<&str, &Worker> = BTreeMap::new();
        for worker in state.wanted.values().flatten() {
            let url = site_key(&worker.url);
            if !state.removed.contains(url) {
                wanted.entry(url).or_insert(worker);
            }
        }
        state.running.retain(|url, site| {
            let stays = wanted.get(url.as_str()).is_some_and(|worker| **worker == site.worker);
            if !stays {
                site.stop.cancel();
            }
            stays
        });
        for (url, worker) in wanted {
            if !state.running.contains_key(url) {
                state.running.insert(url.to_owned(), self.start_site(url, worker));
            }
        }
    }

    fn start_site(&self, url: &str, worker: &Worker) -> Running {
        let stop = CancellationToken::new();
        let status = SiteStatus { url: url.to_owned(), ..SiteStatus::default() };
        let status = Arc::new(Mutex::new(status));
        // Parsed before it became wanted; a URL that fails here anyway makes a site that says so.
        match WorkerUrl::parse(url) {
            Ok(address) => {
                let site = site::Site::new(self.shared.clone(), worker.clone(), address, status.clone());
                self.shared.tasks.spawn("worker site", site.run(stop.clone()));
            }
            Err(error) => status.lock().problem = Some(error.to_string()),
        }
        Running { worker: worker.clone(), stop, status }
    }
}

/// URLs that differ in trailing slashes alone are one site.
fn site_key(url: &str) -> &str {
    url.trim_end_matches('/')
}
