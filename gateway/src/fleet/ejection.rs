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
}

impl Breaker {
    pub(crate) fn new(eject_after: u32, eject_for: Duration) -> Self {
        Self {
            state: State::Closed { failures: 0 },
            in_a_row: 0,
            ejections: 0,
            eject_after: eject_after.max(1),
            eject_for,
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
        match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                if *failures < self.eject_after { Verdict::Same } else { self.open(now_ms) }
            }
            State::Trial => self.open(now_ms),
            // Requests sent before the ejection still fail; they say nothing new.
            State::Open { .. } | State::Probing => Verdict::Same,
        }
    }

    /// A live exchange went well.
    pub(crate) fn succeed(&mut self) {
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

    /// The engine was replaced: what its predecessor did is forgotten.
    pub(crate) fn reset(&mut self) {
        self.state = State::Closed { failures: 0 };
        self.in_a_row = 0;
    }

    fn open(&mut self, now_ms: u64) -> Verdict {
        self.in_a_row += 1;
        self.ejections += 1;
        let lasts = self.eject_for * self.in_a_row.min(MAX_FACTOR);
        self.state = State::Open { until_ms: now_ms + u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX / 2) };
        Verdict::Eject
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(3, Duration::from_secs(10))
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
