//! Whether a worker's answers find in its cache what its events promise. Pure.
//!
//! Single answers prove little: a block may be evicted between the decision and the prefill. What goes on wrong for many
//! requests is something that this side misunderstands: another tokenizer, template, salt or adapter than the engine's, or
//! a second gateway that is counted twice.

/// Prompt tokens, promised or found, from which on a judgement is made; then counting begins anew.
const EVIDENCE_TOKENS: u64 = 32_768;

/// Counts as they were at the last judgement.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    predicted: u64,
    realised: u64,
}

impl Agreement {
    /// Counting begins at these.
    pub(super) fn since(predicted: u64, realised: u64) -> Self {
        Self { predicted, realised }
    }

    /// Given all tokens promised and found so far: whether they differ by more than half of the greater. `None` while too
    /// little happened since the last judgement.
    pub(super) fn is_broken(&mut self, predicted: u64, realised: u64) -> Option<bool> {
        let promised = predicted.saturating_sub(self.predicted);
        let found = realised.saturating_sub(self.realised);
        let most = promised.max(found);
        if most < EVIDENCE_TOKENS {
            return None;
        }
        *self = Self { predicted, realised };
        Some(promised.abs_diff(found) > most / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_what_came_since_the_last_judgement() {
        let mut agreement = Agreement::default();
        assert_eq!(agreement.is_broken(30_000, 30_000), None);
        assert_eq!(agreement.is_broken(40_000, 30_000), Some(false));
        assert_eq!(agreement.is_broken(72_000, 30_000), None);
        assert_eq!(agreement.is_broken(72_768, 46_000), Some(true), "16,000 of 32,768");
        assert_eq!(agreement.is_broken(72_768, 100_000), Some(true), "found and never promised");
        assert_eq!(agreement.is_broken(105_536, 132_768), Some(false), "well again");
    }
}
