//! Connection counters of workers and transfer peers: `conn_load`, and `busy` where it is asked for.

use crate::error::{Error, Stage};
use crate::object::{self, GUARD_MAPS, ProgramRun, ProgramSize, open, program};
use crate::table::{Table, Values};
use aya::Ebpf;
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, SockOps};
use forebay_common::kernel::account::{
    Counter, LoadRecord, MAX_PEERS, MAX_WATCHED, PeerKey, PeerRecord, WatchKey, WatchSlot,
};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::Path;

/// A slot rests so many ms after its worker was taken out: its last connections still name it.
pub const SLOT_REST_MS: u64 = 60_000;

const PROGRAMS: &[&str] = &["conn_load", "busy_ingress", "busy_egress"];

/// Attached counters. Dropping it detaches.
pub struct Load {
    ebpf: Ebpf,
    workers: Table<32, 8>,
    records: Values<88>,
    ports: Table<4, 4>,
    peers: Table<24, 64>,
    health: Values<8>,
    slots: Slots,
    busy: bool,
}

/// Which position of the map belongs to whom. Pure, and tested as such.
#[derive(Debug, Default)]
struct Slots {
    generations: Vec<u32>,
    resting: VecDeque<(u32, u64)>,
    taken: HashMap<WatchKey, WatchSlot>,
}

impl Slots {
    /// A position for `key` that nobody used within [`SLOT_REST_MS`], in a generation that nobody had.
    fn allot(&mut self, key: WatchKey, now_ms: u64) -> Option<WatchSlot> {
        let index = match self.resting.front() {
            Some(&(index, free_at_ms)) if free_at_ms <= now_ms => {
                self.resting.pop_front();
                index
            }
            _ if self.generations.len() < MAX_WATCHED as usize => {
                self.generations.push(0);
                self.generations.len() as u32 - 1
            }
            _ => return None,
        };
        let generation = self.generations.get_mut(index as usize)?;
        *generation += 1;
        let slot = WatchSlot { index, generation: *generation };
        self.taken.insert(key, slot);
        Some(slot)
    }

    fn free(&mut self, key: &WatchKey, now_ms: u64) -> Option<WatchSlot> {
        let slot = self.taken.remove(key)?;
        self.resting.push_back((slot.index, now_ms.saturating_add(SLOT_REST_MS)));
        Some(slot)
    }
}

impl Load {
    /// Attaches to the cgroup (v2) at `cgroup`, which must not be the root: there, both ends of a connection within the host would
    /// be seen, and every socket of the host would pay.
    pub fn attach(cgroup: &Path, busy: bool) -> Result<Self, Error> {
        let shown = cgroup.display().to_string();
        let place = File::open(cgroup).map_err(|error| Error::io(Stage::Place, shown.clone(), &error))?;
        let mut load = Self::unattached(busy)?;
        let counters: &mut SockOps = program(&mut load.ebpf, "conn_load")?;
        counters
            .attach(&place, CgroupAttachMode::Single)
            .map_err(|error| Error::caused(Stage::Attach, format!("conn_load at {shown}"), &error))?;
        if busy {
            for (name, kind) in
                [("busy_ingress", CgroupSkbAttachType::Ingress), ("busy_egress", CgroupSkbAttachType::Egress)]
            {
                let program: &mut CgroupSkb = program(&mut load.ebpf, name)?;
                program
                    .attach(&place, kind, CgroupAttachMode::Single)
                    .map_err(|error| Error::caused(Stage::Attach, format!("{name} at {shown}"), &error))?;
            }
        }
        Ok(load)
    }

    /// Loads and attaches nowhere, for probes and tests.
    pub fn unattached(busy: bool) -> Result<Self, Error> {
        let mut ebpf = open(GUARD_MAPS, &[])?;
        let counters: &mut SockOps = program(&mut ebpf, "conn_load")?;
        counters.load().map_err(|error| Error::caused(Stage::Load, "conn_load", &error))?;
        if busy {
            for name in ["busy_ingress", "busy_egress"] {
                let program: &mut CgroupSkb = program(&mut ebpf, name)?;
                program.load().map_err(|error| Error::caused(Stage::Load, name, &error))?;
            }
        }
        Ok(Self {
            workers: Table::take(&mut ebpf, "WORKERS")?,
            records: Values::take(&mut ebpf, "LOAD")?,
            ports: Table::take(&mut ebpf, "PORTS")?,
            peers: Table::take(&mut ebpf, "PEERS")?,
            health: Values::take(&mut ebpf, "HEALTH")?,
            slots: Slots::default(),
            ebpf,
            busy,
        })
    }

    /// Whether `busy` counts as well.
    pub fn counts_busy(&self) -> bool {
        self.busy
    }

    /// Counts connections that the listener at `key` accepts from now on. The record is written before the key is published, so no
    /// connection meets the counters of a former worker. `None` when all positions are taken or rest.
    pub fn watch(&mut self, key: WatchKey, now_ms: u64) -> Result<Option<WatchSlot>, Error> {
        if let Some(slot) = self.slots.taken.get(&key) {
            return Ok(Some(*slot));
        }
        let Some(slot) = self.slots.allot(key, now_ms) else { return Ok(None) };
        let record = LoadRecord { generation: slot.generation, ..LoadRecord::default() };
        self.records.write(slot.index, record.to_bytes())?;
        self.workers.insert(key.to_bytes(), slot.to_bytes())?;
        Ok(Some(slot))
    }

    /// Counts no further connections of `key`; those that are open still count when they end, until the position is given
    /// away after [`SLOT_REST_MS`]. False when it was not watched.
    pub fn unwatch(&mut self, key: &WatchKey, now_ms: u64) -> Result<bool, Error> {
        let known = self.slots.free(key, now_ms).is_some();
        self.workers.remove(key.to_bytes())?;
        Ok(known)
    }

    /// The counters of a position; `None` when they belong to another generation.
    pub fn record(&self, slot: WatchSlot) -> Result<Option<LoadRecord>, Error> {
        let record = LoadRecord::from_bytes(&self.records.read(slot.index)?);
        Ok((record.generation == slot.generation).then_some(record))
    }

    /// Counts connections on `port` for each peer, on whichever side this node is.
    pub fn watch_port(&mut self, port: u16) -> Result<(), Error> {
        self.ports.insert(u32::from(port).to_ne_bytes(), [0; 4])
    }

    /// Every peer of a transfer port.
    pub fn peers(&self) -> Vec<(PeerKey, PeerRecord)> {
        let entries = self.peers.entries(MAX_PEERS as usize);
        entries.iter().map(|(key, record)| (PeerKey::from_bytes(key), PeerRecord::from_bytes(record))).collect()
    }

    /// A counter of the programs themselves.
    pub fn counter(&self, counter: Counter) -> Result<u64, Error> {
        Ok(u64::from_ne_bytes(self.health.read(counter as u32)?))
    }

    /// Runs while [`RunStats`](crate::RunStats) lived: of `conn_load`, and of both halves of `busy`.
    pub fn runs(&self) -> Result<(ProgramRun, ProgramRun), Error> {
        Ok((object::runs(&self.ebpf, &PROGRAMS[..1])?, object::runs(&self.ebpf, &PROGRAMS[1..])?))
    }

    /// What the verifier made of the loaded programs.
    pub fn sizes(&self) -> Vec<ProgramSize> {
        PROGRAMS.iter().filter_map(|name| object::size(&self.ebpf, name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_rests_and_comes_back_in_another_generation() {
        let mut slots = Slots::default();
        let key = |port| WatchKey { port, ..WatchKey::default() };
        let first = slots.allot(key(1), 0).unwrap();
        assert_eq!((first.index, first.generation), (0, 1));
        assert_eq!(slots.free(&key(1), 10), Some(first));
        assert_eq!(slots.free(&key(1), 10), None, "freed once");
        let second = slots.allot(key(1), 10 + SLOT_REST_MS - 1).unwrap();
        assert_eq!(second.index, 1, "the first still rests");
        let third = slots.allot(key(2), 10 + SLOT_REST_MS).unwrap();
        assert_eq!((third.index, third.generation), (0, 2));
    }

    #[test]
    fn a_full_table_says_so() {
        let mut slots = Slots::default();
        for port in 0..MAX_WATCHED {
            let key = WatchKey { port: port as u16, ..WatchKey::default() };
            assert!(slots.allot(key, 0).is_some());
        }
        assert_eq!(slots.allot(WatchKey { netns_cookie: 1, ..WatchKey::default() }, 0), None);
    }
}
