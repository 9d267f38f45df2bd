//! What a worker without events probably holds: the most recently used blocks that fit.
//!
//! Engines free blocks tail first and evict what was freed longest ago. So a prompt is touched from its last block to its
//! first, and what goes is what was touched longest ago. Responses correct the guess: when an engine missed a block that
//! an earlier response had proven there, all that was last used before that response is gone as well, and the worker is
//! credited with less room (a tenth) until responses agree again; an engine that caches nothing loses all credit.

use super::claim::Claim;
use super::plane::Plane;
use super::{CacheReport, PrefixIndex, Spot};
use crate::WorkerId;
use crate::block::ChainHash;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Room left after a proven miss.
const SHRINK: f64 = 0.9;
/// Part of a confirmed prefix that is given back as room.
const GROW: f64 = 0.1;
/// Stale marks in the queue beyond those that count, before it is tidied.
const MAX_STALE_MARKS: usize = 1_024;

/// Blocks of one worker in order of use.
#[derive(Debug)]
pub(super) struct Recent {
    worker: WorkerId,
    touched: HashMap<ChainHash, Touch>,
    /// Marks in order of use, oldest first; only the one with a block's latest number counts.
    order: VecDeque<(ChainHash, u64)>,
    next_mark: u64,
    /// Kept for its memory.
    spots: Vec<Spot>,
    /// Share of the capacity that responses bear out, 0 to 1.
    share: f64,
    capacity_blocks: u32,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    mark: u64,
    at_ms: u64,
    /// When a response last showed the block computed there.
    proven_ms: Option<u64>,
    spot: Spot,
}

impl Recent {
    pub(super) fn new(worker: WorkerId) -> Self {
        Self {
            worker,
            touched: HashMap::new(),
            order: VecDeque::new(),
            next_mark: 0,
            spots: Vec::new(),
            share: 1.0,
            capacity_blocks: 0,
        }
    }

    pub(super) fn worker(&self) -> WorkerId {
        self.worker
    }

    pub(super) fn place(&mut self, index: &PrefixIndex, chain: &[ChainHash], capacity_blocks: u32, now_ms: u64) {
        self.capacity_blocks = capacity_blocks;
        let claim = Claim { worker: self.worker, plane: Plane::RECENT, until: 0, now: 0 };
        let mut spots = std::mem::take(&mut self.spots);
        spots.clear();
        // All of them, touched before or not: the index may have evicted them.
        index.hold(claim, None, 0, chain, None, |_, held| {
            let all = (0..held.count).map(|step| held.spot.after(step));
            spots.extend(all);
        });
        for (&chain, &spot) in chain.iter().zip(&spots).rev() {
            self.touch(chain, spot, now_ms);
        }
        self.spots = spots;
        self.shrink(index);
        self.tidy();
    }

    pub(super) fn confirm(&mut self, index: &PrefixIndex, chain: &[ChainHash], report: CacheReport) {
        let cached = report.cached_blocks.min(report.predicted_blocks);
        let missing = chain.get(cached as usize).filter(|_| cached < report.predicted_blocks);
        let proven_ms = missing.and_then(|missing| self.touched.get(missing)?.proven_ms);
        match proven_ms.filter(|&proven_ms| proven_ms < report.placed_at_ms) {
            Some(proven_ms) => {
                self.share *= SHRINK;
                self.evict_while(index, |_, touch| touch.at_ms <= proven_ms);
            }
            None if missing.is_none() && self.capacity_blocks > 0 => {
                let grown = GROW * f64::from(report.cached_blocks) / f64::from(self.capacity_blocks);
                self.share = (self.share + grown).min(1.0);
            }
            // Predicted from a placement whose prefill had not ended: says nothing about evictions.
            None => {}
        }
        for chain in chain {
            if let Some(touch) = self.touched.get_mut(chain) {
                touch.proven_ms = Some(report.now_ms);
            }
        }
        self.shrink(index);
    }

    pub(super) fn clear(&mut self, index: &PrefixIndex) {
        for (_, touch) in std::mem::take(&mut self.touched) {
            self.release(index, touch.spot);
        }
        self.order.clear();
    }

    /// Marks queued, stale ones included.
    #[cfg(test)]
    pub(super) fn marks(&self) -> usize {
        self.order.len()
    }

    fn touch(&mut self, chain: ChainHash, spot: Spot, now_ms: u64) {
        let mark = self.next_mark;
        self.next_mark += 1;
        let proven_ms = self.touched.get(&chain).and_then(|touch| touch.proven_ms);
        self.touched.insert(chain, Touch { mark, at_ms: now_ms, proven_ms, spot });
        self.order.push_back((chain, mark));
    }

    /// The worker does not have the block of `spot` any more.
    fn release(&self, index: &PrefixIndex, spot: Spot) {
        index.amend(spot, self.worker, |view| {
            view.clear(Plane::RECENT, 1 << spot.offset);
            view.clear(Plane::PLACED, 1 << spot.offset);
        });
    }

    fn shrink(&mut self, index: &PrefixIndex) {
        let room = (f64::from(self.capacity_blocks) * self.share) as usize;
        self.evict_while(index, |held, _| held > room);
    }

    /// Evicts the least recently used blocks while `goes` says so of (blocks held, the oldest).
    fn evict_while(&mut self, index: &PrefixIndex, goes: impl Fn(usize, &Touch) -> bool) {
        while let Some(&(chain, mark)) = self.order.front() {
            match self.touched.get(&chain).copied() {
                Some(touch) if touch.mark == mark => {
                    if !goes(self.touched.len(), &touch) {
                        return;
                    }
                    self.touched.remove(&chain);
                    self.release(index, touch.spot);
                }
                _ => {}
            }
            self.order.pop_front();
        }
    }

    fn tidy(&mut self) {
        if self.order.len() > 2 * self.touched.len() + MAX_STALE_MARKS {
            let touched = &self.touched;
            self.order.retain(|(chain, mark)| touched.get(chain).is_some_and(|touch| touch.mark == *mark));
        }
    }
}
