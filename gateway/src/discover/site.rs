//! One engine under one URL: who it is, whether it is well, until it is taken out.

mod watch;

use super::probe::{self, Profile};
use super::{Introduction, Shared, SiteStatus, WorkerUrl};
use crate::config::resolved::Worker;
use crate::doors::Towards;
use crate::fleet::{Endpoint, EngineKind, Facts, Handle};
use crate::signal::cache_events::{Attach, FeedSpec, for_rank};
use crate::signal::engine::Reading;
use crate::signal::http::Peer;
use forebay_routing::WorkerId;
use forebay_routing::event::WorkerKey;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Duration, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Pause after the first failed introduction; doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Longest pause: an engine that comes back after an hour serves within so long.
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// Data-parallel ranks of one engine.
const MAX_RANKS: u16 = 256;

/// How long an event endpoint may take to accept, when it is tried for what `/status` says of it.
const EVENTS_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Two readings of one process's start time agree to this, in seconds: it is read once and printed alike each time.
const SAME_START_SECONDS: f64 = 0.001;

pub(super) struct Site {
    shared: Arc<Shared>,
    worker: Worker,
    address: WorkerUrl,
    status: Arc<Mutex<SiteStatus>>,
    /// Rung by the fleet when one of the workers is due its probe.
    probe: Arc<Notify>,
    handles: Vec<Arc<Handle>>,
    /// What is listened to, by slot.
    listening: BTreeMap<u32, (Attach, Option<Attach>, Option<u32>)>,
    process_start_seconds: Option<f64>,
    instance: Option<String>,
    /// Identities when the process start was last read: if they have moved since, that restart is known.
    seen: Vec<WorkerId>,
}

impl Site {
    pub(super) fn new(shared: Arc<Shared>, worker: Worker, address: WorkerUrl, status: Arc<Mutex<SiteStatus>>) -> Self {
        Self {
            shared,
            worker,
            address,
            status,
            probe: Arc::default(),
            handles: Vec::new(),
            listening: BTreeMap::new(),
            process_start_seconds: None,
            instance: None,
            seen: Vec::new(),
        }
    }

    /// Runs until `stop`, then takes its workers out. (When the whole process ends, the task group drops this instead.)
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.live() => {}
        }
        for handle in std::mem::take(&mut self.handles) {
            self.part(&handle).await;
        }
    }

    async fn live(&mut self) {
        let mut pause = FIRST_PAUSE;
        self.expect_configured().await;
        loop {
            let started_ms = self.shared.clock.now_ms();
            match self.introduce().await {
                Ok((peer, kind)) => {
                    pause = FIRST_PAUSE;
                    self.say(true, None);
                    self.watch(&peer, kind).await;
                }
                Err(problem) => {
                    self.say(false, Some(problem.clone()));
                    self.tell_checked(&Err(problem), started_ms).await;
                    // An ejected worker's probe may come in between.
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.probe.notified() => {}
                    }
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }

    /// A worker whose model the configuration names is known before it answers: its model's requests are then told to
    /// come again, rather than that there is no such model.
    async fn expect_configured(&mut self) {
        let Some(model) = self.worker.model.clone() else { return };
        let ranks = self.ranks(&Profile::default());
        // What goes wrong here goes wrong again, and is reported, when the engine introduces itself.
        let _ = self.join(&model, &ranks).await;
    }

    /// Finds the engine, asks who it is, brings its workers into the fleet.
    async fn introduce(&mut self) -> Result<(Peer, EngineKind), String> {
        let deadline = self.shared.health.timeout;
        let address = self.resolve(deadline).await?;
        let secure = self.server_name();
        let towards = secure.clone().map(|name| Towards::new(self.shared.doors.clone(), name));
        let peer = Peer { address, authority: self.address.authority.clone(), deadline, key: None, towards };
        let started_ms = self.shared.clock.now_ms();
        let profile = probe::probe(&peer, self.worker.model.as_deref()).await.map_err(|error| error.to_string())?;
        let ranks = self.ranks(&profile);
        self.join(&profile.model, &ranks).await?;
        self.notice_restart(&profile).await;
        let mut facts = self.facts(&profile);
        for handle in self.handles.clone() {
            let endpoint = Endpoint {
                url: self.address.base.clone(),
                authority: peer.authority.clone(),
                address,
                rank: handle.rank,
                secure: secure.clone(),
                kind: profile.facts.kind,
            };
            self.shared.fleet.locate(&handle, endpoint).await;
            if let Err(problem) = self.listen(&handle, &profile, &peer).await {
                facts.degraded.push(problem);
            }
            self.shared.fleet.learn(&handle, facts.clone()).await;
        }
        self.report_loads(&profile.reading);
        self.tell_checked(&Ok(()), started_ms).await;
        if let Some(introductions) = &self.shared.introductions {
            let introduction = Introduction {
                url: self.address.base.as_str().into(),
                model: profile.model.as_str().into(),
                peer: peer.clone(),
            };
            // Token parity is then sampled from live requests instead.
            let _ = introductions.try_send(introduction);
        }
        Ok((peer, profile.facts.kind))
    }

    /// Name that the engine's certificate must be for; `None` in the clear.
    fn server_name(&self) -> Option<Arc<str>> {
        let name = self.worker.server_name.as_deref().unwrap_or(&self.address.host);
        self.address.secure.then(|| name.into())
    }

    async fn resolve(&self, deadline: Duration) -> Result<SocketAddr, String> {
        let (host, port) = (self.address.host.as_str(), self.address.port);
        match timeout(deadline, tokio::net::lookup_host((host, port))).await {
            // The present address stays while the name still has it, so that a name with two does not flap.
            Ok(Ok(addresses)) => {
                let all: Vec<_> = addresses.collect();
                let present = self.handles.first().and_then(|handle| self.shared.fleet.endpoint(handle.id()));
                let stays = present.map(|endpoint| endpoint.address).filter(|address| all.contains(address));
                stays.or_else(|| all.first().copied()).ok_or_else(|| format!("{host} has no address"))
            }
            Ok(Err(error)) => Err(format!("cannot resolve {host}: {error}")),
            Err(_) => Err(format!("cannot resolve {host} within {} ms", deadline.as_millis())),
        }
    }

    /// The ranks to make workers of: what the URL or the configuration names, else those that publish events.
    fn ranks(&self, profile: &Profile) -> Vec<Option<u16>> {
        match (self.address.rank, self.worker.ranks) {
            (Some(rank), _) => vec![Some(rank)],
            (None, Some(count)) if count > 1 => (0..count.min(MAX_RANKS)).map(Some).collect(),
            (None, None) if profile.sources.len() > 1 => {
                profile.sources.keys().take(usize::from(MAX_RANKS)).copied().map(Some).collect()
            }
            // One rank, whatever its number: the engine places by itself.
            _ => vec![None],
        }
    }

    /// Makes the site's workers those of `ranks` serving `model`.
    async fn join(&mut self, model: &str, ranks: &[Option<u16>]) -> Result<(), String> {
        let fits = |handle: &Arc<Handle>| &*handle.model == model && ranks.contains(&handle.rank);
        let (stay, part): (Vec<_>, Vec<_>) = std::mem::take(&mut self.handles).into_iter().partition(fits);
        self.handles = stay;
        for handle in part {
            self.part(&handle).await;
        }
        for rank in ranks {
            if self.handles.iter().any(|handle| handle.rank == *rank) {
                continue;
            }
            let key = WorkerKey { model: model.to_owned(), url: self.address.base.clone(), rank: *rank };
            let joined = self.shared.fleet.join(key, self.worker.block_size, self.probe.clone()).await;
            let handle = joined.map_err(|error| error.to_string())?;
            if let (Some(agents), Some(agent)) = (&self.shared.agents, &self.worker.agent) {
                agents.add(agent, handle.clone());
            }
            self.handles.push(handle);
        }
        Ok(())
    }

    async fn part(&mut self, handle: &Arc<Handle>) {
        if self.listening.remove(&handle.slot).is_some() {
            self.shared.feeds.remove(handle).await;
        }
        if let (Some(agents), Some(agent)) = (&self.shared.agents, &self.worker.agent) {
            agents.remove(agent, handle);
        }
        self.shared.fleet.leave(handle).await;
    }

    /// Listens to the worker's KV events; the error says why its cache is guessed instead, or may stay unknown.
    async fn listen(&mut self, handle: &Arc<Handle>, profile: &Profile, peer: &Peer) -> Result<(), String> {
        let (events, replay) = event_endpoints(&self.worker, &self.address, handle.rank, profile)?;
        let capacity_blocks = profile.facts.capacity_blocks;
        let wanted = (events.clone(), replay.clone(), capacity_blocks);
        let reachable = can_connect(&events).await;
        match self.listening.get(&handle.slot) {
            Some(present) if *present == wanted => {
                self.shared.feeds.set_process(handle, process_name(profile)).await;
                return reachable;
            }
            // Another endpoint is another publisher: nothing of the last one's numbers or blocks holds.
            Some(_) => self.shared.fleet.restart(handle.id()).await,
            None => {}
        }
        self.listening.insert(handle.slot, wanted);
        let spec = FeedSpec {
            handle: handle.clone(),
            events,
            replay,
            capacity_blocks,
            block_size: self.worker.block_size,
            context_tokens: profile.facts.max_model_len,
            process: process_name(profile),
            peer: Some(peer.clone()),
        };
        self.shared.feeds.add(spec).await;
        reachable
    }

    fn facts(&self, profile: &Profile) -> Facts {
        let block_size = self.worker.block_size.or(profile.facts.block_size);
        Facts { block_size, ..profile.facts.clone() }
    }

    /// A process that started at another time is another process: what its predecessor held is gone.
    async fn notice_restart(&mut self, profile: &Profile) {
        let start_seconds = profile.reading.process_start_seconds;
        let before = std::mem::replace(&mut self.process_start_seconds, start_seconds);
        let instance_before = std::mem::replace(&mut self.instance, profile.instance.clone());
        if is_another_process(before, start_seconds) || is_another_instance(&instance_before, &profile.instance) {
            // By the identities of then: a feed that saw the same restart has moved them on already.
            for worker in std::mem::take(&mut self.seen) {
                self.shared.fleet.restart(worker).await;
            }
        }
        self.seen = self.identities();
    }

    fn identities(&self) -> Vec<WorkerId> {
        self.handles.iter().map(|handle| handle.id()).collect()
    }

    fn report_loads(&self, reading: &Reading) {
        let at_ms = self.shared.clock.now_ms();
        for handle in &self.handles {
            if let Some(load) = reading.load(handle.rank).and_then(|load| load.at(at_ms)) {
                self.shared.fleet.report_load(handle.id(), load);
            }
        }
    }

    async fn tell_checked(&self, outcome: &Result<(), String>, started_ms: u64) {
        for handle in &self.handles {
            self.shared.fleet.checked(handle, outcome.clone(), started_ms).await;
        }
    }

    fn say(&self, introduced: bool, problem: Option<String>) {
        let mut status = self.status.lock();
        if let Some(problem) = problem.as_ref().filter(|problem| status.problem.as_ref() != Some(*problem)) {
            tracing::warn!(url = %self.address.base, problem, "engine does not answer as a worker: asked again");
        }
        status.introduced = introduced;
        status.problem = problem;
    }
}

fn is_another_process(before: Option<f64>, now: Option<f64>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if (before - now).abs() > SAME_START_SECONDS)
}

/// What tells this process from the next one at the same address.
fn process_name(profile: &Profile) -> Option<String> {
    let instance = profile.instance.as_ref().map(|name| format!("instance {name}"));
    instance.or_else(|| profile.reading.process_start_seconds.map(|seconds| format!("started {seconds}")))
}

fn is_another_instance(before: &Option<String>, now: &Option<String>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if before != now)
}

/// Where to listen for one rank: as configured, else as the engine says.
fn event_endpoints(
    worker: &Worker,
    address: &WorkerUrl,
    rank: Option<u16>,
    profile: &Profile,
) -> Result<(Attach, Option<Attach>), String> {
    let told = profile.sources.get(&rank.unwrap_or(0)).or_else(|| match (rank, profile.sources.len()) {
        (None, 1) => profile.sources.values().next(),
        _ => None,
    });
    // A URL with @rank names that rank's own endpoint; a list of ranks names the first one's.
    let offset = if address.rank.is_some() { 0 } else { rank.unwrap_or(0) };
    let configured = |endpoint: &Option<String>| endpoint.as_ref().map(|endpoint| for_rank(endpoint, offset));
    let events = configured(&worker.kv_events).or_else(|| told.map(|told| told.endpoint.clone()));
    let replay = configured(&worker.kv_replay).or_else(|| told.and_then(|told| told.replay.clone()));
    let parse = |endpoint: String| Attach::parse(&endpoint, &address.host).map_err(|error| error.to_string());
    let events = events.ok_or(match profile.facts.kind {
        EngineKind::TensorRtLlm => "no KV events: set kv_events = \"poll:/kv_cache_events\" in one gateway",
        _ => "no KV events: start the engine with --kv-events-config, or set kv_events",
    })?;
    let (events, replay) = (parse(events)?, replay.map(parse).transpose()?);
    if let (Attach::Poll(path), true) = (&events, rank.is_some()) {
        return Err(format!("poll:{path}: an engine has one buffer of events for all its ranks; leave out the ranks"));
    }
    match replay {
        Some(Attach::Poll(path)) => Err(format!("poll:{path} is no replay endpoint: leave kv_replay out")),
        replay => Ok((events, replay)),
    }
}

/// Tries an endpoint that the engine should have bound. ZMQ itself would go on trying in silence.
async fn can_connect(events: &Attach) -> Result<(), String> {
    let Some(target) = events.tcp_target() else { return Ok(()) };
    match timeout(EVENTS_CONNECT_TIMEOUT, TcpStream::connect(target)).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(format!(
            "nobody listens at KV event endpoint tcp://{target}: if the engine connects there (its endpoint has no `*`), set kv_events = \"bind:tcp://{target}\""
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe::EventSource;
    use super::*;

    /// Endpoints of `rank`, as `url`, `kv_events` and what the engine says of itself make them.
    fn endpoints(
        url: &str,
        rank: Option<u16>,
        kv_events: Option<&str>,
        told: &[(u16, &str)],
    ) -> Result<String, String> {
        let source = |endpoint: &str| EventSource { endpoint: endpoint.to_owned(), replay: None };
        let profile = Profile {
            sources: told.iter().map(|(rank, endpoint)| (*rank, source(endpoint))).collect(),
            ..Profile::default()
        };
        let worker = Worker {
            url: url.to_owned(),
            server_name: None,
            model: None,
            ranks: None,
            kv_events: kv_events.map(str::to_owned),
            kv_replay: None,
            block_size: None,
            agent: None,
        };
        let address = WorkerUrl::parse(url).expect("valid");
        let (events, _) = event_endpoints(&worker, &address, rank, &profile)?;
        Ok(events.address().to_owned())
    }

    #[test]
    fn event_endpoints_come_from_configuration_then_from_the_engine() {
        let two = [(0, "tcp://*:5557"), (1, "tcp://*:5558")];
        let ok = |endpoint: &str| Ok(endpoint.to_owned());
        assert_eq!(endpoints("http://gpu:80", None, None, &two[..1]), ok("tcp://gpu:5557"));
        assert_eq!(endpoints("http://gpu:80", Some(1), None, &two), ok("tcp://gpu:5558"));
        assert_eq!(endpoints("http://gpu:80", Some(1), Some("tcp://*:7000"), &two), ok("tcp://gpu:7001"));
        assert_eq!(endpoints("http://gpu:80@1", Some(1), Some("tcp://*:7000"), &two), ok("tcp://gpu:7000"));
        assert_eq!(endpoints("http://gpu:80", None, None, &[(4, "tcp://*:5561")]), ok("tcp://gpu:5561"));
        assert!(endpoints("http://gpu:80", None, None, &[]).is_err_and(|problem| problem.contains("no KV events")));
        assert!(
            endpoints("http://gpu:80", None, Some("udp://x"), &[]).is_err_and(|problem| problem.contains("udp://x"))
        );
    }

    #[tokio::test]
    async fn an_endpoint_that_nobody_bound_is_named_with_what_to_write() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
        let problem = can_connect(&Attach::Connect(format!("tcp://{closed}"))).await.expect_err("closed");
        assert!(problem.contains(&format!("bind:tcp://{closed}")), "{problem}");
        assert_eq!(can_connect(&Attach::Bind(format!("tcp://{closed}"))).await, Ok(()));
    }
}
