//! SGLang's cache-aware policy.
//!
//! Its gateway keeps a radix tree of what it has sent where. While loads are balanced, a request whose prompt matches some
//! worker's part of the tree by more than the cache threshold goes to the one that matches most, any other to the least
//! loaded. Once the loads are not (most − least > `absolute`, and most > `relative` × least), every request goes to the least
//! loaded. The published tree is of characters; this one is of blocks, which flatters it. `events` takes hits from KV events
//! instead, as its later router does.

use super::{Ask, Router, Seat, least, prompt_blocks, seats};
use forebay_routing::Decision;
use hashbrown::HashSet;

#[derive(Clone, Copy)]
pub(super) struct Thresholds {
    pub(super) cache: f64,
    pub(super) absolute: f64,
    pub(super) relative: f64,
}

impl Thresholds {
    /// Whether loads are so uneven that prefixes stop to count.
    fn is_imbalanced(&self, least: u32, most: u32) -> bool {
        f64::from(most - least) > self.absolute && f64::from(most) > self.relative * f64::from(least)
    }
}

pub(super) struct CacheAware {
    thresholds: Thresholds,
    by_events: bool,
    /// By worker: blocks sent there.
    tree: Vec<HashSet<u64>>,
}

impl CacheAware {
    pub(super) fn new(thresholds: Thresholds, by_events: bool, workers: usize) -> Self {
        Self { thresholds, by_events, tree: vec![HashSet::new(); workers] }
    }

    fn matched(&self, ask: &Ask<'_>, seat: &Seat<'_>) -> f64 {
        if self.by_events {
            return f64::from(seat.hit_blocks);
        }
        let tree = &self.tree[seat.worker.id.slot as usize];
        ask.input.facts.chains[0].hashes.iter().take_while(|hash| tree.contains(&hash.0)).count() as f64
    }
}

impl Router for CacheAware {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        let seats = seats(ask);
        let loads = || seats.iter().map(|seat| seat.local.requests);
        let (lightest, heaviest) = (loads().min()?, loads().max()?);
        let best = seats.iter().map(|seat| self.matched(ask, seat)).fold(0.0, f64::max);
        let by_load = |seat: &Seat<'_>| f64::from(seat.local.requests);
        let is_cached = best / prompt_blocks(ask) > self.thresholds.cache;
        let chosen = if is_cached && !self.thresholds.is_imbalanced(lightest, heaviest) {
            let alike: Vec<_> = seats.iter().filter(|seat| self.matched(ask, seat) >= best).copied().collect();
            least(&alike, rng, by_load)
        } else {
            least(&seats, rng, by_load)
        }?;
        let hashes = ask.input.facts.chains[0].hashes.iter().map(|hash| hash.0);
        self.tree[chosen.worker.id.slot as usize].extend(hashes);
        Some(chosen.decision(ask))
    }

    fn own_placements(&self) -> bool {
        self.by_events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_gates_must_open() {
        let published = Thresholds { cache: 0.3, absolute: 64.0, relative: 1.5 };
        assert!(!published.is_imbalanced(0, 64), "not more than 64");
        assert!(published.is_imbalanced(0, 65));
        assert!(!published.is_imbalanced(130, 195), "not more than 1.5 times");
        assert!(published.is_imbalanced(130, 196));
    }
}
