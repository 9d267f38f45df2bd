//! How stored blocks come into a ledger, and how their names go.

use super::super::claim::{Claim, Held};
use super::super::plane::{Plane, Tier};
use super::super::{Place, PrefixIndex, RUN, Spot, mask};
use super::links::{Entered, Link, Links};
use super::{Applied, ExternalHash, Ledger, MAX_COPIES, MAX_LINKS};
use crate::block::{ChainHash, Domain};
use std::sync::atomic::Ordering;

/// Ledgers may have so many parts of the index's budget, out of [`BUDGET_PARTS`]; the rest is for segments.
const LEDGER_PARTS: usize = 3;
const BUDGET_PARTS: usize = 4;
/// When a worker has more blocks than fit there, unsure ones go until this part of its capacity is free.
const SHED_PART: usize = 16;

/// What stood in the index before a block was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// The worker did not have it in this place.
    Absent,
    /// It did.
    Present,
    /// It did, but a response or a gap had cast doubt on it.
    Doubted,
}

impl Before {
    pub(super) fn of(was_there: bool, is_untrusted: bool) -> Self {
        match (was_there, is_untrusted) {
            (false, _) => Self::Absent,
            (true, false) => Self::Present,
            (true, true) => Self::Doubted,
        }
    }
}

/// The block that a store follows, or the start of a prompt.
struct Start {
    after: Option<Link>,
    spot: Option<Spot>,
    chain: Option<ChainHash>,
    position: u32,
    domain: Domain,
}

impl Ledger {
    /// Enters `hashes` after `parent`; `fill` appends their chain hashes, given the domain and the parent's.
    pub(super) fn enter(
        &mut self,
        index: &PrefixIndex,
        place: Place,
        domain: Domain,
        parent: Option<ExternalHash>,
        hashes: &[ExternalHash],
        fill: impl FnOnce(Domain, Option<ChainHash>, &mut Vec<ChainHash>),
    ) -> Applied {
        let count = hashes.len() as u32;
        let Some(plane) = self.plane(place) else { return Applied { refused: count, ..Applied::default() } };
        let Some(start) = self.start(index, plane, domain, parent) else {
            return Applied { orphans: count, ..Applied::default() };
        };
        let mut chain = std::mem::take(&mut self.scratch);
        chain.clear();
        fill(start.domain, start.chain, &mut chain);
        chain.truncate(self.room(index, plane));
        let book = self.book(plane);
        let mut applied = Applied::default();
        let mut last = start.after;
        let claim = Claim { worker: self.worker, plane, until: 0, now: 0 };
        index.hold(claim, start.spot, start.position, &chain, None, |at, held| {
            let run = self.runs.open(held.spot, start.domain, last.as_ref());
            self.name(index, book, run, held, &hashes[at..at + held.count]);
            last = Some(Link::new(run, held.spot.offset + (held.count - 1) as u8));
            applied.blocks += held.count as u32;
        });
        // Later blocks of the event would hang on one that is not there.
        applied.refused = count - applied.blocks;
        self.scratch = chain;
        if self.books[book].1.is_full() {
            self.settle_names(index, book);
        }
        if let Some(after) = start.after.filter(|_| self.is_unsure) {
            self.confirm_ancestors(index, after);
        }
        self.trim(index);
        self.settle(index);
        applied
    }

    /// The plane of `place`; `None` for groups that cannot be told apart and for lower tiers of further groups.
    pub(super) fn plane(&self, place: Place) -> Option<Plane> {
        let known = self.planes.iter().find(|told| told.0 == place.group).map(|told| told.1);
        let plane = if self.planes.is_empty() { Plane::HELD } else { known? };
        match place.tier {
            Tier::Device => Some(plane),
            tier => (plane == Plane::HELD).then(|| Plane::tier(tier)),
        }
    }

    /// `None` when `parent` is unknown, or its segment was evicted.
    fn start(&self, index: &PrefixIndex, plane: Plane, domain: Domain, parent: Option<ExternalHash>) -> Option<Start> {
        let Some(parent) = parent else {
            return Some(Start { after: None, spot: None, chain: None, position: 0, domain });
        };
        let after = self.resolve(plane, parent, domain)?;
        let spot = self.runs.spot(&after)?;
        let segment = index.shard(spot.head).at(spot)?;
        Some(Start {
            after: Some(after),
            spot: Some(spot),
            chain: Some(segment.hash(usize::from(spot.offset))?),
            position: segment.position + u32::from(spot.offset) + 1,
            domain: self.runs.domain(&after)?,
        })
    }

    /// Lets `hashes` stand for the blocks of `held`, which lie in `run`.
    fn name(&mut self, index: &PrefixIndex, book: usize, run: u32, held: &Held, hashes: &[ExternalHash]) {
        let (plane, links) = &mut self.books[book];
        if held.before == 0 && links.append(run, held.spot.offset, hashes) {
            self.runs.named(run, held.count as u32);
            if *plane == Plane::HELD {
                self.copies += held.count as u64;
            }
            return;
        }
        let plane = *plane;
        links.reserve(run, usize::from(held.spot.offset) + held.count);
        for (step, &hash) in hashes.iter().enumerate() {
            let bit = |word: u64| word >> step & 1 != 0;
            let before = Before::of(bit(held.before), bit(held.untrusted));
            self.link(index, plane, hash, Link::new(run, held.spot.offset + step as u8), before);
        }
    }

    /// Writes the rows of fresh names. One that stood for something before, or stands for several blocks, is entered like
    /// any other then, after what came earlier.
    pub(super) fn settle_names(&mut self, index: &PrefixIndex, book: usize) {
        let mut others = Vec::new();
        self.books[book].1.settle(&mut others);
        for (hash, link) in others {
            self.link_another(index, book, hash, link, Before::Absent, true);
        }
    }

    /// The block that `hash` names, in `plane` or else any other: the one in `domain` if there are several, else the one
    /// stored last.
    fn resolve(&self, plane: Plane, hash: ExternalHash, domain: Domain) -> Option<Link> {
        let own = self.books.iter().filter(|(known, _)| *known == plane);
        let newest = own.clone().find_map(|(_, links)| links.newest(hash));
        if newest.is_some_and(|link| self.runs.domain(&link) == Some(domain)) {
            return newest;
        }
        let others = self.books.iter().filter(|(known, _)| *known != plane);
        let mut found = own.chain(others).map(|(_, links)| links.of(hash)).filter(|links| !links.is_empty());
        let links = found.next()?;
        let same = links.iter().rev().find(|link| self.runs.domain(link) == Some(domain));
        same.or(links.last()).copied()
    }

    /// How many more names may come in.
    fn room(&self, index: &PrefixIndex, plane: Plane) -> usize {
        let ledgers = index.ledger_bytes.load(Ordering::Relaxed);
        if ledgers > index.budget_bytes / BUDGET_PARTS * LEDGER_PARTS {
            return 0;
        }
        let names = self.books.iter().find(|(known, _)| *known == plane).map_or(0, |(_, links)| links.len());
        MAX_LINKS.saturating_sub(names)
    }

    /// Lets `hash` stand for the block of `link`, once more if it did.
    pub(super) fn link(&mut self, index: &PrefixIndex, plane: Plane, hash: ExternalHash, link: Link, before: Before) {
        let at = self.book(plane);
        if self.books[at].1.has_fresh() {
            self.settle_names(index, at);
        }
        match self.books[at].1.enter(hash, link) {
            Entered::New => self.count_new(plane, &link, before),
            Entered::Known(known) if known.is_at(&link) => {
                let copies = copies_after(known.copies, before);
                self.books[at].1.set_copies(&known, copies);
                self.recount(plane, known.copies, copies);
            }
            Entered::Known(_) | Entered::Several => self.link_another(index, at, hash, link, before, false),
        }
    }

    /// `hash` stands for another block already, or for several. `is_counted`: the name was counted when it was fresh.
    fn link_another(
        &mut self,
        index: &PrefixIndex,
        book: usize,
        hash: ExternalHash,
        link: Link,
        before: Before,
        is_counted: bool,
    ) {
        let plane = self.books[book].0;
        let mut links = self.books[book].1.of(hash);
        // What the index evicted is nothing that the name could still mean.
        let gone: Vec<Link> = links.iter().filter(|link| !self.is_there(index, link)).copied().collect();
        links.retain(|link| self.is_there(index, link));
        for link in &gone {
            self.recount(plane, link.copies, 0);
            self.shared.remove(&(plane, link.run, link.offset));
            self.runs.unlink(link.run);
        }
        match links.iter().position(|known| known.is_at(&link)) {
            Some(at) => {
                let mut known = links.remove(at);
                let copies = copies_after(known.copies, before);
                self.recount(plane, known.copies, copies);
                known.copies = copies;
                links.push(known);
                if is_counted {
                    self.recount(plane, 1, 0);
                    self.runs.unlink(link.run);
                }
            }
            None => {
                links.push(link);
                if !is_counted {
                    self.count_new(plane, &link, before);
                }
            }
        }
        self.books[book].1.set(hash, links);
    }

    /// Whether the index still has the block of `link`.
    pub(super) fn is_there(&self, index: &PrefixIndex, link: &Link) -> bool {
        self.runs.spot(link).is_some_and(|spot| index.shard(spot.head).at(spot).is_some())
    }

    fn count_new(&mut self, plane: Plane, link: &Link, before: Before) {
        self.runs.named(link.run, 1);
        self.recount(plane, 0, 1);
        // Held already, and not under this name: the block has one name more.
        if before != Before::Absent {
            *self.shared.entry((plane, link.run, link.offset)).or_insert(1) += 1;
        }
    }

    pub(super) fn recount(&mut self, plane: Plane, was: u16, is: u16) {
        if plane == Plane::HELD {
            self.copies = self.copies + u64::from(is) - u64::from(was);
            self.surplus = self.surplus + u64::from(is.saturating_sub(1)) - u64::from(was.saturating_sub(1));
        }
    }

    fn book(&mut self, plane: Plane) -> usize {
        self.books.iter().position(|(known, _)| *known == plane).unwrap_or_else(|| {
            self.books.push((plane, Links::default()));
            self.books.len() - 1
        })
    }

    /// One name of the block of `link` is gone; the last one takes the block with it.
    pub(super) fn unname(&mut self, index: &PrefixIndex, plane: Plane, link: &Link) {
        let name = (plane, link.run, link.offset);
        match self.shared.get_mut(&name) {
            Some(names) if *names > 2 => *names -= 1,
            Some(_) => drop(self.shared.remove(&name)),
            None => {
                let Some(spot) = self.runs.spot(link) else { return };
                let bit = 1 << spot.offset;
                index.amend(spot, self.worker, |view| {
                    view.clear(plane, bit);
                    if plane == Plane::HELD {
                        // An eviction also refutes a placement: it is about the very block that was placed.
                        view.clear(Plane::PLACED, bit);
                        view.clear(Plane::DOUBTED, bit);
                    }
                    view.clear(Plane::UNSURE, bit & !view.told());
                });
            }
        }
    }

    /// A block that comes after others shows that those are there, up to the first that is not held.
    fn confirm_ancestors(&self, index: &PrefixIndex, after: Link) {
        let mut next = Some(after);
        while let Some(link) = next {
            let Some(spot) = self.runs.spot(&link) else { return };
            let last = usize::from(spot.offset);
            let mut is_whole = false;
            index.amend(spot, self.worker, |view| {
                let row = (view.told() << (RUN - 1 - last)).leading_ones() as usize;
                view.clear(Plane::UNSURE, mask(last + 1 - row, last + 1));
                is_whole = row == last + 1;
            });
            next = self.runs.parent(&link).filter(|_| is_whole);
        }
    }

    /// Restores how many copies `hash` has of the block of `link`.
    pub(super) fn set_copies(&mut self, plane: Plane, hash: ExternalHash, link: &Link, copies: u16) {
        if copies == 1 {
            return;
        }
        let at = self.book(plane);
        let mut links = self.books[at].1.of(hash);
        let Some(known) = links.iter_mut().find(|known| known.is_at(link)) else { return };
        let was = std::mem::replace(&mut known.copies, copies);
        if was != copies {
            self.books[at].1.set(hash, links);
            self.recount(plane, was, copies);
        }
    }

    pub(super) fn trust_one_copy(&mut self) {
        for (_, links) in &mut self.books {
            links.trust_one_copy();
        }
        self.copies -= self.surplus;
        self.surplus = 0;
    }

    /// Takes back what cannot be, because the engine has no room for it.
    fn trim(&mut self, index: &PrefixIndex) {
        let Some(capacity) = self.capacity_blocks else { return };
        // Without a surplus there is nothing to take back here: removals were lost, and only a replay can tell which.
        if self.copies > u64::from(capacity) && self.surplus > 0 {
            self.trust_one_copy();
            self.trimmed += 1;
        }
        if self.is_unsure && self.len() > capacity as usize {
            self.shed(index, self.len() - (capacity as usize - capacity as usize / SHED_PART));
        }
    }

    /// Removes up to `count` unsure blocks: as many are gone for certain, and these may be.
    fn shed(&mut self, index: &PrefixIndex, count: usize) {
        let Some((_, links)) = self.books.iter().find(|(plane, _)| *plane == Plane::HELD) else { return };
        let is_unsure = |link: &Link| self.runs.spot(link).is_none_or(|spot| index.is_unsure(self.worker, spot));
        let going: Vec<ExternalHash> =
            links.iter().filter(|(_, link)| is_unsure(link)).map(|(hash, _)| hash).take(count).collect();
        for hash in going {
            self.removed(index, hash);
        }
    }

    /// Accounts for memory taken or given back.
    pub(super) fn settle(&mut self, index: &PrefixIndex) {
        let books: usize = self.books.iter().map(|(_, links)| links.heap_bytes()).sum();
        let bytes = books
            + self.runs.heap_bytes()
            + self.shared.allocation_size()
            + self.scratch.capacity() * size_of::<ChainHash>();
        let (account, told) = self.account.get_or_insert_with(|| (index.ledger_bytes.clone(), 0));
        if bytes != *told {
            account.fetch_add(bytes.wrapping_sub(*told), Ordering::Relaxed);
            *told = bytes;
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if let Some((account, told)) = &self.account {
            account.fetch_sub(*told, Ordering::Relaxed);
        }
    }
}

/// Copies of a block after one more store.
fn copies_after(copies: u16, before: Before) -> u16 {
    match before {
        Before::Present => copies.saturating_add(1).min(MAX_COPIES),
        // A response proved that there was none, so this is the only one. Or the index lost it: then one is safe.
        Before::Doubted | Before::Absent => 1,
    }
}
