//! How long own placements count, and in what units that is kept.

/// Blocks of a worker without events whose capacity is unknown: the default of engines in tests and demos.
const ASSUMED_CAPACITY_BLOCKS: u32 = 16_384;
/// How long an own placement counts beyond its expected first token: events follow the prefill within milliseconds.
const PLACEMENT_MS: u32 = 5_000;
/// The longest that one counts: a prediction beyond this is no reason to believe.
const MAX_PLACEMENT_MS: u32 = 60_000;
/// Placement times are kept in these units: 2³² of them are 8 years.
const TICK_MS: u64 = 64;

/// Monotonic ms → ticks, from 1.
pub(super) fn ticks(ms: u64) -> u32 {
    (ms / TICK_MS + 1).min(u64::from(u32::MAX)) as u32
}

/// How an own placement is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// The worker has events: count at once, forget after `for_ms` unless they confirm.
    Expiring {
        /// From the placement.
        for_ms: u32,
    },
    /// The worker has no events: keep the most recently used blocks up to its capacity.
    Recent {
        /// KV capacity.
        capacity_blocks: u32,
    },
}

impl Retention {
    /// For a worker with events whose first token is expected after `expected_ttft_ms`.
    pub fn until_confirmed(expected_ttft_ms: f64) -> Self {
        // A float cast saturates and takes what is not a number as zero.
        let for_ms = PLACEMENT_MS.saturating_add(expected_ttft_ms as u32).min(MAX_PLACEMENT_MS);
        Self::Expiring { for_ms }
    }

    /// For a worker without events.
    pub fn recent(capacity_blocks: Option<u32>) -> Self {
        Self::Recent { capacity_blocks: capacity_blocks.unwrap_or(ASSUMED_CAPACITY_BLOCKS) }
    }
}
