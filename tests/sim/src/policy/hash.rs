//! Consistent hashing of the prompt's head with bounded loads.
//!
//! Each worker has [`POINTS`] points on a ring. A request goes to the first worker from its own point on whose requests in
//! flight, this one included, do not exceed `factor` times the mean (Mirrokni, Thorup, Zadimoghaddam 2016).

use super::{Ask, Router, Seat, seats};
use forebay_routing::Decision;

/// Points of one worker on the ring.
const POINTS: u64 = 100;

pub(super) struct PrefixHash {
    /// Blocks that make the key.
    pub(super) blocks: usize,
    pub(super) factor: f64,
}

impl Router for PrefixHash {
    fn choose(&mut self, ask: &Ask<'_>, _rng: &mut fastrand::Rng) -> Option<Decision> {
        let chain = &ask.input.facts.chains[0].hashes;
        // A prompt without a complete block has no head to hash: its session stands in.
        let key = chain
            .iter()
            .take(self.blocks.max(1))
            .next_back()
            .map_or(ask.input.facts.session.unwrap_or(0), |hash| hash.0);
        let seats = seats(ask);
        walk(&seats, key, self.factor).map(|seat| seat.decision(ask))
    }
}

fn walk<'a>(seats: &[Seat<'a>], key: u64, factor: f64) -> Option<Seat<'a>> {
    let all: u32 = seats.iter().map(|seat| seat.local.requests).sum();
    let bound = (factor * f64::from(all + 1) / seats.len().max(1) as f64).ceil() as u32;
    let fits = seats.iter().filter(|seat| seat.local.requests < bound);
    // The next point clockwise among those that fit is what the walk would find.
    fits.min_by_key(|seat| {
        (0..POINTS).map(|point| scramble(seat.worker.affinity ^ scramble(point)).wrapping_sub(key)).min()
    })
    .copied()
}

fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
