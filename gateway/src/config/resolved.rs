//! What the configuration means: typed, checked, units gone.

use super::networks::Hosts;
use forebay_routing::Policy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything the gateway was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The clients' listener.
    pub listen: Listen,
    /// The operators' listeners.
    pub admin: Admin,
    /// Who may come in.
    pub keys: Keys,
    /// Choice of workers.
    pub routing: Routing,
    /// Deadlines towards engines.
    pub upstream: Upstream,
    /// Health checks and ejection.
    pub health: Health,
    /// Tokenising.
    pub tokenize: Tokenize,
    /// Per-model settings.
    pub models: Vec<Model>,
    /// Fixed workers.
    pub workers: Vec<Worker>,
    /// DNS names that resolve to many workers.
    pub dns: Vec<DnsPool>,
    /// Where one line for each request goes.
    pub access_log: AccessLog,
}

impl Config {
    /// This configuration with those settings of `new` that apply without a restart.
    #[must_use]
    pub fn with_live_of(&self, new: Self) -> Self {
        let routing = Routing { policy: new.routing.policy, ..self.routing.clone() };
        Self { routing, models: new.models, workers: new.workers, dns: new.dns, ..self.clone() }
    }
}

/// Where one line for each request goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// Standard error, among the log lines.
    Stderr,
    /// Appended to this file.
    File(PathBuf),
}

/// Limits of the clients' side.
#[derive(Clone, Debug, PartialEq)]
pub struct Listen {
    /// Address.
    pub address: SocketAddr,
    /// Open connections.
    pub max_connections: usize,
    /// Bytes of a request head.
    pub max_header_bytes: usize,
    /// Bytes of one body (64 MiB).
    pub max_body_bytes: usize,
    /// Bytes of all bodies buffered at once.
    pub max_buffered_bytes: usize,
    /// Whole request head.
    pub header_timeout: Duration,
    /// Whole request body.
    pub body_timeout: Duration,
    /// Between requests of one connection.
    pub keepalive_timeout: Duration,
    /// A client that takes no bytes of its stream for so long is cut off.
    pub write_timeout: Duration,
    /// After SIGTERM, how long streams may run on.
    pub drain_timeout: Duration,
    /// Worker threads, `None` = one per core.
    pub threads: Option<usize>,
}

/// The operators' listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Address; beyond loopback an operator's key is asked for.
    pub address: SocketAddr,
    /// Unix socket with mode 0600, `None` = none.
    pub socket: Option<PathBuf>,
    /// Hosts that `POST /workers` may name.
    pub allow_workers: Hosts,
}

/// API keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// File with one hashed key a line, `None` = nobody is asked for one.
    pub file: Option<PathBuf>,
}

/// How workers are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Policy unless the model names its own.
    pub policy: Policy,
    /// Whether own placements count before events confirm them.
    pub own_placements: bool,
    /// Share of traffic that may be retried (0.1), besides what was in flight at a failed worker.
    pub retry_budget: f64,
    /// Attempts per request, the first included.
    pub max_attempts: u32,
    /// Seed of the tie-breaking rng, `None` = random.
    pub seed: Option<u64>,
    /// File with 32 random bytes for the block hash key, `None` = fresh per start.
    pub hash_key_file: Option<PathBuf>,
}

/// Deadlines towards engines.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// TCP connect.
    pub connect_timeout: Duration,
    /// From the request being sent to the first response byte.
    pub first_byte_timeout: Duration,
    /// Between two chunks.
    pub idle_timeout: Duration,
    /// Whole exchange.
    pub total_timeout: Duration,
    /// Idle connections kept per worker.
    pub pool_size: usize,
}

/// Health checks and passive ejection.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Between two checks (5 s).
    pub interval: Duration,
    /// One check (5 s: SGLang's takes over one).
    pub timeout: Duration,
    /// Failed checks in a row until a worker is down.
    pub failures: u32,
    /// Live failures in a row until a worker is ejected.
    pub eject_after: u32,
    /// How long it stays ejected before its probe.
    pub eject_for: Duration,
    /// Between two scrapes of `/metrics`.
    pub metrics_interval: Duration,
}

/// Tokenising.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenize {
    /// Pool threads, `None` = half the cores, at least one.
    pub threads: Option<usize>,
    /// Jobs waiting for the pool.
    pub max_queue: usize,
    /// After so long a request goes on by text.
    pub deadline: Duration,
    /// Bytes of the prefix memo.
    pub memo_bytes: usize,
    /// Share of requests whose ids are compared with the engine's.
    pub parity_sample: f64,
}

/// One model's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Name clients use.
    pub name: String,
    /// Directory with `tokenizer.json` and `tokenizer_config.json`.
    pub tokenizer: Option<PathBuf>,
    /// Jinja file that overrides the tokenizer's chat template.
    pub chat_template: Option<PathBuf>,
    /// Its own policy.
    pub policy: Option<Policy>,
}

/// One fixed worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// `http://host:port`.
    pub url: String,
    /// Model it serves, `None` = ask its `/v1/models`.
    pub model: Option<String>,
    /// Data-parallel ranks behind it, `None` = one, unnamed.
    pub ranks: Option<u16>,
    /// KV-event endpoint, `None` = ask `/kv_event_sources`.
    pub kv_events: Option<String>,
    /// Replay endpoint.
    pub kv_replay: Option<String>,
    /// Tokens per block, `None` = learn.
    pub block_size: Option<u32>,
    /// Node agent, `host:7470`; not used yet.
    pub agent: Option<String>,
}

/// Workers behind one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsPool {
    /// Name to resolve.
    pub name: String,
    /// Port of every worker.
    pub port: u16,
    /// Model they serve.
    pub model: Option<String>,
    /// Between two look-ups.
    pub interval: Duration,
}

impl DnsPool {
    /// The worker behind one resolved address; what the pool does not say is asked of the engine.
    pub fn worker(&self, address: SocketAddr) -> Worker {
        Worker {
            url: format!("http://{address}"),
            model: self.model.clone(),
            ranks: None,
            kv_events: None,
            kv_replay: None,
            block_size: None,
            agent: None,
        }
    }
}
