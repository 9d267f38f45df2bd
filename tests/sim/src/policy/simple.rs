//! Policies without memory of prefixes.

use super::{Ask, Router, least, seats};
use forebay_routing::Decision;

/// In turn.
#[derive(Default)]
pub(super) struct RoundRobin(usize);

impl Router for RoundRobin {
    fn choose(&mut self, ask: &Ask<'_>, _rng: &mut fastrand::Rng) -> Option<Decision> {
        let seats = seats(ask);
        let turn = self.0;
        self.0 += 1;
        seats.get(turn % seats.len().max(1)).map(|seat| seat.decision(ask))
    }
}

/// Uniformly at random.
pub(super) struct Random;

impl Router for Random {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        least(&seats(ask), rng, |_| 0.0).map(|seat| seat.decision(ask))
    }
}

/// Fewest in flight.
pub(super) struct LeastRequests;

impl Router for LeastRequests {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        least(&seats(ask), rng, |seat| f64::from(seat.local.requests)).map(|seat| seat.decision(ask))
    }
}

/// Fewer in flight of two different ones.
pub(super) struct PowerOfTwo;

impl Router for PowerOfTwo {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        let mut two = seats(ask);
        rng.shuffle(&mut two);
        two.truncate(2);
        least(&two, rng, |seat| f64::from(seat.local.requests)).map(|seat| seat.decision(ask))
    }
}
