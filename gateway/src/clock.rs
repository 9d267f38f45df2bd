//! Monotonic and wall time, read here and nowhere else.
//!
//! Monotonic time comes from tokio, so a test with paused time moves every deadline and age in the gateway at once.

use tokio::time::{Duration, Instant};

/// Milliseconds since the gateway started. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts counting now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The instant `ms` milliseconds after the start.
    pub fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }
}

/// Seconds since the Unix epoch, for logs and `created` fields only.
#[expect(clippy::disallowed_methods, reason = "the one place where wall time is read")]
pub fn unix_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
