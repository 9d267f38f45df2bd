//! Names of one cache: an engine's hash → the blocks it stands for. 16 bytes a name, one byte of the table beside it.

use super::super::scramble;
use super::ExternalHash;
use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};
use smallvec::SmallVec;

/// What a name stands for: a block of one of the ledger's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) run: u32,
    pub(super) offset: u8,
    /// The name stands for several blocks: they are in [`Links::several`].
    is_several: bool,
    pub(super) copies: u16,
}

impl Link {
    pub(super) fn new(run: u32, offset: u8) -> Self {
        Self { run, offset, is_several: false, copies: 1 }
    }

    /// Whether both mean the same block.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (self.run, self.offset) == (other.run, other.offset)
    }
}

#[derive(Clone, Copy, Debug)]
struct Row {
    hash: ExternalHash,
    link: Link,
}

const _: () = assert!(size_of::<Row>() == 16, "one of these is kept for every block of every worker");

/// Blocks of one name, oldest first.
pub(super) type Several = SmallVec<[Link; 2]>;

/// What [`Links::enter`] found.
pub(super) enum Entered<'a> {
    /// Nothing: the name is entered now.
    New,
    Known(&'a mut Link),
    Several,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    table: HashTable<Row>,
    several: HashMap<ExternalHash, Several>,
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Blocks that `hash` stands for, oldest first.
    pub(super) fn of(&self, hash: ExternalHash) -> Several {
        match self.row(hash) {
            None => Several::new(),
            Some(row) if row.link.is_several => self.several.get(&hash).cloned().unwrap_or_default(),
            Some(row) => SmallVec::from_slice(&[row.link]),
        }
    }

    /// Enters a name that is not there; else returns what it stands for when that is one block, or nothing when it is several.
    pub(super) fn enter(&mut self, hash: ExternalHash, link: Link) -> Entered<'_> {
        match self.table.entry(mix(hash), |row| row.hash == hash, |row| mix(row.hash)) {
            Entry::Vacant(free) => {
                free.insert(Row { hash, link });
                Entered::New
            }
            Entry::Occupied(row) => match &mut row.into_mut().link {
                link if link.is_several => Entered::Several,
                link => Entered::Known(link),
            },
        }
    }

    /// Replaces what `hash` stands for.
    pub(super) fn set(&mut self, hash: ExternalHash, links: Several) {
        self.several.remove(&hash);
        let Some(&first) = links.first() else {
            if let Ok(row) = self.table.find_entry(mix(hash), |row| row.hash == hash) {
                row.remove();
            }
            return;
        };
        let is_several = links.len() > 1;
        let link = Link { is_several, ..first };
        match self.table.find_mut(mix(hash), |row| row.hash == hash) {
            Some(row) => row.link = link,
            None => drop(self.table.insert_unique(mix(hash), Row { hash, link }, |row| mix(row.hash))),
        }
        if is_several {
            let plain = links.into_iter().map(|link| Link { is_several: false, ..link });
            self.several.insert(hash, plain.collect());
        }
    }

    /// Calls `change` for every block of every name.
    pub(super) fn for_each(&mut self, mut change: impl FnMut(ExternalHash, &mut Link)) {
        for row in self.table.iter_mut().filter(|row| !row.link.is_several) {
            change(row.hash, &mut row.link);
        }
        for (hash, links) in &mut self.several {
            links.iter_mut().for_each(|link| change(*hash, link));
        }
    }

    /// Every name with its blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ExternalHash, Link)> {
        let plain = self.table.iter().filter(|row| !row.link.is_several).map(|row| (row.hash, row.link));
        plain.chain(self.several.iter().flat_map(|(hash, links)| links.iter().map(|link| (*hash, *link))))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.table.allocation_size() + self.several.allocation_size()
    }

    fn row(&self, hash: ExternalHash) -> Option<&Row> {
        self.table.find(mix(hash), |row| row.hash == hash)
    }
}

/// Engines choose their hashes: they are mixed before a table trusts in their bits.
fn mix(hash: ExternalHash) -> u64 {
    scramble(hash.0)
}
