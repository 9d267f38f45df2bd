//! What the configuration means: typed, checked, units gone.

use super::networks::Hosts;
use forebay_routing::Policy as RoutingPolicy;
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
    /// What requests may ask of engines.
    pub requests: Policy,
    /// Node agents.
    pub agents: Agents,
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
    /// Certificates of the clients' listener; the first is for clients that name no server.
    pub certificates: Vec<Certificate>,
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
        Self {
            routing,
            requests: new.requests,
            models: new.models,
            certificates: new.certificates,
            workers: new.workers,
            dns: new.dns,
            ..self.clone()
        }
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
    /// Networks whose `Forwarded` and `X-Forwarded-*` fields are believed.
    pub trusted_proxies: Hosts,
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
    /// After SIGTERM, how long new connections are still taken while health says no.
    pub drain_delay: Duration,
    /// After SIGTERM, how long streams may run on.
    pub drain_timeout: Duration,
    /// TLS handshake.
    pub handshake_timeout: Duration,
    /// Offer HTTP/2.
    pub http2: bool,
    /// Requests at once on one HTTP/2 connection.
    pub max_streams: u32,
    /// Authorities of clients' certificates, `None` = none are asked for.
    pub client_ca_file: Option<PathBuf>,
    /// Refuse clients without a certificate.
    pub client_certificate_required: bool,
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

/// What requests may ask of engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Completions of one request (`n`, `best_of`).
    pub max_completions: u32,
    /// Log probabilities for each token.
    pub max_logprobs: u32,
    /// Generated tokens; more are clamped, none asked for becomes this. `None` = the engine's own limit.
    pub max_tokens: Option<u32>,
    /// `chat_template`.
    pub allow_chat_template: bool,
    /// `chat_template_kwargs`.
    pub allow_template_arguments: bool,
    /// Embeddings instead of a prompt or a medium.
    pub allow_embeds: bool,
    /// `kv_transfer_params` and the like.
    pub allow_transfer_fields: bool,
    /// `custom_logit_processor` and the like.
    pub allow_logit_processors: bool,
    /// Which media engines may be sent to fetch.
    pub media: Media,
    /// Media of one request.
    pub max_media: u32,
    /// Bytes of a regular expression.
    pub max_regex_bytes: usize,
    /// Bytes of a grammar or JSON schema.
    pub max_grammar_bytes: usize,
    /// Cut out what changes with every request.
    pub strip_preamble: bool,
    /// Who reaches the paths with which engines are controlled.
    pub engine_control: Control,
}

/// Which media engines may be sent to fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Media {
    /// `data:` URLs, and `http(s)` URLs that name no private address.
    #[default]
    Public,
    /// `data:` URLs.
    Inline,
    /// Everything.
    Any,
    /// Nothing.
    None,
}

/// Who reaches the paths with which engines are controlled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// Callers with the role `operate`; without keys nobody.
    #[default]
    Operators,
    /// Everybody.
    Everybody,
    /// Nobody.
    Nobody,
}

/// How workers are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Policy unless the model names its own.
    pub policy: RoutingPolicy,
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
    /// File in which what is known of caches outlives the process, `None` = nowhere.
    pub snapshot_file: Option<PathBuf>,
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
    /// Requests at once at one worker, `None` = as many as come.
    pub max_concurrency: Option<u32>,
    /// Requests that wait for a place.
    pub max_queue: usize,
    /// How long one waits.
    pub queue_timeout: Duration,
    /// How long requests of a model that has nobody left wait for somebody, from when that began; zero = not at all.
    pub outage_timeout: Duration,
    /// Authorities that engines with TLS are trusted by, `None` = the system's.
    pub ca_file: Option<PathBuf>,
    /// Certificate shown to engines with TLS.
    pub certificate_file: Option<PathBuf>,
    /// Its private key.
    pub certificate_key_file: Option<PathBuf>,
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
    /// Share of failed requests from which it is ejected; 0 = never for that.
    pub eject_share: f64,
    /// Times the median time to first token from which it is ejected; 0 = never for that.
    pub eject_ttft_factor: f64,
    /// Share of a model's workers that may be out by ejection.
    pub max_ejected: f64,
    /// How long a worker that comes back takes less than its share.
    pub slow_start: Duration,
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Name clients use.
    pub name: String,
    /// Directory with `tokenizer.json` and `tokenizer_config.json`.
    pub tokenizer: Option<PathBuf>,
    /// Jinja file that overrides the tokenizer's chat template.
    pub chat_template: Option<PathBuf>,
    /// Further names for it.
    pub aliases: Vec<String>,
    /// Whether engines get its prompts as ids, where those are proven to be theirs.
    pub forward_token_ids: bool,
    /// Its own policy.
    pub policy: Option<RoutingPolicy>,
}

/// One certificate of the clients' listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// PEM: certificate, then those between it and the authority.
    pub chain_file: PathBuf,
    /// PEM: its private key.
    pub key_file: PathBuf,
}

/// How node agents are spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agents {
    /// File with the secret that they ask for.
    pub token_file: Option<PathBuf>,
}

/// One fixed worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// `http://host:port`, or `https://…` for TLS.
    pub url: String,
    /// Name its certificate must be for, `None` = the URL's host.
    pub server_name: Option<String>,
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
    /// Node agent, `host:7470`.
    pub agent: Option<String>,
}

/// Workers behind one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsPool {
    /// Name to resolve.
    pub name: String,
    /// Port of every worker.
    pub port: u16,
    /// Speak TLS; their certificates must be for the name.
    pub tls: bool,
    /// Model they serve.
    pub model: Option<String>,
    /// Between two look-ups.
    pub interval: Duration,
}

impl DnsPool {
    /// The worker behind one resolved address; what the pool does not say is asked of the engine.
    pub fn worker(&self, address: SocketAddr) -> Worker {
        Worker {
            url: format!("{}://{address}", if self.tls { "https" } else { "http" }),
            server_name: self.tls.then(|| self.name.clone()),
            model: self.model.clone(),
            ranks: None,
            kv_events: None,
            kv_replay: None,
            block_size: None,
            agent: None,
        }
    }
}
