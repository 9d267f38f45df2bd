//! What one engine's event feed said, by the engine's own hashes.
//!
//! Events name blocks by hashes of the engine's choosing; removals carry nothing else. The ledger of a (worker, rank)
//! remembers which chain hash each stands for, and tells the shared index when the worker begins and ceases to hold a block.
//! It belongs to the task that reads that worker's feed, so it needs no lock. The feed hands over each batch once: what
//! a replay brings again is left out there by sequence number; so are groups other than full attention and media other
//! than the device.
//!
//! **Copies.** vLLM stores a hash twice when it computes a cached block anew (a prompt that ends on a block boundary
//! recomputes its last block), and removes it twice. Dropping the block at the first removal would under-report, so copies
//! are counted. A plain count breaks on `stored A, stored A (announced again, not a copy), removed A`: it believes in A for
//! ever, and the two stories look the same on the wire. Three things end such a belief:
//! - a response that found less cached than was predicted marks the missing blocks *doubted* in the index; from then on a
//!   doubted block counts as one copy at the next store and as none after the next removal;
//! - all copies of a worker cannot be more than its capacity: when the sum says so, every count falls back to one;
//! - no count exceeds [`MAX_COPIES`].
//!
//! **Names.** Two engine hashes may stand for one chain hash (they saw something that we do not): the block is held until
//! the last of them is removed. One engine hash may stand for two chain hashes (engines that leave the adapter or the
//! salt out of it): a removal then takes the one stored longest ago, as the engine would.
//!
//! **Orphans.** A block whose parent is unknown is skipped and counted: its chain hash cannot be known, and a guess would
//! be credit for nothing.

use super::shard::{Before, Reason};
use super::{Cell, PrefixIndex, RUN, home};
use crate::WorkerId;
use crate::block::{self, ChainHash, Domain, HashKey};
use hashbrown::HashMap;
use smallvec::SmallVec;

/// Copies that are believed of one hash: no engine runs more sequences that could each have computed one.
pub const MAX_COPIES: u16 = 1_024;
/// Hashes kept for one worker; more than any engine has blocks, so only one that never removes reaches it.
pub const MAX_LINKS: usize = 4 << 20;

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

/// What one event did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks stored or removed.
    pub blocks: u32,
    /// Stores skipped because their parent is unknown, removals of hashes that were never stored.
    pub orphans: u32,
    /// Stores refused: tokens that do not fill the blocks, or [`MAX_LINKS`] reached.
    pub refused: u32,
}

/// State of one (worker, rank), driven by its event feed and owned by it.
#[derive(Debug)]
pub struct Ledger {
    worker: WorkerId,
    links: HashMap<ExternalHash, SmallVec<[Link; 1]>>,
    /// How many names a chain hash has, where it has several.
    shared: HashMap<ChainHash, u32>,
    /// Copies of all links.
    copies: u64,
    /// Copies beyond the first of each link.
    surplus: u64,
    capacity_blocks: Option<u32>,
    trimmed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    cell: Cell,
    domain: Domain,
    copies: u16,
}

impl Ledger {
    /// An empty ledger of `worker`.
    pub fn new(worker: WorkerId) -> Self {
        Self {
            worker,
            links: HashMap::new(),
            shared: HashMap::new(),
            copies: 0,
            surplus: 0,
            capacity_blocks: None,
            trimmed: 0,
        }
    }

    /// Tells the engine's KV capacity, once it is known.
    pub fn set_capacity(&mut self, capacity_blocks: u32) {
        self.capacity_blocks = Some(capacity_blocks);
    }

    /// Blocks `hashes` with `tokens` (concatenated, `block_size` each) follow `parent`, `None` at the start of a prompt.
    /// `domain` counts at the start; children take over their parent's, because engines name salt and adapter at the first
    /// block only.
    #[expect(clippy::too_many_arguments, reason = "one argument for each field of the wire event")]
    pub fn stored(
        &mut self,
        index: &PrefixIndex,
        key: &HashKey,
        domain: Domain,
        parent: Option<ExternalHash>,
        hashes: &[ExternalHash],
        tokens: &[u32],
        block_size: u32,
    ) -> Applied {
        let count = hashes.len() as u32;
        if block_size == 0 || tokens.len() as u64 != u64::from(count) * u64::from(block_size) {
            return Applied { refused: count, ..Applied::default() };
        }
        let parent = match parent {
            None => None,
            Some(parent) => match self.resolve(parent, domain) {
                Some(link) => Some(link),
                None => return Applied { orphans: count, ..Applied::default() },
            },
        };
        let domain = parent.map_or(domain, |link| link.domain);
        let mut last = parent.map(|link| link.cell);
        let mut applied = Applied::default();
        for (hash, block) in hashes.iter().zip(tokens.chunks_exact(block_size as usize)) {
            let cell = child(last, block::extend(key, domain, last.map(|cell| cell.chain), block));
            last = Some(cell);
            if self.links.len() >= MAX_LINKS && !self.links.contains_key(hash) {
                // Later blocks of the event hang on this one: they would be orphans.
                applied.refused = count - applied.blocks;
                break;
            }
            self.link(index, *hash, Link { cell, domain, copies: 1 });
            applied.blocks += 1;
        }
        self.trim();
        applied
    }

    /// One copy of block `hash` was evicted.
    pub fn removed(&mut self, index: &PrefixIndex, hash: ExternalHash) -> Applied {
        let Some(links) = self.links.get_mut(&hash) else { return Applied { orphans: 1, ..Applied::default() } };
        let done = Applied { blocks: 1, ..Applied::default() };
        let Some(link) = links.first_mut() else { return done };
        let cell = link.cell;
        if link.copies > 1 && !index.is_doubted(self.worker, cell) {
            link.copies -= 1;
            self.copies -= 1;
            self.surplus -= 1;
            return done;
        }
        self.copies -= u64::from(link.copies);
        self.surplus -= u64::from(link.copies - 1);
        links.remove(0);
        if links.is_empty() {
            self.links.remove(&hash);
        }
        self.unname(index, cell);
        done
    }

    /// The engine dropped its whole cache.
    pub fn cleared(&mut self, index: &PrefixIndex) {
        for (_, links) in self.links.drain() {
            for link in links {
                index.release(self.worker, link.cell, Reason::Held);
            }
        }
        self.shared.clear();
        self.copies = 0;
        self.surplus = 0;
    }

    /// Distinct names that the engine holds.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether the engine holds nothing.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// How often counts of copies fell back to one because their sum exceeded the capacity.
    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// The block that `hash` names: the one in `domain` if there are several, else the one stored last.
    fn resolve(&self, hash: ExternalHash, domain: Domain) -> Option<Link> {
        let links = self.links.get(&hash)?;
        links.iter().rev().find(|link| link.domain == domain).or(links.last()).copied()
    }

    fn link(&mut self, index: &PrefixIndex, hash: ExternalHash, link: Link) {
        let before = index.hold(self.worker, link.cell, Reason::Held);
        let links = self.links.entry(hash).or_default();
        let Some(known) = links.iter().position(|known| known.cell == link.cell) else {
            links.push(link);
            self.copies += 1;
            // Held already, and not under this name: the block has one name more.
            if before != Before::Absent {
                *self.shared.entry(link.cell.chain).or_insert(1) += 1;
            }
            return;
        };
        let mut known = links.remove(known);
        self.copies -= u64::from(known.copies);
        self.surplus -= u64::from(known.copies - 1);
        known.copies = match before {
            Before::Present => known.copies.saturating_add(1).min(MAX_COPIES),
            // A response proved that there was none, so this is the only one. Or the index lost it: then one is safe.
            Before::Doubted | Before::Absent => 1,
        };
        self.copies += u64::from(known.copies);
        self.surplus += u64::from(known.copies - 1);
        links.push(known);
    }

    /// One name of `cell` is gone; the last one takes the block with it.
    fn unname(&mut self, index: &PrefixIndex, cell: Cell) {
        match self.shared.get_mut(&cell.chain) {
            Some(names) if *names > 2 => *names -= 1,
            Some(_) => drop(self.shared.remove(&cell.chain)),
            None => index.release(self.worker, cell, Reason::Held),
        }
    }

    fn trim(&mut self) {
        let Some(capacity) = self.capacity_blocks else { return };
        // Without a surplus there is nothing to take back: removals were lost, and only a replay can tell which.
        if self.copies <= u64::from(capacity) || self.surplus == 0 {
            return;
        }
        for link in self.links.values_mut().flatten() {
            link.copies = 1;
        }
        self.copies -= self.surplus;
        self.surplus = 0;
        self.trimmed += 1;
    }
}

/// The cell after `parent`.
fn child(parent: Option<Cell>, chain: ChainHash) -> Cell {
    match parent {
        Some(parent) if !(parent.position as usize + 1).is_multiple_of(RUN) => {
            Cell { chain, position: parent.position + 1, home: parent.home }
        }
        parent => Cell { chain, position: parent.map_or(0, |parent| parent.position + 1), home: home(chain) as u8 },
    }
}
