//! llm-d's endpoint picker: weighted scorers, and the token-aware default that replaced them.
//!
//! **Weighted.** Scores in 0 … 1, summed with weights, the highest wins, ties at random: prefix (matched ÷ all blocks), queue
//! ((most − waiting) ÷ (most − least), 1 where all are equal), KV cache (1 − usage), and for requests that nobody has anything
//! of, the endpoint that got such a request longest ago (others 0.5). `active` adds its scorer of requests in flight.
//!
//! **Sticky until saturated.** Endpoints that hold at least `affinity` of the prompt are preferred, unless the least loaded of
//! them has more than `gap` uncached tokens in flight beyond the least loaded of the others. Among those that remain the one
//! with the fewest such tokens wins, this prompt's uncached ones added; `requests` counts requests instead.
//!
//! Both read engines every 50 ms, as the product does.

use super::{Ask, Router, Seat, least, prompt_blocks, seats};
use forebay_routing::Decision;

/// How often it scrapes.
const SCRAPE_US: u64 = 50_000;

#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) prefix: f64,
    pub(super) queue: f64,
    pub(super) kv: f64,
    pub(super) lru: f64,
    pub(super) active: f64,
}

pub(super) struct Weighted {
    weights: Weights,
    /// By worker: when it last got a request that nobody had anything of.
    cold: Vec<u64>,
    turn: u64,
}

impl Weighted {
    pub(super) fn new(weights: Weights, workers: usize) -> Self {
        Self { weights, cold: vec![0; workers], turn: 0 }
    }
}

/// 1 for the least of all, 0 for the most, 1 where all are equal.
fn spread(value: f64, least: f64, most: f64) -> f64 {
    if most > least { (most - value) / (most - least) } else { 1.0 }
}

fn waiting(seat: &Seat<'_>) -> f64 {
    seat.worker.engine.map_or(0.0, |load| f64::from(load.waiting))
}

fn range(seats: &[Seat<'_>], of: impl Fn(&Seat<'_>) -> f64) -> (f64, f64) {
    seats.iter().map(of).fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)))
}

impl Router for Weighted {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        let seats = seats(ask);
        let (queue, active) = (range(&seats, waiting), range(&seats, |seat| f64::from(seat.local.requests)));
        let is_cold = seats.iter().all(|seat| seat.hit_blocks == 0);
        let mut order: Vec<u64> = seats.iter().map(|seat| self.cold[seat.worker.id.slot as usize]).collect();
        order.sort_unstable();
        let weights = self.weights;
        let best = least(&seats, rng, |seat| {
            let rank = order.partition_point(|&last| last < self.cold[seat.worker.id.slot as usize]);
            let lru = if is_cold { 1.0 - rank as f64 / (order.len().max(2) - 1) as f64 } else { 0.5 };
            let score = weights.prefix * (f64::from(seat.hit_blocks) / prompt_blocks(ask)).min(1.0)
                + weights.queue * spread(waiting(seat), queue.0, queue.1)
                + weights.kv * (1.0 - seat.worker.engine.map_or(0.0, |load| f64::from(load.kv_usage)))
                + weights.lru * lru
                + weights.active * spread(f64::from(seat.local.requests), active.0, active.1);
            -score
        })?;
        if is_cold {
            self.turn += 1;
            self.cold[best.worker.id.slot as usize] = self.turn;
        }
        Some(best.decision(ask))
    }

    fn load_interval_us(&self) -> Option<u64> {
        Some(SCRAPE_US)
    }
}

pub(super) struct Sticky {
    pub(super) gap_tokens: f64,
    pub(super) affinity: f64,
    pub(super) by_requests: bool,
}

impl Router for Sticky {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        let all = seats(ask);
        let is_warm = |seat: &Seat<'_>| f64::from(seat.hit_blocks) / prompt_blocks(ask) >= self.affinity;
        let lightest = |warm: bool| {
            let tokens =
                all.iter().filter(|seat| is_warm(seat) == warm).map(|seat| f64::from(seat.local.prefill_tokens));
            tokens.fold(f64::INFINITY, f64::min)
        };
        let keeps = is_sticky(lightest(true), lightest(false), self.gap_tokens);
        let candidates: Vec<_> = all.iter().filter(|seat| !keeps || is_warm(seat)).copied().collect();
        let best = least(&candidates, rng, |seat| {
            if self.by_requests {
                f64::from(seat.local.requests)
            } else {
                f64::from(seat.local.prefill_tokens + seat.uncached_tokens(ask))
            }
        });
        best.map(|seat| seat.decision(ask))
    }

    fn own_placements(&self) -> bool {
        true
    }

    fn load_interval_us(&self) -> Option<u64> {
        Some(SCRAPE_US)
    }
}

/// Whether warm endpoints are kept to, given the tokens in flight at the lightest warm and the lightest cold one.
fn is_sticky(warm: f64, cold: f64, gap: f64) -> bool {
    warm.is_finite() && warm - cold.min(warm) <= gap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_opens_at_the_published_gap() {
        // 20,480 tokens a second for 14 s: 35 chunks of 8,192.
        let gap = 20_480.0 * 14.0;
        assert_eq!(gap, 35.0 * 8_192.0);
        assert!(is_sticky(gap, 0.0, gap) && !is_sticky(gap + 1.0, 0.0, gap));
        assert!(!is_sticky(f64::INFINITY, 0.0, gap), "nobody is warm");
        assert!(is_sticky(gap * 9.0, f64::INFINITY, gap), "nobody is cold");
    }

    #[test]
    fn scores_are_spread_between_zero_and_one() {
        assert_eq!([spread(0.0, 0.0, 8.0), spread(4.0, 0.0, 8.0), spread(8.0, 0.0, 8.0)], [1.0, 0.5, 0.0]);
        assert_eq!(spread(3.0, 3.0, 3.0), 1.0);
    }
}
