//! The block cache: reference counts, an LRU list of free blocks, a map from block hash to the blocks that hold it.
//!
//! A free block keeps its content and its hash until it is taken for something else; then, and only then, it is
//! evicted. One hash may name several blocks (a fully cached prompt recomputes its last block): each is announced and
//! removed on its own. O(1) for every operation on a block.

use super::hash::{BlockHash, Domain};
use hashbrown::HashMap;
use smallvec::SmallVec;

/// Position of a block in the cache.
pub type BlockId = u32;

/// End of a list.
const NIL: BlockId = BlockId::MAX;

/// What subscribers are told of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Consecutive blocks of one request became findable.
    Stored(StoredBlocks),
    /// A block was evicted.
    Removed(BlockHash),
    /// Everything was dropped.
    Cleared,
}

/// Consecutive blocks and their tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    /// One for each block.
    pub hashes: Vec<BlockHash>,
    /// Hash of the block before the first; none at the start of a sequence.
    pub parent: Option<BlockHash>,
    /// Tokens of all blocks, in order.
    pub tokens: Vec<u32>,
    /// Position of the first of these blocks in its sequence.
    pub first_index: usize,
    /// What else entered the hashes.
    pub domain: Domain,
}

#[derive(Debug)]
struct Block {
    references: u32,
    hash: Option<BlockHash>,
    previous: BlockId,
    next: BlockId,
}

/// See the module page.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    by_hash: HashMap<BlockHash, SmallVec<[BlockId; 1]>>,
    head: BlockId,
    tail: BlockId,
    free: usize,
    block_tokens: usize,
    events: Vec<CacheEvent>,
}

impl BlockPool {
    /// `blocks` free, empty blocks.
    pub fn new(blocks: usize, block_tokens: usize) -> Self {
        let mut pool = Self {
            blocks: Vec::with_capacity(blocks),
            by_hash: HashMap::new(),
            head: NIL,
            tail: NIL,
            free: 0,
            block_tokens,
            events: Vec::new(),
        };
        for id in 0..blocks as BlockId {
            pool.blocks.push(Block { references: 0, hash: None, previous: NIL, next: NIL });
            pool.push_free(id);
        }
        pool
    }

    /// Blocks of the longest findable prefix of a sequence of `tokens` tokens: complete blocks, never the last token.
    pub fn longest_prefix(&self, hashes: &[BlockHash], tokens: usize) -> Vec<BlockId> {
        let most = tokens.saturating_sub(1) / self.block_tokens;
        hashes.iter().take(most).map_while(|hash| self.by_hash.get(hash)?.first().copied()).collect()
    }

    /// Takes a share in each of `hits` and adds `new` fresh blocks, or does nothing when there are too few.
    pub fn acquire(&mut self, hits: &[BlockId], new: usize) -> Option<Vec<BlockId>> {
        let revived = hits.iter().filter(|&&id| self.block(id).references == 0).count();
        if new + revived > self.free {
            return None;
        }
        for &id in hits {
            if self.block(id).references == 0 {
                self.unlink_free(id);
            }
            self.block_mut(id).references += 1;
        }
        Some((0..new).map(|_| self.take_oldest()).collect())
    }

    /// Makes `blocks` findable under `stored.hashes` and announces them.
    pub fn publish(&mut self, blocks: &[BlockId], stored: StoredBlocks) {
        debug_assert_eq!(blocks.len(), stored.hashes.len(), "one hash for each block");
        for (&id, &hash) in blocks.iter().zip(&stored.hashes) {
            self.block_mut(id).hash = Some(hash);
            self.by_hash.entry(hash).or_default().push(id);
        }
        self.events.push(CacheEvent::Stored(stored));
    }

    /// Gives back one share in each block of a sequence. The tail becomes the first to be evicted.
    pub fn release(&mut self, blocks: &[BlockId]) {
        for &id in blocks.iter().rev() {
            let block = self.block_mut(id);
            debug_assert!(block.references > 0, "released more often than acquired");
            block.references -= 1;
            if block.references == 0 {
                self.push_free(id);
            }
        }
    }

    /// Forgets all hashes; `false` when a block is in use.
    pub fn clear(&mut self) -> bool {
        if self.used() > 0 {
            return false;
        }
        self.by_hash.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
        self.events.push(CacheEvent::Cleared);
        true
    }

    /// What happened since the last call, in order.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events)
    }

    /// Blocks with at least one holder.
    pub fn used(&self) -> usize {
        self.blocks.len() - self.free
    }

    /// Blocks that could be taken.
    pub fn free(&self) -> usize {
        self.free
    }

    /// All blocks.
    pub fn capacity(&self) -> usize {
        self.blocks.len()
    }

    fn take_oldest(&mut self) -> BlockId {
        let id = self.head;
        debug_assert_ne!(id, NIL, "acquire counted the free blocks");
        self.unlink_free(id);
        let block = self.block_mut(id);
        block.references = 1;
        if let Some(hash) = block.hash.take() {
            self.forget(hash, id);
            self.events.push(CacheEvent::Removed(hash));
        }
        id
    }

    fn forget(&mut self, hash: BlockHash, id: BlockId) {
        if let Some(holders) = self.by_hash.get_mut(&hash) {
            holders.retain(|&mut other| other != id);
            if holders.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
    }

    fn push_free(&mut self, id: BlockId) {
        let tail = self.tail;
        let block = self.block_mut(id);
        (block.previous, block.next) = (tail, NIL);
        if tail == NIL {
            self.head = id;
        } else {
            self.block_mut(tail).next = id;
        }
        self.tail = id;
        self.free += 1;
    }

    fn unlink_free(&mut self, id: BlockId) {
        let (previous, next) = (self.block(id).previous, self.block(id).next);
        if previous == NIL {
            self.head = next;
        } else {
            self.block_mut(previous).next = next;
        }
        if next == NIL {
            self.tail = previous;
        } else {
            self.block_mut(next).previous = previous;
        }
        self.free -= 1;
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    /// Checks every invariant of the module page against the shares that sequences hold.
    #[cfg(test)]
    pub(super) fn assert_consistent<'a>(&self, held: impl Iterator<Item = &'a [BlockId]>) {
        let mut expected = vec![0u32; self.blocks.len()];
        held.flatten().for_each(|&id| expected[id as usize] += 1);
        let counted: Vec<u32> = self.blocks.iter().map(|block| block.references).collect();
        assert_eq!(counted, expected, "references equal shares held");
        let mut listed = 0;
        let mut at = self.head;
        while at != NIL {
            assert_eq!(self.block(at).references, 0, "only unused blocks are free");
            listed += 1;
            at = self.block(at).next;
        }
        assert_eq!(listed, self.free, "the free list is complete");
        assert_eq!(counted.iter().filter(|&&n| n == 0).count(), listed, "every unused block is free");
        for (hash, holders) in &self.by_hash {
            assert!(!holders.is_empty());
            holders.iter().for_each(|&id| assert_eq!(self.block(id).hash, Some(*hash)));
        }
        let hashed = self.blocks.iter().filter(|block| block.hash.is_some()).count();
        assert_eq!(hashed, self.by_hash.values().map(|holders| holders.len()).sum::<usize>());
    }
}
