//! Time, read here and nowhere else.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the agent started. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts counting now.
    #[expect(clippy::disallowed_methods, reason = "the one place where time is read")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A number that the next start of an agent does not have: the time of this one.
#[expect(clippy::disallowed_methods, reason = "the one place where time is read")]
pub fn epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
