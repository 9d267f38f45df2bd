//! How long a worker takes: prefill and decode rates, learned robustly.
//!
//! prefill_ms(c, u) = α·((c+u)² − c²) + β·u + γ for `u` tokens computed after `c` cached ones; a decode step grows with the
//! tokens of context in flight (`decode`). [`Fit`] is a weighted least squares fit of the coefficients that
//! - starts at a prior and is shrunk to it with the strength of a few observations: a worker to its hardware class, a class
//!   to [`PRIOR`], so that one short prompt never decides how a long one is predicted;
//! - weighs errors relative to the prediction (a long prompt does not drown the short ones), clips them, and down-weights
//!   what is far off (Huber), so that a pause of the engine moves it by a bounded step;
//! - forgets old observations, so that it follows a worker that changes;
//! - takes a time to first token only from an idle worker, or corrects it by the queue that stood there, and never learns
//!   from values that cannot be true ([`Observation`] says which).

mod decode;
#[cfg(test)]
mod tests;

use crate::view::LocalLoad;
use decode::DecodeFit;

/// prefill_ms(c, u) = α·((c+u)² − c²) + β·u + γ; decode step in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Quadratic term, ms per token².
    pub alpha: f64,
    /// Linear term, ms per token.
    pub beta: f64,
    /// Constant per prefill, ms.
    pub gamma: f64,
    /// Decode step, ms per token of one request at the present load.
    pub decode_ms: f64,
    /// Added to every decode step by each token of context in flight, ms.
    pub context_ms: f64,
}

/// Where everything starts: the curve that NVIDIA publishes with its mock engine (an 8 B-class model on one data-centre
/// GPU, nothing decoding; 54.01 ms a step for a full cache of 16,384 blocks of 64 tokens). Any real worker replaces it within
/// a few requests.
pub const PRIOR: Rates =
    Rates { alpha: 4.209_989e-7, beta: 1.518_344e-2, gamma: 16.501_42, decode_ms: 5.74, context_ms: 5.150_795e-5 };

/// Rates that agree within this factor are taken for the same: what chance makes of equal workers must not decide between
/// them, or one that measured well by luck gets all that an idle fleet is asked, and the others are never measured.
const ALIKE: f64 = 1.25;
/// What one exchange of its class elsewhere leaves of the trust in a worker's own measurements. One that measured badly gets
/// little, so nothing would tell that it has recovered: after some thousand exchanges of the others it is tried anew.
const LAPSE: f64 = 0.999;

/// Tokens that an engine computes in one step by default (vLLM's `max_num_batched_tokens`): γ is paid once for each.
pub const TOKENS_PER_STEP: f64 = 8_192.0;

/// No exchange that took longer says anything about speed.
const MAX_OBSERVED_MS: f64 = 600_000.0;
/// No prompt that is longer is believed.
const MAX_OBSERVED_TOKENS: u32 = 16_000_000;
/// Spread of honest measurements around the curve, relative to the prediction.
const RELATIVE_NOISE: f64 = 0.2;
/// A measurement counts as at most this many times, or this part of, the prediction.
const MAX_STEP: f64 = 4.0;
/// Errors beyond so many times the spread lose weight (Huber).
const HUBER: f64 = 1.5;
/// What one further observation leaves of the weight of all before: about 100 count.
const MEMORY: f64 = 0.99;
/// Standard deviation of each coefficient around its prior, relative to that prior.
const PRIOR_SPREAD: f64 = 0.5;
/// A queue that takes more than this many times the request's own prefill hides it.
const MAX_QUEUE_SHARE: f64 = 1.0;
/// Weight of a time corrected by the queue ahead, which is itself a guess.
const CORRECTED_WEIGHT: f64 = 0.25;
/// How strongly the prior of the decode step counts, in observations.
const DECODE_PRIOR: f64 = 4.0;
/// Smallest step by which the decode rate follows what it sees.
const DECODE_GAIN: f64 = 0.05;
/// What a request is taken for before any was seen, in uncached tokens: a chat turn.
const FIRST_TYPICAL_TOKENS: f64 = 512.0;
/// Share of one request in the moving mean.
const TYPICAL_GAIN: f64 = 0.05;
/// Features are scaled to this many token² and tokens, so that the three coefficients are of one size.
const SCALE: [f64; 3] = [1e7, 1e3, 1.0];

impl Rates {
    /// Time to compute `uncached` tokens after `cached` ones on an idle worker.
    pub fn prefill_ms(&self, cached: u32, uncached: u32) -> f64 {
        let squares = LocalLoad::squares(cached.saturating_add(uncached), uncached) as f64;
        self.alpha * squares + self.beta * f64::from(uncached) + self.gamma
    }

    /// Whether a usual prompt, a long one and decoding take about as long by both.
    fn is_like(&self, other: &Self) -> bool {
        let alike = |one: f64, two: f64| one <= two * ALIKE && two <= one * ALIKE;
        [512, 8_192].into_iter().all(|tokens| alike(self.prefill_ms(0, tokens), other.prefill_ms(0, tokens)))
            && alike(self.decode_ms, other.decode_ms)
    }

    /// Time until the prompts that wait in `load` have their first token; 0 when there are none.
    pub fn queued_ms(&self, load: &LocalLoad) -> f64 {
        if load.prefill_requests == 0 && load.prefill_tokens == 0 {
            return 0.0;
        }
        let tokens = f64::from(load.prefill_tokens);
        let steps = (tokens / TOKENS_PER_STEP).ceil().max(1.0);
        self.alpha * load.prefill_squares as f64 + self.beta * tokens + self.gamma * steps
    }
}

/// What one finished exchange measured. Believed only if finite, positive, below ten minutes and sixteen million tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Prompt tokens from the engine's cache, by its own count.
    pub cached_tokens: u32,
    /// Prompt tokens that it computed.
    pub uncached_tokens: u32,
    /// Time to first token; `None` when unknown or when the cached count is a guess.
    pub ttft_ms: Option<f64>,
    /// Mean inter-token latency.
    pub itl_ms: Option<f64>,
    /// What was in flight there when the request was sent, itself not counted.
    pub load: LocalLoad,
}

/// Learned rates of one worker or class, relative to a prior that is given anew at each use.
#[derive(Clone, Debug, Default)]
pub struct Fit {
    /// Σ w·f·fᵀ, upper triangle row by row.
    moments: [f64; 6],
    /// Σ w·f·y.
    target: [f64; 3],
    /// Observations by present weight.
    weight: f64,
    decode_ms: f64,
    decode_weight: f64,
    decode: DecodeFit,
    typical: Typical,
}

/// Moving mean of uncached prompt tokens.
#[derive(Clone, Debug)]
struct Typical(f64);

impl Default for Typical {
    fn default() -> Self {
        Self(FIRST_TYPICAL_TOKENS)
    }
}

impl Fit {
    /// Learns from one exchange; false when nothing in it could be believed.
    pub fn observe(&mut self, seen: &Observation, prior: &Rates) -> bool {
        if seen.cached_tokens.max(seen.uncached_tokens) > MAX_OBSERVED_TOKENS {
            return false;
        }
        self.typical.0 += TYPICAL_GAIN * (f64::from(seen.uncached_tokens) - self.typical.0);
        let rates = self.rates(prior);
        let decode = seen.itl_ms.filter(believable).map(|ms| self.observe_decode(seen, ms, &rates, prior)).is_some();
        let prefill = seen.ttft_ms.filter(believable).is_some_and(|ms| self.observe_prefill(seen, ms, &rates));
        decode || prefill
    }

    /// The present estimate. Finite and not negative, whatever was observed.
    pub fn rates(&self, prior: &Rates) -> Rates {
        self.trusted(prior, 1.0)
    }

    /// The estimate for one worker of a class that has `class` rates, after `missed` exchanges of the class elsewhere: the
    /// class's own, unless the worker is plainly another.
    pub fn rates_within(&self, class: &Rates, missed: u64) -> Rates {
        let rates = self.trusted(class, LAPSE.powf(missed as f64));
        if rates.is_like(class) { *class } else { rates }
    }

    fn trusted(&self, prior: &Rates, trust: f64) -> Rates {
        let [alpha, beta, gamma] = self.solve([prior.alpha, prior.beta, prior.gamma], trust);
        let weight = self.decode_weight * trust;
        let decode_ms = (self.decode_ms * weight + prior.decode_ms * DECODE_PRIOR) / (weight + DECODE_PRIOR);
        Rates { alpha, beta, gamma, decode_ms, context_ms: self.decode.context_ms(prior, trust) }
    }

    /// Uncached prompt tokens of a usual request.
    pub fn typical_tokens(&self) -> u32 {
        self.typical.0 as u32
    }

    /// How much the estimate rests on observations: 0 = prior alone, towards 1 with more of them.
    pub fn confidence(&self) -> f64 {
        self.weight / (self.weight + 1.0 / (PRIOR_SPREAD * PRIOR_SPREAD))
    }

    fn observe_decode(&mut self, seen: &Observation, itl_ms: f64, rates: &Rates, prior: &Rates) {
        let own = seen.cached_tokens.saturating_add(seen.uncached_tokens);
        self.decode.observe(itl_ms, seen.load.context_tokens() + f64::from(own), prior);
        let clipped = itl_ms.clamp(rates.decode_ms / MAX_STEP, rates.decode_ms * MAX_STEP);
        let gain = (1.0 / (self.decode_weight + 1.0)).max(DECODE_GAIN);
        self.decode_ms += gain * (clipped - self.decode_ms);
        self.decode_weight = (self.decode_weight + 1.0).min(1.0 / DECODE_GAIN);
    }

    fn observe_prefill(&mut self, seen: &Observation, ttft_ms: f64, rates: &Rates) -> bool {
        if seen.uncached_tokens == 0 {
            return false;
        }
        let predicted = rates.prefill_ms(seen.cached_tokens, seen.uncached_tokens).max(f64::MIN_POSITIVE);
        let queued = rates.queued_ms(&seen.load);
        if queued > MAX_QUEUE_SHARE * predicted {
            return false;
        }
        // The first token rides on a step that also decodes what is running.
        let shared = if seen.load.decoding() > 0 { rates.decode_ms } else { 0.0 };
        let clean = ttft_ms - queued - shared;
        let measured = clean.clamp(predicted / MAX_STEP, predicted * MAX_STEP);
        let noise = RELATIVE_NOISE * predicted;
        let huber = (HUBER * noise / (measured - predicted).abs()).min(1.0);
        let trust = if queued + shared > 0.0 { CORRECTED_WEIGHT } else { 1.0 } * huber;
        let weight = trust / (noise * noise);
        let features = [
            LocalLoad::squares(seen.cached_tokens.saturating_add(seen.uncached_tokens), seen.uncached_tokens) as f64
                / SCALE[0],
            f64::from(seen.uncached_tokens) / SCALE[1],
            1.0,
        ];
        if !weight.is_finite() {
            return false;
        }
        let mut at = 0;
        for row in 0..3 {
            for column in row..3 {
                self.moments[at] = MEMORY * self.moments[at] + weight * features[row] * features[column];
                at += 1;
            }
            self.target[row] = MEMORY * self.target[row] + weight * features[row] * measured;
        }
        self.weight = MEMORY * self.weight + trust;
        true
    }

    /// Minimises Σ w·(f·θ − y)² + Σ ((θ − θ₀)/(s·θ₀))² over θ ≥ 0; returns unscaled coefficients.
    fn solve(&self, prior: [f64; 3], trust: f64) -> [f64; 3] {
        if self.weight <= 0.0 {
            return prior;
        }
        let scaled = [prior[0] * SCALE[0], prior[1] * SCALE[1], prior[2] * SCALE[2]];
        let [a, b, c, d, e, f] = self.moments.map(|moment| moment * trust);
        let mut matrix = [[a, b, c], [b, d, e], [c, e, f]];
        let mut right = self.target.map(|target| target * trust);
        for at in 0..3 {
            // A coefficient whose prior is zero may still be learned: its spread is then that of a small one.
            let precision = 1.0 / (PRIOR_SPREAD * scaled[at].max(1e-3)).powi(2);
            matrix[at][at] += precision;
            right[at] += precision * scaled[at];
        }
        let mut fixed = [false; 3];
        for _ in 0..3 {
            let Some(theta) = solve_free(matrix, right, fixed) else { return prior };
            let Some(negative) = (0..3).find(|&at| theta[at] < 0.0) else {
                return [theta[0] / SCALE[0], theta[1] / SCALE[1], theta[2] / SCALE[2]];
            };
            fixed[negative] = true;
        }
        prior
    }
}

fn believable(ms: &f64) -> bool {
    ms.is_finite() && *ms > 0.0 && *ms <= MAX_OBSERVED_MS
}

/// Solves the normal equations with the `fixed` coefficients held at zero, by elimination (the matrix is symmetric and
/// positive definite, so no pivoting is needed); `None` when numbers degenerate.
fn solve_free(mut matrix: [[f64; 3]; 3], mut right: [f64; 3], fixed: [bool; 3]) -> Option<[f64; 3]> {
    for at in 0..3 {
        if fixed[at] {
            matrix[at] = [0.0; 3];
            matrix.iter_mut().for_each(|row| row[at] = 0.0);
            matrix[at][at] = 1.0;
            right[at] = 0.0;
        }
    }
    for pivot in 0..3 {
        for row in pivot + 1..3 {
            let upper = matrix[pivot];
            let factor = matrix[row][pivot] / upper[pivot];
            matrix[row].iter_mut().zip(upper).for_each(|(value, above)| *value -= factor * above);
            right[row] -= factor * right[pivot];
        }
    }
    let mut theta = [0.0; 3];
    for row in (0..3).rev() {
        let known: f64 = (row + 1..3).map(|column| matrix[row][column] * theta[column]).sum();
        theta[row] = (right[row] - known) / matrix[row][row];
    }
    theta.iter().all(|value| value.is_finite()).then_some(theta)
}
