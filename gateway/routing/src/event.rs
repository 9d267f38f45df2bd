//! What happens to a fleet, and the reducer that turns it into a [`FleetView`](crate::FleetView).
//!
//! ```text
//! discovery ─ Joined, Left ──────────┐
//! health ─── StateChanged ───────────┤
//! scrapes ── LoadReported, Cache… ───┤
//! agents ─── KernelReported ─────────┼─► FleetState::apply ─► Effect      (what the owner must do elsewhere)
//! feeds ──── Restarted, Knowledge… ──┤        └► FleetState::view ─► FleetView  (what decisions read)
//! exchanges ─ Observed ──────────────┘
//! ```
//!
//! Invariants, whatever the order of events (a property test feeds random ones):
//! - an event never panics; one that names a worker of the past changes nothing and says so;
//! - a [`WorkerId`] names one worker for ever: a slot's generation moves on with every departure and restart, and a freed
//!   slot rests for [`SLOT_REST_MS`] before it is given away;
//! - a worker that left is in no view made afterwards;
//! - a model keeps its position in the view; workers and positions are ascending.

mod roster;
#[cfg(test)]
mod tests;

pub use roster::FleetState;

use crate::WorkerId;
use crate::rates::Observation;
use crate::view::{CacheKnowledge, EngineLoad, FabricLoad, KernelLoad, WorkerState};

/// Workers at once; bounds the slot table here and the generation table of the index.
pub const MAX_WORKERS: usize = 16_384;
/// Model names at once, aliases and adapters counted: each is a metric label and a row in every view.
pub const MAX_MODELS: usize = 4_096;
/// Names that one worker may serve: an engine that lists more is broken or hostile.
pub const MAX_NAMES_PER_WORKER: usize = 1_024;
/// A freed slot rests so long before another worker gets it, so that the index can sweep what the last one left and a
/// flapping worker does not race through generations.
pub const SLOT_REST_MS: u64 = 30_000;

/// What makes a worker that worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerKey {
    /// Model as the engine serves it: the base model, not an adapter.
    pub model: String,
    /// Base URL.
    pub url: String,
    /// Data-parallel rank, `None` when the engine has one rank or places by itself.
    pub rank: Option<u16>,
}

/// A further name under which a worker serves its model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServedName {
    /// Name clients use.
    pub name: String,
    /// Whether it is a LoRA adapter (its blocks are its own) or an alias (its blocks are the base model's).
    pub lora: bool,
}

/// One change in the fleet.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetEvent {
    /// A worker was found. It starts in [`WorkerState::Starting`] with approximate cache knowledge.
    Joined {
        /// Who.
        key: WorkerKey,
        /// Hardware class where it is known: workers of one class share what they learn about rates.
        hardware: Option<String>,
        /// Tokens per block where configured.
        block_size: Option<u32>,
        /// Monotonic time.
        at_ms: u64,
    },
    /// A worker is gone for good.
    Left {
        /// Who.
        worker: WorkerId,
        /// Monotonic time.
        at_ms: u64,
    },
    /// The engine behind a worker was proven to have restarted: same slot, next generation, empty cache.
    Restarted {
        /// Who, by its generation before the restart.
        worker: WorkerId,
    },
    /// All further names that a worker serves (aliases, adapters); replaces the list of before.
    NamesLearned {
        /// Who.
        worker: WorkerId,
        /// Names beside `WorkerKey::model`.
        names: Vec<ServedName>,
    },
    /// Health, ejection or draining changed.
    StateChanged {
        /// Who.
        worker: WorkerId,
        /// New state.
        state: WorkerState,
    },
    /// A reading of the engine's load. One that is older than the last is ignored.
    LoadReported {
        /// Who.
        worker: WorkerId,
        /// The reading.
        load: EngineLoad,
    },
    /// The engine stopped telling its load: unknown from now on.
    LoadLost {
        /// Who.
        worker: WorkerId,
    },
    /// What the node agent sees of load that is not this gateway's. One that is older than the last is ignored.
    KernelReported {
        /// Who.
        worker: WorkerId,
        /// Foreign load.
        load: KernelLoad,
        /// The node's fabric, where it has one.
        fabric: Option<FabricLoad>,
    },
    /// Facts of the engine's KV cache; `None` leaves a fact as it was, zero is refused.
    CacheLearned {
        /// Who.
        worker: WorkerId,
        /// Tokens per block.
        block_size: Option<u32>,
        /// Capacity in blocks.
        capacity_blocks: Option<u32>,
    },
    /// An event feed became trustworthy or was lost.
    KnowledgeChanged {
        /// Who.
        worker: WorkerId,
        /// How the cache is known from now on.
        cache: CacheKnowledge,
    },
    /// A finished exchange taught something about rates.
    Observed {
        /// Who.
        worker: WorkerId,
        /// What was measured.
        observation: Observation,
    },
}

/// What an event did, and what its owner must do beyond the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A worker got this identity: connect its feed.
    Joined(WorkerId),
    /// The key was there already under this identity; nothing changed.
    Known(WorkerId),
    /// This identity is dead: forget it in the index, stop its feed, drop its endpoint.
    Left(WorkerId),
    /// `old` is dead and `new` stands in its slot: forget `old` in the index, go on under `new`.
    Restarted {
        /// Identity of before.
        old: WorkerId,
        /// Identity from now on.
        new: WorkerId,
    },
    /// The next view differs.
    Changed,
    /// Nothing changed.
    Unchanged,
    /// Refused, and why.
    Refused(EventRefusal),
}

/// Why an event was refused; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventRefusal {
    /// No worker of that generation exists.
    UnknownWorker,
    /// [`MAX_WORKERS`] slots are taken, resting or retired.
    FleetFull,
    /// A name was left out: [`MAX_MODELS`] or [`MAX_NAMES_PER_WORKER`] are used up, or it already means another base.
    NameLeftOut,
    /// A value that cannot be true (zero block size, a usage that is not a number).
    Absurd,
}
