//! How many connections a worker has: what the program counted since it was attached, and what was there before.
//!
//! ```text
//! attach ─► seed: base = dump − (opened − closed) ─► Live ── every check: base may only shrink ──► Live
//!                        ▲                             └── it would grow, twice in a row ──► Suspect ─┐
//!                        └───────────────────────────────────────── the next check ──────────────────┘
//! ```
//!
//! Connections of before have no storage, so the program does not see them end; the dump does. Counters and dump are read
//! one after the other, so each bounds the other only within what happened between: a check accepts what any order of those events
//! explains. Pure: readings come in, the count comes out.

/// Counters, read before or after a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Established since attached.
    pub opened: u64,
    /// Ended since then.
    pub closed: u64,
}

/// Whether the count of a worker can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No dump yet: connections of before are missing from the count.
    Seeding,
    /// Good.
    Live,
    /// Two checks in a row contradicted the counters.
    Suspect,
}

/// The count of one worker.
#[derive(Clone, Debug)]
pub struct Seed {
    standing: Standing,
    base: u64,
    /// Checks in a row that contradicted.
    contradictions: u32,
    /// Connections that checks found too many or too few, in all.
    drift: u64,
}

impl Default for Seed {
    fn default() -> Self {
        Self { standing: Standing::Seeding, base: 0, contradictions: 0, drift: 0 }
    }
}

impl Seed {
    /// A dump found `found` connections, with the counters as they were before and after it.
    pub fn check(&mut self, before: Counted, found: u64, after: Counted) {
        // The fewest and the most connections that the program could have counted as open at the dump.
        let least = before.opened.saturating_sub(after.closed);
        let most = after.opened.saturating_sub(before.closed);
        let (low, high) = (found.saturating_sub(most), found.saturating_sub(least));
        match self.standing {
            Standing::Seeding | Standing::Suspect => {
                // The most that it may be: a later check takes off what was counted meanwhile.
                self.base = high;
                self.contradictions = 0;
                self.standing = Standing::Live;
            }
            // More than ever was there, or fewer than the counters alone: neither can be explained.
            Standing::Live if low > self.base || found < least => {
                self.drift += if low > self.base { low - self.base } else { least - found };
                self.contradictions += 1;
                if self.contradictions >= 2 {
                    self.standing = Standing::Suspect;
                }
            }
            Standing::Live => {
                self.contradictions = 0;
                self.base = self.base.min(high);
            }
        }
    }

    /// Connections that are open; `None` while that is not known.
    pub fn open(&self, now: Counted) -> Option<u64> {
        (self.standing == Standing::Live).then(|| self.base + now.opened.saturating_sub(now.closed))
    }

    /// See [`Standing`].
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Connections that checks found too many or too few, in all.
    pub fn drift(&self) -> u64 {
        self.drift
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(opened: u64, closed: u64) -> Counted {
        Counted { opened, closed }
    }

    #[test]
    fn connections_of_before_are_counted_until_they_end() {
        let mut seed = Seed::default();
        assert_eq!(seed.open(counted(0, 0)), None);
        seed.check(counted(0, 0), 5, counted(0, 0));
        assert_eq!(seed.open(counted(3, 1)), Some(7));
        seed.check(counted(3, 1), 4, counted(3, 1));
        assert_eq!(seed.open(counted(3, 1)), Some(4), "three of before ended");
        assert_eq!(seed.drift(), 0);
    }

    #[test]
    fn one_contradiction_is_noted_and_two_make_suspect_until_seeded_anew() {
        let mut seed = Seed::default();
        seed.check(counted(0, 0), 0, counted(0, 0));
        seed.check(counted(1, 0), 3, counted(1, 0));
        assert_eq!((seed.standing(), seed.drift()), (Standing::Live, 2));
        seed.check(counted(1, 0), 3, counted(1, 0));
        assert_eq!((seed.standing(), seed.open(counted(1, 0))), (Standing::Suspect, None));
        seed.check(counted(1, 0), 3, counted(1, 0));
        assert_eq!((seed.standing(), seed.open(counted(1, 0))), (Standing::Live, Some(3)));
    }

    #[test]
    fn fewer_than_the_counters_alone_is_a_contradiction() {
        let mut seed = Seed::default();
        seed.check(counted(4, 0), 4, counted(4, 0));
        seed.check(counted(4, 0), 1, counted(4, 0));
        assert_eq!(seed.drift(), 3);
    }

    proptest! {
        /// Whatever opens and closes while a dump is taken: honest readings never contradict.
        #[test]
        fn honest_readings_never_drift(
            old in 0_u64..50,
            rounds in prop::collection::vec((0_u64..20, 0_u64..20, 0_u64..20, 0_u64..20, 0_u64..5, any::<bool>()), 1..40),
        ) {
            let mut seed = Seed::default();
            let (mut opened, mut closed, mut old) = (0, 0, old);
            for (opens, closes, opens_late, closes_late, old_ends, late) in rounds {
                opened += opens;
                closed += closes.min(opened - closed);
                let before = counted(opened, closed);
                old -= if late { 0 } else { old_ends.min(old) };
                let found_early = old + opened - closed;
                opened += opens_late;
                closed += closes_late.min(opened - closed);
                let found = if late { old + opened - closed } else { found_early };
                seed.check(before, found, counted(opened, closed));
                prop_assert_eq!(seed.drift(), 0);
                prop_assert_eq!(seed.standing(), Standing::Live);
            }
        }
    }
}
