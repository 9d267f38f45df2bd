//! What responses say about caches: `cached_tokens` confirms or shortens what was believed.

use super::plane::{Plane, Tier};
use super::segment::View;
use super::slot::Found;
use super::{PrefixIndex, mask};
use crate::WorkerId;
use crate::block::ChainHash;

/// An engine may leave so many blocks at the end of a prompt uncounted although it has them: it computes the last token, and
/// a drafting one the last block, anew.
pub(super) const UNCOUNTED_TAIL: usize = 2;

/// What an engine said it served from its cache, beside what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// Blocks that the decision counted as cached.
    pub predicted_blocks: u32,
    /// Blocks that the engine counted.
    pub cached_blocks: u32,
    /// When the request was placed.
    pub placed_at_ms: u64,
    /// Now.
    pub now_ms: u64,
}

impl PrefixIndex {
    /// Feeds back what the engine served from its cache.
    ///
    /// A worker with events: unsure blocks that it counted are confirmed, those that it missed are gone, and the survival
    /// rate learns from both; other held blocks that it missed are *doubted* (see [`super::ledger`]). A worker without events loses
    /// everything that it must have evicted before what it missed.
    pub fn confirm(&self, worker: WorkerId, chain: &[ChainHash], report: CacheReport) {
        self.with_recent(worker, false, |recent| recent.confirm(self, chain, report));
        if !self.is_live(worker) {
            return;
        }
        let cached = chain.len().min(report.cached_blocks as usize);
        let predicted = chain.len().min(report.predicted_blocks as usize);
        let missed = if cached < predicted { cached } else { chain.len().min(cached + UNCOUNTED_TAIL) };
        let mut found = Found::default();
        self.walk(chain, |position, segment, spot, count| {
            let view = segment.view(worker);
            let (told, unsure) = (view.told(), view.bits(Plane::UNSURE));
            let prefix = mask(0, (told.trailing_ones() as usize).min(count));
            let range =
                |from: usize, to: usize| mask(from.saturating_sub(position), to.saturating_sub(position)) & prefix;
            let (counted, missing) = (range(0, cached), range(missed, usize::MAX));
            let doubtful = range(cached, predicted);
            found.held += prefix.count_ones();
            found.unsure += (unsure & (counted | missing)).count_ones();
            found.survived += (unsure & counted).count_ones();
            if unsure & (counted | missing) != 0 || doubtful != 0 {
                self.amend(spot, worker, |view| {
                    let unsure = view.bits(Plane::UNSURE);
                    view.clear(Plane::UNSURE, counted);
                    release_from_events(view, unsure & missing);
                    let doubted = view.bits(Plane::HELD) & doubtful & !unsure;
                    view.set(Plane::DOUBTED, view.bits(Plane::DOUBTED) | doubted);
                });
            }
            prefix == mask(0, count)
        });
        self.slots.learn(worker, found, cached);
    }
}

/// Takes `blocks` from everything that events told of them.
fn release_from_events(view: &mut View, blocks: u64) {
    for tier in [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote] {
        view.clear(Plane::tier(tier), blocks);
    }
    view.clear(Plane::UNSURE, blocks);
    view.clear(Plane::DOUBTED, blocks);
}
