//! A product in LMetric's style: tokens that the worker would have to compute before the first token, times the requests
//! that share its steps. Nothing to tune: a product has no weights.

use super::{Ask, Router, least, seats};
use forebay_routing::Decision;

pub(super) struct Product {
    pub(super) own_placements: bool,
}

impl Router for Product {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        let cost = |tokens: u32, requests: u32| product(tokens, requests);
        let seats = seats(ask);
        let best =
            least(&seats, rng, |seat| cost(seat.local.prefill_tokens + seat.uncached_tokens(ask), seat.local.requests));
        best.map(|seat| seat.decision(ask))
    }

    fn own_placements(&self) -> bool {
        self.own_placements
    }
}

/// Tokens to compute × requests there, this one counted.
fn product(tokens: u32, requests: u32) -> f64 {
    f64::from(tokens) * f64::from(requests + 1)
}

#[cfg(test)]
mod tests {
    use super::product;

    #[test]
    fn a_prefix_is_worth_a_longer_batch_in_proportion() {
        assert!(product(1_000, 7) < product(8_200, 0));
        assert!(product(1_000, 8) > product(8_200, 0));
    }
}
