//! What one engine's event feed said, by the engine's own hashes.
//!
//! Events name blocks by hashes of the engine's choosing; removals carry nothing else. The ledger of a (worker, rank)
//! remembers which block each stands for, and tells the shared index when the worker begins and ceases to hold a block.
//! It belongs to the task that reads that worker's feed, so it needs no lock. The feed hands over each batch once: what
//! a replay brings again is left out there by sequence number.
//!
//! **Places.** Tiers and attention groups ([`Place`]) each have their own names: a block that moves to host memory is stored
//! there and removed here. The first full group is the plane of held blocks; tell the others by [`Ledger::learn_group`] before
//! their first event. Blocks of further groups count in device memory alone.
//!
//! **Copies.** vLLM stores a hash twice when it computes a cached block anew (a prompt that ends on a block boundary
//! recomputes its last block), and removes it twice. Dropping the block at the first removal would under-report, so copies
//! are counted. A plain count breaks on `stored A, stored A (announced again, not a copy), removed A`: it believes in A for
//! ever, and the two stories look the same on the wire. Four things end such a belief:
//! - a response that found less cached than was predicted marks the missing blocks *doubted* in the index; from then on a
//!   doubted block counts as one copy at the next store and as none after the next removal;
//! - a gap in the events makes every count one;
//! - all copies of a worker cannot be more than its capacity: when the sum says so, every count falls back to one;
//! - no count exceeds [`MAX_COPIES`].
//!
//! **Names.** Two engine hashes may stand for one block (they saw something that we do not): it is held until the last of
//! them is removed. One engine hash may stand for two blocks (engines that leave the adapter or the salt out of it): a
//! removal then takes the one stored longest ago, as the engine would.
//!
//! **Orphans.** A block whose parent is unknown is skipped and counted: its chain hash cannot be known, and a guess would
//! be credit for nothing. So is one whose parent the index evicted: credit ends there anyway.
//!
//! **Runs.** Names point to runs: the ledger's view of a segment of the index. A segment that was evicted and came back has
//! another serial number, so that a name of before never touches it.

mod enter;
mod image;
mod links;
mod runs;

use super::plane::Plane;
use super::slot::Groups;
use super::{GroupKind, MAX_GROUPS, Place, PrefixIndex, Spot};
use crate::WorkerId;
use crate::block::{self, ChainHash, Domain, HashKey};
use enter::Before;
use hashbrown::{HashMap, HashSet};
pub(super) use image::{Image, ImageName, ImageRun};
use links::{Link, Links, TOUCHED};
use runs::Runs;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Copies that are believed of one hash: no engine runs more sequences that could each have computed one.
pub const MAX_COPIES: u16 = 1_024;
/// Names kept for one worker and place; more than any engine has blocks, so only one that never removes reaches it.
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
    /// Stores refused: tokens that do not fill the blocks, a group beyond those that can be told apart, [`MAX_LINKS`] or
    /// the index's budget reached.
    pub refused: u32,
}

/// State of one (worker, rank), driven by its event feed and owned by it.
#[derive(Debug)]
pub struct Ledger {
    worker: WorkerId,
    books: SmallVec<[(Plane, Links); 1]>,
    runs: Runs,
    /// How many names a block has in its plane, where it has several.
    shared: HashMap<(Plane, u32, u8), u32>,
    groups: Groups,
    /// Planes of the engine's groups, in the order in which they were told.
    planes: SmallVec<[(u32, Plane, GroupKind); 2]>,
    /// Copies of all names of held blocks.
    copies: u64,
    /// Copies beyond the first of each.
    surplus: u64,
    capacity_blocks: Option<u32>,
    trimmed: u64,
    is_unsure: bool,
    scratch: Vec<ChainHash>,
    /// Where this ledger's memory is accounted for, and how much it was when last told.
    account: Option<(Arc<AtomicUsize>, usize)>,
}

impl Ledger {
    /// An empty ledger of `worker`.
    pub fn new(worker: WorkerId) -> Self {
        Self {
            worker,
            books: SmallVec::new(),
            runs: Runs::default(),
            shared: HashMap::new(),
            groups: Groups::default(),
            planes: SmallVec::new(),
            copies: 0,
            surplus: 0,
            capacity_blocks: None,
            trimmed: 0,
            is_unsure: false,
            scratch: Vec::new(),
            account: None,
        }
    }

    /// Tells the engine's KV capacity, once it is known.
    pub fn set_capacity(&mut self, capacity_blocks: u32) {
        self.capacity_blocks = Some(capacity_blocks);
    }

    /// Tells of what kind a group is, before the first event of it; the first word on a group counts. Without any, every
    /// group is one and full.
    pub fn learn_group(&mut self, index: &PrefixIndex, group: u32, kind: GroupKind) {
        if self.planes.iter().any(|told| told.0 == group) {
            return;
        }
        let plane = self.groups.add(kind).map_or(Plane::HELD, Plane::group);
        if self.planes.len() <= MAX_GROUPS {
            self.planes.push((group, plane, kind));
        }
        if self.groups != (Groups { has_full: true, ..Groups::default() }) {
            index.slots.set_groups(self.worker, self.groups.clone());
        }
    }

    /// [`Ledger::stored_in`] device memory, first group.
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
        self.stored_in(index, key, Place::DEVICE, domain, parent, hashes, tokens, block_size)
    }

    /// Blocks `hashes` with `tokens` (concatenated, `block_size` each) follow `parent`, `None` at the start of a prompt.
    /// `domain` counts at the start; children take over their parent's, because engines name salt and adapter at the first
    /// block only.
    #[expect(clippy::too_many_arguments, reason = "one argument for each field of the wire event")]
    pub fn stored_in(
        &mut self,
        index: &PrefixIndex,
        key: &HashKey,
        place: Place,
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
        self.enter(index, place, domain, parent, hashes, |domain, parent, out| {
            block::chain_after(key, domain, parent, block_size, tokens, out);
        })
    }

    /// Like [`Ledger::stored_in`] device memory, for whoever hashed the tokens before ([`block::local`]): benches and relays.
    pub fn stored_hashed(
        &mut self,
        index: &PrefixIndex,
        key: &HashKey,
        domain: Domain,
        parent: Option<ExternalHash>,
        hashes: &[ExternalHash],
        locals: &[block::LocalHash],
    ) -> Applied {
        if locals.len() != hashes.len() {
            return Applied { refused: hashes.len() as u32, ..Applied::default() };
        }
        self.enter(index, Place::DEVICE, domain, parent, hashes, |_, parent, out| {
            let mut last = parent;
            out.extend(locals.iter().map(|local| {
                let chain = block::link(key, last, *local);
                last = Some(chain);
                chain
            }));
        })
    }

    /// Blocks that were stored in another place are in `place` as well; for events that carry no tokens.
    pub fn mirrored(&mut self, index: &PrefixIndex, place: Place, hashes: &[ExternalHash]) -> Applied {
        let mut applied = Applied::default();
        let Some(plane) = self.plane(place) else { return Applied { refused: hashes.len() as u32, ..applied } };
        for &hash in hashes {
            let known = self.books.iter().filter(|(other, _)| *other != plane);
            let link = known.filter_map(|(_, links)| links.of(hash).last().copied()).next();
            let Some((spot, link)) = link.and_then(|link| Some((self.runs.spot(&link)?, link))) else {
                applied.orphans += 1;
                continue;
            };
            let mut before = None;
            index.amend(spot, self.worker, |view| {
                let bit = 1 << spot.offset;
                before = Some(Before::of(view.bits(plane) & bit != 0, false));
                view.set(plane, view.bits(plane) | bit);
                view.clear(Plane::UNSURE, bit);
            });
            match before {
                Some(before) => {
                    self.link(index, plane, hash, Link::new(link.run, link.offset), before);
                    applied.blocks += 1;
                }
                None => applied.orphans += 1,
            }
        }
        self.settle(index);
        applied
    }

    /// [`Ledger::removed_from`] device memory, first group.
    pub fn removed(&mut self, index: &PrefixIndex, hash: ExternalHash) -> Applied {
        self.removed_from(index, Place::DEVICE, hash)
    }

    /// [`Ledger::removed_from`] for each of `hashes`.
    pub fn removed_all(&mut self, index: &PrefixIndex, place: Place, hashes: &[ExternalHash]) -> Applied {
        let mut all = Applied::default();
        for piece in hashes.chunks(TOUCHED) {
            let plane = self.plane(place);
            if let Some((_, links)) = self.books.iter().find(|(known, _)| Some(*known) == plane) {
                links.touch_names(piece);
            }
            for hash in piece {
                let applied = self.removed_from(index, place, *hash);
                all.blocks += applied.blocks;
                all.orphans += applied.orphans;
            }
        }
        all
    }

    /// One copy of block `hash` left `place`.
    pub fn removed_from(&mut self, index: &PrefixIndex, place: Place, hash: ExternalHash) -> Applied {
        let done = Applied { blocks: 1, ..Applied::default() };
        let orphan = Applied { orphans: 1, ..Applied::default() };
        let Some(plane) = self.plane(place) else { return orphan };
        let Some(book) = self.books.iter().position(|(known, _)| *known == plane) else { return orphan };
        if let Some((row, link)) = self.books[book].1.row(hash)
            && link.copies == 1
            && self.is_there(index, &link)
        {
            // What a fresh name may also mean was stored later.
            self.recount(plane, 1, 0);
            self.books[book].1.remove_row(row, &link);
            self.unname(index, plane, &link);
            self.runs.unlink(link.run);
            return done;
        }
        if self.books[book].1.has_fresh() {
            self.settle_names(index, book);
        }
        let mut links = self.books[book].1.of(hash);
        let Some(link) = links.first().copied() else { return orphan };
        let spot = self.runs.spot(&link);
        let is_doubted = plane == Plane::HELD && spot.is_some_and(|spot| index.is_doubted(self.worker, spot));
        if link.copies > 1 && !is_doubted {
            links[0].copies -= 1;
            self.books[book].1.set(hash, links);
            self.recount(plane, link.copies, link.copies - 1);
            return done;
        }
        self.recount(plane, link.copies, 0);
        links.remove(0);
        self.books[book].1.set(hash, links);
        self.unname(index, plane, &link);
        self.runs.unlink(link.run);
        done
    }

    /// The engine dropped its whole cache.
    pub fn cleared(&mut self, index: &PrefixIndex) {
        for (_, spot) in self.runs.spots() {
            index.amend(spot, self.worker, |view| view.end(Plane::is_from_events));
        }
        self.books.clear();
        self.runs = Runs::default();
        self.shared = HashMap::new();
        self.copies = 0;
        self.surplus = 0;
        self.is_unsure = false;
        self.settle(index);
    }

    /// Events were lost and cannot be replayed: nothing is dropped, all blocks become *unsure*. Returns how many.
    pub fn unconfirm(&mut self, index: &PrefixIndex) -> u64 {
        let mut unsure = 0;
        for (_, spot) in self.runs.spots() {
            index.amend(spot, self.worker, |view| {
                let blocks = view.told();
                view.set(Plane::UNSURE, blocks);
                unsure += u64::from(blocks.count_ones());
            });
        }
        // Removals may be among what was lost: more than one copy is not to be believed.
        self.trust_one_copy();
        self.is_unsure = unsure > 0;
        unsure
    }

    /// Unsure blocks of this worker. O(runs).
    pub fn unconfirmed(&self, index: &PrefixIndex) -> u64 {
        let unsure = |spot: Spot| {
            let segment = index.shard(spot.head).at(spot)?;
            Some(u64::from(segment.view(self.worker).bits(Plane::UNSURE).count_ones()))
        };
        if self.is_unsure { self.runs.spots().filter_map(|(_, spot)| unsure(spot)).sum() } else { 0 }
    }

    /// A full report of the blocks in device memory: those in `held` are confirmed, others removed.
    pub fn reconcile(&mut self, index: &PrefixIndex, held: &HashSet<ExternalHash>) -> Applied {
        let Some((_, links)) = self.books.iter().find(|(plane, _)| *plane == Plane::HELD) else {
            return Applied::default();
        };
        let all: Vec<(ExternalHash, Link)> = links.iter().collect();
        self.trust_one_copy();
        let mut applied = Applied::default();
        for (hash, link) in all {
            if held.contains(&hash) {
                if let Some(spot) = self.runs.spot(&link) {
                    index.amend(spot, self.worker, |view| view.clear(Plane::UNSURE, 1 << spot.offset));
                }
            } else {
                applied.blocks += self.removed(index, hash).blocks;
            }
        }
        self.settle(index);
        applied
    }

    /// Distinct names of held blocks.
    pub fn len(&self) -> usize {
        self.books.iter().find(|(plane, _)| *plane == Plane::HELD).map_or(0, |(_, links)| links.len())
    }

    /// Names in all places.
    pub fn names(&self) -> usize {
        self.books.iter().map(|(_, links)| links.len()).sum()
    }

    /// Whether the engine holds nothing, in no place.
    pub fn is_empty(&self) -> bool {
        self.names() == 0
    }

    /// How often counts of copies fell back to one because their sum exceeded the capacity.
    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }
}
