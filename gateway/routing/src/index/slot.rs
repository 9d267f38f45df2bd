//! What is known of each worker slot: the live generation, learned rates, attention groups.

use super::plane::{GroupKind, MAX_GROUPS};
use super::publish::{Loaded, Published};
use crate::WorkerId;
use crate::event::MAX_WORKERS;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Credit for unsure blocks before anything was learned: most of what is lost with a gap are stores, not removals.
const FIRST_SURVIVAL: f64 = 0.75;
/// Weight of one response in a learned rate.
const LEARNING: f64 = 0.125;
/// Blocks of evidence from which on a response has its whole weight.
const FULL_EVIDENCE: f64 = 16.0;

/// Attention groups of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Groups {
    /// Kinds of the groups beyond the first full one, by plane.
    pub(super) further: SmallVec<[GroupKind; 4]>,
    /// Whether there is a full group, in the plane of held blocks. Without one the first further group must be contiguous.
    pub(super) has_full: bool,
    /// Whether the hit has to be corrected by what responses say.
    pub(super) is_corrected: bool,
}

/// What a walk along a prompt found of one worker's events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// Contiguous blocks.
    pub(super) held: u32,
    /// Those of them that were unsure.
    pub(super) unsure: u32,
    /// Those of these that the engine counted.
    pub(super) survived: u32,
}

/// How a worker that has records is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its generation is gone.
    Dead,
    Plain,
    /// More than its blocks tells its hits.
    Special,
}

/// In [`Slots::live`], beside the generation: the worker's hits are corrected.
const CORRECTED: u64 = 1 << 63;
/// Likewise: the worker drafts, and computes the last block of every hit anew.
const DRAFTS: u64 = 1 << 62;
/// A generation has neither.
const FLAGS: u64 = CORRECTED | DRAFTS;

#[derive(Debug)]
struct Slot {
    /// Learned rates, bits of an f32.
    survival: AtomicU32,
    correction: AtomicU32,
    groups: Published<Groups>,
}

/// One entry for every slot that a worker can have.
#[derive(Debug)]
pub(super) struct Slots {
    /// Lowest generation that is alive, and [`FLAGS`]. Look-ups go through these by the thousand: nothing lies between.
    live: Box<[AtomicU64]>,
    slots: Box<[Slot]>,
}

impl Slots {
    pub(super) fn new() -> Self {
        let slot = |_| Slot {
            survival: AtomicU32::new((FIRST_SURVIVAL as f32).to_bits()),
            correction: AtomicU32::new(1f32.to_bits()),
            groups: Published::new(None),
        };
        let live = (0..MAX_WORKERS).map(|_| AtomicU64::new(0)).collect();
        Self { live, slots: (0..MAX_WORKERS).map(slot).collect() }
    }

    pub(super) fn standing(&self, worker: WorkerId) -> Standing {
        let Some(live) = self.live.get(worker.slot as usize) else { return Standing::Dead };
        let live = live.load(Ordering::Acquire);
        match live & !FLAGS <= u64::from(worker.generation) {
            false => Standing::Dead,
            true if live & FLAGS != 0 => Standing::Special,
            true => Standing::Plain,
        }
    }

    pub(super) fn is_live(&self, worker: WorkerId) -> bool {
        self.standing(worker) != Standing::Dead
    }

    pub(super) fn forget(&self, worker: WorkerId) {
        let Some(slot) = self.slot(worker) else { return };
        let next = u64::from(worker.generation) + 1;
        let raise = |live: u64| (live & !FLAGS < next).then_some(next);
        if self.live[worker.slot as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, raise).is_ok() {
            slot.groups.store(None);
            slot.correction.store(1f32.to_bits(), Ordering::Relaxed);
        }
    }

    pub(super) fn survival(&self, worker: WorkerId) -> f64 {
        self.slot(worker).map_or(FIRST_SURVIVAL, |slot| rate(&slot.survival))
    }

    pub(super) fn correction(&self, worker: WorkerId) -> f64 {
        self.slot(worker).map_or(1.0, |slot| rate(&slot.correction))
    }

    pub(super) fn groups(&self, worker: WorkerId) -> Option<Loaded<Groups>> {
        self.slot(worker).map(|slot| slot.groups.load())
    }

    pub(super) fn set_groups(&self, worker: WorkerId, groups: Groups) {
        let Some(slot) = self.slot(worker) else { return };
        let flag = if groups.is_corrected { CORRECTED } else { 0 };
        let is_mine = |live: u64| (live & !FLAGS <= u64::from(worker.generation)).then_some(live | flag);
        if self.live[worker.slot as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, is_mine).is_ok() {
            slot.groups.store(Some(Arc::new(groups)));
        }
    }

    /// Whether the worker drafts.
    pub(super) fn drafts(&self, worker: WorkerId) -> bool {
        self.live.get(worker.slot as usize).is_some_and(|live| live.load(Ordering::Relaxed) & DRAFTS != 0)
    }

    pub(super) fn set_drafts(&self, worker: WorkerId, drafts: bool) {
        let Some(live) = self.live.get(worker.slot as usize) else { return };
        let set = |live: u64| if drafts { live | DRAFTS } else { live & !DRAFTS };
        let is_mine = |live: u64| (live & !FLAGS <= u64::from(worker.generation)).then(|| set(live));
        // Refused for a generation that is gone: nothing is asked of it any more.
        let _ = live.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_mine);
    }

    /// Learns from a response that counted `cached` blocks where `found` was known.
    pub(super) fn learn(&self, worker: WorkerId, found: Found, cached: usize) {
        let Some(slot) = self.slot(worker) else { return };
        if found.unsure > 0 {
            learn(&slot.survival, f64::from(found.survived) / f64::from(found.unsure), f64::from(found.unsure));
        }
        let is_corrected = slot.groups.load().as_ref().is_some_and(|groups| groups.is_corrected);
        if is_corrected && found.held > 0 {
            let realised = (cached as f64 / f64::from(found.held)).min(1.0);
            learn(&slot.correction, realised, f64::from(found.held));
        }
    }

    fn slot(&self, worker: WorkerId) -> Option<&Slot> {
        self.slots.get(worker.slot as usize)
    }
}

impl Groups {
    /// The plane of a group of this kind that was not known before: `None` is that of held blocks.
    pub(super) fn add(&mut self, kind: GroupKind) -> Option<usize> {
        if matches!(kind, GroupKind::Full | GroupKind::Unknown) && !self.has_full {
            self.has_full = true;
            self.is_corrected |= kind == GroupKind::Unknown;
            return None;
        }
        self.is_corrected |= kind == GroupKind::Unknown || self.further.len() >= MAX_GROUPS;
        if self.further.len() < MAX_GROUPS {
            self.further.push(kind);
        }
        Some(self.further.len() - 1)
    }
}

fn rate(cell: &AtomicU32) -> f64 {
    f64::from(f32::from_bits(cell.load(Ordering::Relaxed)))
}

/// Two responses at once may each overwrite what the other taught: a rate bears that.
fn learn(cell: &AtomicU32, seen: f64, evidence: f64) {
    let known = rate(cell);
    let weight = LEARNING * (evidence / FULL_EVIDENCE).min(1.0);
    cell.store(((known + weight * (seen - known)) as f32).to_bits(), Ordering::Relaxed);
}
