//! Names of one cache: an engine's hash → the block it stands for.
//!
//! Names come in the order of their blocks, so they are kept by run, eight bytes each and in a row; the table that finds
//! them has eight more, room to spare included about fourteen: a part of the name's hash, the run and the offset. What is
//! rare (several copies, a name for several blocks, several names for one block) lies in maps beside it.
//!
//! *Fresh* names are not in the table yet. Each place in the table is a piece of memory that nothing else is near, and most
//! names are not asked for until their block is evicted, long after. So the rows of blocks that the worker did not have wait
//! in a list until they are many ([`MAX_FRESH`]) or a name has to be found that is not in the table: then all come in
//! together, and their reads of memory overlap. Who looks for a name looks through that list as well.

use super::super::{RUN, mask, scramble};
use super::ExternalHash;
use hashbrown::HashMap;
use smallvec::SmallVec;

/// Runs that a row can tell apart; four million names cannot have more.
const MAX_RUNS: u32 = (1 << 26) - 1;
const FREE: u64 = u64::MAX;
const MIN_ROWS: usize = 16;
/// Rows that wait, about: to look through so many costs less than the event that does.
const MAX_FRESH: usize = if cfg!(test) { 100 } else { 4_096 };
/// Rows that are read at once.
pub(super) const TOUCHED: usize = 128;

/// What a name stands for: a block of one of the ledger's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) run: u32,
    pub(super) offset: u8,
    pub(super) copies: u16,
}

impl Link {
    pub(super) fn new(run: u32, offset: u8) -> Self {
        Self { run, offset, copies: 1 }
    }

    /// Whether both mean the same block.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        self.place() == other.place()
    }

    fn place(&self) -> (u32, u8) {
        (self.run, self.offset)
    }
}

/// Blocks of one name, oldest first.
pub(super) type Several = SmallVec<[Link; 2]>;

/// What [`Links::enter`] found.
pub(super) enum Entered {
    /// Nothing: the name is entered now.
    New,
    /// One block.
    Known(Link),
    /// Several blocks, or one that has several names.
    Several,
}

/// Names of a run's blocks, by offset.
#[derive(Debug, Default)]
struct Names {
    /// Bit *n*: offset *n* has a name here.
    taken: u64,
    names: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    /// Open addressing, linear probing: a part of the hash in the upper half, run and offset in the lower.
    rows: Vec<u64>,
    used: usize,
    runs: Vec<Names>,
    /// Names that those have room for, together.
    room: usize,
    /// Rows that are not in the table yet, in the order in which they came.
    fresh: Vec<u64>,
    copies: HashMap<(u32, u8), u16>,
    /// Names of several blocks, and further names of one block.
    others: HashMap<ExternalHash, Several>,
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.used + self.fresh.len() + self.others.len()
    }

    /// Blocks that `hash` stands for, oldest first.
    pub(super) fn of(&self, hash: ExternalHash) -> Several {
        let mut links = match self.find(hash) {
            Some((_, link)) => SmallVec::from_slice(&[link]),
            None => self.others.get(&hash).cloned().unwrap_or_default(),
        };
        let tag = tag(hash);
        let fresh = self.fresh.iter().filter(|row| is_of(**row, tag)).filter_map(|row| self.named(*row));
        links.extend(fresh.filter(|(name, _)| *name == hash).map(|(_, link)| link));
        links
    }

    /// The block named last, if `hash` is its name: what comes next mostly follows it.
    pub(super) fn newest(&self, hash: ExternalHash) -> Option<Link> {
        let (name, link) = self.named(*self.fresh.last()?)?;
        (name == hash).then_some(link)
    }

    /// The block that `hash` stands for by its row, and the row. A fresh name may stand for another one, that was stored
    /// later.
    pub(super) fn row(&self, hash: ExternalHash) -> Option<(usize, Link)> {
        self.find(hash)
    }

    /// Whether names wait for their rows.
    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Whether so many wait that it is time to write them.
    pub(super) fn is_full(&self) -> bool {
        self.fresh.len() > MAX_FRESH
    }

    /// Takes in names of consecutive blocks of `run`, as fresh ones; false, and nothing is done, when one of the blocks
    /// has a name.
    pub(super) fn append(&mut self, run: u32, offset: u8, hashes: &[ExternalHash]) -> bool {
        let (from, end) = (usize::from(offset), usize::from(offset) + hashes.len());
        let blocks = mask(from, end);
        let is_known = self.runs.get(run as usize).is_some_and(|names| names.taken & blocks != 0);
        if is_known || run >= MAX_RUNS || end > RUN || hashes.is_empty() {
            return false;
        }
        self.reserve(run, end);
        let Names { taken, names } = &mut self.runs[run as usize];
        *taken |= blocks;
        if names.len() < from {
            names.resize(from, 0);
        }
        let known = names.len().min(end) - from;
        for (name, hash) in names[from..].iter_mut().zip(hashes) {
            *name = hash.0;
        }
        names.extend(hashes[known..].iter().map(|hash| hash.0));
        let links = (offset..).map(|offset| Link::new(run, offset));
        self.fresh.extend(hashes.iter().zip(links).map(|(hash, link)| row(*hash, &link)));
        true
    }

    /// Writes fresh rows into the table. Names that stand for something else as well get none: they come into `others`.
    pub(super) fn settle(&mut self, others: &mut Vec<(ExternalHash, Link)>) {
        self.make_room(self.fresh.len());
        let mask = self.rows.len() - 1;
        let fresh = std::mem::take(&mut self.fresh);
        for rows in fresh.chunks(TOUCHED) {
            touch(&self.rows, rows.iter().map(|row| tag_of(*row)));
            for &row in rows {
                let mut at = tag_of(row) as usize & mask;
                while self.rows[at] != FREE && !is_of(self.rows[at], tag_of(row)) {
                    at = (at + 1) & mask;
                }
                if self.rows[at] == FREE && self.others.is_empty() {
                    self.used += 1;
                    self.rows[at] = row;
                } else {
                    self.settle_slowly(row, others);
                }
            }
        }
        self.fresh = fresh;
        self.fresh.clear();
    }

    /// There may be another row or list for the name.
    fn settle_slowly(&mut self, row: u64, others: &mut Vec<(ExternalHash, Link)>) {
        let Some((hash, link)) = self.named(row) else { return };
        if self.find(hash).is_some() || self.others.contains_key(&hash) {
            others.push((hash, link));
            self.untake(&link);
        } else {
            self.used += 1;
            place(&mut self.rows, row);
        }
    }

    /// Brings in the rows of names that will be asked for.
    pub(super) fn touch_names(&self, hashes: &[ExternalHash]) {
        touch(&self.rows, hashes.iter().map(|hash| tag(*hash)));
    }

    /// Makes room for the names of a run's blocks up to `end`.
    pub(super) fn reserve(&mut self, run: u32, end: usize) {
        if self.runs.len() <= run as usize {
            self.runs.resize_with(run as usize + 1, Names::default);
        }
        let names = &mut self.runs[run as usize].names;
        let before = names.capacity();
        names.reserve_exact(end.saturating_sub(names.len()));
        self.room += names.capacity() - before;
    }

    /// Enters a name that is not there; else says what it stands for.
    pub(super) fn enter(&mut self, hash: ExternalHash, link: Link) -> Entered {
        if !self.others.is_empty() && self.others.contains_key(&hash) {
            return Entered::Several;
        }
        match self.find(hash) {
            Some((_, known)) => Entered::Known(known),
            None => {
                self.insert(hash, link);
                Entered::New
            }
        }
    }

    /// Takes out the name that [`Links::row`] found.
    pub(super) fn remove_row(&mut self, row: usize, link: &Link) {
        self.erase(row, link);
    }

    /// Replaces what `hash` stands for; no name is fresh.
    pub(super) fn set(&mut self, hash: ExternalHash, links: Several) {
        match self.find(hash) {
            Some((row, link)) => self.erase(row, &link),
            None => drop(self.others.remove(&hash)),
        }
        match links[..] {
            [] => {}
            [link] => self.insert(hash, link),
            _ => drop(self.others.insert(hash, links)),
        }
    }

    /// Changes how many copies `hash` has of the one block of `link`.
    pub(super) fn set_copies(&mut self, link: &Link, copies: u16) {
        if copies > 1 {
            self.copies.insert(link.place(), copies);
        } else {
            self.copies.remove(&link.place());
        }
    }

    /// Every name has one copy from now on.
    pub(super) fn trust_one_copy(&mut self) {
        self.copies = HashMap::new();
        self.others.values_mut().flatten().for_each(|link| link.copies = 1);
    }

    /// Every name with its blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ExternalHash, Link)> {
        let rows = self.rows.iter().filter(|row| **row != FREE);
        let single = rows.filter_map(|row| self.named(*row));
        let others = self.others.iter().flat_map(|(hash, links)| links.iter().map(|link| (*hash, *link)));
        single.chain(others).chain(self.fresh.iter().filter_map(|row| self.named(*row)))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let rows = self.rows.capacity() * size_of::<u64>() + self.runs.capacity() * size_of::<Names>();
        let fresh = self.fresh.capacity() * size_of::<u64>();
        rows + fresh + self.room * size_of::<u64>() + self.copies.allocation_size() + self.others.allocation_size()
    }

    /// The row of a name that stands for one block.
    fn find(&self, hash: ExternalHash) -> Option<(usize, Link)> {
        let mask = self.rows.len().checked_sub(1)?;
        let tag = tag(hash);
        let mut at = tag as usize & mask;
        loop {
            let row = self.rows[at];
            if row == FREE {
                return None;
            }
            if is_of(row, tag)
                && let Some((name, link)) = self.named(row)
                && name == hash
            {
                return Some((at, link));
            }
            at = (at + 1) & mask;
        }
    }

    fn named(&self, row: u64) -> Option<(ExternalHash, Link)> {
        let mut link = Link::new((row as u32) >> 6, (row & 63) as u8);
        let name = self.name(&link)?;
        if let Some(copies) = self.copies.get(&link.place()) {
            link.copies = *copies;
        }
        Some((name, link))
    }

    fn name(&self, link: &Link) -> Option<ExternalHash> {
        let names = &self.runs.get(link.run as usize)?.names;
        names.get(usize::from(link.offset)).map(|name| ExternalHash(*name))
    }

    fn insert(&mut self, hash: ExternalHash, link: Link) {
        let at = usize::from(link.offset);
        if self.runs.get(link.run as usize).is_none_or(|run| run.names.capacity() <= at) {
            // One at a time while an engine decodes: some more than is needed.
            self.reserve(link.run, at + 1 + at / 4);
        }
        let run = &mut self.runs[link.run as usize];
        if run.taken >> link.offset & 1 != 0 || link.run >= MAX_RUNS {
            self.others.insert(hash, SmallVec::from_slice(&[link]));
            return;
        }
        run.taken |= 1 << link.offset;
        if run.names.len() <= at {
            run.names.resize(at + 1, 0);
        }
        run.names[at] = hash.0;
        if link.copies > 1 {
            self.copies.insert(link.place(), link.copies);
        }
        self.make_room(1);
        self.used += 1;
        place(&mut self.rows, row(hash, &link));
    }

    /// Makes room for the rows of `more` names.
    fn make_room(&mut self, more: usize) {
        let need = (self.used + more) * 4 / 3 + 1;
        if need <= self.rows.len() {
            return;
        }
        let mut rows = vec![FREE; need.next_power_of_two().max(MIN_ROWS)];
        for row in self.rows.iter().filter(|row| **row != FREE) {
            place(&mut rows, *row);
        }
        self.rows = rows;
    }

    /// The block has no name here any more.
    fn untake(&mut self, link: &Link) {
        let Some(run) = self.runs.get_mut(link.run as usize) else { return };
        run.taken &= !(1 << link.offset);
        if run.taken == 0 {
            self.room -= run.names.capacity();
            run.names = Vec::new();
        }
    }

    /// Takes a row out and closes the gap that it leaves.
    fn erase(&mut self, at: usize, link: &Link) {
        self.untake(link);
        self.copies.remove(&link.place());
        self.used -= 1;
        let mask = self.rows.len() - 1;
        let mut gap = at;
        let mut next = (at + 1) & mask;
        while self.rows[next] != FREE {
            let home = tag_of(self.rows[next]) as usize & mask;
            // It may move when the gap lies between its home and where it is.
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(gap) & mask {
                self.rows[gap] = self.rows[next];
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.rows[gap] = FREE;
    }
}

/// A row: a part of the name's hash, the run, the offset. [`FREE`] is none: no run has its number.
fn row(hash: ExternalHash, link: &Link) -> u64 {
    u64::from(tag(hash)) << 32 | u64::from(link.run) << 6 | u64::from(link.offset)
}

fn tag_of(row: u64) -> u32 {
    (row >> 32) as u32
}

fn is_of(row: u64, tag: u32) -> bool {
    tag_of(row) == tag
}

/// Brings in rows. Reads that wait for nothing overlap; one after the other, each would wait for memory.
fn touch(rows: &[u64], tags: impl Iterator<Item = u32>) {
    let mask = rows.len().saturating_sub(1);
    std::hint::black_box(tags.fold(0, |sum, tag| sum ^ rows.get(tag as usize & mask).copied().unwrap_or_default()));
}

fn place(rows: &mut [u64], row: u64) {
    let mask = rows.len() - 1;
    let mut at = tag_of(row) as usize & mask;
    while rows[at] != FREE {
        at = (at + 1) & mask;
    }
    rows[at] = row;
}

/// Engines choose their hashes: they are mixed before a table trusts in their bits.
fn tag(hash: ExternalHash) -> u32 {
    scramble(hash.0) as u32
}
