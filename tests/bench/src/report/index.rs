//! Whether the prefix index was fed and hit while `forebay_kv` was measured, from its metrics page.

use std::collections::BTreeMap;

/// Prompt tokens that requests brought.
const PROMPT_TOKENS: &str = "forebay_prompt_tokens_total";
/// Prompt tokens that the chosen worker was predicted to hold.
const PREDICTED_TOKENS: &str = "forebay_predicted_cached_tokens_total";
/// Blocks that the index holds.
const INDEX_BLOCKS: &str = "forebay_index_blocks";
/// Tests with this ending send prompts whose beginnings were seen.
const SEEN_SUFFIX: &str = "_seen";

/// What the index did in the runs of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexUse {
    /// Test.
    pub test: String,
    /// Runs with a metrics page before and after.
    pub runs: usize,
    /// Prompt tokens of these runs, the warm-up's included.
    pub prompt_tokens: f64,
    /// Of which the chosen worker was predicted to hold so many.
    pub predicted_tokens: f64,
    /// Blocks in the index after the last run.
    pub blocks: f64,
}

impl IndexUse {
    /// Of no run yet.
    pub fn new(test: &str) -> Self {
        Self { test: test.to_owned(), runs: 0, prompt_tokens: 0.0, predicted_tokens: 0.0, blocks: 0.0 }
    }

    /// Adds a run, by the figures of the page before and after it.
    pub fn add(&mut self, before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) {
        let grown = |name: &str| after.get(name).copied().unwrap_or(0.0) - before.get(name).copied().unwrap_or(0.0);
        self.runs += 1;
        self.prompt_tokens += grown(PROMPT_TOKENS);
        self.predicted_tokens += grown(PREDICTED_TOKENS);
        self.blocks = after.get(INDEX_BLOCKS).copied().unwrap_or(0.0);
    }

    /// Why the runs do not count as runs of `kv`, if they do not.
    pub fn fault(&self) -> Option<String> {
        if self.runs == 0 {
            None
        } else if self.blocks <= 0.0 {
            Some("the index was empty: no KV events arrived".into())
        } else if self.test.ends_with(SEEN_SUFFIX) && self.predicted_tokens <= 0.0 {
            Some("prompts repeated and the index was never hit".into())
        } else {
            None
        }
    }
}

/// The value of every metric of a Prometheus page, summed over its labels.
pub fn figures(page: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let value = line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        if let (false, Some(value)) = (name.is_empty(), value) {
            *sums.entry(name.to_owned()).or_insert(0.0) += value;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(prompt: f64, predicted: f64, blocks: f64) -> BTreeMap<String, f64> {
        figures(&format!(
            "# HELP x y\n{PROMPT_TOKENS}{{model=\"a b\"}} {prompt}\n{PROMPT_TOKENS}{{model=\"c\"}} 1\n\
             {PREDICTED_TOKENS} {predicted}\n{INDEX_BLOCKS} {blocks}\n"
        ))
    }

    #[test]
    fn figures_sum_over_labels() {
        assert_eq!(page(41.0, 7.0, 2.5)[PROMPT_TOKENS], 42.0);
        assert_eq!(figures("# only\n\nbroken line x\n"), BTreeMap::new());
    }

    #[test]
    fn runs_add_up_and_idle_indexes_are_faults() {
        let mut used = IndexUse::new("p32k_seen");
        assert_eq!(used.fault(), None);
        used.add(&page(0.0, 0.0, 0.0), &page(100.0, 60.0, 9.0));
        used.add(&page(100.0, 60.0, 9.0), &page(300.0, 160.0, 12.0));
        assert_eq!((used.runs, used.prompt_tokens, used.predicted_tokens, used.blocks), (2, 300.0, 160.0, 12.0));
        assert_eq!(used.fault(), None);
        used.predicted_tokens = 0.0;
        assert!(used.fault().unwrap().contains("never hit"));
        used.test = "small".into();
        assert_eq!(used.fault(), None);
        used.blocks = 0.0;
        assert!(used.fault().unwrap().contains("no KV events"));
    }
}
