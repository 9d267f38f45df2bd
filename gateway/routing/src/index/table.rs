//! Segments by their first hash: what readers search while the writer of the shard changes it.
//!
//! A slot also says at a glance what most readers want of its segment: how long it is, its last hash, and who has it if
//! that is one worker. Those words change together: the writer makes their version odd before and even after, and a reader
//! that saw it odd, or another one afterwards, has seen nothing and looks at the segment itself. So nobody waits for
//! anybody, and most segments cost one read of memory instead of four that follow from each other.

use super::plane::Plane;
use super::publish::{AtomicU64, Ordering, Published, fence};
use super::segment::{RUN, Segment};
use crate::block::ChainHash;
use std::sync::Arc;

/// Smallest table.
pub(super) const MIN_SLOTS: usize = 8;

const FREE: u64 = 0;
const GONE: u64 = u64::MAX;
/// In place of a record's key: nobody, or more than one glance tells.
const NOT_ONE: u64 = u64::MAX;

#[derive(Debug)]
#[cfg_attr(not(loom), repr(align(64)))]
pub(super) struct Slot {
    /// Head of the segment, [`FREE`] where none ever was, [`GONE`] where one was.
    head: AtomicU64,
    pub(super) segment: Published<Segment>,
    /// Odd while the words below change.
    version: AtomicU64,
    len: AtomicU64,
    last: AtomicU64,
    /// Of the only record, if that is one of plain blocks.
    key: AtomicU64,
    bits: AtomicU64,
}

/// A segment of one holder, as its slot tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glance {
    pub(super) len: usize,
    last: ChainHash,
    pub(super) key: u64,
    pub(super) bits: u64,
}

impl Glance {
    /// Whether `chain` goes through the whole segment.
    pub(super) fn is_front_of(&self, chain: &[ChainHash]) -> bool {
        self.len.checked_sub(1).is_some_and(|last| chain.get(last) == Some(&self.last))
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            head: AtomicU64::new(FREE),
            segment: Published::new(None),
            version: AtomicU64::new(0),
            len: AtomicU64::new(0),
            last: AtomicU64::new(0),
            key: AtomicU64::new(NOT_ONE),
            bits: AtomicU64::new(0),
        }
    }

    /// Says what `segment` is like now; only the writer calls.
    pub(super) fn show(&self, segment: &Segment) {
        let len = segment.len();
        let last = len.checked_sub(1).and_then(|last| segment.hash(last));
        let holders = segment.holders();
        let (key, bits) = match holders.as_ref().map_or(&[][..], |holders| &holders.records) {
            [only] if only.plane() <= Plane::RECENT => (only.key, only.bits()),
            _ => (NOT_ONE, 0),
        };
        self.say([len as u64, last.map_or(0, |last| last.0), key, bits]);
    }

    /// Says what `other` does; only the writer of both calls.
    fn repeat(&self, other: &Self) {
        self.say([&other.len, &other.last, &other.key, &other.bits].map(|word| word.load(Ordering::Relaxed)));
    }

    fn say(&self, words: [u64; 4]) {
        self.change(|slot| {
            for (place, word) in [&slot.len, &slot.last, &slot.key, &slot.bits].into_iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
        });
    }

    /// The segment is gone; only the writer calls.
    pub(super) fn vacate(&self) {
        self.change(|slot| {
            slot.head.store(GONE, Ordering::Release);
            slot.key.store(NOT_ONE, Ordering::Relaxed);
        });
        self.segment.store(None);
    }

    fn change(&self, change: impl FnOnce(&Self)) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change(self);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    fn glance(&self, label: u64) -> Option<Glance> {
        let version = self.version.load(Ordering::Acquire);
        let head = self.head.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed) as usize;
        let last = ChainHash(self.last.load(Ordering::Relaxed));
        let (key, bits) = (self.key.load(Ordering::Relaxed), self.bits.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version % 2 == 0 && self.version.load(Ordering::Relaxed) == version;
        (is_whole && head == label && key != NOT_ONE && len <= RUN).then_some(Glance { len, last, key, bits })
    }
}

/// Open addressing, linear probing; a power of two of slots, at most three quarters of them not free.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) slots: Box<[Slot]>,
}

impl Table {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| Slot::new()).collect() }
    }

    fn probe(&self, head: ChainHash) -> impl Iterator<Item = &Slot> {
        let mask = self.slots.len() - 1;
        let first = head.0 as usize;
        (0..self.slots.len()).map(move |step| &self.slots[(first + step) & mask])
    }

    pub(super) fn slot_of(&self, head: ChainHash) -> Option<&Slot> {
        let label = label(head);
        for slot in self.probe(head) {
            match slot.head.load(Ordering::Acquire) {
                FREE => return None,
                found if found == label => return Some(slot),
                _ => {}
            }
        }
        None
    }

    /// The segment that begins with `head`, if its slot tells all of it.
    pub(super) fn glance(&self, head: ChainHash) -> Option<Glance> {
        let label = label(head);
        // Two hashes share the label of an end of the range.
        if label != head.0 {
            return None;
        }
        self.slot_of(head)?.glance(label)
    }

    /// Brings in the slot where the segment of `head` lies, if it is where it would like to.
    pub(super) fn touch(&self, head: ChainHash) -> u64 {
        self.slots[head.0 as usize & (self.slots.len() - 1)].head.load(Ordering::Relaxed)
    }

    /// Puts `segment` where readers find it; the table has room. True when that used up a free slot.
    pub(super) fn insert(&self, head: ChainHash, segment: Arc<Segment>) -> bool {
        self.put(label(head), head.0, segment, Slot::show)
    }

    /// A table of the same segments in so many slots, and how many of them are not free.
    pub(super) fn rebuilt(&self, slots: usize) -> (Self, usize) {
        let new = Self::new(slots);
        let mut used = 0;
        for slot in &self.slots {
            let loaded = slot.segment.load();
            if let Some(segment) = loaded.as_ref() {
                // Its head lies in memory that nothing else here touches; the label does in all but two cases as well.
                let label = slot.head.load(Ordering::Relaxed);
                let home = if label == FREE + 1 || label == GONE - 1 { segment.head().0 } else { label };
                used += usize::from(new.put(label, home, segment.clone(), |new, _| new.repeat(slot)));
            }
        }
        (new, used)
    }

    fn put(&self, label: u64, home: u64, segment: Arc<Segment>, show: impl FnOnce(&Slot, &Segment)) -> bool {
        for slot in self.probe(ChainHash(home)) {
            let found = slot.head.load(Ordering::Relaxed);
            if found == FREE || found == GONE {
                show(slot, &segment);
                slot.segment.store(Some(segment));
                slot.head.store(label, Ordering::Release);
                return found == FREE;
            }
        }
        false
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
    }
}

/// Head as it stands in a slot.
fn label(head: ChainHash) -> u64 {
    head.0.clamp(FREE + 1, GONE - 1)
}

/// Slots of a table for `segments` and some more.
pub(super) fn slots_for(segments: usize) -> usize {
    (segments + segments / 2 + 1).next_power_of_two().max(MIN_SLOTS)
}
