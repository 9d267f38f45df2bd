//! Whether the prefix index was fed and hit while `forebay_kv` was measured, from its metrics page.

/// Requests for which a worker was chosen.
const DECISIONS: Series = ("forebay_decisions_total", "");
/// Of which the chosen worker was known to hold the beginning.
const PREFIX_HITS: Series = ("forebay_decisions_total", "reason=\"prefix_hit\"");
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
    /// Requests of these runs, the warm-up's included.
    pub decisions: f64,
    /// Of which went to a worker known to hold their beginning.
    pub prefix_hits: f64,
    /// Blocks in the index after the last run.
    pub blocks: f64,
}

impl IndexUse {
    /// Of no run yet.
    pub fn new(test: &str) -> Self {
        Self { test: test.to_owned(), runs: 0, decisions: 0.0, prefix_hits: 0.0, blocks: 0.0 }
    }

    /// Adds a run, by the metrics page before and after it.
    pub fn add(&mut self, before: &str, after: &str) {
        let grown = |series| sum(after, series) - sum(before, series);
        self.runs += 1;
        self.decisions += grown(DECISIONS);
        self.prefix_hits += grown(PREFIX_HITS);
        self.blocks = sum(after, INDEX_BLOCKS);
    }

    /// Why the runs do not count as runs of `kv`, if they do not.
    pub fn fault(&self) -> Option<String> {
        if self.runs == 0 {
            None
        } else if self.blocks <= 0.0 {
            Some("the index was empty: no KV events arrived".into())
        } else if self.test.ends_with(SEEN_SUFFIX) && self.prefix_hits <= 0.0 {
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

    fn page(others: f64, hits: f64, blocks: f64) -> String {
        format!(
            "# HELP forebay_decisions_total reason=\"prefix_hit\" 7\n\
             forebay_decisions_total{{policy=\"kv\",reason=\"least_cost\"}} {others}\n\
             forebay_decisions_total{{policy=\"kv\",reason=\"prefix_hit\"}} {hits}\n\
             forebay_index_blocks {blocks}\nforebay_index_blocks_limit 99\n"
        )
    }

    #[test]
    fn series_are_summed_by_name_and_label() {
        assert_eq!(sum(&page(41.0, 7.0, 2.5), DECISIONS), 48.0);
        assert_eq!(sum(&page(41.0, 7.0, 2.5), PREFIX_HITS), 7.0);
        let two =
            "forebay_index_blocks{shard=\"0\"} 4\nforebay_index_blocks{shard=\"1\"} 5\nforebay_index_blocks broken";
        assert_eq!(sum(two, INDEX_BLOCKS), 9.0);
        assert_eq!(sum("", INDEX_BLOCKS), 0.0);
    }

    #[test]
    fn runs_add_up_and_idle_indexes_are_faults() {
        let mut used = IndexUse::new("p32k_seen");
        assert_eq!(used.fault(), None);
        used.add(&page(0.0, 0.0, 0.0), &page(40.0, 60.0, 9.0));
        used.add(&page(40.0, 60.0, 9.0), &page(140.0, 160.0, 12.0));
        assert_eq!((used.runs, used.decisions, used.prefix_hits, used.blocks), (2, 300.0, 160.0, 12.0));
        assert_eq!(used.fault(), None);
        used.prefix_hits = 0.0;
        assert!(used.fault().unwrap().contains("never hit"));
        used.test = "small".into();
        assert_eq!(used.fault(), None);
        used.blocks = 0.0;
        assert!(used.fault().unwrap().contains("no KV events"));
    }
}
