//! Numbers of one run, and the table that sets two runs side by side.

use super::replay::Endings;
use crate::client::Outcome;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What one run gave.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Policy that the gateway ran.
    pub policy: String,
    /// Requests sent.
    pub requests: usize,
    /// Time to first token, ms: median and 99th percentile.
    pub ttft_ms: (f64, f64),
    /// Gaps between pieces of all answers, ms: median and 99th percentile.
    pub gap_ms: (f64, f64),
    /// Cached over prompt tokens by the engines' own counts.
    pub hit: f64,
    /// Most prompt tokens computed by one engine over the mean of all.
    pub imbalance: f64,
    /// How they ended.
    pub endings: Endings,
}

impl Summary {
    /// Sums up `outcomes`; `computed` is prompt tokens computed by engine.
    pub fn of(policy: &str, outcomes: &[Outcome], computed: &BTreeMap<String, u64>) -> Self {
        let mut ttfts: Vec<f64> = outcomes.iter().filter_map(|o| o.ttft_ms).collect();
        let mut gaps: Vec<f64> = outcomes.iter().flat_map(|o| o.gaps_ms.iter().copied()).collect();
        let prompt: u64 = outcomes.iter().map(|o| u64::from(o.prompt_tokens)).sum();
        let cached: u64 = outcomes.iter().map(|o| u64::from(o.cached_tokens.unwrap_or(0))).sum();
        let most = computed.values().copied().max().unwrap_or(0) as f64;
        let mean = computed.values().sum::<u64>() as f64 / computed.len().max(1) as f64;
        Self {
            policy: policy.to_owned(),
            requests: outcomes.len(),
            ttft_ms: (percentile(&mut ttfts, 0.5), percentile(&mut ttfts, 0.99)),
            gap_ms: (percentile(&mut gaps, 0.5), percentile(&mut gaps, 0.99)),
            hit: cached as f64 / prompt.max(1) as f64,
            imbalance: if mean > 0.0 { most / mean } else { 1.0 },
            endings: Endings::of(outcomes),
        }
    }

    /// Requests that a client would call lost: no answer, or an answer cut short.
    pub fn lost(&self) -> usize {
        self.endings.lost + self.endings.told + self.endings.silent
    }
}

/// The `share` percentile by the nearest-rank rule; 0 of nothing. Sorts.
pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

/// One row a run.
pub fn table(summaries: &[&Summary]) -> String {
    let mut out = String::from(
        "policy        requests  TTFT p50 ms  TTFT p99 ms  ITL p50 ms  ITL p99 ms  hit rate  imbalance  lost\n\
         ------------  --------  -----------  -----------  ----------  ----------  --------  ---------  ----\n",
    );
    for s in summaries {
        let _ = writeln!(
            out,
            "{:<12}  {:>8}  {:>11.1}  {:>11.1}  {:>10.1}  {:>10.1}  {:>7.1}%  {:>9.2}  {:>4}",
            s.policy,
            s.requests,
            s.ttft_ms.0,
            s.ttft_ms.1,
            s.gap_ms.0,
            s.gap_ms.1,
            s.hit * 100.0,
            s.imbalance,
            s.lost()
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.5), 50.0);
        assert_eq!(percentile(&mut values, 0.99), 99.0);
        assert_eq!(percentile(&mut values, 1.0), 100.0);
        assert_eq!(percentile(&mut [], 0.5), 0.0);
        assert_eq!(percentile(&mut [7.0], 0.01), 7.0);
    }
}
