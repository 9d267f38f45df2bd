//! Whether a worker that claims to publish events does. Pure.
//!
//! Silence alone proves nothing: an idle engine has nothing to say, and one that finds a whole prompt in its cache
//! publishes nothing either. What proves a fault is an answer for which the engine computed at least one new block, so
//! that it must have stored it, and no event since the request was sent; or a replay socket that nobody answers on. After
//! [`PATIENCE_MS`] the alarm stands until the next sign of life.

/// From the first proof of silence to the alarm.
pub(super) const PATIENCE_MS: u64 = 10_000;

/// What is awaited of one feed.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    /// Since when a sign of life is due.
    due_since_ms: Option<u64>,
    is_alarmed: bool,
}

impl Vigil {
    /// An answer is due from now on, unless one was before.
    pub(super) fn expect(&mut self, now_ms: u64) {
        self.due_since_ms.get_or_insert(now_ms);
    }

    /// A sign of life; true when it ends an alarm.
    pub(super) fn hear(&mut self) -> bool {
        self.due_since_ms = None;
        std::mem::take(&mut self.is_alarmed)
    }

    /// True once: when the alarm begins.
    pub(super) fn is_overdue(&mut self, now_ms: u64) -> bool {
        let overdue = self.due_since_ms.is_some_and(|due_ms| now_ms.saturating_sub(due_ms) >= PATIENCE_MS);
        let begins = overdue && !self.is_alarmed;
        self.is_alarmed |= overdue;
        begins
    }

    pub(super) fn is_alarmed(&self) -> bool {
        self.is_alarmed
    }

    /// Whether time alone can raise the alarm.
    pub(super) fn is_waiting(&self) -> bool {
        self.due_since_ms.is_some() && !self.is_alarmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_begins_once_and_ends_with_a_sign_of_life() {
        let mut vigil = Vigil::default();
        assert!(!vigil.is_overdue(1_000_000), "nothing is due");
        vigil.expect(5_000);
        vigil.expect(9_000);
        assert!(!vigil.is_overdue(14_999));
        assert!(vigil.is_overdue(15_000));
        assert!(!vigil.is_overdue(15_001) && vigil.is_alarmed());
        assert!(vigil.hear() && !vigil.is_alarmed());
        assert!(!vigil.hear());
        vigil.expect(20_000);
        assert!(!vigil.hear());
        assert!(!vigil.is_overdue(40_000), "what was due has come");
    }
}
