//! Who holds which block.
//!
//! ```text
//! engine events ─► Ledger (one per worker and rank) ─► hold / release ─┐
//! dispatches ───► place ────────────────────────────────────────────────┼─► shards: segments, holders ─► lookup ─► Hits
//! responses ────► confirm ───────────────────────────────────────────────┘
//! forget(worker) ─► generation table: what is older than the slot's live generation counts for nothing, at once
//! ```
//!
//! **Segments.** Blocks of one prompt come as a chain and mostly leave as one. So the index keeps *segments*: up to [`RUN`]
//! consecutive chain hashes, found in a hash table by the first of them. A prompt that departs in the middle of a segment
//! goes on in another one, which begins with the block that differs; no segment is ever split, and none names its children:
//! whoever walks a prompt asks the table for the next block. Each block is in one place only, decided under the lock of its
//! parent's segment.
//!
//! **Holders.** Who has what of a segment is one 64-bit word for each worker and *plane*. A plane is a way of having a block:
//! - *held*: its events say so ([`ledger::Ledger`] counts copies and names); other tiers and further attention groups have
//!   planes of their own;
//! - *recent*: a worker without events was sent the block, and it is among the most recently used ones that fit there;
//! - *placed*: this gateway sent the prompt there a moment ago and no event has confirmed it yet; ends by itself;
//! - *doubted*, *unsure*: what is held, but not to be trusted: a response contradicted it, or events were lost.
//!
//! **Unconfirmed blocks.** After a gap in a worker's events that replay cannot fill, its blocks stay and become *unsure*
//! ([`ledger::Ledger::unconfirm`]): an engine publishes nothing when it reuses a block, so dropping them would blind the
//! gateway to the hottest prefixes. Unsure blocks are credited at the worker's survival rate, which responses teach; a later
//! event about a block, a response that counted it, or a full report confirms it; a response that missed it removes it.
//!
//! **Reading and writing.** Readers never wait: they load tables, segments and lists of holders whole, and words in place.
//! Writers of one shard take turns; a change is visible as soon as its call returns.
//!
//! Invariants:
//! - a hit is contiguous from the start of the prompt: one missing block ends the credit there, whatever lies behind it;
//! - a holder of a dead generation is never reported, swept or not;
//! - memory never exceeds the budget for longer than one call. When a shard is full, the worst of a few sampled segments
//!   goes: first those that only dead holders keep, then the deepest one (what is lost is then a tail and not a shared
//!   head), then the one with the fewest holders. Ledgers count towards the same budget.
//!
//! | Operation | Cost |
//! |---|---|
//! | `lookup` | O(segments × (holders + log)), ends with the last candidate; no allocation in steady state |
//! | ledger store, remove | O(1) a block and O(log holders) a segment; a new holder copies the segment's list |
//! | `place`, `confirm` | O(segments) |
//! | `forget` | O(1); memory comes back by `sweep` |

mod claim;
mod feedback;
mod hits;
pub mod ledger;
mod lookup;
mod plane;
mod publish;
mod recent;
mod retention;
mod segment;
mod shard;
mod slot;
pub mod snapshot;
mod table;
#[cfg(test)]
mod tests;

pub use feedback::CacheReport;
pub use hits::{HitDetail, Hits};
pub use plane::{GroupKind, MAX_GROUPS, Place, Tier};
pub use retention::Retention;
pub use segment::RUN;

use crate::WorkerId;
use crate::block::ChainHash;
use crate::event::MAX_WORKERS;
use claim::{Bounds, Claim, From, Held, Surroundings};
use parking_lot::Mutex;
use plane::Plane;
use publish::Published;
use recent::Recent;
use retention::ticks;
use segment::{Holders, Record, Segment, View};
use shard::Shard;
use slot::Slots;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use table::Table;

/// Independent writers. Segments spread over them by their first hash.
const SHARDS: usize = 64;
/// Shards that one call of [`PrefixIndex::sweep`] walks: eight calls see the whole index.
const SHARDS_PER_SWEEP: usize = 8;
/// Of the budget, what segments may have however large ledgers grow: one part in so many.
const SEGMENTS_SHARE: usize = 4;

/// Size and losses of the index, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Distinct blocks.
    pub entries: usize,
    /// Memberships: (block, worker, plane), dead ones included until they are swept.
    pub holders: usize,
    /// Segments that the blocks lie in.
    pub segments: usize,
    /// Memory of segments and tables, what the allocator adds included (computed, not measured).
    pub bytes: usize,
    /// Memory of all ledgers that were used with this index, likewise.
    pub ledger_bytes: usize,
    /// What both together may have.
    pub budget_bytes: usize,
    /// Blocks thrown out because their shard was full.
    pub evicted: u64,
    /// Records of holders that sweeps freed.
    pub swept: u64,
}

/// Shared prefix index: any number of readers; changes come from a [`ledger::Ledger`] per worker and from own placements.
pub struct PrefixIndex {
    shards: Box<[Shard]>,
    /// Tables of all shards: what a look-up loads once.
    tables: Published<Tables>,
    /// Taken by whoever replaces one of them.
    publishing: Mutex<()>,
    slots: Slots,
    recent: Box<[Mutex<Option<Box<Recent>>>]>,
    next_sweep: AtomicUsize,
    swept: AtomicU64,
    budget_bytes: usize,
    /// Segments that go on from one which is gone.
    dangling: AtomicUsize,
    /// Shared with ledgers, which give back what they have when they go.
    ledger_bytes: Arc<AtomicUsize>,
}

/// Tables of all shards.
#[derive(Debug)]
struct Tables(Box<[Arc<Table>]>);

impl Tables {
    fn of(&self, head: ChainHash) -> &Table {
        &self.0[shard_of(head)]
    }
}

/// The shard in which the segment of `head` lies. The table inside a shard uses the low bits: these are others.
fn shard_of(head: ChainHash) -> usize {
    (head.0 >> 40) as usize % SHARDS
}

/// Where a block lives: its segment by head and serial number, and its offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    head: ChainHash,
    serial: u64,
    offset: u8,
}

impl Spot {
    /// The block `count` further in the same segment.
    fn after(self, count: usize) -> Self {
        Self { offset: self.offset + count as u8, ..self }
    }
}

impl PrefixIndex {
    /// An empty index that, with its ledgers, takes at most about `bytes`; at least what empty shards need.
    pub fn with_budget(bytes: usize) -> Self {
        let (shards, tables): (Vec<_>, Vec<_>) = (0..SHARDS).map(Shard::new).unzip();
        Self {
            shards: shards.into(),
            tables: Published::new(Some(Arc::new(Tables(tables.into())))),
            publishing: Mutex::new(()),
            slots: Slots::new(),
            recent: (0..MAX_WORKERS).map(|_| Mutex::new(None)).collect(),
            next_sweep: AtomicUsize::new(0),
            swept: AtomicU64::new(0),
            budget_bytes: bytes,
            dangling: AtomicUsize::new(0),
            ledger_bytes: Arc::default(),
        }
    }

    /// Remembers that the prompt `chain` was sent to `worker`.
    pub fn place(&self, worker: WorkerId, chain: &[ChainHash], retention: Retention, now_ms: u64) {
        if !self.is_live(worker) {
            return;
        }
        match retention {
            Retention::Expiring { for_ms } => {
                // One tick more, because the current one is begun: it counts for at least as long as asked.
                let until = ticks(now_ms.saturating_add(u64::from(for_ms))).saturating_add(1);
                let claim = Claim { worker, plane: Plane::PLACED, until, now: ticks(now_ms) };
                self.hold(claim, None, 0, chain, None, |_, _| {});
            }
            Retention::Recent { capacity_blocks } => {
                self.with_recent(worker, true, |recent| recent.place(self, chain, capacity_blocks, now_ms));
            }
        }
    }

    /// Drops everything known of this generation of the slot and all before it, at once.
    pub fn forget(&self, worker: WorkerId) {
        self.slots.forget(worker);
        if let Some(recent) = self.recent.get(worker.slot as usize) {
            recent.lock().take_if(|recent| recent.worker().generation <= worker.generation);
        }
    }

    /// Drops own placements at a worker without events: its cache is known by events from now on.
    pub fn forget_placements(&self, worker: WorkerId) {
        self.with_recent(worker, false, |recent| recent.clear(self));
    }

    /// Frees a share of what dead generations and expired placements left behind and returns how many records went; call
    /// it now and then (every second) from one task.
    pub fn sweep(&self, now_ms: u64) -> usize {
        let now = u64::from(ticks(now_ms));
        let first = self.next_sweep.fetch_add(SHARDS_PER_SWEEP, Ordering::Relaxed);
        let mut freed = 0;
        let keeps = |holders: &Holders, record: &Record| {
            let is_placed = matches!(record.plane(), Plane::PLACED | Plane::UNTIL);
            let is_over = is_placed && holders.placed_until(record.worker()) <= now;
            !is_over && self.is_live(record.worker())
        };
        for at in first..first + SHARDS_PER_SWEEP {
            freed += self.shards[at % SHARDS].sweep(keeps, &self.bounds());
        }
        self.swept.fetch_add(freed as u64, Ordering::Relaxed);
        freed
    }

    /// Size and losses. O(shards).
    pub fn stats(&self) -> IndexStats {
        let mut stats = IndexStats {
            ledger_bytes: self.ledger_bytes.load(Ordering::Relaxed),
            budget_bytes: self.budget_bytes,
            swept: self.swept.load(Ordering::Relaxed),
            ..IndexStats::default()
        };
        for shard in &self.shards {
            let (size, evicted) = shard.size();
            stats.entries += size.blocks;
            stats.holders += size.memberships;
            stats.segments += size.segments;
            stats.bytes += size.bytes;
            stats.evicted += evicted;
        }
        stats
    }

    /// The share of unsure blocks that responses find at `worker`, 0 to 1.
    pub fn survival(&self, worker: WorkerId) -> f64 {
        self.slots.survival(worker)
    }

    /// What hits of `worker` are multiplied with because one of its attention groups is not modelled; 1 for others.
    pub fn correction(&self, worker: WorkerId) -> f64 {
        self.slots.correction(worker)
    }

    /// Tells whether `worker` drafts with a model that reads hidden states (EAGLE, MTP). Those of the last block of a hit are
    /// not kept, so that the engine computes that block anew, and it is not credited.
    pub fn set_drafts(&self, worker: WorkerId, drafts: bool) {
        self.slots.set_drafts(worker, drafts);
    }

    /// Enters `chain`, which follows the block at `parent` (`None`: nothing that is known) at depth `position`. `visit` gets
    /// for every piece its place in `chain` and what stood there. `mask` chooses among at most [`RUN`] blocks those that are
    /// claimed; without one all are.
    fn hold(
        &self,
        claim: Claim,
        parent: Option<Spot>,
        position: u32,
        chain: &[ChainHash],
        mask: Option<u64>,
        mut visit: impl FnMut(usize, &Held),
    ) {
        if !self.is_live(claim.worker) {
            return;
        }
        let bounds = self.bounds();
        let mut parent = parent;
        let mut done = 0;
        while let Some(&next) = chain.get(done) {
            let rest = mask.map_or(u64::MAX, |mask| mask.checked_shr(done as u32).unwrap_or(0));
            let from = From { parent, position: position + done as u32 };
            let piece = &chain[done..];
            // The parent's segment has it, or it begins one of its own.
            let inside =
                parent.and_then(|parent| self.shard(parent.head).hold_inside(claim, parent, piece, rest, &bounds));
            let held = inside.or_else(|| self.shard(next).hold_ahead(claim, from, piece, rest, &bounds));
            // Evicted as soon as it was entered: there is no room at all.
            let Some(held) = held else { return };
            visit(done, &held);
            done += held.count;
            parent = Some(held.last());
        }
    }

    /// Follows `chain` through its segments as far as they go. `visit` gets the depth of each piece, its segment, and how
    /// many of its blocks belong to the chain; it returns whether to go on.
    fn walk(&self, chain: &[ChainHash], mut visit: impl FnMut(usize, &Segment, Spot, usize) -> bool) {
        let mut position = 0;
        while let Some(&head) = chain.get(position) {
            let Some(segment) = self.shard(head).find(head) else { return };
            let count = segment.matching(0, &chain[position..]);
            let spot = Spot { head, serial: segment.serial, offset: 0 };
            if count == 0 || !visit(position, &segment, spot, count) {
                return;
            }
            position += count;
        }
    }

    fn amend(&self, spot: Spot, worker: WorkerId, change: impl FnOnce(&mut View)) {
        self.shard(spot.head).amend(spot, worker, &self.bounds(), change);
    }

    /// Whether a response contradicted that `worker` has the block.
    fn is_doubted(&self, worker: WorkerId, spot: Spot) -> bool {
        self.has(worker, spot, Plane::DOUBTED)
    }

    /// Whether events were lost since `worker` was last known to have the block.
    fn is_unsure(&self, worker: WorkerId, spot: Spot) -> bool {
        self.has(worker, spot, Plane::UNSURE)
    }

    fn has(&self, worker: WorkerId, spot: Spot, plane: Plane) -> bool {
        let segment = self.shard(spot.head).at(spot);
        segment.is_some_and(|segment| segment.view(worker).bits(plane) >> spot.offset & 1 != 0)
    }

    fn is_live(&self, worker: WorkerId) -> bool {
        self.slots.is_live(worker)
    }

    fn shard(&self, head: ChainHash) -> &Shard {
        &self.shards[shard_of(head)]
    }

    fn bounds(&self) -> Bounds<'_> {
        let ledgers = self.ledger_bytes.load(Ordering::Relaxed);
        let segments = self.budget_bytes.saturating_sub(ledgers).max(self.budget_bytes / SEGMENTS_SHARE);
        Bounds { index: self, max_bytes: segments / SHARDS }
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

/// What a shard asks the rest of the index.
impl Surroundings for PrefixIndex {
    fn is_live(&self, record: &Record) -> bool {
        Self::is_live(self, record.worker())
    }

    fn first_to_begin(&self, chain: &[ChainHash]) -> Option<usize> {
        // Hardly ever is there one, and then not a block is looked for.
        let begins = |hash: &ChainHash| self.shard(*hash).find(*hash).is_some();
        if self.dangling.load(Ordering::Acquire) > 0 { chain.iter().position(begins) } else { None }
    }

    fn children(&self, spot: Spot) -> Option<Arc<AtomicU32>> {
        self.shard(spot.head).at(spot).map(|segment| segment.children.clone())
    }

    fn publish(&self, number: usize, table: Arc<Table>) {
        let _turn = self.publishing.lock();
        let known = self.tables.load();
        let tables = known.iter().flat_map(|tables| &tables.0);
        let mut tables: Box<[Arc<Table>]> = tables.cloned().collect();
        tables[number] = table;
        self.tables.store(Some(Arc::new(Tables(tables))));
    }

    fn dangling(&self) -> &AtomicUsize {
        &self.dangling
    }
}

/// Bits `from..to`, as far as there are so many.
fn mask(from: usize, to: usize) -> u64 {
    let below = |bits: usize| if bits >= RUN { u64::MAX } else { (1 << bits) - 1 };
    below(to) & !below(from)
}

/// Mixes 64 bits so that each bit of the result depends on all of them (the finaliser of SplitMix64).
pub(crate) fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
