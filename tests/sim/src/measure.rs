//! What came of every request, and what that says of a policy.
//!
//! The definitions are in the package's README; these are the only places where they are computed.

use crate::hardware::Hardware;
use crate::workload::Request;
use serde::Serialize;

/// First tokens may take so many times as long as on an idle engine with an empty cache, …
const TTFT_TIMES: f64 = 3.0;
/// … and so much longer, ms.
const TTFT_EXTRA_MS: f64 = 500.0;
/// Tokens may take so many times as long as on an idle engine.
const ITL_TIMES: f64 = 2.0;

/// One request's fate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    at_us: u64,
    first_us: Option<u64>,
    last_us: u64,
    /// Tokens that came.
    pub tokens: u32,
    /// Whether all came.
    pub is_served: bool,
    /// Who served it.
    pub worker: Option<usize>,
    /// Prompt tokens that the gateway took for cached.
    pub predicted_cached: u32,
    /// Prompt tokens that were.
    pub cached_tokens: Option<u32>,
    /// Prompt tokens computed that had been computed before, anywhere in the fleet.
    pub recomputed_tokens: u32,
    /// How often it lost its blocks.
    pub preemptions: u32,
}

impl Outcome {
    /// A request that has arrived.
    pub fn offered(request: &Request) -> Self {
        Self { at_us: request.at_us, ..Self::default() }
    }

    /// One more token came.
    pub fn token(&mut self, now_us: u64) {
        self.first_us.get_or_insert(now_us);
        self.last_us = now_us;
        self.tokens += 1;
    }

    /// Time to first token.
    pub fn ttft_ms(&self) -> Option<f64> {
        self.first_us.map(|first_us| (first_us - self.at_us) as f64 / 1e3)
    }

    /// Mean time between tokens; `None` of one token.
    pub fn itl_ms(&self) -> Option<f64> {
        let gaps = self.tokens.checked_sub(1).filter(|&gaps| gaps > 0)?;
        Some((self.last_us - self.first_us?) as f64 / 1e3 / f64::from(gaps))
    }

    /// Whether it was served within its objective.
    pub fn is_good(&self, request: &Request, hardware: &Hardware) -> bool {
        let ttft_limit_ms = TTFT_TIMES * hardware.idle_ttft_ms(request.prompt_tokens) + TTFT_EXTRA_MS;
        let itl_limit_ms = ITL_TIMES * hardware.idle_itl_ms(request.prompt_tokens, request.output_tokens);
        self.is_served
            && self.ttft_ms().is_some_and(|ms| ms <= ttft_limit_ms)
            && self.itl_ms().is_none_or(|ms| ms <= itl_limit_ms)
    }
}

/// Figures of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Requests measured.
    pub requests: usize,
    /// Served within their objective ÷ offered.
    pub goodput: f64,
    /// Served at all ÷ offered.
    pub served: f64,
    /// Missed their first token's objective ÷ offered.
    pub late_first: f64,
    /// Mean time to first token, ms.
    pub ttft_mean_ms: f64,
    /// Its median.
    pub ttft_p50_ms: f64,
    /// Its 99th percentile.
    pub ttft_p99_ms: f64,
    /// Median over requests of their mean time between tokens, ms.
    pub itl_p50_ms: f64,
    /// Its 99th percentile.
    pub itl_p99_ms: f64,
    /// Prompt tokens from caches ÷ prompt tokens.
    pub hit: f64,
    /// Predicted ÷ actual cached prompt tokens, less one.
    pub hit_error: f64,
    /// Time spent computing what had been computed before, ms for each request.
    pub recompute_ms: f64,
    /// Time spent on prefill, ms for each request.
    pub prefill_ms: f64,
    /// Requests of the busiest worker ÷ mean.
    pub imbalance: f64,
    /// Preemptions ÷ requests.
    pub preemptions: f64,
    /// Times to first token at these shares: 0, 1, …, 100 %.
    #[serde(skip)]
    pub ttft_curve: Vec<f64>,
    /// Mean times between tokens likewise.
    #[serde(skip)]
    pub itl_curve: Vec<f64>,
}

/// Figures of the requests that arrived from `from_us` on.
pub fn summarise(
    requests: &[Request],
    outcomes: &[Outcome],
    hardware: &Hardware,
    workers: usize,
    from_us: u64,
) -> Summary {
    let measured = || requests.iter().zip(outcomes).filter(|(request, _)| request.at_us >= from_us);
    let count = measured().count();
    let share = |part: usize| part as f64 / count.max(1) as f64;
    let mut ttft: Vec<f64> = measured().filter_map(|(_, outcome)| outcome.ttft_ms()).collect();
    let mut itl: Vec<f64> = measured().filter_map(|(_, outcome)| outcome.itl_ms()).collect();
    ttft.sort_unstable_by(f64::total_cmp);
    itl.sort_unstable_by(f64::total_cmp);
    let mut sums = Sums::default();
    let mut by_worker = vec![0_usize; workers];
    for (request, outcome) in measured() {
        sums.add(request, outcome, hardware);
        if let Some(worker) = outcome.worker {
            by_worker[worker] += 1;
        }
    }
    let most = by_worker.iter().copied().max().unwrap_or(0) as f64;
    let late = |request: &Request, outcome: &Outcome| {
        let limit_ms = TTFT_TIMES * hardware.idle_ttft_ms(request.prompt_tokens) + TTFT_EXTRA_MS;
        outcome.ttft_ms().is_none_or(|ms| ms > limit_ms)
    };
    let served: usize = by_worker.iter().sum();
    Summary {
        requests: count,
        goodput: share(measured().filter(|(request, outcome)| outcome.is_good(request, hardware)).count()),
        served: share(measured().filter(|(_, outcome)| outcome.is_served).count()),
        late_first: share(measured().filter(|(request, outcome)| late(request, outcome)).count()),
        ttft_mean_ms: ttft.iter().sum::<f64>() / ttft.len().max(1) as f64,
        ttft_p50_ms: percentile(&ttft, 0.5),
        ttft_p99_ms: percentile(&ttft, 0.99),
        itl_p50_ms: percentile(&itl, 0.5),
        itl_p99_ms: percentile(&itl, 0.99),
        hit: sums.cached / sums.prompt.max(1.0),
        hit_error: sums.predicted / sums.cached.max(1.0) - 1.0,
        recompute_ms: sums.recompute_ms / count.max(1) as f64,
        prefill_ms: sums.prefill_ms / count.max(1) as f64,
        imbalance: most * workers as f64 / served.max(1) as f64,
        preemptions: sums.preemptions / count.max(1) as f64,
        ttft_curve: (0..=100).map(|at| percentile(&ttft, f64::from(at) / 100.0)).collect(),
        itl_curve: (0..=100).map(|at| percentile(&itl, f64::from(at) / 100.0)).collect(),
    }
}

#[derive(Default)]
struct Sums {
    prompt: f64,
    cached: f64,
    predicted: f64,
    prefill_ms: f64,
    recompute_ms: f64,
    preemptions: f64,
}

impl Sums {
    fn add(&mut self, request: &Request, outcome: &Outcome, hardware: &Hardware) {
        let cached = outcome.cached_tokens.unwrap_or(0);
        let computed = request.prompt_tokens.saturating_sub(cached).max(1);
        let prefill_ms = hardware.prefill_ms(cached as usize, computed as usize);
        self.prompt += f64::from(request.prompt_tokens);
        self.cached += f64::from(cached);
        self.predicted += f64::from(outcome.predicted_cached);
        self.prefill_ms += prefill_ms;
        self.recompute_ms += prefill_ms * (f64::from(outcome.recomputed_tokens) / f64::from(computed)).min(1.0);
        self.preemptions += f64::from(outcome.preemptions);
    }
}

/// By nearest rank; 0 of nothing.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt_tokens: u32, output_tokens: u32) -> Request {
        Request { at_us: 1_000, prompt_tokens, output_tokens, blocks: Vec::new(), session: 0 }
    }

    #[test]
    fn objectives_are_those_of_the_readme() {
        let hardware = Hardware::committed("standard").unwrap();
        let asked = request(8_192, 3);
        // 169.1 ms idle: 1,007.3 ms are allowed. Decoding alone with 8,192 of 1,048,576 tokens takes 6.16 ms: 12.3 are allowed.
        let fate = |ttft_us: u64, gap_us: u64| {
            let mut outcome = Outcome::offered(&asked);
            (0..3).for_each(|at| outcome.token(1_000 + ttft_us + at * gap_us));
            outcome.is_served = true;
            outcome.is_good(&asked, &hardware)
        };
        assert!(fate(1_007_000, 12_300));
        assert!(!fate(1_008_000, 12_300));
        assert!(!fate(1_007_000, 12_400));
        let mut cut = Outcome::offered(&asked);
        cut.token(2_000);
        assert!(!cut.is_good(&asked, &hardware), "an answer that was cut is a miss");
    }

    #[test]
    fn what_was_never_served_counts_as_offered() {
        let hardware = Hardware::committed("standard").unwrap();
        let requests = [request(64, 1), request(64, 1)];
        let mut served = Outcome::offered(&requests[0]);
        served.token(31_000);
        (served.is_served, served.worker, served.cached_tokens) = (true, Some(1), Some(32));
        let summary = summarise(&requests, &[served, Outcome::offered(&requests[1])], &hardware, 2, 0);
        assert_eq!((summary.goodput, summary.served, summary.late_first), (0.5, 0.5, 0.5));
        assert_eq!((summary.ttft_p50_ms, summary.imbalance, summary.hit), (30.0, 2.0, 0.25));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| percentile(&values, share)), [1.0, 50.0, 99.0, 100.0]);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
