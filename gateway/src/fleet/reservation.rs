//! What this gateway has in flight at one worker: atomics that every decision reads beside the view.
//!
//! Invariant: what a [`Reservation`] has added, it takes away exactly once, on whichever path it is dropped (end of
//! stream, retry, panic, cancelled future). Nothing else ever subtracts, so counters cannot go below zero.

use forebay_routing::LocalLoad;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sums over the reservations of one worker. Relaxed suffices: each counter stands alone.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    prefill_requests: AtomicU64,
    prefill_tokens: AtomicU64,
    prefill_squares: AtomicU64,
    decode_tokens: AtomicU64,
}

impl Counters {
    pub(crate) fn load(&self) -> LocalLoad {
        let read = |counter: &AtomicU64| u32::try_from(counter.load(Relaxed)).unwrap_or(u32::MAX);
        LocalLoad {
            requests: read(&self.requests),
            prefill_requests: read(&self.prefill_requests),
            prefill_tokens: read(&self.prefill_tokens),
            prefill_squares: self.prefill_squares.load(Relaxed),
            decode_tokens: read(&self.decode_tokens),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.requests.load(Relaxed) == 0
    }
}

/// One request's share of a worker's load; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    /// `None` when the worker was gone already: nothing was added, nothing is taken away.
    counters: Option<Arc<Counters>>,
    requests: u64,
    /// `None` from the first token on.
    prefill: Option<Prefill>,
    decode_tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Prefill {
    prompt_tokens: u64,
    uncached_tokens: u64,
    squares: u64,
}

impl Reservation {
    /// As [`Self::take`], unless the worker has `limit` requests. One that has none takes any.
    pub(crate) fn take_within(
        limit: Option<u32>,
        counters: Option<Arc<Counters>>,
        prompt_tokens: u32,
        uncached_tokens: u32,
        n: u32,
    ) -> Option<Self> {
        let (Some(limit), Some(held)) = (limit, &counters) else {
            return Some(Self::take(counters, prompt_tokens, uncached_tokens, n));
        };
        let (limit, asked) = (u64::from(limit), u64::from(n.max(1)));
        let fits = |now: u64| (now == 0 || now + asked <= limit).then_some(now + asked);
        // Counted before the rest is, so that two that come at once cannot both be the last.
        held.requests.fetch_update(Relaxed, Relaxed, fits).ok()?;
        let taken = Self::take(counters.clone(), prompt_tokens, uncached_tokens, n);
        held.requests.fetch_sub(asked, Relaxed);
        Some(taken)
    }

    pub(crate) fn take(counters: Option<Arc<Counters>>, prompt_tokens: u32, uncached_tokens: u32, n: u32) -> Self {
        let prefill = Prefill {
            prompt_tokens: u64::from(prompt_tokens),
            uncached_tokens: u64::from(uncached_tokens),
            squares: LocalLoad::squares(prompt_tokens, uncached_tokens),
        };
        let requests = u64::from(n.max(1));
        if let Some(counters) = &counters {
            counters.requests.fetch_add(requests, Relaxed);
            counters.prefill_requests.fetch_add(requests, Relaxed);
            counters.prefill_tokens.fetch_add(prefill.uncached_tokens, Relaxed);
            counters.prefill_squares.fetch_add(prefill.squares, Relaxed);
        }
        Self { counters, requests, prefill: Some(prefill), decode_tokens: 0 }
    }

    /// The first token came: prefill work becomes decode work. Later calls change nothing.
    pub fn first_token(&mut self) {
        if let Some(prefill) = self.end_prefill() {
            self.decode(prefill.prompt_tokens);
        }
    }

    /// `tokens` more were generated.
    pub fn generated(&mut self, tokens: u32) {
        self.decode(u64::from(tokens));
    }

    fn decode(&mut self, tokens: u64) {
        self.decode_tokens += tokens;
        if let Some(counters) = &self.counters {
            counters.decode_tokens.fetch_add(tokens, Relaxed);
        }
    }

    fn end_prefill(&mut self) -> Option<Prefill> {
        let prefill = self.prefill.take()?;
        if let Some(counters) = &self.counters {
            counters.prefill_requests.fetch_sub(self.requests, Relaxed);
            counters.prefill_tokens.fetch_sub(prefill.uncached_tokens, Relaxed);
            counters.prefill_squares.fetch_sub(prefill.squares, Relaxed);
        }
        Some(prefill)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.end_prefill();
        if let Some(counters) = self.counters.take() {
            counters.decode_tokens.fetch_sub(self.decode_tokens, Relaxed);
            // Last, so that a worker seen idle has nothing left to give back.
            counters.requests.fetch_sub(self.requests, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(counters: &Counters) -> (u32, u32, u32) {
        let load = counters.load();
        assert_eq!(load.prefill_squares == 0, load.prefill_requests == 0);
        (load.requests, load.prefill_tokens, load.decode_tokens)
    }

    /// Every order of `first_token`, `generated` and nothing, up to four steps, then the drop: back to zero, and the sums in between are the model's.
    #[test]
    fn every_short_history_gives_back_what_it_took() {
        for history in 0..3_u32.pow(4) {
            let counters = Arc::new(Counters::default());
            let mut other = Reservation::take(Some(counters.clone()), 7, 5, 2);
            let mut guard = Reservation::take(Some(counters.clone()), 100, 60, 1);
            let (mut prefill, mut decode, mut prompt) = (60, 0, 100);
            for step in 0..4 {
                match history / 3_u32.pow(step) % 3 {
                    0 => {
                        guard.first_token();
                        decode += prompt;
                        (prefill, prompt) = (0, 0);
                    }
                    1 => {
                        guard.generated(3);
                        decode += 3;
                    }
                    _ => {}
                }
                assert_eq!(load(&counters), (3, prefill + 5, decode), "history {history} step {step}");
            }
            drop(guard);
            assert_eq!(load(&counters), (2, 5, 0));
            other.first_token();
            drop(other);
            assert_eq!(load(&counters), (0, 0, 0));
            assert!(counters.is_idle());
        }
    }

    #[test]
    fn a_panic_gives_back_too() {
        let counters = Arc::new(Counters::default());
        let inner = counters.clone();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let mut guard = Reservation::take(Some(inner), 10, 10, 4);
            guard.first_token();
            std::panic::resume_unwind(Box::new("cut"));
        }));
        assert!(outcome.is_err());
        assert_eq!(load(&counters), (0, 0, 0));
    }

    #[test]
    fn threads_never_lose_or_repeat_a_release() {
        let counters = Arc::new(Counters::default());
        std::thread::scope(|scope| {
            for seed in 0..8_u32 {
                let counters = &counters;
                scope.spawn(move || {
                    for i in 0..2_000_u32 {
                        let mut guard = Reservation::take(Some(counters.clone()), i, i / 2, 1 + seed % 3);
                        if i % 3 != 0 {
                            guard.first_token();
                        }
                        guard.generated(seed);
                        assert!(counters.load().requests >= 1);
                    }
                });
            }
        });
        assert_eq!(load(&counters), (0, 0, 0));
    }

    #[test]
    fn a_limit_holds_however_many_come_at_once() {
        let counters = Arc::new(Counters::default());
        let taken = parking_lot::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        taken.lock().extend(Reservation::take_within(Some(5), Some(counters.clone()), 1, 1, 1));
                    }
                });
            }
        });
        assert_eq!(taken.lock().len(), 5);
        assert_eq!(counters.load().requests, 5);
        taken.lock().clear();
        let wide = Reservation::take_within(Some(5), Some(counters.clone()), 1, 1, 9);
        assert!(wide.is_some(), "a request wider than the limit runs alone");
        assert!(Reservation::take_within(Some(5), Some(counters.clone()), 1, 1, 1).is_none());
        drop(wide);
        assert!(counters.is_idle());
    }

    #[test]
    fn a_worker_that_is_gone_counts_nothing() {
        let mut guard = Reservation::take(None, 10, 10, 1);
        guard.first_token();
        guard.generated(1);
    }
}
