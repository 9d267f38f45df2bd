//! What engines call memories and attention groups → what the index calls them.

use super::batch::Place;
use forebay_routing::index::{GroupKind, Tier};

/// Names of memories by tier. vLLM: `GPU`, `CPU`, `STORAGE`; SGLang: `CPU_PINNED`, `DISK`, `EXTERNAL`; others in the wild.
const TIERS: [(Tier, &[&str]); 4] = [
    (Tier::Device, &["GPU", "DEVICE", "HBM"]),
    (Tier::Host, &["CPU", "CPU_PINNED", "CPU_TIER1", "HOST"]),
    (Tier::Disk, &["DISK", "STORAGE", "NVME", "SSD", "CPU_TIER2"]),
    (Tier::Remote, &["EXTERNAL", "REMOTE", "NETWORK", "SHARED"]),
];

/// Every tier, the device's first.
pub(super) const ALL_TIERS: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote];

impl Place<'_> {
    /// The memory that is meant; the device's when none is named, as in releases that had one only. `None` for a name that
    /// is not known: a block that is somewhere else must not count as if it were here.
    pub(super) fn tier(&self) -> Option<Tier> {
        match self.locality {
            None => {}
            Some(text) if text.eq_ignore_ascii_case("local") => {}
            Some(text) if text.eq_ignore_ascii_case("remote") => return Some(Tier::Remote),
            Some(_) => return None,
        }
        let Some(medium) = self.medium else { return Some(Tier::Device) };
        let is_named = |(_, names): &&(Tier, &[&str])| names.iter().any(|name| name.eq_ignore_ascii_case(medium));
        TIERS.iter().find(is_named).map(|(tier, _)| *tier)
    }

    /// What the group needs of a prefix, `block_size` tokens a block. A kind that is not known is said to be so: hits of
    /// such a worker are corrected by what its answers teach.
    pub(super) fn group_kind(&self, block_size: u32) -> GroupKind {
        match self.kind {
            Some("full_attention" | "mla_attention" | "sink_full_attention") => GroupKind::Full,
            Some("sliding_window" | "sliding_window_mla") => match self.window_tokens {
                Some(window) => {
                    GroupKind::Window { blocks: window.saturating_sub(1).div_ceil(block_size.max(1)).max(1) }
                }
                None => GroupKind::Unknown,
            },
            Some("mamba" | "linear_attention" | "short_conv") => GroupKind::State,
            Some(_) => GroupKind::Unknown,
            // Before kinds were told the first group was the full one.
            None if self.group.unwrap_or(0) == 0 => GroupKind::Full,
            None => GroupKind::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_by_their_many_names() {
        let tier = |medium, locality| Place { medium, locality, ..Place::default() }.tier();
        assert_eq!(tier(None, None), Some(Tier::Device));
        for (name, want) in [
            ("GPU", Some(Tier::Device)),
            ("gpu", Some(Tier::Device)),
            ("CPU_PINNED", Some(Tier::Host)),
            ("STORAGE", Some(Tier::Disk)),
            ("EXTERNAL", Some(Tier::Remote)),
            ("TAPE", None),
        ] {
            assert_eq!(tier(Some(name), Some("LOCAL")), want, "{name}");
        }
        assert_eq!(tier(Some("GPU"), Some("REMOTE")), Some(Tier::Remote));
        assert_eq!(tier(Some("GPU"), Some("ELSEWHERE")), None, "where that is nobody knows");
    }

    #[test]
    fn groups_by_what_they_need() {
        let kind = |kind, group, window_tokens| Place { kind, group, window_tokens, ..Place::default() }.group_kind(16);
        assert_eq!(kind(None, None, None), GroupKind::Full);
        assert_eq!(kind(None, Some(1), None), GroupKind::Unknown);
        assert_eq!(kind(Some("mla_attention"), Some(3), None), GroupKind::Full);
        assert_eq!(kind(Some("sliding_window"), Some(1), Some(4_096)), GroupKind::Window { blocks: 256 });
        assert_eq!(kind(Some("sliding_window"), Some(1), Some(1)), GroupKind::Window { blocks: 1 });
        assert_eq!(kind(Some("sliding_window"), Some(1), None), GroupKind::Unknown);
        assert_eq!(kind(Some("mamba"), Some(2), None), GroupKind::State);
        assert_eq!(kind(Some("something_new"), Some(0), None), GroupKind::Unknown);
    }
}
