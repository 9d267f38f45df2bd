//! Monotonic and wall time, read here and nowhere else.

use tokio::time::{Duration, Instant};

/// Microseconds since an engine started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The instant `us` microseconds after the start.
    pub(crate) fn at(&self, us: u64) -> Instant {
        self.start + Duration::from_micros(us)
    }
}

/// Seconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "the one place where wall time is read")]
pub(crate) fn unix_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
