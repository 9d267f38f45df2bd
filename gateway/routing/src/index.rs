//! Who holds which block.

pub mod ledger;

use crate::WorkerId;
use crate::block::ChainHash;

/// How an own placement is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// The worker has events: count at once, forget after `for_ms` unless they confirm.
    Expiring {
        /// From the placement.
        for_ms: u32,
    },
    /// The worker has no events: keep the most recently used blocks up to its capacity.
    Recent {
        /// KV capacity.
        capacity_blocks: u32,
    },
}

impl Retention {
    /// For a worker with events whose first token is expected after `expected_ttft_ms`.
    pub fn until_confirmed(_expected_ttft_ms: f64) -> Self {
        unimplemented!()
    }

    /// For a worker without events.
    pub fn recent(_capacity_blocks: Option<u32>) -> Self {
        unimplemented!()
    }
}

/// Shared prefix index: any number of readers; changes come from a [`ledger::Ledger`] per worker and from own placements.
pub struct PrefixIndex {}

/// Prefix lengths found for one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// (worker, contiguous blocks held from the start of the prompt), ascending by worker, zero hits absent.
    pub blocks: Vec<(WorkerId, u32)>,
}

impl Hits {
    /// Contiguous blocks that `worker` holds. O(log hits).
    pub fn of(&self, worker: WorkerId) -> u32 {
        self.blocks.binary_search_by_key(&worker, |&(id, _)| id).map_or(0, |at| self.blocks[at].1)
    }
}

impl PrefixIndex {
    /// An empty index that holds at most `max_entries` distinct blocks.
    pub fn new(_max_entries: usize) -> Self {
        unimplemented!()
    }

    /// Fills `out` with the contiguous prefix that each worker holds. `own_placements`: whether dispatches of this gateway
    /// that no event has confirmed yet count.
    pub fn lookup(&self, _chain: &[ChainHash], _now_ms: u64, _own_placements: bool, _out: &mut Hits) {
        unimplemented!()
    }

    /// Remembers that the prompt `chain` was sent to `worker`.
    pub fn place(&self, _worker: WorkerId, _chain: &[ChainHash], _retention: Retention, _now_ms: u64) {
        unimplemented!()
    }

    /// Feeds back what the engine said it served from its cache, after the blocks that were predicted for it.
    pub fn confirm(&self, _worker: WorkerId, _chain: &[ChainHash], _predicted_blocks: u32, _cached_blocks: u32) {
        unimplemented!()
    }

    /// Drops everything known of this generation of the slot and all before it, at once.
    pub fn forget(&self, _worker: WorkerId) {
        unimplemented!()
    }

    /// Drops own placements at `worker`: its cache knowledge changed from approximate to events or back.
    pub fn forget_placements(&self, _worker: WorkerId) {
        unimplemented!()
    }

    /// Frees a share of what forgotten generations left behind; call it now and then (every second) from one task.
    pub fn sweep(&self) -> usize {
        unimplemented!()
    }
}
