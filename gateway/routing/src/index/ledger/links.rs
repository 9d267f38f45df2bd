//! Names of one cache: an engine's hash → the block it stands for.
//!
//! Names come in the order of their blocks, so they are kept by run, eight bytes each and in a row; the table that finds
//! them has eight more, room to spare included about fourteen: a part of the name's hash, the run and the offset. What is
//! rare (several copies, a name for several blocks, several names for one block) lies in maps beside it.

use super::super::scramble;
use super::ExternalHash;
use hashbrown::HashMap;
use smallvec::SmallVec;

/// Runs that a row can tell apart; four million names cannot have more.
const MAX_RUNS: u32 = (1 << 26) - 1;
const FREE: u64 = u64::MAX;
const MIN_ROWS: usize = 16;

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
    copies: HashMap<(u32, u8), u16>,
    /// Names of several blocks, and further names of one block.
    others: HashMap<ExternalHash, Several>,
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.used + self.others.len()
    }

    /// Blocks that `hash` stands for, oldest first.
    pub(super) fn of(&self, hash: ExternalHash) -> Several {
        match self.find(hash) {
            Some((_, link)) => SmallVec::from_slice(&[link]),
            None => self.others.get(&hash).cloned().unwrap_or_default(),
        }
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

    /// Brings in what [`Links::enter`] of these names will look at. Reads that wait for nothing are made many at a time;
    /// one after the other, each would wait for memory.
    pub(super) fn touch(&mut self, hashes: &[ExternalHash]) {
        while (self.used + hashes.len()) * 4 > self.rows.len() * 3 {
            self.grow();
        }
        let mask = self.rows.len().saturating_sub(1);
        let sum =
            hashes.iter().fold(0, |sum, hash| sum ^ self.rows.get(tag(*hash) as usize & mask).map_or(0, |row| *row));
        std::hint::black_box(sum);
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

    /// Replaces what `hash` stands for.
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
        single.chain(self.others.iter().flat_map(|(hash, links)| links.iter().map(|link| (*hash, *link))))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let rows = self.rows.capacity() * size_of::<u64>() + self.runs.capacity() * size_of::<Names>();
        rows + self.room * size_of::<u64>() + self.copies.allocation_size() + self.others.allocation_size()
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
            if (row >> 32) as u32 == tag
                && let Some((name, link)) = self.named(row)
                && name == hash
            {
                return Some((at, link));
            }
            at = (at + 1) & mask;
        }
    }

    fn named(&self, row: u64) -> Option<(ExternalHash, Link)> {
        let (run, offset) = ((row as u32) >> 6, (row & 63) as u8);
        let name = *self.runs.get(run as usize)?.names.get(usize::from(offset))?;
        let copies = if self.copies.is_empty() { None } else { self.copies.get(&(run, offset)).copied() };
        Some((ExternalHash(name), Link { run, offset, copies: copies.unwrap_or(1) }))
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
        if (self.used + 1) * 4 > self.rows.len() * 3 {
            self.grow();
        }
        self.used += 1;
        place(&mut self.rows, u64::from(tag(hash)) << 32 | u64::from(link.run) << 6 | u64::from(link.offset));
    }

    fn grow(&mut self) {
        let mut rows = vec![FREE; (self.rows.len() * 2).max(MIN_ROWS)];
        for row in self.rows.iter().filter(|row| **row != FREE) {
            place(&mut rows, *row);
        }
        self.rows = rows;
    }

    /// Takes a row out and closes the gap that it leaves.
    fn erase(&mut self, at: usize, link: &Link) {
        let run = &mut self.runs[link.run as usize];
        run.taken &= !(1 << link.offset);
        if run.taken == 0 {
            self.room -= run.names.capacity();
            run.names = Vec::new();
        }
        self.copies.remove(&link.place());
        self.used -= 1;
        let mask = self.rows.len() - 1;
        let mut gap = at;
        let mut next = (at + 1) & mask;
        while self.rows[next] != FREE {
            let home = (self.rows[next] >> 32) as usize & mask;
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

fn place(rows: &mut [u64], row: u64) {
    let mask = rows.len() - 1;
    let mut at = (row >> 32) as usize & mask;
    while rows[at] != FREE {
        at = (at + 1) & mask;
    }
    rows[at] = row;
}

/// Engines choose their hashes: they are mixed before a table trusts in their bits.
fn tag(hash: ExternalHash) -> u32 {
    scramble(hash.0) as u32
}
