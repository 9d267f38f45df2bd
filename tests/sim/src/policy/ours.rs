//! The gateway's own decision.

use super::{Ask, Router};
use forebay_routing::{Decision, Policy, decide};

/// `decide` with the policy `kv`.
pub(super) struct Ours;

impl Router for Ours {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        decide(Policy::Kv, ask.input, rng).ok()
    }

    fn own_placements(&self) -> bool {
        true
    }
}
