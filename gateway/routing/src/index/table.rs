//! Segments by their first hash: what readers search while the writer of the shard changes it.
//!
//! A slot also says at a glance what most readers want of its segment: how long it is, its last hash, and who has it if
//! those are two workers at most. Those words change together: the writer makes their version odd before and even after,
//! and a reader that saw it odd, or another one afterwards, has seen nothing and looks at the segment itself. So nobody
//! waits for anybody, and most segments cost one read of memory instead of four that follow from each other.

use super::publish::{AtomicU64, Ordering, Published, fence};
use super::segment::Segment;
use crate::block::ChainHash;
use std::sync::Arc;

/// Smallest table.
pub(super) const MIN_SLOTS: usize = 8;

const FREE: u64 = 0;
const GONE: u64 = u64::MAX;
/// In place of a record's key: none.
const NO_KEY: u64 = u64::MAX;
/// In place of the first key: what there is cannot be told at a glance.
const UNTOLD: u64 = u64::MAX - 1;
/// Keys leave the upper bits free; in those of the first one stands the length.
const LEN_SHIFT: u32 = 56;

#[derive(Debug)]
#[cfg_attr(not(loom), repr(align(64)))]
pub(super) struct Slot {
    /// Head of the segment, [`FREE`] where none ever was, [`GONE`] where one was.
    head: AtomicU64,
    pub(super) segment: Published<Segment>,
    /// Odd while the words below change.
    version: AtomicU64,
    last: AtomicU64,
    /// Keys and bits of the records, if they are few and of plain blocks; with the first key the length.
    first: [AtomicU64; 2],
    second: [AtomicU64; 2],
}

/// A segment of few holders, as its slot tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glance {
    pub(super) len: usize,
    last: ChainHash,
    /// Keys, ascending, and bits.
    first: (u64, u64),
    second: Option<(u64, u64)>,
}

impl Glance {
    /// Whether `chain` goes through the whole segment.
    pub(super) fn is_front_of(&self, chain: &[ChainHash]) -> bool {
        self.len.checked_sub(1).is_some_and(|last| chain.get(last) == Some(&self.last))
    }

    /// Keys, ascending, and bits of its holders.
    pub(super) fn records(&self) -> impl Iterator<Item = (u64, u64)> {
        std::iter::once(self.first).chain(self.second)
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            head: AtomicU64::new(FREE),
            segment: Published::new(None),
            version: AtomicU64::new(0),
            last: AtomicU64::new(0),
            first: [AtomicU64::new(UNTOLD), AtomicU64::new(0)],
            second: [AtomicU64::new(NO_KEY), AtomicU64::new(0)],
        }
    }

    /// Says what `segment` is like now; only the writer calls.
    pub(super) fn show(&self, segment: &Segment) {
        let len = segment.len();
        let last = len.checked_sub(1).and_then(|last| segment.hash(last));
        let holders = segment.holders();
        let with_len = |key: u64| key | (len as u64) << LEN_SHIFT;
        let (first, second) = match holders.as_ref().map(|holders| (holders.is_plain, &holders.records[..])) {
            Some((true, [only])) => ((with_len(only.key), only.bits()), (NO_KEY, 0)),
            Some((true, [one, other])) => ((with_len(one.key), one.bits()), (other.key, other.bits())),
            _ => ((UNTOLD, 0), (NO_KEY, 0)),
        };
        self.say([last.map_or(0, |last| last.0), first.0, first.1, second.0, second.1]);
    }

    /// Says what `other` does; only the writer of both calls.
    fn repeat(&self, other: &Self) {
        self.say(other.words().map(|word| word.load(Ordering::Relaxed)));
    }

    fn say(&self, words: [u64; 5]) {
        self.change(|slot| {
            for (place, word) in slot.words().into_iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
        });
    }

    fn words(&self) -> [&AtomicU64; 5] {
        [&self.last, &self.first[0], &self.first[1], &self.second[0], &self.second[1]]
    }

    /// The segment is gone; only the writer calls.
    pub(super) fn vacate(&self) {
        self.change(|slot| {
            slot.head.store(GONE, Ordering::Release);
            slot.first[0].store(UNTOLD, Ordering::Relaxed);
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
        let [last, first, first_bits, second, second_bits] = self.words().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        if !is_whole || head != label || first == UNTOLD {
            return None;
        }
        let (len, key) = ((first >> LEN_SHIFT) as usize, first & !(u64::MAX << LEN_SHIFT));
        let second = (second != NO_KEY).then_some((second, second_bits));
        Some(Glance { len, last: ChainHash(last), first: (key, first_bits), second })
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

    /// The segment that begins with `head`, if its slot tells all of it. Two heads may share a label, but not a last hash.
    pub(super) fn glance(&self, head: ChainHash) -> Option<Glance> {
        self.slot_of(head)?.glance(label(head))
    }

    /// Brings in the slot where the segment of `head` lies, if it is where it would like to.
    pub(super) fn touch(&self, head: ChainHash) -> u64 {
        self.slots[head.0 as usize & (self.slots.len() - 1)].head.load(Ordering::Relaxed)
    }

    /// Puts `segment` where readers find it; the table has room. True when that used up a free slot.
    pub(super) fn insert(&self, head: ChainHash, segment: Arc<Segment>) -> bool {
        self.put(head, segment, Slot::show)
    }

    /// A table of the same segments in so many slots, and how many of them are not free.
    pub(super) fn rebuilt(&self, slots: usize) -> (Self, usize) {
        let new = Self::new(slots);
        let mut used = 0;
        for slot in &self.slots {
            let loaded = slot.segment.load();
            if let Some(segment) = loaded.as_ref() {
                used += usize::from(new.put(segment.head(), segment.clone(), |new, _| new.repeat(slot)));
            }
        }
        (new, used)
    }

    fn put(&self, head: ChainHash, segment: Arc<Segment>, show: impl FnOnce(&Slot, &Segment)) -> bool {
        for slot in self.probe(head) {
            let found = slot.head.load(Ordering::Relaxed);
            if found == FREE || found == GONE {
                show(slot, &segment);
                slot.segment.store(Some(segment));
                slot.head.store(label(head), Ordering::Release);
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
