//! What one engine's event feed said, by the engine's own hashes.

use super::PrefixIndex;
use crate::WorkerId;
use crate::block::{Domain, HashKey};

/// The engine's name for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExternalHash(pub u64);

impl ExternalHash {
    /// Folds a digest to what engines publish for it in integer form: its last eight bytes, big-endian.
    pub fn from_bytes(digest: &[u8]) -> Self {
        let tail = &digest[digest.len().saturating_sub(8)..];
        Self(tail.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }
}

/// State of one (worker, rank), driven by its event feed and owned by it.
pub struct Ledger {}

/// What one event did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks entered or left.
    pub blocks: u32,
    /// Blocks skipped because their parent is unknown, or hashes removed that were never stored.
    pub orphans: u32,
}

impl Ledger {
    /// An empty ledger of `worker`.
    pub fn new(_worker: WorkerId) -> Self {
        unimplemented!()
    }

    /// Blocks `hashes` with `tokens` (concatenated, `block_size` each) follow `parent`. `domain` counts at the start of a
    /// prompt; children inherit their parent's.
    #[expect(clippy::too_many_arguments, reason = "one argument for each field of the wire event")]
    pub fn stored(
        &mut self,
        _index: &PrefixIndex,
        _key: &HashKey,
        _domain: Domain,
        _parent: Option<ExternalHash>,
        _hashes: &[ExternalHash],
        _tokens: &[u32],
        _block_size: u32,
    ) -> Applied {
        unimplemented!()
    }

    /// One copy of block `hash` was evicted.
    pub fn removed(&mut self, _index: &PrefixIndex, _hash: ExternalHash) -> Applied {
        unimplemented!()
    }

    /// The engine dropped its whole cache.
    pub fn cleared(&mut self, _index: &PrefixIndex) {
        unimplemented!()
    }
}
