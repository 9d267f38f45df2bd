//! What a writer asks of a shard, and what it hears.

use super::Spot;
use super::plane::Plane;
use super::segment::Record;
use crate::WorkerId;
use crate::block::ChainHash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// What a shard asks the rest of the index.
pub(super) trait Surroundings {
    /// Whether the worker of `record` is of a living generation.
    fn is_live(&self, record: &Record) -> bool;
    /// Whether a segment begins with this block that its parent's segment knows nothing of.
    fn begins(&self, hash: ChainHash) -> bool;
    /// Counts the segments that go on from the segment of `spot`; `None` once that is gone.
    fn children(&self, spot: Spot) -> Option<Arc<AtomicU32>>;
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
