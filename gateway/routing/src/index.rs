//! Who holds which block.

use crate::WorkerId;
use crate::block::ChainHash;

/// Shared prefix index: any number of readers; changes go through [`PrefixIndex::store`], `remove`, `clear`.
pub struct PrefixIndex {}

/// Prefix lengths found for one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// (worker, contiguous blocks held from the start of the prompt), unordered, zero hits absent.
    pub blocks: Vec<(WorkerId, u32)>,
}

impl PrefixIndex {
    /// Fills `out` with the contiguous prefix that each worker holds.
    pub fn lookup(&self, _chain: &[ChainHash], _out: &mut Hits) {
        unimplemented!()
    }
}
