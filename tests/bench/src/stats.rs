//! Order statistics of what was timed and of repetitions.

use serde::{Deserialize, Serialize};

/// A distribution in µs, by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// How many values.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Distribution {
    /// Of these values; `None` of none. Sorts them.
    pub fn of(values: &mut [u32]) -> Option<Self> {
        values.sort_unstable();
        let max = f64::from(*values.last()?);
        let at = |share: f64| f64::from(values[nearest_rank(values.len(), share)]);
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64;
        Some(Self { count: values.len(), mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), max })
    }
}

/// Index of the smallest of `count` sorted values that `share` of them do not exceed.
fn nearest_rank(count: usize, share: f64) -> usize {
    let rank = (share * count as f64).ceil() as usize;
    rank.clamp(1, count) - 1
}

/// Median and range over repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeated {
    /// Median; the mean of the middle two of an even number.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Repeated {
    /// Of these values; `None` of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut values: Vec<u32> = (1..=1_000).rev().collect();
        let got = Distribution::of(&mut values).unwrap();
        assert_eq!((got.count, got.p50, got.p90, got.p99, got.max), (1_000, 500.0, 900.0, 990.0, 1_000.0));
        assert!((got.mean - 500.5).abs() < 1e-9);
        let one = Distribution::of(&mut [7]).unwrap();
        assert_eq!((one.p50, one.p99, one.max), (7.0, 7.0, 7.0));
        assert_eq!(Distribution::of(&mut []), None);
    }

    #[test]
    fn repetitions_give_median_and_range() {
        assert_eq!(Repeated::of([3.0, 1.0, 2.0]), Some(Repeated { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Repeated::of([4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Repeated::of([f64::NAN]), None);
    }
}
