//! Who is looked at for one decision in a large fleet.
//!
//! Scoring every worker costs 40 ns each and, worse, a cache line of counters that other requests write. So above
//! [`EVERYBODY`] workers a decision looks at those that hold most of the prompt, and at a random sample of the others: among
//! ninety-six drawn from ten thousand, one of the least loaded percent is found in 62 of 100 draws, and one of the
//! least loaded five percent in 99. Two gateways, or two requests at once, draw different samples, which also keeps them from
//! all running to the one that looks idle.
//!
//! Round robin takes the next in turn; rings ask every worker, since a ring over a sample would be another ring each time.
//! A shortlist on which nobody can be chosen proves nothing: then everybody is looked at.

use crate::decision::Policy;
use crate::index::{Hits, scramble};
use crate::view::{FleetView, WorkerState};
use crate::{RequestFacts, WorkerId};

/// Up to so many workers of a model all are looked at.
pub const EVERYBODY: usize = 192;
/// Holders of the prompt's beginning on a shortlist, those with the longest first.
const MAX_HOLDERS: usize = 32;
/// Others on it.
const MAX_SAMPLE: usize = 96;
/// Draws for a sample: some hit workers that are not ready, that were tried, or that are on it already.
const MAX_DRAWS: usize = 4 * MAX_SAMPLE;

/// What a shortlist is drawn for.
#[derive(Clone, Copy)]
pub struct Draw<'a> {
    /// How the worker will be chosen.
    pub policy: Policy,
    /// The request.
    pub facts: &'a RequestFacts<'a>,
    /// The fleet.
    pub view: &'a FleetView,
    /// Prefixes held, as for the decision.
    pub hits: &'a [Hits],
    /// Workers already tried.
    pub exclude: &'a [WorkerId],
    /// Round-robin cursor.
    pub cursor: u64,
}

/// Fills `out` with the positions to look at, each once; whether there is a shortlist at all. Draws from `rng` only then.
pub fn shortlist(draw: &Draw<'_>, rng: &mut fastrand::Rng, out: &mut Vec<u32>) -> bool {
    out.clear();
    let listed = draw.view.models.get(draw.facts.model as usize).map_or(&[][..], |model| &model.workers);
    if listed.len() <= EVERYBODY {
        return false;
    }
    match draw.policy {
        Policy::Kv if draw.facts.exact => draw.add_holders(rng.u64(..), out),
        Policy::LeastLoaded | Policy::PowerOfTwo => {}
        Policy::RoundRobin => {
            draw.add_in_turn(listed, out);
            return true;
        }
        Policy::Kv | Policy::ConsistentHash | Policy::Session => return false,
    }
    let most = out.len() + MAX_SAMPLE;
    for _ in 0..MAX_DRAWS {
        if out.len() >= most {
            break;
        }
        let position = listed[rng.usize(..listed.len())];
        if draw.may_be_chosen(position) && !out.contains(&position) {
            out.push(position);
        }
    }
    true
}

impl Draw<'_> {
    fn may_be_chosen(&self, position: u32) -> bool {
        let worker = self.view.workers.get(position as usize);
        worker.is_some_and(|worker| worker.state == WorkerState::Ready && !self.exclude.contains(&worker.id))
    }

    /// Those with the longest beginnings; who of equals is a matter of `salt`, so that the same few are not always meant.
    fn add_holders(&self, salt: u64, out: &mut Vec<u32>) {
        let mut holders: Vec<(u32, u64, WorkerId)> = Vec::new();
        for (hits, chain) in self.hits.iter().zip(self.facts.chains) {
            let tokens = |blocks: u32| blocks.saturating_mul(chain.block_size);
            holders.extend(
                hits.blocks
                    .iter()
                    .map(|&(worker, blocks)| (tokens(blocks), scramble(salt ^ u64::from(worker.slot)), worker)),
            );
        }
        if holders.len() > MAX_HOLDERS {
            holders.select_nth_unstable_by(MAX_HOLDERS, |a, b| b.cmp(a));
            holders.truncate(MAX_HOLDERS);
        }
        for (.., worker) in holders {
            if let Some(position) = self.view.position(worker).filter(|&position| self.may_be_chosen(position))
                && !out.contains(&position)
            {
                out.push(position);
            }
        }
    }

    /// The first that may be chosen from the cursor on. One is enough: it is whose turn it is.
    fn add_in_turn(&self, listed: &[u32], out: &mut Vec<u32>) {
        let turn = (self.cursor % listed.len() as u64) as usize;
        let from_turn = listed[turn..].iter().chain(&listed[..turn]).take(MAX_DRAWS);
        out.extend(from_turn.copied().find(|&position| self.may_be_chosen(position)));
    }
}

#[cfg(test)]
mod tests;
