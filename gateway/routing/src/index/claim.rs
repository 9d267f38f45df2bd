//! What a writer asks of a shard, and what it hears.

use super::Spot;
use super::plane::Plane;
use super::segment::{Record, View};
use super::table::Table;
use crate::WorkerId;
use crate::block::ChainHash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// What a shard asks the rest of the index.
pub(super) trait Surroundings {
    /// Whether the worker of `record` is of a living generation.
    fn is_live(&self, record: &Record) -> bool;
    /// The first block of `chain` of which a segment begins that its parent's segment knows nothing of.
    fn first_to_begin(&self, chain: &[ChainHash]) -> Option<usize>;
    /// Counts the segments that go on from the segment of `spot`; `None` once that is gone.
    fn children(&self, spot: Spot) -> Option<Arc<AtomicU32>>;
    /// Readers find shard `number` by this table from now on.
    fn publish(&self, number: usize, table: Arc<Table>);
    /// How many segments go on from one that is gone.
    fn dangling(&self) -> &AtomicUsize;
}

/// What a writer may not exceed, and whom it asks.
pub(super) struct Bounds<'a> {
    pub(super) index: &'a dyn Surroundings,
    pub(super) max_bytes: usize,
}

/// Who gets which blocks in what way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) worker: WorkerId,
    pub(super) plane: Plane,
    /// Tick at which a placement ends.
    pub(super) until: u32,
    /// Present tick.
    pub(super) now: u32,
}

impl Claim {
    /// Lets `view` of the worker say that it has `blocks`. Returns which of them it had in this plane, and which of those
    /// were not to be trusted.
    pub(super) fn put_into(&self, view: &mut View, blocks: u64) -> (u64, u64) {
        let before = view.bits(self.plane) & blocks;
        let doubts: &[Plane] = match self.plane {
            Plane::HELD => &[Plane::DOUBTED, Plane::UNSURE],
            Plane::RECENT | Plane::PLACED => &[],
            _ => &[Plane::UNSURE],
        };
        let untrusted = doubts.iter().fold(0, |sum, doubt| sum | view.bits(*doubt)) & before;
        if self.plane == Plane::PLACED {
            // What events confirm needs no second reason.
            let blocks = blocks & !view.bits(Plane::HELD);
            let until = view.bits(Plane::UNTIL);
            let still = if until > u64::from(self.now) { view.bits(Plane::PLACED) } else { 0 };
            if blocks != 0 {
                view.set(Plane::PLACED, still | blocks);
                view.set(Plane::UNTIL, until.max(u64::from(self.until)));
            }
        } else {
            view.set(self.plane, view.bits(self.plane) | blocks);
            for doubt in doubts {
                view.clear(*doubt, blocks);
            }
            if self.plane == Plane::HELD {
                view.clear(Plane::PLACED, blocks);
            }
        }
        (before, untrusted)
    }
}

/// Where blocks come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct From {
    /// The block before them, as far as it is known.
    pub(super) parent: Option<Spot>,
    /// Depth of the first of them.
    pub(super) position: u32,
}

/// Consecutive blocks of one segment that were entered. Bit *n* of a mask is block *n* from `spot` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) spot: Spot,
    pub(super) count: usize,
    /// The worker had them before in this plane.
    pub(super) before: u64,
    /// It did, but a response or a gap in its events had cast doubt on that.
    pub(super) untrusted: u64,
}

impl Held {
    /// The last of them.
    pub(super) fn last(&self) -> Spot {
        self.spot.after(self.count - 1)
    }
}
