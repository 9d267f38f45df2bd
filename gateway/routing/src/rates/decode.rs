//! How decoding slows with what it reads: step_ms(s) = a + b·s for `s` tokens of context in flight at the worker.
//!
//! Fitted as the prefill is: weighted least squares around a prior, errors relative to the prediction, clipped and
//! down-weighted far out, old observations forgotten. Prefills of others stretch measured gaps as well, more so at crowded
//! workers: `b` is what company costs, and not the memory traffic alone.

use super::{HUBER, MAX_STEP, MEMORY, RELATIVE_NOISE, Rates};

/// `s` is scaled to this many tokens, so that both coefficients are of one size.
const SCALE: f64 = 1e5;
/// Standard deviation of base and slope around their priors, relative to them. The level is learned at once, from whatever
/// engine it is; the slope only from many different loads.
const SPREAD: [f64; 2] = [4.0, 1.0];

/// Sums of the fit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecodeFit {
    /// Σ w, Σ w·s, Σ w·s².
    moments: [f64; 3],
    /// Σ w·y, Σ w·s·y.
    target: [f64; 2],
}

impl DecodeFit {
    /// Learns from a mean gap of `itl_ms` beside `context_tokens` in flight.
    pub(super) fn observe(&mut self, itl_ms: f64, context_tokens: f64, prior: &Rates) {
        let [base, slope] = self.solve(prior, 1.0);
        let context = context_tokens / SCALE;
        let predicted = (base + slope * context).max(f64::MIN_POSITIVE);
        let measured = itl_ms.clamp(predicted / MAX_STEP, predicted * MAX_STEP);
        let noise = RELATIVE_NOISE * predicted;
        let huber = (HUBER * noise / (measured - predicted).abs()).min(1.0);
        let weight = huber / (noise * noise);
        if !weight.is_finite() {
            return;
        }
        let features = [1.0, context, context * context];
        for (moment, feature) in self.moments.iter_mut().zip(features) {
            *moment = MEMORY * *moment + weight * feature;
        }
        for (target, feature) in self.target.iter_mut().zip(features) {
            *target = MEMORY * *target + weight * feature * measured;
        }
    }

    /// Added to a step by each token of context in flight, ms. `trust` weighs what was observed against the prior.
    pub(super) fn context_ms(&self, prior: &Rates, trust: f64) -> f64 {
        self.solve(prior, trust)[1] / SCALE
    }

    /// Both scaled coefficients, neither negative.
    fn solve(&self, prior: &Rates, trust: f64) -> [f64; 2] {
        let expected = [prior.decode_ms, prior.context_ms * SCALE];
        let precision = [0, 1].map(|at| 1.0 / (SPREAD[at] * expected[at].max(1e-3)).powi(2));
        let [one, context, square] = self.moments.map(|moment| moment * trust);
        let [flat, steep] = self.target.map(|target| target * trust);
        let (a, d) = (one + precision[0], square + precision[1]);
        let (right, below) = (flat + precision[0] * expected[0], steep + precision[1] * expected[1]);
        let determinant = a * d - context * context;
        let base = (right * d - below * context) / determinant;
        let slope = (a * below - context * right) / determinant;
        if !(base.is_finite() && slope.is_finite()) {
            return expected;
        }
        // Where one would be negative the other is fitted alone.
        match (base < 0.0, slope < 0.0) {
            (_, true) => [right / a, 0.0],
            (true, false) => [0.0, below / d],
            (false, false) => [base, slope],
        }
    }
}
