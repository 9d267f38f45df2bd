//! One lock's share of the index: chain hash → holders, with a hard limit.

use super::{Cell, scramble};
use crate::WorkerId;
use crate::block::ChainHash;
use hashbrown::HashMap;
use hashbrown::hash_map;
use smallvec::SmallVec;
use std::hash::{BuildHasherDefault, Hasher};

/// Entries looked at to find the one to evict.
const SAMPLES: usize = 8;
/// Placement times are kept in these units: 2³² of them are 8 years.
const TICK_MS: u64 = 64;

/// Monotonic ms → ticks, from 1; 0 is before all of them and means never placed.
pub(super) fn ticks(ms: u64) -> u32 {
    (ms / TICK_MS + 1).min(u64::from(u32::MAX)) as u32
}

/// Why a worker counts as holder beyond a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Its events say so.
    Held,
    /// It has no events and used the block recently.
    Recent,
}

impl Reason {
    fn flag(self) -> u8 {
        match self {
            Self::Held => HELD,
            Self::Recent => RECENT,
        }
    }
}

const HELD: u8 = 1;
const RECENT: u8 = 2;
/// The engine once missed this block although it was held: its count of copies is not to be trusted.
const DOUBTED: u8 = 4;

/// What stood in the index before a block was entered for [`Reason::Held`] or [`Reason::Recent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// The worker did not hold it for that reason, or could not be entered.
    Absent,
    /// It did.
    Present,
    /// It did, but a response had contradicted it; the doubt is now cleared.
    Doubted,
}

/// One worker that holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) worker: WorkerId,
    placed_until: u32,
    flags: u8,
}

impl Holder {
    pub(super) fn counts(&self, now: u32, own_placements: bool) -> bool {
        self.flags & (HELD | RECENT) != 0 || (own_placements && self.placed_until > now)
    }

    /// A random-looking value of all that decides whether this holder counts; sums (by xor) to an entry's signature.
    fn mix(&self) -> u64 {
        let identity = u64::from(self.worker.slot) << 32 | u64::from(self.worker.generation);
        let standing = u64::from(self.placed_until) << 8 | u64::from(self.flags & (HELD | RECENT));
        scramble(scramble(identity) ^ standing)
    }
}

/// Holders of one block.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Equal for equal sets of holders.
    pub(super) signature: u64,
    /// Position in [`Shard::keys`].
    at: u32,
    /// Depth of the block in its prompt.
    position: u32,
    /// Ascending by worker.
    pub(super) holders: SmallVec<[Holder; 2]>,
}

const _: () = assert!(size_of::<Holder>() == 16);
const _: () = assert!(size_of::<(ChainHash, Entry)>() <= 72, "ENTRY_BYTES counts on it");

impl Entry {
    /// Replaces, adds or (by `None`) removes a holder; keeps order and signature.
    fn set(&mut self, place: Result<usize, usize>, holder: Option<Holder>) {
        if let Ok(at) = place {
            self.signature ^= self.holders[at].mix();
        }
        match (place, holder) {
            (Ok(at), Some(holder)) => self.holders[at] = holder,
            (Ok(at), None) => drop(self.holders.remove(at)),
            (Err(at), Some(holder)) => self.holders.insert(at, holder),
            (Err(_), None) => {}
        }
        if let Some(holder) = holder {
            self.signature ^= holder.mix();
        }
    }

    fn find(&self, worker: WorkerId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&worker, |holder| holder.worker)
    }
}

/// Chain hashes are keyed hashes already: hashing them again would only cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Entries under one lock.
#[derive(Debug)]
pub(super) struct Shard {
    entries: HashMap<ChainHash, Entry, BuildHasherDefault<Identity>>,
    /// Every key once, in no order: what eviction samples.
    keys: Vec<ChainHash>,
    seed: u64,
}

impl Shard {
    pub(super) fn new(seed: u64) -> Self {
        Self { entries: HashMap::default(), keys: Vec::new(), seed }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn holders(&self) -> usize {
        self.entries.values().map(|entry| entry.holders.len()).sum()
    }

    pub(super) fn find(&self, chain: ChainHash) -> Option<&Entry> {
        self.entries.get(&chain)
    }

    /// Enters a holder; returns what stood there and how many entries were evicted for it.
    pub(super) fn hold(
        &mut self,
        worker: WorkerId,
        cell: Cell,
        reason: Reason,
        max_entries: usize,
        is_live: impl Fn(&Holder) -> bool,
    ) -> (Before, usize) {
        let evicted = self.make_room(cell.chain, max_entries, &is_live);
        let entry = self.entry(cell);
        let place = entry.find(worker);
        let mut holder = place.map_or(Holder { worker, placed_until: 0, flags: 0 }, |at| entry.holders[at]);
        let before = match (holder.flags & reason.flag() != 0, holder.flags & DOUBTED != 0) {
            (false, _) => Before::Absent,
            (true, false) => Before::Present,
            (true, true) => Before::Doubted,
        };
        holder.flags = (holder.flags | reason.flag()) & !DOUBTED;
        entry.set(place, Some(holder));
        (before, evicted)
    }

    /// Enters an own placement that counts until `until`; returns how many entries were evicted for it.
    pub(super) fn place(
        &mut self,
        worker: WorkerId,
        cell: Cell,
        until: u32,
        max_entries: usize,
        is_live: impl Fn(&Holder) -> bool,
    ) -> usize {
        let evicted = self.make_room(cell.chain, max_entries, &is_live);
        let entry = self.entry(cell);
        let place = entry.find(worker);
        let mut holder = place.map_or(Holder { worker, placed_until: 0, flags: 0 }, |at| entry.holders[at]);
        // What events confirm needs no second reason; leaving it alone keeps signatures equal along the prompt.
        if holder.flags & HELD == 0 && holder.placed_until < until {
            holder.placed_until = until;
            entry.set(place, Some(holder));
        }
        evicted
    }

    /// Ends one reason; the entry goes with its last holder.
    pub(super) fn release(&mut self, worker: WorkerId, chain: ChainHash, reason: Reason) {
        let Some(entry) = self.entries.get_mut(&chain) else { return };
        let Ok(at) = entry.find(worker) else { return };
        let mut holder = entry.holders[at];
        holder.flags &= !(reason.flag() | DOUBTED);
        // An eviction also refutes a placement: it is about the very block that was placed.
        let gone = holder.flags == 0;
        entry.set(Ok(at), (!gone).then_some(holder));
        if entry.holders.is_empty() {
            self.drop_entry(chain);
        }
    }

    /// Marks a held block as contradicted by a response.
    pub(super) fn doubt(&mut self, worker: WorkerId, chain: ChainHash) {
        let Some(entry) = self.entries.get_mut(&chain) else { return };
        let Ok(at) = entry.find(worker) else { return };
        if entry.holders[at].flags & HELD != 0 {
            entry.holders[at].flags |= DOUBTED;
        }
    }

    pub(super) fn is_doubted(&self, worker: WorkerId, chain: ChainHash) -> bool {
        self.entries
            .get(&chain)
            .is_some_and(|entry| entry.find(worker).is_ok_and(|at| entry.holders[at].flags & DOUBTED != 0))
    }

    /// Drops holders that `keeps` refuses and entries that lose all; returns how many holders went.
    pub(super) fn sweep(&mut self, keeps: impl Fn(&Holder) -> bool) -> usize {
        let mut freed = 0;
        let mut at = 0;
        while let Some(&chain) = self.keys.get(at) {
            let Some(entry) = self.entries.get_mut(&chain) else { break };
            let mut place = 0;
            while place < entry.holders.len() {
                if keeps(&entry.holders[place]) {
                    place += 1;
                } else {
                    entry.set(Ok(place), None);
                    freed += 1;
                }
            }
            // A dropped entry's place is taken by the last key, which is looked at next.
            if entry.holders.is_empty() { self.drop_entry(chain) } else { at += 1 }
        }
        freed
    }

    fn entry(&mut self, cell: Cell) -> &mut Entry {
        match self.entries.entry(cell.chain) {
            hash_map::Entry::Occupied(found) => found.into_mut(),
            hash_map::Entry::Vacant(free) => {
                let at = self.keys.len() as u32;
                self.keys.push(cell.chain);
                free.insert(Entry { at, position: cell.position, ..Entry::default() })
            }
        }
    }

    /// Evicts the worst of a few sampled entries when `chain` would be one too many.
    fn make_room(&mut self, chain: ChainHash, max_entries: usize, is_live: &impl Fn(&Holder) -> bool) -> usize {
        if self.keys.len() < max_entries || self.entries.contains_key(&chain) {
            return 0;
        }
        let mut worst = None;
        for _ in 0..SAMPLES {
            self.seed = self.seed.wrapping_add(1);
            let at = scramble(self.seed) as usize % self.keys.len();
            let chain = self.keys[at];
            let Some(entry) = self.entries.get(&chain) else { continue };
            let dead = !entry.holders.iter().any(is_live);
            let rank = (dead, entry.position, std::cmp::Reverse(entry.holders.len()));
            worst = worst.max(Some((rank, chain)));
        }
        if let Some((_, chain)) = worst {
            self.drop_entry(chain);
        }
        usize::from(worst.is_some())
    }

    fn drop_entry(&mut self, chain: ChainHash) {
        let Some(entry) = self.entries.remove(&chain) else { return };
        self.keys.swap_remove(entry.at as usize);
        if let Some(moved) = self.keys.get(entry.at as usize)
            && let Some(other) = self.entries.get_mut(moved)
        {
            other.at = entry.at;
        }
    }
}
