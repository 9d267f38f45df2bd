//! Identifiers with one meaning everywhere: index, metrics, records, logs.

use core::fmt;

/// A worker is (model, base URL, data-parallel rank). The fleet owner assigns the slot once; the generation moves on
/// when that slot is given to another worker or when the engine behind it is proven to have restarted, so that an
/// identifier kept across either never names the wrong cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId {
    /// Dense position, reused after removal.
    pub slot: u32,
    /// Increases with every reuse or proven restart of the slot.
    pub generation: u32,
}

impl WorkerId {
    /// Names generation `generation` of slot `slot`.
    pub const fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}.{}", self.slot, self.generation)
    }
}
