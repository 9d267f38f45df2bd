//! One timer per connection, moved lazily.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::{Duration, Instant, Sleep};

/// A deadline that is moved many times for each time that it fires.
///
/// Moving it later costs a store: the timer fires at the old instant, sees that it was early and is set again. Moving
/// it earlier than the timer is armed for sets the timer at once. A stream of a thousand chunks under an idle
/// deadline therefore touches the timer wheel a handful of times.
pub struct Deadline {
    timer: Pin<Box<Sleep>>,
    due: Instant,
}

impl Deadline {
    /// Due in `after`.
    pub fn new(after: Duration) -> Self {
        let due = Instant::now() + after;
        Self { timer: Box::pin(tokio::time::sleep_until(due)), due }
    }

    /// Moves it.
    pub fn set(&mut self, due: Instant) {
        self.due = due;
        if due < self.timer.deadline() {
            self.timer.as_mut().reset(due);
        }
    }

    /// When it is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Ready once the deadline has passed.
    pub fn poll_passed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= self.due {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.due);
        }
        Poll::Pending
    }
}
