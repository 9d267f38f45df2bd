//! Whether the prefix index was fed and hit while `forebay_kv` was measured, from its metrics page.

/// Prompt tokens that requests brought.
const PROMPT_TOKENS: Series = ("forebay_tokens_total", "kind=\"prompt\"");
/// Prompt tokens that the chosen worker was predicted to hold.
const PREDICTED_TOKENS: Series = ("forebay_hit_tokens_total", "kind=\"predicted\"");
/// Blocks that the index holds.
const INDEX_BLOCKS: Series = ("forebay_index_blocks", "");

/// A metric's name and a label that its lines must carry (`""`: any).
type Series = (&'static str, &'static str);

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

    /// Adds a run, by the metrics page before and after it.
    pub fn add(&mut self, before: &str, after: &str) {
        let grown = |series| sum(after, series) - sum(before, series);
        self.runs += 1;
        self.prompt_tokens += grown(PROMPT_TOKENS);
        self.predicted_tokens += grown(PREDICTED_TOKENS);
        self.blocks = sum(after, INDEX_BLOCKS);
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

/// The sum of a series' lines on a Prometheus page; 0 where it has none.
fn sum(page: &str, (name, label): Series) -> f64 {
    let lines = page.lines().filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(prompt: f64, predicted: f64, blocks: f64) -> String {
        format!(
            "# HELP forebay_tokens_total kind=\"prompt\" 7\n\
             forebay_tokens_total{{kind=\"prompt\",model=\"a b\"}} {prompt}\n\
             forebay_tokens_total{{kind=\"generated\",model=\"a b\"}} 1000\n\
             forebay_hit_tokens_total{{kind=\"predicted\",model=\"a b\"}} {predicted}\n\
             forebay_index_blocks {blocks}\nforebay_index_blocks_limit 99\n"
        )
    }

    #[test]
    fn series_are_summed_by_name_and_label() {
        assert_eq!(sum(&page(41.0, 7.0, 2.5), PROMPT_TOKENS), 41.0);
        let two =
            "forebay_index_blocks{shard=\"0\"} 4\nforebay_index_blocks{shard=\"1\"} 5\nforebay_index_blocks broken";
        assert_eq!(sum(two, INDEX_BLOCKS), 9.0);
        assert_eq!(sum("", INDEX_BLOCKS), 0.0);
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
