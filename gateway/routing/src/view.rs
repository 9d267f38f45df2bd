//! The fleet as one decision sees it: an immutable snapshot in which every signal carries its age.

use crate::WorkerId;
use crate::block::DomainSpec;
pub use crate::foreign::KernelLoad;
use crate::index::Retention;
pub use crate::rates::Rates;

/// Published by the fleet owner through an atomic swap.
#[derive(Clone, Debug, Default)]
pub struct FleetView {
    /// Increases with every publication.
    pub version: u64,
    /// Dense, ascending by [`WorkerView::id`]; a worker's position here is *not* its slot.
    pub workers: Vec<WorkerView>,
    /// Served models. A model keeps its position for the life of the fleet, also while nobody serves it.
    pub models: Vec<ModelView>,
}

impl FleetView {
    /// Position of the model that clients call `name`, served or not at the moment.
    pub fn model(&self, name: &str) -> Option<u32> {
        self.models.iter().position(|model| model.name == name).map(|position| position as u32)
    }

    /// Position of `worker`; `None` once that generation is gone. O(log workers).
    pub fn position(&self, worker: WorkerId) -> Option<u32> {
        self.workers.binary_search_by_key(&worker, |view| view.id).ok().map(|position| position as u32)
    }

    /// The worker named `worker`; `None` once that generation is gone.
    pub fn worker(&self, worker: WorkerId) -> Option<&WorkerView> {
        self.position(worker).and_then(|position| self.workers.get(position as usize))
    }
}

/// One served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelView {
    /// Name clients use.
    pub name: String,
    /// The model whose weights are behind an alias or adapter; `None` when `name` is that model itself.
    pub base: Option<String>,
    /// Whether `name` is a LoRA adapter of `base`: its blocks are then never shared with the base model's.
    pub lora: bool,
    /// Positions in [`FleetView::workers`], ascending.
    pub workers: Vec<u32>,
    /// Block sizes in use among those workers, ascending, without duplicates.
    pub block_sizes: Vec<u32>,
}

impl ModelView {
    /// The model that block hashes name: an adapter or alias shares its base model's.
    pub fn domain_model(&self) -> &str {
        self.base.as_deref().unwrap_or(&self.name)
    }

    /// The adapter that block hashes name, `None` unless this is one.
    pub fn domain_lora(&self) -> Option<&str> {
        self.lora.then_some(self.name.as_str())
    }

    /// Domain of a request for this model.
    pub fn domain<'a>(
        &'a self,
        tokenizer_digest: &'a [u8],
        block_size: u32,
        cache_salt: Option<&'a str>,
    ) -> DomainSpec<'a> {
        DomainSpec { model: self.domain_model(), tokenizer_digest, block_size, lora: self.domain_lora(), cache_salt }
    }
}

/// One worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Identity.
    pub id: WorkerId,
    /// Hash of base URL and rank: equal in every gateway, so that rings agree where slots do not.
    pub affinity: u64,
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
    /// What the node agent last said of load that is not this gateway's; `None` = unknown, never zero.
    pub kernel: Option<KernelLoad>,
    /// The node's fabric, for choices that move KV blocks; `None` = unknown.
    pub fabric: Option<FabricLoad>,
    /// Learned rates.
    pub rates: Rates,
    /// Uncached prompt tokens of a usual request there: what requests of others that wait in its engine are taken for.
    pub typical_tokens: u32,
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests queued inside the engine.
    pub waiting: u32,
    /// KV cache in use, 0 to 1.
    pub kv_usage: f32,
    /// When it was read, ms on the gateway's monotonic clock.
    pub at_ms: u64,
    /// This gateway's own requests there at that time: what is beyond them is others'.
    pub own_requests: u32,
    /// Those of them that waited for their first token.
    pub own_waiting: u32,
}

impl EngineLoad {
    /// Requests of others.
    pub fn others(&self) -> u32 {
        self.running.saturating_add(self.waiting).saturating_sub(self.own_requests)
    }

    /// Requests of others that wait.
    pub fn others_waiting(&self) -> u32 {
        self.waiting.saturating_sub(self.own_waiting)
    }
}

/// How busy and how healthy the links of a worker's node are, the worst of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FabricLoad {
    /// Share of the link's rate in use, 0 to 1; `None` where the rate is unknown.
    pub utilisation: Option<f32>,
    /// Congestion notifications obeyed in a second; `None` where they are not counted.
    pub congestion_per_s: Option<f32>,
    /// Whether a link was lost or had to send again within the last seconds.
    pub degraded: bool,
    /// When it was so, ms on the gateway's monotonic clock.
    pub at_ms: u64,
}

impl WorkerView {
    /// How an own placement at this worker is remembered. `expected_ttft_ms` is the prediction for that request: events
    /// can confirm it only after its prefill.
    pub fn retention(&self, expected_ttft_ms: f64) -> Retention {
        match self.cache {
            CacheKnowledge::Events => Retention::until_confirmed(expected_ttft_ms),
            CacheKnowledge::Approximate => Retention::recent(self.capacity_blocks),
        }
    }
}

/// What this gateway has in flight at one worker, read from atomics at decision time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalLoad {
    /// Requests in flight, `n` counted.
    pub requests: u32,
    /// Of those, how many still wait for their first token.
    pub prefill_requests: u32,
    /// Uncached prompt tokens of the requests that wait for their first token.
    pub prefill_tokens: u32,
    /// Sum of [`LocalLoad::squares`] over the same requests: the part of their prefill that grows with the context.
    pub prefill_squares: u64,
    /// Prompt and generated tokens of requests that are decoding.
    pub decode_tokens: u32,
}

impl LocalLoad {
    /// (c + u)² − c² for a prompt of `prompt_tokens` of which `uncached_tokens` are computed; what a reservation adds to
    /// [`LocalLoad::prefill_squares`] and takes away with the first token.
    pub fn squares(prompt_tokens: u32, uncached_tokens: u32) -> u64 {
        let prompt = u64::from(prompt_tokens);
        let cached = u64::from(prompt_tokens.saturating_sub(uncached_tokens));
        prompt * prompt - cached * cached
    }

    /// Tokens that a decode step there will read once all prompts are computed, apart from cached parts of those that wait.
    pub fn context_tokens(&self) -> f64 {
        f64::from(self.decode_tokens) + f64::from(self.prefill_tokens)
    }

    /// Requests past their first token.
    pub fn decoding(&self) -> u32 {
        self.requests.saturating_sub(self.prefill_requests)
    }
}
