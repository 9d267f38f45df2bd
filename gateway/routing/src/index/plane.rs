//! In what way a worker has a block: memory tiers, attention groups, and the reasons to believe in it.

use crate::WorkerId;

/// Where an engine keeps a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The memory that prefill reads.
    #[default]
    Device,
    /// Host memory.
    Host,
    /// A local disk.
    Disk,
    /// Storage that other machines share.
    Remote,
}

/// What an attention group needs of a prefix to continue from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Every block from the start.
    Full,
    /// The last blocks only.
    Window {
        /// How many: `ceil((window tokens − 1) / block size)`, at least one.
        blocks: u32,
    },
    /// The state after the last block: a checkpoint there.
    State,
    /// Something that is not modelled here: treated as [`GroupKind::Full`], and what remains of the error is learned.
    Unknown,
}

/// Which cache of an engine an event speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Memory tier.
    pub tier: Tier,
    /// Attention group, as the engine numbers them. Engines with one kind of attention have group 0 alone.
    pub group: u32,
}

impl Place {
    /// Device memory, first group: what engines without tiers and groups speak of.
    pub const DEVICE: Self = Self { tier: Tier::Device, group: 0 };
}

/// Groups of one worker that are told apart. A further one makes the worker's hits *corrected*.
pub const MAX_GROUPS: usize = 16;

/// One way of having a block. Planes of a worker in a segment are records beside each other, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Plane(pub(super) u8);

impl Plane {
    /// Events say that it is in device memory, in a group that needs every block.
    pub(super) const HELD: Self = Self(0);
    /// A worker without events used it recently.
    pub(super) const RECENT: Self = Self(1);
    /// This gateway just sent it there; counts until the tick in [`Plane::UNTIL`].
    pub(super) const PLACED: Self = Self(2);
    /// No bits but the tick at which [`Plane::PLACED`] ends.
    pub(super) const UNTIL: Self = Self(3);
    /// The engine once missed the block although it was held: its count of copies is not to be trusted.
    pub(super) const DOUBTED: Self = Self(4);
    /// Events were lost since the block was last seen: held with some probability.
    pub(super) const UNSURE: Self = Self(5);
    const FIRST_TIER: u8 = 6;
    const FIRST_GROUP: u8 = 16;

    /// Full attention, by tier.
    pub(super) fn tier(tier: Tier) -> Self {
        match tier {
            Tier::Device => Self::HELD,
            Tier::Host => Self(Self::FIRST_TIER),
            Tier::Disk => Self(Self::FIRST_TIER + 1),
            Tier::Remote => Self(Self::FIRST_TIER + 2),
        }
    }

    /// The `at`th further group in device memory.
    pub(super) fn group(at: usize) -> Self {
        Self(Self::FIRST_GROUP + (at % MAX_GROUPS) as u8)
    }

    /// Which tier below the device it is: 0 host, 1 disk, 2 remote.
    pub(super) fn as_lower_tier(self) -> Option<usize> {
        (Self::FIRST_TIER..Self::FIRST_TIER + 3).contains(&self.0).then(|| usize::from(self.0 - Self::FIRST_TIER))
    }

    /// Which further group it is.
    pub(super) fn as_group(self) -> Option<usize> {
        self.0.checked_sub(Self::FIRST_GROUP).map(usize::from)
    }

    /// Whether its bits are blocks that the worker has, as opposed to what is known of them.
    pub(super) fn is_membership(self) -> bool {
        !matches!(self, Self::UNTIL | Self::DOUBTED | Self::UNSURE)
    }

    /// Whether events make it: those planes end when the engine drops its cache.
    pub(super) fn is_from_events(self) -> bool {
        self != Self::RECENT
    }

    /// Whether a hit cannot be told from the device's plane alone.
    pub(super) fn is_special(self) -> bool {
        self.0 >= Self::UNSURE.0
    }
}

/// Sort keys of one worker.
pub(super) const PLANES: u64 = 256;

/// Sort key of a record: worker, then plane.
pub(super) fn key(worker: WorkerId, plane: Plane) -> u64 {
    base(worker) | u64::from(plane.0)
}

/// Sort key before all planes of `worker`.
pub(super) fn base(worker: WorkerId) -> u64 {
    u64::from(worker.slot) << 40 | u64::from(worker.generation) << 8
}

/// The worker of a sort key.
pub(super) fn worker(key: u64) -> WorkerId {
    WorkerId::new((key >> 40) as u32, (key >> 8) as u32)
}

/// The plane of a sort key.
pub(super) fn plane(key: u64) -> Plane {
    Plane(key as u8)
}
