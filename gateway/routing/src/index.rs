//! Who holds which block.
//!
//! ```text
//! engine events ─► Ledger (one per worker and rank) ─► hold / release ─┐
//! dispatches ───► place ────────────────────────────────────────────────┼─► shards: chain hash → holders ─► lookup ─► Hits
//! responses ────► confirm ───────────────────────────────────────────────┘
//! forget(worker) ─► generation table: what is older than the slot's live generation counts for nothing, at once
//! ```
//!
//! A worker holds a block for one of three reasons, kept apart so that each can end on its own:
//! - *held*: its events say so ([`ledger::Ledger`] counts copies and names);
//! - *placed*: this gateway sent the prompt there a moment ago and no event has confirmed it yet; ends by itself;
//! - *recent*: a worker without events was sent the block, and it is among the most recently used ones that fit there.
//!
//! Invariants:
//! - a hit is contiguous from the start of the prompt: one missing block ends the credit there, whatever lies behind it;
//! - a holder of a dead generation is never reported, swept or not;
//! - entries never exceed the limit. When a shard is full, the worst of a few sampled entries goes: first those that only
//!   dead or expired holders keep, then the deepest one (what is lost is then a tail and not a shared head), then the one
//!   with the fewest holders;
//! - readers and writers hold one shard lock at a time, for at most one run of blocks.
//!
//! Blocks of one prompt are kept in runs of [`RUN`]: the first block of a run chooses the shard for all of it, so a look-up
//! takes one lock for each run and not for each block. Each entry carries a signature of its holders; while consecutive
//! blocks have equal signatures, the set of candidates need not be intersected again.
//!
//! | Operation | Cost |
//! |---|---|
//! | `lookup` | O(blocks + changes of the holder set × workers), ends with the last candidate; no allocation in steady state |
//! | ledger store, remove | O(1) a block |
//! | `place`, `confirm` | O(blocks) |
//! | `forget` | O(1); memory comes back by `sweep` |

pub mod ledger;
mod recent;
mod shard;
#[cfg(test)]
mod tests;

use crate::WorkerId;
use crate::block::ChainHash;
use crate::event::MAX_WORKERS;
use parking_lot::{Mutex, RwLock};
use recent::Recent;
use shard::{Holder, Reason, Shard};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Blocks of one prompt that share a shard, and so a lock.
pub const RUN: usize = 64;
/// Independent locks. Runs spread over them by their first hash.
const SHARDS: usize = 64;
/// Shards that one call of [`PrefixIndex::sweep`] walks: eight calls see the whole index.
const SHARDS_PER_SWEEP: usize = 8;
/// Memory of one entry with up to two holders, the hash table's spare room included; each further holder takes 16 more.
pub const ENTRY_BYTES: usize = 128;
/// Blocks of a worker without events whose capacity is unknown: the default of engines in tests and demos.
const ASSUMED_CAPACITY_BLOCKS: u32 = 16_384;
/// How long an own placement counts beyond its expected first token: events follow the prefill within milliseconds.
const PLACEMENT_MS: u32 = 5_000;
/// The longest that one counts: a prediction beyond this is no reason to believe.
const MAX_PLACEMENT_MS: u32 = 60_000;

/// How an own placement is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// The worker has events: count at once, forget after `for_ms` unless they confirm.
    Expiring {
        /// From the placement.
        for_ms: u32,
    },
    /// The worker has no events: keep the most recently used blocks up to its capacity.
    Recent {
        /// KV capacity.
        capacity_blocks: u32,
    },
}

impl Retention {
    /// For a worker with events whose first token is expected after `expected_ttft_ms`.
    pub fn until_confirmed(expected_ttft_ms: f64) -> Self {
        // A float cast saturates and takes what is not a number as zero.
        let for_ms = PLACEMENT_MS.saturating_add(expected_ttft_ms as u32).min(MAX_PLACEMENT_MS);
        Self::Expiring { for_ms }
    }

    /// For a worker without events.
    pub fn recent(capacity_blocks: Option<u32>) -> Self {
        Self::Recent { capacity_blocks: capacity_blocks.unwrap_or(ASSUMED_CAPACITY_BLOCKS) }
    }
}

/// What an engine said it served from its cache, beside what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// Blocks that the decision counted as cached.
    pub predicted_blocks: u32,
    /// Blocks that the engine counted.
    pub cached_blocks: u32,
    /// When the request was placed.
    pub placed_at_ms: u64,
    /// Now.
    pub now_ms: u64,
}

/// Prefix lengths found for one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// (worker, contiguous blocks held from the start of the prompt), ascending by worker, zero hits absent.
    pub blocks: Vec<(WorkerId, u32)>,
}

impl Hits {
    /// Contiguous blocks that `worker` holds. O(log hits).
    pub fn of(&self, worker: WorkerId) -> u32 {
        self.blocks.binary_search_by_key(&worker, |&(id, _)| id).map_or(0, |at| self.blocks[at].1)
    }
}

/// Size and losses of the index, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Distinct blocks.
    pub entries: usize,
    /// (block, worker) pairs, dead ones included until they are swept.
    pub holders: usize,
    /// Entries thrown out because their shard was full.
    pub evicted: u64,
    /// Holders that sweeps freed.
    pub swept: u64,
}

/// Shared prefix index: any number of readers; changes come from a [`ledger::Ledger`] per worker and from own placements.
pub struct PrefixIndex {
    shards: Box<[RwLock<Shard>]>,
    max_entries_per_shard: usize,
    /// For each slot, the lowest generation that is alive.
    live: Box<[AtomicU64]>,
    recent: Box<[Mutex<Option<Box<Recent>>>]>,
    next_sweep: AtomicUsize,
    evicted: AtomicU64,
    swept: AtomicU64,
}

/// Where a block lives: its hash, its depth in the prompt and the shard of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    chain: ChainHash,
    position: u32,
    home: u8,
}

impl PrefixIndex {
    /// An empty index that holds at most about `max_entries` distinct blocks (spread evenly over its shards).
    pub fn new(max_entries: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|seed| RwLock::new(Shard::new(seed as u64 + 1))).collect(),
            max_entries_per_shard: max_entries.div_ceil(SHARDS).max(1),
            live: (0..MAX_WORKERS).map(|_| AtomicU64::new(0)).collect(),
            recent: (0..MAX_WORKERS).map(|_| Mutex::new(None)).collect(),
            next_sweep: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            swept: AtomicU64::new(0),
        }
    }

    /// An empty index of about `bytes` of memory when blocks have up to two holders each.
    pub fn with_budget(bytes: usize) -> Self {
        Self::new(bytes / ENTRY_BYTES)
    }

    /// Fills `out` with the contiguous prefix that each worker holds. `own_placements`: whether dispatches to workers with
    /// events count before an event confirms them.
    pub fn lookup(&self, chain: &[ChainHash], now_ms: u64, own_placements: bool, out: &mut Hits) {
        out.blocks.clear();
        let now = shard::ticks(now_ms);
        let counts = |holder: &Holder| holder.counts(now, own_placements);
        // Those that hold everything so far come first and in order; those that fell behind follow in any order.
        let mut leading = 0;
        let mut depth = 0;
        let mut signature = None;
        'chain: for run in chain.chunks(RUN) {
            let shard = self.shards[home(run[0])].read();
            for hash in run {
                let Some(entry) = shard.find(*hash) else { break 'chain };
                if signature != Some(entry.signature) {
                    if depth == 0 {
                        let counted =
                            entry.holders.iter().filter(|holder| counts(holder) && self.is_live(holder.worker));
                        out.blocks.extend(counted.map(|holder| (holder.worker, 0)));
                        leading = out.blocks.len();
                    } else {
                        leading = keep_common(&mut out.blocks[..leading], &entry.holders, depth, counts);
                    }
                    if leading == 0 {
                        break 'chain;
                    }
                    signature = Some(entry.signature);
                }
                depth += 1;
            }
        }
        for (_, blocks) in &mut out.blocks[..leading] {
            *blocks = depth;
        }
        out.blocks.sort_unstable();
    }

    /// Remembers that the prompt `chain` was sent to `worker`.
    pub fn place(&self, worker: WorkerId, chain: &[ChainHash], retention: Retention, now_ms: u64) {
        if !self.is_live(worker) {
            return;
        }
        match retention {
            Retention::Expiring { for_ms } => {
                // One tick more, because the current one is begun: it counts for at least as long as asked.
                let until = shard::ticks(now_ms.saturating_add(u64::from(for_ms))).saturating_add(1);
                self.change_runs(chain, 0, |shard, cell| {
                    let max_entries = self.max_entries_per_shard;
                    self.note_evicted(
                        shard.place(worker, cell, until, max_entries, |holder| self.is_live(holder.worker)),
                    );
                });
            }
            Retention::Recent { capacity_blocks } => {
                self.with_recent(worker, true, |recent| recent.place(self, chain, capacity_blocks, now_ms));
            }
        }
    }

    /// Feeds back what the engine served from its cache. A worker with events whose count fell short gets the missing
    /// blocks *doubted* (see [`ledger`]); one without loses everything that it must have evicted before them.
    pub fn confirm(&self, worker: WorkerId, chain: &[ChainHash], report: CacheReport) {
        self.with_recent(worker, false, |recent| recent.confirm(self, chain, report));
        let predicted = chain.len().min(report.predicted_blocks as usize);
        let cached = predicted.min(report.cached_blocks as usize);
        if cached < predicted {
            self.change_runs(&chain[..predicted], cached, |shard, cell| shard.doubt(worker, cell.chain));
        }
    }

    /// Drops everything known of this generation of the slot and all before it, at once.
    pub fn forget(&self, worker: WorkerId) {
        if let Some(live) = self.live.get(worker.slot as usize) {
            live.fetch_max(u64::from(worker.generation) + 1, Ordering::AcqRel);
        }
        if let Some(recent) = self.recent.get(worker.slot as usize) {
            recent.lock().take_if(|recent| recent.worker().generation <= worker.generation);
        }
    }

    /// Drops own placements at a worker without events: its cache is known by events from now on.
    pub fn forget_placements(&self, worker: WorkerId) {
        self.with_recent(worker, false, |recent| recent.clear(self));
    }

    /// Frees a share of what dead generations and expired placements left behind and returns how many holders went; call
    /// it now and then (every second) from one task.
    pub fn sweep(&self, now_ms: u64) -> usize {
        let now = shard::ticks(now_ms);
        let first = self.next_sweep.fetch_add(SHARDS_PER_SWEEP, Ordering::Relaxed);
        let mut freed = 0;
        for at in first..first + SHARDS_PER_SWEEP {
            freed += self.shards[at % SHARDS]
                .write()
                .sweep(|holder| holder.counts(now, true) && self.is_live(holder.worker));
        }
        self.swept.fetch_add(freed as u64, Ordering::Relaxed);
        freed
    }

    /// Size and losses. Walks every entry: for metrics, not for requests.
    pub fn stats(&self) -> IndexStats {
        let mut stats = IndexStats {
            evicted: self.evicted.load(Ordering::Relaxed),
            swept: self.swept.load(Ordering::Relaxed),
            ..IndexStats::default()
        };
        for shard in &self.shards {
            let shard = shard.read();
            stats.entries += shard.len();
            stats.holders += shard.holders();
        }
        stats
    }

    /// Enters a holder; says what stood there before.
    fn hold(&self, worker: WorkerId, cell: Cell, reason: Reason) -> shard::Before {
        if !self.is_live(worker) {
            return shard::Before::Absent;
        }
        let mut shard = self.shards[usize::from(cell.home)].write();
        let (before, evicted) =
            shard.hold(worker, cell, reason, self.max_entries_per_shard, |holder| self.is_live(holder.worker));
        self.note_evicted(evicted);
        before
    }

    fn release(&self, worker: WorkerId, cell: Cell, reason: Reason) {
        self.shards[usize::from(cell.home)].write().release(worker, cell.chain, reason);
    }

    fn is_doubted(&self, worker: WorkerId, cell: Cell) -> bool {
        self.shards[usize::from(cell.home)].read().is_doubted(worker, cell.chain)
    }

    fn is_live(&self, worker: WorkerId) -> bool {
        self.live
            .get(worker.slot as usize)
            .is_some_and(|live| live.load(Ordering::Acquire) <= u64::from(worker.generation))
    }

    fn note_evicted(&self, entries: usize) {
        if entries > 0 {
            self.evicted.fetch_add(entries as u64, Ordering::Relaxed);
        }
    }

    /// Calls `change` for every block of `chain` from position `from` on, under the write lock of its shard.
    fn change_runs(&self, chain: &[ChainHash], from: usize, mut change: impl FnMut(&mut Shard, Cell)) {
        for (run_at, run) in chain.chunks(RUN).enumerate().skip(from / RUN) {
            let home = home(run[0]);
            let mut shard = self.shards[home].write();
            for (at, &chain) in (run_at * RUN..).zip(run).skip_while(|&(at, _)| at < from) {
                change(&mut shard, Cell { chain, position: at as u32, home: home as u8 });
            }
        }
    }

    fn with_recent(&self, worker: WorkerId, create: bool, apply: impl FnOnce(&mut Recent)) {
        let Some(recent) = self.recent.get(worker.slot as usize) else { return };
        let mut recent = recent.lock();
        if create && recent.as_ref().is_none_or(|recent| recent.worker() != worker) {
            *recent = Some(Box::new(Recent::new(worker)));
        }
        if let Some(recent) = recent.as_mut().filter(|recent| recent.worker() == worker) {
            apply(recent);
        }
    }
}

/// The shard of the run that starts with `chain`.
fn home(chain: ChainHash) -> usize {
    // The table inside a shard uses the low bits and the top seven: these are others.
    (chain.0 >> 40) as usize % SHARDS
}

/// Moves the candidates that are not among `holders` behind the others and fixes their depth; returns how many stay. Both
/// are ascending, and those that stay remain so.
fn keep_common(
    candidates: &mut [(WorkerId, u32)],
    holders: &[Holder],
    depth: u32,
    counts: impl Fn(&Holder) -> bool,
) -> usize {
    let mut stay = 0;
    let mut holders = holders.iter().peekable();
    for at in 0..candidates.len() {
        let worker = candidates[at].0;
        while holders.next_if(|holder| holder.worker < worker).is_some() {}
        if holders.peek().is_some_and(|holder| holder.worker == worker && counts(holder)) {
            candidates.swap(stay, at);
            stay += 1;
        } else {
            candidates[at].1 = depth;
        }
    }
    stay
}

/// Mixes 64 bits so that each bit of the result depends on all of them (the finaliser of SplitMix64).
pub(crate) fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
