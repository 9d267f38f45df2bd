//! The fleet as one decision sees it: an immutable snapshot in which every signal carries its age.

use crate::WorkerId;

/// Published by the fleet owner through an atomic swap.
#[derive(Clone, Debug, Default)]
pub struct FleetView {
    /// Increases with every publication.
    pub version: u64,
    /// Dense; a worker's position here is *not* its slot.
    pub workers: Vec<WorkerView>,
    /// Served models.
    pub models: Vec<ModelView>,
}

/// One served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelView {
    /// Name clients use.
    pub name: String,
    /// Positions in [`FleetView::workers`].
    pub workers: Vec<u32>,
    /// Block sizes in use among those workers, ascending, without duplicates.
    pub block_sizes: Vec<u32>,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Identity.
    pub id: WorkerId,
    /// Data-parallel rank behind the base URL, `None` when the engine has one rank or places by itself.
    pub rank: Option<u16>,
    /// May it be picked?
    pub state: WorkerState,
    /// Tokens per KV block, `None` until learned.
    pub block_size: Option<u32>,
    /// KV capacity in blocks, `None` until learned.
    pub capacity_blocks: Option<u32>,
    /// How its cache is known.
    pub cache: CacheKnowledge,
    /// What the engine last said of itself; `None` = unknown, never zero.
    pub engine: Option<EngineLoad>,
    /// Learned rates.
    pub rates: Rates,
}

/// Whether and why a worker takes traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerState {
    /// Registered, never answered yet.
    Starting,
    /// Takes traffic.
    Ready,
    /// Finishes what it has, takes nothing new.
    Draining,
    /// Passively ejected: failed live traffic, waits for its probe.
    Ejected,
    /// Fails its health checks.
    Down,
}

/// Where knowledge of a worker's cache comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheKnowledge {
    /// The engine's own KV events, without an open gap.
    Events,
    /// Own decisions, corrected by `cached_tokens`.
    Approximate,
}

/// Load as the engine reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineLoad {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests queued inside the engine.
    pub waiting: u32,
    /// KV cache in use, 0 to 1.
    pub kv_usage: f32,
    /// When it was read, ms on the gateway's monotonic clock.
    pub at_ms: u64,
}

/// prefill_ms(c, u) = α·((c+u)² − c²) + β·u + γ; decode step in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Quadratic term, ms per token².
    pub alpha: f64,
    /// Linear term, ms per token.
    pub beta: f64,
    /// Constant per prefill, ms.
    pub gamma: f64,
    /// Decode step, ms per token of one request at the present load.
    pub decode_ms: f64,
}

/// What this gateway has in flight at one worker, read from atomics at decision time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalLoad {
    /// Requests in flight, `n` counted.
    pub requests: u32,
    /// Uncached prompt tokens whose first token has not come back yet.
    pub prefill_tokens: u32,
    /// Prompt and generated tokens of requests that are decoding.
    pub decode_tokens: u32,
}
