//! A total that only grows, from a counter that wraps, restarts and disappears.

/// Width of a counter that may wrap. RDMA drivers have both, and sysfs does not say which.
const NARROW: u64 = 1 << 32;

/// Follows one counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    last: Option<u64>,
    total: u64,
}

impl Total {
    /// Takes a reading; `None` where the counter is absent at the moment. The total since the first reading, `None` before it.
    ///
    /// A reading below the last is a wrap where the last was in the upper half of 32 bits and this one is in the lower, and a restart
    /// from zero otherwise.
    pub fn read(&mut self, value: Option<u64>) -> Option<u64> {
        if let Some(value) = value {
            let gained = match self.last {
                None => 0,
                Some(last) if value >= last => value - last,
                Some(last) if (NARROW / 2..NARROW).contains(&last) && value < NARROW / 2 => NARROW - last + value,
                Some(_) => value,
            };
            self.total = self.total.saturating_add(gained);
            self.last = Some(value);
        }
        self.last.map(|_| self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn growth_wrap_restart_and_absence() {
        let mut total = Total::default();
        assert_eq!(total.read(None), None, "absent is not zero");
        assert_eq!(total.read(Some(1_000)), Some(0), "what was before is not ours");
        assert_eq!(total.read(Some(1_500)), Some(500));
        assert_eq!(total.read(None), Some(500), "a counter that is gone for a moment keeps its total");
        assert_eq!(total.read(Some(10)), Some(510), "the driver was loaded again");
        let mut narrow = Total::default();
        narrow.read(Some(NARROW - 100));
        assert_eq!(narrow.read(Some(50)), Some(150), "wrapped at 32 bits");
        let mut wide = Total::default();
        wide.read(Some(1 << 40));
        assert_eq!(wide.read(Some(7)), Some(7), "a wide counter does not wrap at 32 bits: it restarted");
    }

    proptest! {
        #[test]
        fn a_total_never_shrinks(readings in prop::collection::vec(prop::option::of(any::<u64>()), 0..50)) {
            let (mut total, mut last) = (Total::default(), 0);
            for reading in readings {
                let now = total.read(reading).unwrap_or_default();
                prop_assert!(now >= last);
                last = now;
            }
        }
    }
}
