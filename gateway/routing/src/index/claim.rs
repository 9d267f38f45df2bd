//! What a writer asks of a shard, and what it hears.

use super::Spot;
use super::plane::Plane;
use super::segment::Record;
use crate::WorkerId;
use crate::block::ChainHash;

/// What a shard asks the rest of the index.
pub(super) trait Surroundings {
    /// Whether the worker of `record` is of a living generation.
    fn is_live(&self, record: &Record) -> bool;
    /// Whether a segment begins with this block, in any shard.
    fn begins(&self, hash: ChainHash) -> bool;
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
