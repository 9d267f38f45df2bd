//! One node: its watched engines, the programs that count them, and what a record says of it all.

mod page;

use super::busy::{Activity, Follower};
use super::rdma::Rdma;
use super::seed::{Counted, Seed, Standing};
use super::sockets::{self, Socket};
use super::watches::{self, Wanted};
use crate::config;
use crate::ladder::{Failures, Signal};
use forebay_common::kernel::account::{LoadRecord, WatchKey, WatchSlot};
use forebay_common::wire::{self, PeerLink, WorkerLoad};
use forebay_ebpf::{Error, Load, cgroup, netns_cookie};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// Between two checks of counters against the list of sockets.
const CHECK_EVERY_MS: u64 = 30_000;
/// Peers in one record.
const MAX_PEER_LINKS: usize = 256;

/// The node as the sampler sees it.
pub struct Node {
    config: config::Load,
    wanted: Wanted,
    programs: Option<Load>,
    signals: Vec<Signal>,
    failures: Failures,
    watched: BTreeMap<WatchKey, Watched>,
    follower: Follower,
    rdma: Rdma,
    rdma_ports: Vec<wire::RdmaPort>,
    sequence: u64,
    sockets_due_ms: u64,
    check_due_ms: u64,
    sockets_at_ms: Option<u64>,
    unwatchable: u64,
}

/// One engine.
#[derive(Debug, Default)]
struct Watched {
    slot: Option<WatchSlot>,
    seed: Seed,
    found: Option<Found>,
    /// What the last connections had sent and received while they were open.
    counted: Option<LoadRecord>,
}

/// What one list of sockets said of an engine.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    open: u64,
    awaiting: u32,
    streaming: u32,
    unread_bytes: u64,
    backlog: Option<(u32, u32)>,
    bytes_in: u64,
    bytes_out: u64,
    retransmits: u64,
}

impl Node {
    /// Brings up what this node allows; what it does not is off, with the reason.
    pub fn start(config: &config::Load, now_ms: u64) -> Self {
        let mut failures = Failures::default();
        let mut signals = Vec::new();
        let cookie = netns_cookie().unwrap_or_else(|error| {
            failures.count(&error);
            0
        });
        let mut programs = None;
        match attach(config) {
            Ok(load) => {
                signals.push(Signal::on("connections", 2));
                let busy =
                    if load.counts_busy() { Signal::on("busy", 2) } else { Signal::held("busy", 0, "not asked for") };
                signals.push(busy);
                programs = Some(load);
            }
            Err(why) => {
                if let Some(error) = &why.error {
                    failures.count(error);
                    keep_verifier_log(&config.state_dir, error);
                }
                let level = u8::from(config.sockets);
                signals.push(Signal::held("connections", level, why.words));
                signals.push(Signal::held("busy", 0, "needs connections at L2"));
            }
        }
        signals.push(match (config.sockets, sockets::dump()) {
            (false, _) => Signal::held("sockets", 0, "switched off"),
            (true, Ok(_)) => Signal::on("sockets", 1),
            (true, Err(error)) => Signal::held("sockets", 0, error.to_string()),
        });
        let mut rdma = Rdma::new(&config.sysfs);
        let rdma_ports = rdma.read();
        signals.push(if rdma_ports.is_empty() { Signal::held("rdma", 0, "no device") } else { Signal::on("rdma", 0) });
        let wanted =
            Wanted { workers: config.workers.clone(), ports: config.discover_ports.clone(), netns_cookie: cookie };
        let mut node = Self {
            config: config.clone(),
            wanted,
            programs,
            signals,
            failures,
            watched: BTreeMap::new(),
            follower: Follower::default(),
            rdma,
            rdma_ports,
            sequence: 0,
            sockets_due_ms: now_ms,
            check_due_ms: now_ms,
            sockets_at_ms: None,
            unwatchable: 0,
        };
        node.watch_ports();
        node
    }

    /// What is on, what is off and why.
    pub fn signals(&self) -> &[Signal] {
        &self.signals
    }

    /// The highest level of any signal.
    pub fn level(&self) -> u8 {
        self.signals.iter().map(|signal| signal.level).max().unwrap_or(0)
    }

    fn lists_sockets(&self) -> bool {
        self.signals.iter().any(|signal| signal.name == "sockets" && signal.level > 0)
    }

    fn watch_ports(&mut self) {
        let Some(programs) = &mut self.programs else { return };
        for port in &self.config.transfer_ports {
            if let Err(error) = programs.watch_port(*port) {
                self.failures.count(&error);
                tracing::warn!("{error}");
            }
        }
    }

    /// A record of now.
    pub fn sample(&mut self, now_ms: u64) -> wire::Load {
        if self.lists_sockets() {
            if now_ms >= self.sockets_due_ms {
                self.sockets_due_ms = now_ms + u64::from(self.config.sockets_period_ms);
                self.list_sockets(now_ms);
                self.rdma_ports = self.rdma.read();
            }
        } else if self.watched.is_empty() {
            self.watch(self.wanted.as_configured(), now_ms);
            self.rdma_ports = self.rdma.read();
        }
        self.read_records();
        self.sequence += 1;
        let sockets_age_ms = self.sockets_at_ms.map(|at_ms| now_ms.saturating_sub(at_ms) as u32);
        wire::Load {
            sequence: self.sequence,
            age_ms: 0,
            workers: self.watched.iter().map(|(key, watched)| watched.told(key, sockets_age_ms)).collect(),
            rdma: self.rdma_ports.clone(),
            peers: self.peers(),
        }
    }

    fn list_sockets(&mut self, now_ms: u64) {
        // Counters before and after, so that a check can tell what happened meanwhile.
        self.read_records();
        let before: BTreeMap<WatchKey, Counted> =
            self.watched.iter().filter_map(|(key, watched)| Some((*key, watched.counters()?))).collect();
        let listed = match sockets::dump() {
            Ok(listed) => listed,
            Err(error) => {
                self.failures.count(&Error {
                    stage: forebay_ebpf::Stage::Place,
                    what: "sockets".to_owned(),
                    why: error.to_string(),
                    errno: error.raw_os_error(),
                    verifier_log: None,
                });
                return;
            }
        };
        let came = self.watch(self.wanted.among(&listed), now_ms);
        self.count_sockets(&listed);
        self.sockets_at_ms = Some(now_ms);
        let due = now_ms >= self.check_due_ms;
        if due {
            self.check_due_ms = now_ms + CHECK_EVERY_MS;
        }
        self.read_records();
        for (key, watched) in &mut self.watched {
            // A worker that has just come is seeded by the next list: its connections of before are not told from new ones yet.
            let seeding = watched.seed.standing() != Standing::Live && !came.contains(key);
            if let (Some(before), Some(after), Some(found)) = (before.get(key), watched.counters(), watched.found)
                && (due || seeding)
            {
                watched.seed.check(*before, found.open, after);
            }
        }
    }

    /// Makes `keys` what is watched; those that are new.
    fn watch(&mut self, keys: std::collections::BTreeSet<WatchKey>, now_ms: u64) -> Vec<WatchKey> {
        let gone: Vec<_> = self.watched.keys().filter(|key| !keys.contains(key)).copied().collect();
        for key in gone {
            self.watched.remove(&key);
            if let Some(Err(error)) = self.programs.as_mut().map(|programs| programs.unwatch(&key, now_ms)) {
                self.failures.count(&error);
            }
            tracing::info!(worker = %shown(&key), "no longer listens");
        }
        let new: Vec<_> = keys.into_iter().filter(|key| !self.watched.contains_key(key)).collect();
        for key in &new {
            let slot = match self.programs.as_mut().map(|programs| programs.watch(*key, now_ms)) {
                Some(Ok(Some(slot))) => Some(slot),
                Some(Ok(None)) => {
                    self.unwatchable += 1;
                    None
                }
                Some(Err(error)) => {
                    self.failures.count(&error);
                    None
                }
                None => None,
            };
            self.watched.insert(*key, Watched { slot, ..Watched::default() });
            tracing::info!(worker = %shown(key), counted = slot.is_some(), "watched");
        }
        new
    }

    fn count_sockets(&mut self, listed: &[Socket]) {
        for watched in self.watched.values_mut() {
            watched.found = Some(Found::default());
        }
        self.follower.begin();
        for socket in listed.iter().filter(|socket| socket.is_connection() || socket.is_listener()) {
            let Some(watched) = watches::owner(&mut self.watched, self.wanted.netns_cookie, socket) else { continue };
            let Some(found) = &mut watched.found else { continue };
            if socket.is_listener() {
                found.backlog = Some((socket.receive_queue, socket.send_queue));
                continue;
            }
            found.open += 1;
            found.unread_bytes += u64::from(socket.receive_queue);
            let Some(info) = &socket.info else { continue };
            found.bytes_in += info.bytes_in;
            found.bytes_out += info.bytes_out;
            found.retransmits += u64::from(info.retransmits);
            match self.follower.judge(socket.cookie, info) {
                Activity::Idle => {}
                Activity::Awaiting => found.awaiting += 1,
                Activity::Streaming => found.streaming += 1,
            }
        }
        self.follower.end();
    }

    fn read_records(&mut self) {
        let Some(programs) = &self.programs else { return };
        for watched in self.watched.values_mut() {
            let Some(slot) = watched.slot else { continue };
            match programs.record(slot) {
                Ok(record) => watched.counted = record,
                Err(error) => {
                    watched.counted = None;
                    self.failures.count(&error);
                }
            }
        }
    }

    fn peers(&self) -> Vec<PeerLink> {
        let Some(programs) = self.programs.as_ref().filter(|_| !self.config.transfer_ports.is_empty()) else {
            return Vec::new();
        };
        let all = programs.peers().into_iter().take(MAX_PEER_LINKS);
        let link =
            |(key, record): (forebay_common::kernel::account::PeerKey, forebay_common::kernel::account::PeerRecord)| {
                PeerLink {
                    address: key.address,
                    port: key.port,
                    open: record.opened.saturating_sub(record.closed) as u32,
                    bytes_in: record.bytes_in,
                    bytes_out: record.bytes_out,
                    retransmits: record.retransmits,
                    srtt_us: record.srtt_us_sum.checked_div(record.srtt_samples).map(|us| us as u32),
                }
            };
        all.map(link).collect()
    }
}

impl Watched {
    fn counters(&self) -> Option<Counted> {
        self.counted.map(|record| Counted { opened: record.opened, closed: record.closed })
    }

    fn told(&self, key: &WatchKey, sockets_age_ms: Option<u32>) -> WorkerLoad {
        let found = self.found;
        // Bytes of connections that ended, and of those that are open.
        let sum = |ended: fn(&LoadRecord) -> u64, open: fn(&Found) -> u64| match (&self.counted, &found) {
            (Some(counted), Some(found)) => Some(ended(counted).saturating_add(open(found))),
            (Some(counted), None) => Some(ended(counted)),
            (None, _) => None,
        };
        let counted_open = self.counters().and_then(|counters| self.seed.open(counters));
        let awaiting = found.map(|found| found.awaiting);
        let suspect = self.slot.is_some() && self.seed.standing() == Standing::Suspect;
        WorkerLoad {
            address: key.address,
            port: key.port,
            open: counted_open.or(found.map(|found| found.open)).map(|open| open as u32),
            opened: self.counted.map(|record| record.opened),
            closed: self.counted.map(|record| record.closed),
            bytes_in: sum(|r| r.bytes_in, |f| f.bytes_in),
            bytes_out: sum(|r| r.bytes_out, |f| f.bytes_out),
            retransmits: sum(|r| r.retransmits, |f| f.retransmits),
            awaiting: awaiting.or_else(|| {
                let record = self.counted.filter(|record| record.requests > 0)?;
                Some(record.awaiting() as u32)
            }),
            streaming: found.map(|found| found.streaming),
            backlog: found.and_then(|found| found.backlog).map(|(waiting, _)| waiting),
            backlog_limit: found.and_then(|found| found.backlog).map(|(_, limit)| limit),
            unread_bytes: found.map(|found| found.unread_bytes),
            sockets_age_ms: found.and(sockets_age_ms),
            suspect: suspect.then(|| "two checks in a row contradicted the counters".to_owned()),
        }
    }
}

/// Why no program was attached.
struct Unattached {
    words: String,
    error: Option<Error>,
}

fn attach(config: &config::Load) -> Result<Load, Unattached> {
    let off = |words: &str| Unattached { words: words.to_owned(), error: None };
    let failed = |error: Error| Unattached { words: error.to_string(), error: Some(error) };
    if !config.programs {
        return Err(off("programs are switched off"));
    }
    let Some(path) = &config.cgroup else { return Err(off("no cgroup is configured")) };
    let path = place(path).map_err(failed)?;
    if cgroup::is_root(&path) {
        return Err(off("the cgroup is the root, where every socket of the host would pay; name the engines' own"));
    }
    Load::attach(&path, config.busy).map_err(failed)
}

/// A cgroup by its path in the file system, or below where cgroup v2 is mounted.
fn place(path: &Path) -> Result<PathBuf, Error> {
    let mount = cgroup::find()?;
    if path.starts_with(&mount) {
        return Ok(path.to_owned());
    }
    Ok(mount.join(path.strip_prefix("/").unwrap_or(path)))
}

/// The verifier's log is long and says everything: it is kept where somebody who looks for it finds it.
pub fn keep_verifier_log(directory: &Path, error: &Error) {
    let Some(log) = &error.verifier_log else { return };
    let path = directory.join(format!("verifier-{}.log", error.what.replace(['/', ' '], "-")));
    match std::fs::write(&path, log) {
        Ok(()) => tracing::error!("the verifier's log is in {}", path.display()),
        Err(write) => tracing::error!("the verifier's log could not be written to {}: {write}", path.display()),
    }
}

/// `address:port`.
fn shown(key: &WatchKey) -> String {
    let address = Ipv6Addr::from(key.address);
    match address.to_ipv4_mapped() {
        Some(v4) => format!("{v4}:{}", key.port),
        None => format!("[{address}]:{}", key.port),
    }
}
