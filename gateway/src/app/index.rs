//! Upkeep of the prefix index: sweeping what is dead, and its numbers on the metrics page.

use crate::clock::Clock;
use crate::fleet::Fleet;
use crate::tasks::TaskGroup;
use forebay_routing::index::IndexStats;
use prometheus::{IntCounter, IntGauge, Registry};
use tokio::time::Duration;

/// Between two sweeps of a share of the index.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The numbers walk every entry, so they are taken at every second sweep only.
const SWEEPS_PER_COUNT: u64 = 2;

struct Numbers {
    blocks: IntGauge,
    holders: IntGauge,
    evicted: IntCounter,
    swept: IntCounter,
}

/// Registers `forebay_index_*` and sweeps until `tasks` ends.
pub(super) fn start(
    fleet: &Fleet,
    clock: Clock,
    registry: &Registry,
    tasks: &TaskGroup,
) -> Result<(), prometheus::Error> {
    let numbers = Numbers {
        blocks: IntGauge::new("forebay_index_blocks", "Distinct blocks in the prefix index")?,
        holders: IntGauge::new("forebay_index_holders", "Pairs of block and worker in the prefix index")?,
        evicted: IntCounter::new("forebay_index_evicted_blocks_total", "Blocks thrown out because the index was full")?,
        swept: IntCounter::new("forebay_index_swept_holders_total", "Dead or expired pairs freed by sweeps")?,
    };
    registry.register(Box::new(numbers.blocks.clone()))?;
    registry.register(Box::new(numbers.holders.clone()))?;
    registry.register(Box::new(numbers.evicted.clone()))?;
    registry.register(Box::new(numbers.swept.clone()))?;
    let fleet = fleet.clone();
    tasks.spawn("index", async move {
        let mut before = IndexStats::default();
        for turn in 1_u64.. {
            tokio::time::sleep(SWEEP_EVERY).await;
            let fleet = fleet.clone();
            // A walk over millions of entries takes milliseconds, which a serving thread does not have.
            let work = move || {
                fleet.index().sweep(clock.now_ms());
                turn.is_multiple_of(SWEEPS_PER_COUNT).then(|| fleet.index().stats())
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(Some(now)) => {
                    numbers.show(&before, &now);
                    before = now;
                }
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "the prefix index was not swept"),
            }
        }
    });
    Ok(())
}

impl Numbers {
    fn show(&self, before: &IndexStats, now: &IndexStats) {
        self.blocks.set(i64::try_from(now.entries).unwrap_or(i64::MAX));
        self.holders.set(i64::try_from(now.holders).unwrap_or(i64::MAX));
        self.evicted.inc_by(now.evicted.saturating_sub(before.evicted));
        self.swept.inc_by(now.swept.saturating_sub(before.swept));
    }
}
