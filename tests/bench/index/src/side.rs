//! What both indexes can do here, and how figures are made of times.

use crate::workload::{Load, Op};
use std::fs;

/// One of the two indexes, filled by the operations of one load.
pub trait Side {
    /// Takes part in a replay; each thread has one.
    type Hand<'a>: Hand
    where
        Self: 'a;

    /// Hands for the threads of a replay: `writers` that each apply the events of their own workers, in order, then
    /// `readers` that only look up.
    fn hands<'a>(&'a mut self, load: &'a Load, writers: usize, readers: usize) -> Vec<Self::Hand<'a>>;
}

/// One thread's part.
pub trait Hand: Send {
    /// Makes what `op` needs and what the other side need not make either, before time is taken.
    fn prepare(&mut self, op: &Op);
    /// Looks up a request; returns workers found and the longest hit.
    fn look_up(&mut self, request: u32) -> (usize, u32);
    /// Applies or hands over the next prepared event, which is that of `op`.
    fn apply(&mut self, op: &Op);
    /// Returns when every event that was handed over by anybody is applied.
    fn wait(&self);
}

/// Sorted values → the one at `share`.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Median, least and greatest.
pub fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (quantile(&values, 0.5), quantile(&values, 0.0), quantile(&values, 1.0))
}

/// Resident memory of this process.
pub fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * rustix::param::page_size()
}

/// Lets this thread and those it starts run on the first `cores` processors that it may use.
pub fn pin(cores: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let mut set = rustix::thread::CpuSet::new();
    let usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    usable.take(cores).for_each(|cpu| set.set(cpu));
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("cannot choose processors: {error}");
    }
}
