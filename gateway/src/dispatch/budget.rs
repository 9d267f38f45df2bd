//! How much may be retried.

use crate::clock::Clock;
use forebay_common::id::WorkerId;
use parking_lot::Mutex;
use smallvec::SmallVec;

/// Length of one counting window; the present and the last one count together.
const WINDOW_MS: u64 = 10_000;
/// Failed workers remembered per window. A fleet in which more fail within ten seconds is not helped by retries.
const MAX_WORKERS: usize = 64;
/// Retries that two windows always allow: a share of next to no traffic is nothing, and three requests harm no engine.
const FLOOR: u64 = 3;

/// Allows retries up to the larger of a share of the traffic and what was in flight at the workers that failed: an engine
/// that dies takes all its requests with it at once, and each of them deserves its second try, but a fleet that fails
/// everywhere must not see its load doubled.
pub struct RetryBudget {
    share: f64,
    clock: Clock,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    number: u64,
    now: Window,
    last: Window,
}

#[derive(Default)]
struct Window {
    requests: u64,
    retries: u64,
    /// Most that was in flight at each worker when it failed.
    failed: SmallVec<[(WorkerId, u32); 4]>,
}

impl Window {
    fn in_flight(&self) -> u64 {
        self.failed.iter().map(|(_, in_flight)| u64::from(*in_flight)).sum()
    }
}

impl RetryBudget {
    /// `share` of the traffic may be retried.
    pub fn new(share: f64, clock: Clock) -> Self {
        Self { share, clock, windows: Mutex::default() }
    }

    /// Counts one request.
    pub fn count(&self) {
        self.with_windows(|windows| windows.now.requests += 1);
    }

    /// May a request that failed at `worker`, where `in_flight` were running (itself included), be sent again? Counts it
    /// if so.
    pub fn try_retry(&self, worker: WorkerId, in_flight: u32) -> bool {
        let share = self.share;
        self.with_windows(|windows| {
            let failed = &mut windows.now.failed;
            match failed.iter().position(|(id, _)| *id == worker) {
                Some(at) => failed[at].1 = in_flight.max(failed[at].1),
                None if failed.len() < MAX_WORKERS => failed.push((worker, in_flight)),
                None => {}
            }
            let requests = (windows.now.requests + windows.last.requests) as f64;
            let in_flight = windows.now.in_flight() + windows.last.in_flight();
            let allowed = ((requests * share) as u64).max(in_flight).max(FLOOR);
            let granted = windows.now.retries + windows.last.retries < allowed;
            windows.now.retries += u64::from(granted);
            granted
        })
    }

    fn with_windows<T>(&self, change: impl FnOnce(&mut Windows) -> T) -> T {
        let number = self.clock.now_ms() / WINDOW_MS;
        let mut windows = self.windows.lock();
        if windows.number != number {
            let old = std::mem::take(&mut windows.now);
            windows.last = if number == windows.number + 1 { old } else { Window::default() };
            windows.number = number;
        }
        change(&mut windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Duration;

    const A: WorkerId = WorkerId::new(0, 0);
    const B: WorkerId = WorkerId::new(1, 0);

    #[tokio::test(start_paused = true)]
    async fn allows_a_tenth_of_the_traffic() {
        let budget = RetryBudget::new(0.1, Clock::start());
        for _ in 0..100 {
            budget.count();
        }
        let granted = (0..50).filter(|_| budget.try_retry(A, 1)).count();
        assert_eq!(granted, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn allows_everything_that_was_in_flight_at_a_worker_that_died() {
        let budget = RetryBudget::new(0.1, Clock::start());
        for _ in 0..40 {
            budget.count();
        }
        // Each failing request sees one fewer beside it.
        let granted = (1..=40).rev().filter(|left| budget.try_retry(A, *left)).count();
        assert_eq!(granted, 40);
        assert!(!budget.try_retry(A, 1));
        assert!(budget.try_retry(B, 2), "another worker brings its own");
        assert!(budget.try_retry(B, 1));
        assert!(!budget.try_retry(B, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lone_request_may_be_retried_and_old_windows_are_forgotten() {
        let budget = RetryBudget::new(0.1, Clock::start());
        budget.count();
        assert_eq!((0..10).filter(|_| budget.try_retry(A, 1)).count() as u64, FLOOR);
        tokio::time::advance(Duration::from_millis(2 * WINDOW_MS)).await;
        assert!(budget.try_retry(A, 1));
    }
}
