//! Whether a limit per source would do what is meant by it. Pure.
//!
//! Behind a load balancer, a NAT or a service proxy, all clients have a few addresses. A limit per source would then
//! throttle everybody at once, so the guard looks at who sent what *before* it may refuse anything.

use std::collections::HashMap;

/// So few sources ...
pub const FEW_SOURCES: usize = 4;
/// ... with more than this share, in percent, of all new connections are taken for a load balancer.
pub const MOST_PERCENT: u64 = 50;

/// New connections of each source, as they were when the window began.
#[derive(Debug, Default)]
pub struct Window {
    before: HashMap<[u8; 16], u64>,
}

impl Window {
    /// Begins with the counts of now.
    pub fn begin(sources: Vec<([u8; 16], u64)>) -> Self {
        Self { before: sources.into_iter().collect() }
    }

    /// Whether the guard may be armed, by the counts at the end.
    pub fn judge(&self, sources: &[([u8; 16], u64)]) -> Result<(), String> {
        // A count below the former one belongs to a source that was evicted in between and began anew.
        let gained = sources.iter().map(|(source, count)| match self.before.get(source) {
            Some(before) if count >= before => count - before,
            _ => *count,
        });
        let mut gained: Vec<u64> = gained.filter(|count| *count > 0).collect();
        gained.sort_unstable_by(|a, b| b.cmp(a));
        let total: u64 = gained.iter().sum();
        let few: u64 = gained.iter().take(FEW_SOURCES).sum();
        if total > 0 && few * 100 > total * MOST_PERCENT {
            let count = gained.len().min(FEW_SOURCES);
            return Err(format!(
                "{count} of {} sources sent {few} of {total} new connections: this looks like a load balancer in front. \
                 Put its addresses into allow_file, or set arm_anyway",
                gained.len()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(counts: &[u64]) -> Vec<([u8; 16], u64)> {
        counts.iter().enumerate().map(|(n, count)| ([n as u8; 16], *count)).collect()
    }

    #[test]
    fn few_sources_with_most_connections_keep_it_from_arming() {
        let window = Window::begin(Vec::new());
        let refused = window.judge(&sources(&[100, 100, 100, 100, 1, 1])).unwrap_err();
        assert!(refused.contains("4 of 6 sources sent 400 of 402"), "{refused}");
        assert!(refused.contains("allow_file"), "{refused}");
        assert_eq!(window.judge(&sources(&[10; 8])), Ok(()), "half is not more than half");
        assert!(window.judge(&sources(&[10; 7])).is_err());
        assert_eq!(window.judge(&[]), Ok(()), "nobody came, nobody is harmed");
    }

    #[test]
    fn only_the_window_counts() {
        let window = Window::begin(sources(&[1_000_000, 5]));
        let mut now = sources(&[1_000_001, 6]);
        now.extend((2..20).map(|n| ([n; 16], 1)));
        assert_eq!(window.judge(&now), Ok(()), "who sent much before sends little now");
        let evicted = vec![([0; 16], 3)];
        assert!(window.judge(&evicted).is_err(), "a bucket that began anew counts from zero");
    }
}
