//! A gateway over scripted engines.

use crate::client::Client;
use crate::engine::Engine;
use forebay::accept::{Drained, Ingress};
use forebay::clock::Clock;
use forebay::config::networks::Hosts;
use forebay::config::resolved::{AccessLog, Admin, Agents, Health, Keys, Listen, Routing, Tokenize, Upstream, Worker};
use forebay::config::{Config, resolved};
use forebay::discover::{self, Discovery};
use forebay::doors::Doors;
use forebay::fleet::{self, Fleet};
use forebay::observe::Observer;
use forebay::serve::Gateway;
use forebay::signal::cache_events::Feeds;
use forebay::tasks::TaskGroup;
use forebay::tokenize::Tokenizers;
use forebay_routing::Policy;
use forebay_routing::block::HashKey;
use forebay_routing::view::WorkerState;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A running gateway.
pub struct Rig {
    pub address: SocketAddr,
    pub gateway: Arc<Gateway>,
    ingress: Ingress,
    discovery: Discovery,
    tasks: TaskGroup,
}

/// Deadlines far beyond what a busy machine needs; a test that is about one sets its own.
pub fn config() -> Config {
    let long = Duration::from_secs(60);
    Config {
        listen: Listen {
            address: "127.0.0.1:0".parse().unwrap(),
            trusted_proxies: Hosts::default(),
            max_connections: 1_000,
            max_header_bytes: 16 * 1024,
            max_body_bytes: 8 << 20,
            max_buffered_bytes: 64 << 20,
            header_timeout: long,
            body_timeout: long,
            keepalive_timeout: long,
            write_timeout: long,
            drain_timeout: long,
            drain_delay: Duration::ZERO,
            handshake_timeout: long,
            http2: true,
            max_streams: 100,
            client_ca_file: None,
            client_certificate_required: true,
            threads: None,
        },
        agents: Agents { token_file: None },
        routing: Routing {
            policy: Policy::RoundRobin,
            own_placements: true,
            retry_budget: 0.1,
            max_attempts: 3,
            seed: Some(1),
            hash_key_file: None,
            snapshot_file: None,
        },
        upstream: Upstream {
            connect_timeout: long,
            first_byte_timeout: long,
            idle_timeout: long,
            total_timeout: long,
            pool_size: 64,
            max_concurrency: None,
            max_queue: 16,
            outage_timeout: Duration::ZERO,
            queue_timeout: long,
            ca_file: None,
            certificate_file: None,
            certificate_key_file: None,
        },
        health: Health {
            interval: Duration::from_millis(100),
            timeout: Duration::from_secs(5),
            failures: 1_000_000,
            eject_after: 1_000_000,
            eject_for: long,
            eject_share: 0.0,
            eject_ttft_factor: 0.0,
            max_ejected: 1.0,
            slow_start: Duration::ZERO,
            metrics_interval: long,
        },
        tokenize: Tokenize { threads: Some(1), max_queue: 16, deadline: long, memo_bytes: 1 << 20, parity_sample: 0.0 },
        models: Vec::new(),
        certificates: Vec::new(),
        workers: Vec::new(),
        dns: Vec::new(),
        access_log: AccessLog::Off,
        admin: Admin { address: "127.0.0.1:0".parse().unwrap(), socket: None, allow_workers: Hosts::default() },
        keys: Keys::default(),
        requests: policy(),
    }
}

/// As without a configuration.
fn policy() -> resolved::Policy {
    let sources = forebay::config::Sources::default();
    sources.resolve(None).unwrap().config.requests
}

impl Rig {
    pub async fn start(engines: &[&Engine]) -> Self {
        Self::with(engines, |_| {}).await
    }

    /// Starts a gateway and waits until every engine takes traffic.
    pub async fn with(engines: &[&Engine], change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        let (clock, tasks, registry) = (Clock::start(), TaskGroup::new(), prometheus::Registry::new());
        let options = fleet::Options {
            health: config.health.clone(),
            key: HashKey::derive(&[7; 32]),
            tokenizer_digests: Default::default(),
            clock,
        };
        let fleet = Fleet::start(options, &registry, &tasks).unwrap();
        let doors = Arc::new(Doors::load(&config).unwrap());
        let options = discover::Options {
            fleet: fleet.clone(),
            feeds: Feeds::start(fleet.clone(), clock, &registry, &tasks).unwrap(),
            health: config.health.clone(),
            clock,
            introductions: None,
            doors: doors.clone(),
            agents: None,
        };
        let discovery = Discovery::start(options, &registry, &tasks).unwrap();
        let tokenizers = Tokenizers::new(&config.tokenize, &config.models, &registry).unwrap();
        let observer = Observer::new(None).unwrap();
        let gateway = Gateway::new(Arc::new(config), fleet, Arc::new(tokenizers), observer, doors, clock);
        let ingress = Ingress::start(gateway.clone(), None, &tasks).unwrap();
        let rig = Self { address: ingress.address(), gateway, ingress, discovery, tasks };
        for engine in engines {
            rig.add(&engine.url());
        }
        rig.wait_ready(engines.len()).await;
        rig
    }

    pub fn add(&self, url: &str) {
        let worker = Worker {
            url: url.to_owned(),
            server_name: None,
            model: None,
            ranks: None,
            kv_events: None,
            kv_replay: None,
            block_size: Some(16),
            agent: None,
        };
        self.discovery.add(worker).unwrap();
    }

    /// What discovery says of every engine.
    pub fn sites(&self) -> Vec<discover::SiteStatus> {
        self.discovery.sites()
    }

    pub async fn wait_ready(&self, count: usize) {
        let ready =
            || self.gateway.fleet.view().workers.iter().filter(|worker| worker.state == WorkerState::Ready).count();
        for _ in 0..2_000 {
            if ready() >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} of {count} engines became ready", ready());
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Requests that count as in flight.
    pub fn in_flight(&self) -> u32 {
        let (view, mut loads) = (self.gateway.fleet.view(), Vec::new());
        self.gateway.fleet.local_loads(&view, &mut loads);
        loads.iter().map(|load| load.requests).sum()
    }

    /// Every reservation and every buffered byte is given back.
    pub async fn wait_idle(&self) {
        for _ in 0..2_000 {
            let limits = &self.gateway.limits;
            if self.in_flight() == 0 && limits.buffered() == 0 && self.gateway.dispatcher.queued() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} in flight, {} bytes buffered", self.in_flight(), self.gateway.limits.buffered());
    }

    /// Stops the gateway as SIGTERM does.
    pub async fn drain(self) -> Drained {
        let drained = self.ingress.drain().await;
        self.tasks.cancel();
        drained
    }
}
