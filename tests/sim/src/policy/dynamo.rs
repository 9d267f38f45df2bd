//! Dynamo's default cost function, in blocks; lower is better.
//!
//! ```text
//! decay   = 1 / (1 + d · ((active_prefill_tokens − least of all) / block) / max(request blocks, 1))
//! prefill = max(0, (active_prefill_tokens + prompt tokens) / block − credit · decay · overlap)
//! cost    = scale · prefill + active blocks + blocks of this request that are not active there + w · active requests
//! ```
//!
//! Active blocks are those of prompts in flight, each counted once per worker. Defaults: credit 1, scale 1, d = w = 0,
//! temperature 0 with ties at random, no prediction on route. The formula is written out here rather than linked: the
//! published selector lives behind its scheduler's actor, queue and runtime, which virtual time cannot drive.

use super::{Ask, Router, least, seats};
use forebay_routing::Decision;
use hashbrown::HashMap;

#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) credit: f64,
    pub(super) scale: f64,
    pub(super) decay: f64,
    pub(super) requests: f64,
}

pub(super) struct Dynamo {
    weights: Weights,
    own_placements: bool,
    /// By worker: how many requests in flight have a block.
    active: Vec<HashMap<u64, u32>>,
    jobs: HashMap<u64, (usize, Vec<u64>)>,
}

impl Dynamo {
    pub(super) fn new(weights: Weights, own_placements: bool, workers: usize) -> Self {
        Self { weights, own_placements, active: vec![HashMap::new(); workers], jobs: HashMap::new() }
    }
}

/// What one worker stands for, in blocks.
struct Standing {
    /// Prefill in flight and the whole prompt.
    raw_prefill: f64,
    overlap: f64,
    decay: f64,
    /// Active blocks with this request among them.
    decode: f64,
    requests: f64,
}

impl Weights {
    fn cost(&self, standing: &Standing) -> f64 {
        let prefill = (standing.raw_prefill - self.credit * standing.decay * standing.overlap).max(0.0);
        self.scale * prefill + standing.decode + self.requests * standing.requests
    }
}

impl Router for Dynamo {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        let chain = &ask.input.facts.chains[0];
        let block = f64::from(chain.block_size);
        let blocks = (chain.hashes.len() as f64).max(1.0);
        let seats = seats(ask);
        let least_prefill = seats.iter().map(|seat| seat.local.prefill_tokens).min().unwrap_or(0);
        let best = least(&seats, rng, |seat| {
            let active = &self.active[seat.worker.id.slot as usize];
            let new = chain.hashes.iter().filter(|hash| !active.contains_key(&hash.0)).count();
            let ahead = f64::from(seat.local.prefill_tokens - least_prefill) / block;
            self.weights.cost(&Standing {
                raw_prefill: f64::from(seat.local.prefill_tokens + ask.input.facts.prompt_tokens) / block,
                overlap: f64::from(seat.hit_blocks),
                decay: 1.0 / (1.0 + self.weights.decay * ahead / blocks),
                decode: (active.len() + new) as f64,
                requests: f64::from(seat.local.requests),
            })
        })?;
        let worker = best.worker.id.slot as usize;
        let held: Vec<u64> = chain.hashes.iter().map(|hash| hash.0).collect();
        for hash in &held {
            *self.active[worker].entry(*hash).or_insert(0) += 1;
        }
        self.jobs.insert(ask.job, (worker, held));
        Some(best.decision(ask))
    }

    fn done(&mut self, job: u64) {
        let Some((worker, held)) = self.jobs.remove(&job) else { return };
        for hash in held {
            if let Some(count) = self.active[worker].get_mut(&hash) {
                *count -= 1;
                if *count == 0 {
                    self.active[worker].remove(&hash);
                }
            }
        }
    }

    fn own_placements(&self) -> bool {
        self.own_placements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Weights = Weights { credit: 1.0, scale: 1.0, decay: 0.0, requests: 0.0 };

    /// The example of its documentation: ten blocks of prefill each, overlaps 2, 5, 8, decode blocks 10, 5, 9.
    #[test]
    fn the_published_example_costs_18_10_11() {
        let cost =
            |overlap, decode| DEFAULT.cost(&Standing { raw_prefill: 10.0, overlap, decay: 1.0, decode, requests: 3.0 });
        assert_eq!([cost(2.0, 10.0), cost(5.0, 5.0), cost(8.0, 9.0)], [18.0, 10.0, 11.0]);
    }

    #[test]
    fn credit_never_makes_prefill_negative() {
        let weights = Weights { credit: 4.0, ..DEFAULT };
        let standing = Standing { raw_prefill: 10.0, overlap: 5.0, decay: 1.0, decode: 2.0, requests: 0.0 };
        assert_eq!(weights.cost(&standing), 2.0);
    }
}
