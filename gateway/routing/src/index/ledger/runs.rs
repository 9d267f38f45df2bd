//! A ledger's view of segments: where its names point to.

use super::super::Spot;
use super::links::Link;
use crate::block::{ChainHash, Domain};
use hashbrown::HashTable;

/// A segment in which this worker has blocks.
#[derive(Clone, Copy, Debug)]
struct Run {
    head: ChainHash,
    serial: u64,
    domain: Domain,
    /// Run that goes before, and its serial number: it may be gone.
    parent: Option<Parent>,
    names: u32,
}

/// The block that a run follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    run: u32,
    offset: u8,
    serial: u64,
}

/// Runs by number and by segment.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
    free: Vec<u32>,
    by_head: HashTable<u32>,
}

impl Runs {
    /// The run of a segment; begins one when there is none. `after` is the block it follows.
    pub(super) fn open(&mut self, spot: Spot, domain: Domain, after: Option<&Link>) -> u32 {
        let Self { runs, free, by_head } = self;
        let is_it = |&run: &u32| runs[run as usize].head == spot.head && runs[run as usize].serial == spot.serial;
        if let Some(&run) = by_head.find(spot.head.0, is_it) {
            return run;
        }
        let parent = after.map(|link| {
            let serial = runs[link.run as usize].serial;
            Parent { run: link.run, offset: link.offset, serial }
        });
        let run = Run { head: spot.head, serial: spot.serial, domain, parent, names: 0 };
        let at = match free.pop() {
            Some(at) => {
                runs[at as usize] = run;
                at
            }
            None => {
                runs.push(run);
                runs.len() as u32 - 1
            }
        };
        by_head.insert_unique(spot.head.0, at, |&at| runs[at as usize].head.0);
        at
    }

    pub(super) fn named(&mut self, run: u32, names: u32) {
        if let Some(run) = self.runs.get_mut(run as usize) {
            run.names += names;
        }
    }

    /// One name fewer; the last one takes the run with it.
    pub(super) fn unlink(&mut self, at: u32) {
        let Some(run) = self.runs.get_mut(at as usize) else { return };
        run.names = run.names.saturating_sub(1);
        if run.names == 0
            && let Ok(entry) = self.by_head.find_entry(run.head.0, |&other| other == at)
        {
            entry.remove();
            self.free.push(at);
        }
    }

    /// Where the block of `link` lies.
    pub(super) fn spot(&self, link: &Link) -> Option<Spot> {
        let run = self.runs.get(link.run as usize)?;
        Some(Spot { head: run.head, serial: run.serial, offset: link.offset })
    }

    pub(super) fn domain(&self, link: &Link) -> Option<Domain> {
        self.runs.get(link.run as usize).map(|run| run.domain)
    }

    /// The block that the run of `link` follows, if it is still there.
    pub(super) fn parent(&self, link: &Link) -> Option<Link> {
        let parent = self.runs.get(link.run as usize)?.parent?;
        let run = self.runs.get(parent.run as usize)?;
        (run.names > 0 && run.serial == parent.serial).then(|| Link::new(parent.run, parent.offset))
    }

    /// Every run that has names: its number, and its segment at offset 0.
    pub(super) fn spots(&self) -> impl Iterator<Item = (u32, Spot)> {
        let runs = (0u32..).zip(&self.runs).filter(|(_, run)| run.names > 0);
        runs.map(|(at, run)| (at, Spot { head: run.head, serial: run.serial, offset: 0 }))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let lists = self.runs.capacity() * size_of::<Run>() + self.free.capacity() * size_of::<u32>();
        lists + self.by_head.allocation_size()
    }
}
