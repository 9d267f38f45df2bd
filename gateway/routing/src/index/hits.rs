//! What a look-up found.

use crate::WorkerId;

/// Prefix lengths found for one prompt. Kept between look-ups for its memory.
#[derive(Clone, Debug, Default)]
pub struct Hits {
    /// (worker, blocks from the start of the prompt that it is credited), ascending by worker, zero hits absent.
    pub blocks: Vec<(WorkerId, u32)>,
    pub(super) details: Vec<(WorkerId, HitDetail)>,
    /// Positions in `blocks` of those that have everything so far.
    pub(super) active: Vec<u32>,
    /// Positions in `blocks` of those to look at alone.
    pub(super) special: Vec<u32>,
}

/// What a worker has of a prompt beyond plain blocks in device memory. Blocks count from the start of the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HitDetail {
    /// Credited: cut where every attention group can go on, unsure blocks weighted by their survival, corrected, without the
    /// last one where the engine drafts.
    pub device: u32,
    /// Contiguous when host memory counts as well, unsure blocks weighted.
    pub host: u32,
    /// The same with local disks.
    pub disk: u32,
    /// The same with shared storage.
    pub remote: u32,
    /// Unsure blocks among those of the device that were credited in part.
    pub unconfirmed: u32,
    /// Whether an attention group is not modelled, so that `device` was multiplied with what responses taught.
    pub is_corrected: bool,
}

impl HitDetail {
    /// One block less, of whatever was found.
    pub(super) fn without_last(self) -> Self {
        let less = |blocks: u32| blocks.saturating_sub(1);
        let Self { device, host, disk, remote, .. } = self;
        Self { device: less(device), host: less(host), disk: less(disk), remote: less(remote), ..self }
    }
}

impl Hits {
    /// Blocks credited to `worker`. O(log hits).
    pub fn of(&self, worker: WorkerId) -> u32 {
        self.blocks.binary_search_by_key(&worker, |&(id, _)| id).map_or(0, |at| self.blocks[at].1)
    }

    /// What stands behind the credit of a worker that has more than plain blocks in device memory. O(log hits).
    pub fn detail(&self, worker: WorkerId) -> Option<&HitDetail> {
        let at = self.details.binary_search_by_key(&worker, |(id, _)| *id).ok()?;
        Some(&self.details[at].1)
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.details.clear();
        self.active.clear();
        self.special.clear();
    }
}

impl From<Vec<(WorkerId, u32)>> for Hits {
    /// Plain hits; `blocks` ascending by worker.
    fn from(blocks: Vec<(WorkerId, u32)>) -> Self {
        Self { blocks, ..Self::default() }
    }
}
