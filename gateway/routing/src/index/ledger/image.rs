//! A ledger with the hashes of its blocks, taken out of the index and put into another: what snapshots are made of.

use super::super::PrefixIndex;
use super::super::claim::Claim;
use super::super::plane::{GroupKind, Plane};
use super::enter::Before;
use super::links::Link;
use super::{ExternalHash, Ledger};
use crate::WorkerId;
use crate::block::{ChainHash, Domain};
use hashbrown::HashMap;
use smallvec::SmallVec;

/// All that a ledger knows.
#[derive(Debug, Default)]
pub(in super::super) struct Image {
    pub(in super::super) groups: SmallVec<[(u32, GroupKind); 2]>,
    /// Parents before children.
    pub(in super::super) runs: Vec<ImageRun>,
    pub(in super::super) names: Vec<ImageName>,
}

/// A segment as far as the ledger names its blocks.
#[derive(Debug)]
pub(in super::super) struct ImageRun {
    pub(in super::super) domain: Domain,
    /// Depth of the first block.
    pub(in super::super) position: u32,
    /// The block that goes before, as far as the ledger knows it: run and offset.
    pub(in super::super) parent: Option<(u32, u8)>,
    pub(in super::super) unsure: u64,
    pub(in super::super) hashes: SmallVec<[ChainHash; 8]>,
}

/// A name of a block in one place.
#[derive(Debug)]
pub(in super::super) struct ImageName {
    pub(in super::super) hash: ExternalHash,
    pub(in super::super) run: u32,
    pub(in super::super) offset: u8,
    pub(in super::super) plane: Plane,
    pub(in super::super) copies: u16,
}

impl Ledger {
    /// What the ledger knows; blocks that the index evicted are left out.
    pub(in super::super) fn image(&self, index: &PrefixIndex) -> Image {
        let mut found: Vec<(u32, ImageRun)> = Vec::new();
        for (at, spot) in self.runs.spots() {
            let first = Link::new(at, 0);
            let segment = index.shard(spot.head).at(spot);
            let (Some(segment), Some(domain)) = (segment, self.runs.domain(&first)) else { continue };
            let parent = self.runs.parent(&first).map(|link| (link.run, link.offset));
            let hashes: SmallVec<[ChainHash; 8]> = (0..segment.len()).filter_map(|at| segment.hash(at)).collect();
            let unsure = segment.view(self.worker).bits(Plane::UNSURE);
            found.push((at, ImageRun { domain, position: segment.position, parent, unsure, hashes }));
        }
        found.sort_by_key(|(_, run)| run.position);
        let numbers: HashMap<u32, u32> = found.iter().map(|(at, _)| *at).zip(0..).collect();
        let mut image = Image { groups: self.planes.iter().map(|told| (told.0, told.2)).collect(), ..Image::default() };
        for (mut run, number) in found.into_iter().map(|(_, run)| run).zip(0..) {
            let parent = run.parent.and_then(|(parent, offset)| Some((*numbers.get(&parent)?, offset)));
            run.parent = parent.filter(|(parent, _)| *parent < number);
            image.runs.push(run);
        }
        for (plane, links) in &self.books {
            for (hash, link) in links.iter() {
                let Some(&run) = numbers.get(&link.run) else { continue };
                let offset = link.offset;
                if usize::from(offset) < image.runs[run as usize].hashes.len() {
                    image.names.push(ImageName { hash, run, offset, plane: *plane, copies: link.copies });
                }
            }
        }
        image
    }

    /// A ledger of `worker` that knows what `image` says, and the index with it.
    pub(in super::super) fn of_image(worker: WorkerId, index: &PrefixIndex, image: &Image) -> Self {
        let mut ledger = Self::new(worker);
        for (group, kind) in &image.groups {
            ledger.learn_group(index, *group, *kind);
        }
        let mut wanted: HashMap<u32, SmallVec<[(Plane, u64); 1]>> = HashMap::new();
        for name in &image.names {
            let planes = wanted.entry(name.run).or_default();
            match planes.iter_mut().find(|(plane, _)| *plane == name.plane) {
                Some((_, blocks)) => *blocks |= 1 << name.offset,
                None => planes.push((name.plane, 1 << name.offset)),
            }
        }
        let mut blocks: Vec<SmallVec<[Link; 8]>> = Vec::with_capacity(image.runs.len());
        for (run, number) in image.runs.iter().zip(0..) {
            let planes = wanted.remove(&number).unwrap_or_default();
            let parent =
                run.parent.and_then(|(parent, offset)| blocks.get(parent as usize)?.get(usize::from(offset)).copied());
            blocks.push(ledger.restore_run(index, run, &planes, parent));
        }
        let mut named: HashMap<(Plane, u32), u64> = HashMap::new();
        for name in &image.names {
            // Shorter than the run when the index had no room for it.
            let Some(&block) = blocks[name.run as usize].get(usize::from(name.offset)) else { continue };
            let known = named.entry((name.plane, block.run)).or_default();
            let before = Before::of(*known >> block.offset & 1 != 0, false);
            *known |= 1 << block.offset;
            ledger.link(index, name.plane, name.hash, block, before);
            ledger.set_copies(name.plane, name.hash, &block, name.copies);
        }
        ledger.is_unsure = image.runs.iter().any(|run| run.unsure != 0);
        ledger.settle(index);
        ledger
    }

    /// Enters the blocks of a run; returns where each came to lie.
    fn restore_run(
        &mut self,
        index: &PrefixIndex,
        run: &ImageRun,
        planes: &[(Plane, u64)],
        parent: Option<Link>,
    ) -> SmallVec<[Link; 8]> {
        let mut blocks = SmallVec::new();
        let mut last = parent;
        for (plane, wanted) in planes {
            blocks.clear();
            let claim = Claim { worker: self.worker, plane: *plane, until: 0, now: 0 };
            let before = parent.and_then(|link| self.runs.spot(&link));
            index.hold(claim, before, run.position, &run.hashes, Some(*wanted), |at, held| {
                let number = self.runs.open(held.spot, run.domain, last.as_ref());
                let links = (0..held.count).map(|step| Link::new(number, held.spot.offset + step as u8));
                blocks.extend(links);
                last = blocks.last().copied();
                let unsure = run.unsure >> at << held.spot.offset;
                if unsure != 0 {
                    index.amend(held.spot, self.worker, |view| {
                        let known = view.bits(Plane::UNSURE) | unsure;
                        view.set(Plane::UNSURE, known & view.told());
                    });
                }
            });
        }
        blocks
    }
}
