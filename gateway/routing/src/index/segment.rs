//! Up to [`RUN`] consecutive blocks of one prompt, and who has which of them.
//!
//! A segment's hashes never change once they are written, not even when everybody let the block go: blocks are appended behind
//! them, and what differs begins a segment of its own. So an offset in a segment means one block for ever, and a reader that
//! loaded a segment may compare at leisure. Equal chain hashes mean equal prefixes, which makes the last
//! comparison the first one: when the ends agree, nothing before them can differ.

use super::plane::{self, Plane};
use super::publish::{AtomicU32, AtomicU64, Loaded, Ordering, Published};
use crate::WorkerId;
use crate::block::ChainHash;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32 as Counter;

/// Blocks of a segment at most: their membership is one word for each holder.
pub const RUN: usize = 64;
/// What an allocator takes beside what it is asked for.
const MALLOC_BYTES: usize = 16;
/// Counters in front of what an `Arc` points to.
const ARC_BYTES: usize = 16;

/// Which blocks a worker has in one way.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) key: u64,
    /// Bit *n*: block *n* of the segment. A tick for [`Plane::UNTIL`].
    pub(super) bits: AtomicU64,
}

impl Record {
    pub(super) fn new(key: u64, bits: u64) -> Self {
        Self { key, bits: AtomicU64::new(bits) }
    }

    pub(super) fn plane(&self) -> Plane {
        plane::plane(self.key)
    }

    pub(super) fn worker(&self) -> WorkerId {
        plane::worker(self.key)
    }

    pub(super) fn bits(&self) -> u64 {
        self.bits.load(Ordering::Acquire)
    }
}

/// Records of a segment, ascending by key. Bits change in place; records come and go with a new list.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub(super) records: SmallVec<[Record; 1]>,
    /// Whether each worker has one record, of plain blocks.
    pub(super) is_plain: bool,
}

impl Holders {
    fn new(records: SmallVec<[Record; 1]>) -> Self {
        let is_plain = records.iter().all(|record| record.plane() <= Plane::RECENT)
            && records.windows(2).all(|pair| pair[0].worker() != pair[1].worker());
        Self { records, is_plain }
    }

    /// What `worker` alone has.
    pub(super) fn of_one(worker: WorkerId, view: &View) -> Self {
        Self::default().with(worker, view)
    }

    /// Records of one worker.
    pub(super) fn of(&self, worker: WorkerId) -> Range<usize> {
        let base = plane::base(worker);
        let from = self.records.partition_point(|record| record.key < base);
        let more = self.records[from..].iter().take_while(|record| record.key < base + plane::PLANES).count();
        from..from + more
    }

    /// Tick at which placements at `worker` end; 0 without any.
    pub(super) fn placed_until(&self, worker: WorkerId) -> u64 {
        let key = plane::key(worker, Plane::UNTIL);
        let found = self.records.binary_search_by_key(&key, |record| record.key);
        found.map_or(0, |at| self.records[at].bits())
    }

    /// A copy in which `worker` has the planes of `view`.
    fn with(&self, worker: WorkerId, view: &View) -> Self {
        let of = self.of(worker);
        let mut records = SmallVec::with_capacity(self.records.len() - of.len() + view.planes.len());
        let copy = |record: &Record| Record::new(record.key, record.bits());
        records.extend(self.records[..of.start].iter().map(copy));
        records.extend(view.planes.iter().map(|&(plane, bits)| Record::new(plane::key(worker, plane), bits)));
        records.extend(self.records[of.end..].iter().map(copy));
        Self::new(records)
    }

    /// A copy of the records that `keeps` accepts.
    pub(super) fn filtered(&self, mut keeps: impl FnMut(&Record) -> bool) -> Self {
        let kept = self.records.iter().filter(|record| keeps(record));
        Self::new(kept.map(|record| Record::new(record.key, record.bits())).collect())
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let list = if self.records.len() > 1 { self.records.len() * size_of::<Record>() + MALLOC_BYTES } else { 0 };
        ARC_BYTES + size_of::<Self>() + MALLOC_BYTES + list
    }

    /// Blocks that anybody has.
    pub(super) fn union(&self) -> u64 {
        let memberships = self.records.iter().filter(|record| record.plane().is_membership());
        memberships.fold(0, |sum, record| sum | record.bits())
    }

    /// Pairs of block and plane.
    pub(super) fn memberships(&self) -> usize {
        memberships(&self.records)
    }
}

fn memberships(records: &[Record]) -> usize {
    let memberships = records.iter().filter(|record| record.plane().is_membership());
    memberships.map(|record| record.bits().count_ones() as usize).sum()
}

/// Consecutive blocks and their holders.
#[derive(Debug)]
pub(super) struct Segment {
    /// Tells this segment from an earlier one with the same head.
    pub(super) serial: u64,
    /// The first block, here as well: whoever finds a segment compares it.
    head: ChainHash,
    /// Depth of the first block in its prompt.
    pub(super) position: u32,
    /// Blocks that count; those behind them have lost all holders.
    len: AtomicU32,
    /// Hashes written; only the writer asks.
    filled: AtomicU32,
    /// Bit *n*: a child of block *n* − 1 begins a segment of its own, so no other may be appended in its place.
    forks: AtomicU64,
    hashes: Box<[AtomicU64]>,
    holders: Published<Holders>,
    /// Segments that go on from this one, and [`IS_GONE`] once it is gone; writers of other shards count here.
    pub(super) children: Arc<Counter>,
    pub(super) parent: Parent,
}

/// Of a segment whose children are counted: it is gone.
pub(super) const IS_GONE: u32 = 1 << 31;

/// What a segment goes on from.
#[derive(Clone, Debug)]
pub(super) enum Parent {
    /// Nothing: it begins prompts.
    Start,
    /// A segment, by its count of children.
    Segment(Arc<Counter>),
    /// Something that was gone already.
    Gone,
}

impl Segment {
    /// A segment of `holders`. `hashes` has 1 to `capacity` elements.
    pub(super) fn new(
        serial: u64,
        position: u32,
        parent: Parent,
        hashes: &[ChainHash],
        capacity: usize,
        holders: Arc<Holders>,
    ) -> Self {
        let at = |at: usize| AtomicU64::new(hashes.get(at).map_or(0, |hash| hash.0));
        Self {
            serial,
            head: hashes.first().copied().unwrap_or(ChainHash(0)),
            position,
            len: AtomicU32::new(hashes.len() as u32),
            filled: AtomicU32::new(hashes.len() as u32),
            forks: AtomicU64::new(0),
            hashes: (0..capacity.clamp(hashes.len().max(1), RUN)).map(at).collect(),
            holders: Published::new(Some(holders)),
            children: Arc::default(),
            parent,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire) as usize
    }

    pub(super) fn set_len(&self, len: usize) {
        self.len.store(len as u32, Ordering::Release);
    }

    pub(super) fn filled(&self) -> usize {
        self.filled.load(Ordering::Relaxed) as usize
    }

    pub(super) fn capacity(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn hash(&self, at: usize) -> Option<ChainHash> {
        self.hashes.get(at).map(|hash| ChainHash(hash.load(Ordering::Relaxed)))
    }

    pub(super) fn head(&self) -> ChainHash {
        self.head
    }

    pub(super) fn holders(&self) -> Loaded<Holders> {
        self.holders.load()
    }

    pub(super) fn set_holders(&self, holders: Holders) {
        self.holders.store(Some(Arc::new(holders)));
    }

    /// Hashes from `offset` on that equal the front of `chain`.
    pub(super) fn matching(&self, offset: usize, chain: &[ChainHash]) -> usize {
        let most = self.len().saturating_sub(offset).min(chain.len());
        let equal = |count: usize| self.hash(offset + count - 1) == Some(chain[count - 1]);
        if most == 0 || equal(most) {
            return most;
        }
        // The longest count that is equal lies in `low..high`.
        let (mut low, mut high) = (0, most);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if equal(middle) { low = middle } else { high = middle }
        }
        low
    }

    pub(super) fn is_fork(&self, at: usize) -> bool {
        at >= RUN || self.forks.load(Ordering::Relaxed) >> at & 1 != 0
    }

    pub(super) fn set_fork(&self, at: usize) {
        if at < RUN {
            self.forks.store(self.forks.load(Ordering::Relaxed) | 1 << at, Ordering::Relaxed);
        }
    }

    /// Makes block `len` count, whose hash is written or `hash` now is. False when there is no room or another hash.
    pub(super) fn push(&self, hash: ChainHash) -> bool {
        let len = self.len();
        match self.hashes.get(len) {
            Some(slot) if len == self.filled() => {
                slot.store(hash.0, Ordering::Relaxed);
                self.filled.store(len as u32 + 1, Ordering::Relaxed);
            }
            Some(slot) if slot.load(Ordering::Relaxed) == hash.0 => {}
            _ => return false,
        }
        self.set_len(len + 1);
        true
    }

    /// The same blocks, up to those that count, with room for `capacity`. Hashes behind them that are given up leave a fork:
    /// no other block may get the offset of one that ledgers still name.
    pub(super) fn resized(&self, capacity: usize) -> Self {
        let len = self.len();
        let hashes: SmallVec<[ChainHash; RUN]> = (0..len).filter_map(|at| self.hash(at)).collect();
        let holders = self.holders.load().clone().unwrap_or_default();
        let mut next = Self::new(self.serial, self.position, self.parent.clone(), &hashes, capacity, holders);
        next.children = self.children.clone();
        next.forks.store(self.forks.load(Ordering::Relaxed), Ordering::Relaxed);
        if len < self.filled() {
            next.set_fork(len);
        }
        next
    }

    /// What `worker` has of the segment.
    pub(super) fn view(&self, worker: WorkerId) -> View {
        let mut view = View::default();
        if let Some(holders) = self.holders.load().as_ref() {
            let records = &holders.records[holders.of(worker)];
            view.planes.extend(records.iter().map(|record| (record.plane(), record.bits())));
        }
        view
    }

    /// Lets `worker` have what `view` says; planes without bits end. Returns memberships and bytes before and after.
    pub(super) fn set_view(&self, worker: WorkerId, mut view: View) -> [(usize, usize); 2] {
        view.planes.retain(|(_, bits)| *bits != 0);
        if view.bits(Plane::PLACED) == 0 {
            view.planes.retain(|(plane, _)| *plane != Plane::UNTIL);
        }
        let guard = self.holders.load();
        let Some(holders) = guard.as_ref() else { return [(0, 0); 2] };
        let records = &holders.records[holders.of(worker)];
        let before = (memberships(records), holders.heap_bytes());
        let mut bytes = before.1;
        if records.iter().map(Record::plane).eq(view.planes.iter().map(|(plane, _)| *plane)) {
            for (record, (_, bits)) in records.iter().zip(&view.planes) {
                if record.bits() != *bits {
                    record.bits.store(*bits, Ordering::Release);
                }
            }
        } else {
            let next = holders.with(worker, &view);
            bytes = next.heap_bytes();
            self.set_holders(next);
        }
        [(before.0, view.memberships()), (before.1, bytes)]
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let hashes = self.hashes.len() * size_of::<AtomicU64>() + MALLOC_BYTES;
        let counter = ARC_BYTES + size_of::<Counter>() + MALLOC_BYTES;
        ARC_BYTES + size_of::<Self>() + MALLOC_BYTES + hashes + counter
    }
}

/// Planes of one worker in one segment, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    planes: SmallVec<[(Plane, u64); 4]>,
}

impl View {
    pub(super) fn bits(&self, plane: Plane) -> u64 {
        self.planes.iter().find(|(known, _)| *known == plane).map_or(0, |(_, bits)| *bits)
    }

    pub(super) fn set(&mut self, plane: Plane, bits: u64) {
        match self.planes.binary_search_by_key(&plane, |(known, _)| *known) {
            Ok(at) => self.planes[at].1 = bits,
            Err(at) if bits != 0 => self.planes.insert(at, (plane, bits)),
            Err(_) => {}
        }
    }

    pub(super) fn clear(&mut self, plane: Plane, mask: u64) {
        self.set(plane, self.bits(plane) & !mask);
    }

    /// Ends every plane that `ends` accepts.
    pub(super) fn end(&mut self, ends: impl Fn(Plane) -> bool) {
        for (plane, bits) in &mut self.planes {
            if ends(*plane) {
                *bits = 0;
            }
        }
    }

    /// Blocks of which events say that the worker has them, in any tier.
    pub(super) fn told(&self) -> u64 {
        let told = |plane: Plane| plane == Plane::HELD || plane.as_lower_tier().is_some();
        self.planes.iter().filter(|(plane, _)| told(*plane)).fold(0, |sum, (_, bits)| sum | bits)
    }

    /// Pairs of block and plane.
    pub(super) fn memberships(&self) -> usize {
        let memberships = self.planes.iter().filter(|(plane, _)| plane.is_membership());
        memberships.map(|(_, bits)| bits.count_ones() as usize).sum()
    }
}
