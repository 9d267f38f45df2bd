//! Passive ejection: live traffic's verdict on one worker, as a pure state machine.
//!
//! ```text
//! Closed ── eject_after failures in a row ──► Open(until) ── until passed ──► Probing ── probe good ──► Trial
//!   ▲                                             ▲                             │ bad                   │
//!   └── live success ── Trial                     └─────────────────────────────┴── one live failure ───┘
//! ```
//!
//! Every ejection in a row lasts longer (up to [`MAX_FACTOR`] times), so that a worker which passes its probes and
//! fails its requests costs little. Back-pressure (429, 503) and the client's own errors (4xx) never count.
//!
//! Failures need not come in a row: a worker that fails a share of its requests, over enough of them, goes too, and so does
//! one whose first tokens take many times as long as those of the others (see [`Pace`]).

use std::time::Duration;

/// Longest ejection, as a multiple of the first: ten times 30 s still comes back within five minutes.
const MAX_FACTOR: u32 = 10;

/// What a report led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing changes.
    Same,
    /// Take no more traffic until the probe.
    Eject,
    /// Ask the worker once, now.
    Probe,
    /// Back in service.
    Readmit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until_ms: u64 },
    Probing,
    Trial,
}

/// One worker's breaker.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    state: State,
    in_a_row: u32,
    /// Ejections so far.
    pub(crate) ejections: u64,
    eject_after: u32,
    eject_for: Duration,
    /// Share of failures from which a worker is ejected; 0 = whatever the share.
    eject_share: f64,
    /// Failures and all exchanges, both halved when there are many, so that the past fades.
    failed: f64,
    seen: f64,
}

/// Exchanges before their share of failures says anything.
const MIN_SEEN: f64 = 20.0;
/// Exchanges that are remembered, about.
const MAX_SEEN: f64 = 200.0;

impl Breaker {
    pub(crate) fn new(eject_after: u32, eject_for: Duration, eject_share: f64) -> Self {
        Self {
            state: State::Closed { failures: 0 },
            in_a_row: 0,
            ejections: 0,
            eject_after: eject_after.max(1),
            eject_for,
            eject_share,
            failed: 0.0,
            seen: 0.0,
        }
    }

    pub(crate) fn is_ejected(&self) -> bool {
        matches!(self.state, State::Open { .. } | State::Probing)
    }

    /// Live failures since the last success.
    pub(crate) fn failures(&self) -> u32 {
        match self.state {
            State::Closed { failures } => failures,
            _ => self.eject_after,
        }
    }

    /// When [`Breaker::tick`] has something to say.
    pub(crate) fn due_ms(&self) -> Option<u64> {
        match self.state {
            State::Open { until_ms } => Some(until_ms),
            _ => None,
        }
    }

    /// A live exchange failed at the worker's fault.
    pub(crate) fn fail(&mut self, now_ms: u64) -> Verdict {
        self.count(1.0);
        let share = self.failed / self.seen.max(1.0);
        let often = self.eject_share > 0.0 && self.seen >= MIN_SEEN && share >= self.eject_share;
        match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                if *failures < self.eject_after && !often { Verdict::Same } else { self.open(now_ms) }
            }
            State::Trial => self.open(now_ms),
            // Requests sent before the ejection still fail; they say nothing new.
            State::Open { .. } | State::Probing => Verdict::Same,
        }
    }

    /// A live exchange went well.
    pub(crate) fn succeed(&mut self) {
        self.count(0.0);
        match self.state {
            State::Closed { .. } => self.state = State::Closed { failures: 0 },
            State::Trial => {
                self.state = State::Closed { failures: 0 };
                self.in_a_row = 0;
            }
            // A stream that began before the ejection ended well: the probe still decides.
            State::Open { .. } | State::Probing => {}
        }
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Verdict {
        match self.state {
            State::Open { until_ms } if now_ms >= until_ms => {
                self.state = State::Probing;
                Verdict::Probe
            }
            _ => Verdict::Same,
        }
    }

    /// The outcome of a health check; decides only when a probe was due.
    pub(crate) fn checked(&mut self, good: bool, now_ms: u64) -> Verdict {
        match (self.state, good) {
            (State::Probing, true) => {
                self.state = State::Trial;
                Verdict::Readmit
            }
            (State::Probing, false) => self.open(now_ms),
            _ => Verdict::Same,
        }
    }

    /// Its probe comes at `at_ms` at the latest.
    pub(crate) fn hasten(&mut self, at_ms: u64) {
        if let State::Open { until_ms } = &mut self.state {
            *until_ms = at_ms.min(*until_ms);
        }
    }

    /// The engine was replaced: what its predecessor did is forgotten.
    pub(crate) fn reset(&mut self) {
        self.state = State::Closed { failures: 0 };
        self.in_a_row = 0;
        (self.failed, self.seen) = (0.0, 0.0);
    }

    /// It is taken out for another reason than failures: it is far slower than the others.
    pub(crate) fn eject(&mut self, now_ms: u64) -> Verdict {
        match self.state {
            State::Closed { .. } | State::Trial => self.open(now_ms),
            State::Open { .. } | State::Probing => Verdict::Same,
        }
    }

    /// It stays in service after all: too many are out already.
    pub(crate) fn pardon(&mut self) {
        self.state = State::Closed { failures: 0 };
        self.in_a_row = self.in_a_row.saturating_sub(1);
        self.ejections -= 1;
    }

    fn count(&mut self, failed: f64) {
        self.failed += failed;
        self.seen += 1.0;
        if self.seen >= MAX_SEEN {
            self.failed /= 2.0;
            self.seen /= 2.0;
        }
    }

    fn open(&mut self, now_ms: u64) -> Verdict {
        (self.failed, self.seen) = (0.0, 0.0);
        self.in_a_row += 1;
        self.ejections += 1;
        let lasts = self.eject_for * self.in_a_row.min(MAX_FACTOR);
        self.state = State::Open { until_ms: now_ms + u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX / 2) };
        Verdict::Eject
    }
}

/// How long a worker's first tokens lately took: a moving mean of ms, less what a long prompt explains (half at
/// [`USUAL_TOKENS`]), so that workers with short and with long prompts can be compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    mean_ms: f64,
    samples: u32,
}

/// Uncached tokens to which times are brought.
const USUAL_TOKENS: f64 = 2_000.0;
/// First tokens before a pace means anything.
const MIN_SAMPLES: u32 = 20;
/// Paces below this are never an outlier: who is ten times faster than needed is not ill.
const MIN_SLOW_MS: f64 = 1_000.0;
/// Workers that must have a pace beside the one that is judged.
const MIN_OTHERS: usize = 2;

impl Pace {
    /// One first token came.
    pub(crate) fn observe(&mut self, ttft_ms: f64, uncached_tokens: u32) {
        let usual = ttft_ms * USUAL_TOKENS / (USUAL_TOKENS + f64::from(uncached_tokens));
        self.samples = self.samples.saturating_add(1);
        let weight = 1.0 / f64::from(self.samples.min(MIN_SAMPLES));
        self.mean_ms += (usual - self.mean_ms) * weight;
    }

    /// The mean, once it means something.
    pub(crate) fn mean_ms(&self) -> Option<f64> {
        (self.samples >= MIN_SAMPLES).then_some(self.mean_ms)
    }

    /// Whether it is slow enough to be compared with others at all.
    pub(crate) fn is_slow(&self) -> bool {
        self.mean_ms().is_some_and(|mean| mean >= MIN_SLOW_MS)
    }

    /// Whether it is `factor` times the median of `others`.
    pub(crate) fn is_outlier(&self, factor: f64, others: &mut [f64]) -> bool {
        let Some(mean) = self.mean_ms().filter(|mean| factor > 0.0 && *mean >= MIN_SLOW_MS) else { return false };
        if others.len() < MIN_OTHERS {
            return false;
        }
        others.sort_by(f64::total_cmp);
        mean > factor * others[others.len() / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(3, Duration::from_secs(10), 0.5)
    }

    #[test]
    fn failures_in_a_row_eject_and_a_success_between_does_not() {
        let mut b = breaker();
        assert_eq!([b.fail(0), b.fail(0)], [Verdict::Same; 2]);
        b.succeed();
        assert_eq!([b.fail(0), b.fail(0), b.fail(0)], [Verdict::Same, Verdict::Same, Verdict::Eject]);
        assert!(b.is_ejected());
        assert_eq!(b.fail(1), Verdict::Same);
        assert_eq!(b.due_ms(), Some(10_000));
    }

    #[test]
    fn one_probe_then_back_then_one_failure_ejects_for_longer() {
        let mut b = breaker();
        for _ in 0..3 {
            b.fail(0);
        }
        assert_eq!(b.checked(true, 5_000), Verdict::Same, "a good check before its time changes nothing");
        assert_eq!(b.tick(9_999), Verdict::Same);
        assert_eq!(b.tick(10_000), Verdict::Probe);
        assert_eq!(b.tick(10_001), Verdict::Same, "one probe, not two");
        assert_eq!(b.checked(true, 10_002), Verdict::Readmit);
        assert!(!b.is_ejected());
        assert_eq!(b.fail(11_000), Verdict::Eject);
        assert_eq!(b.due_ms(), Some(31_000));
        assert_eq!(b.tick(31_000), Verdict::Probe);
        assert_eq!(b.checked(false, 31_000), Verdict::Eject);
        assert_eq!(b.due_ms(), Some(61_000));
        assert_eq!(b.ejections, 3);
        b.tick(61_000);
        b.checked(true, 61_000);
        b.succeed();
        assert_eq!([b.fail(61_001), b.fail(61_002), b.fail(61_003)], [Verdict::Same, Verdict::Same, Verdict::Eject]);
        assert_eq!(b.due_ms(), Some(71_003), "a live success forgave the past");
    }

    #[test]
    fn a_share_of_failures_ejects_though_none_come_in_a_row() {
        let mut b = breaker();
        let mut verdicts = Vec::new();
        for _ in 0..20 {
            b.succeed();
            verdicts.push(b.fail(0));
        }
        assert_eq!(verdicts.iter().position(|verdict| *verdict == Verdict::Eject), Some(9), "after twenty exchanges");
        let mut rarely = breaker();
        for round in 0..1_000 {
            if round % 3 == 0 {
                assert_eq!(rarely.fail(0), Verdict::Same, "a third is not half");
            } else {
                rarely.succeed();
            }
        }
    }

    #[test]
    fn a_pace_many_times_that_of_the_others_is_an_outlier() {
        let pace = |ms: f64, tokens: u32| {
            let mut pace = Pace::default();
            (0..20).for_each(|_| pace.observe(ms, tokens));
            pace
        };
        let mean = |pace: &Pace| pace.mean_ms().expect("enough samples");
        assert!((mean(&pace(100.0, 2_000)) - 50.0).abs() < 1e-6 && (mean(&pace(100.0, 0)) - 100.0).abs() < 1e-6);
        let others = [900.0, 1_000.0, 1_100.0];
        assert!(pace(6_000.0, 0).is_outlier(5.0, &mut others.clone()));
        assert!(!pace(4_000.0, 0).is_outlier(5.0, &mut others.clone()), "four times is not five");
        assert!(!pace(6_000.0, 0).is_outlier(0.0, &mut others.clone()), "switched off");
        assert!(!pace(6_000.0, 0).is_outlier(5.0, &mut [1.0]), "one other is no fleet");
        assert!(!pace(900.0, 0).is_outlier(5.0, &mut [1.0, 1.0, 1.0]), "fast enough for anybody");
        let mut young = Pace::default();
        (0..19).for_each(|_| young.observe(60_000.0, 0));
        assert!(!young.is_outlier(5.0, &mut others.clone()), "too few to say");
    }

    #[test]
    fn a_probe_can_be_brought_forward_and_not_put_off() {
        let mut b = breaker();
        b.hasten(1);
        assert_eq!(b.due_ms(), None, "there is none to hasten");
        for _ in 0..3 {
            b.fail(0);
        }
        b.hasten(20_000);
        assert_eq!(b.due_ms(), Some(10_000));
        b.hasten(1_000);
        assert_eq!([b.tick(999), b.tick(1_000)], [Verdict::Same, Verdict::Probe]);
    }

    #[test]
    fn ejections_stop_growing() {
        let mut b = breaker();
        for _ in 0..3 {
            b.fail(0);
        }
        for _ in 0..50 {
            let due = b.due_ms().expect("open");
            b.tick(due);
            b.checked(false, due);
        }
        let due = b.due_ms().expect("open");
        b.tick(due);
        b.checked(false, due);
        assert_eq!(b.due_ms(), Some(due + 100_000));
    }
}
