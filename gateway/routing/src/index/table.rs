//! Segments by their first hash: what readers search while the writer of the shard changes it.

use super::publish::{AtomicU64, Ordering, Published};
use super::segment::Segment;
use crate::block::ChainHash;
use std::sync::Arc;

/// Smallest table.
pub(super) const MIN_SLOTS: usize = 8;

const FREE: u64 = 0;
pub(super) const GONE: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Slot {
    /// Head of the segment, [`FREE`] where none ever was, [`GONE`] where one was.
    pub(super) head: AtomicU64,
    pub(super) segment: Published<Segment>,
}

/// Open addressing, linear probing; a power of two of slots, at most three quarters of them not free.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) slots: Box<[Slot]>,
}

impl Table {
    pub(super) fn new(slots: usize) -> Self {
        let slot = |_| Slot { head: AtomicU64::new(FREE), segment: Published::new(None) };
        Self { slots: (0..slots).map(slot).collect() }
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

    /// Puts `segment` where readers find it; the table has room. True when that used up a free slot.
    pub(super) fn insert(&self, head: ChainHash, segment: Arc<Segment>) -> bool {
        for slot in self.probe(head) {
            let found = slot.head.load(Ordering::Relaxed);
            if found == FREE || found == GONE {
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
