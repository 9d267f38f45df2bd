//! What a choice costs, in ms: one pure function for each term, and their sum.
//!
//! ```text
//! queue     prefill of own requests that still wait for their first token
//! + waiting   what the engine reports beyond that (requests of others)
//! + prefill   this prompt, uncached tokens after cached ones
//! + foreign   what only the kernel on its node sees beyond that (module `foreign`)
//! + room      wait for free KV blocks when running requests hold nearly all
//! ──────────  predicted time to first token
//! + harm      own prefill × requests that it delays
//! + decode    how much slower this answer comes beside the contexts that are there
//! + crowd     how much slower the answers there come beside this context
//! + evict     what the new blocks will push out
//! ──────────  cost
//! ```
//!
//! Decoding counts although it comes after the first token: every token of every answer there waits for the longest context,
//! so that a fleet that minds prefill alone packs long contexts where their prefix is, and all answers there crawl.
//!
//! Queue cost is what makes a hot prefix spread: once waiting for its holder takes longer than computing it elsewhere,
//! the next request goes elsewhere, and from then on there are two holders.
//!
//! An engine that says nothing, or said it longer than [`MAX_LOAD_AGE_MS`] ago, is *unknown*, and neither idle nor busy:
//! the terms that only engines can tell are then taken to be the least that any other candidate reports. So silence never
//! makes a worker more attractive than the best that is known, and with no report at all nothing changes between workers.

use crate::facts::RequestFacts;
use crate::foreign::{self, Counts};
use crate::index::Hits;
use crate::view::{EngineLoad, LocalLoad, Rates, WorkerView};

/// Readings older than this are unknown: three scrapes at the usual one a second.
pub const MAX_LOAD_AGE_MS: u64 = 3_000;
/// How much a ms of delay for each running request counts against a ms of one's own prefill. Published fits of routing
/// utilities weigh "uncached tokens × active requests" at 0.525 against 1.275 for the uncached tokens themselves.
pub const HARM_WEIGHT: f64 = 0.4;
/// How much a ms by which the tokens of this answer, and of the others there, come later counts.
pub const DECODE_WEIGHT: f64 = 1.0;
/// Of the others' tokens, the part that is still to come and late enough to matter. Half are still to come; with a quarter
/// the simulated fleets served slightly more in bursts and nowhere less.
const OTHERS_LEFT: f64 = 0.25;

/// How much a computed token counts for what it evicts, in times of computing a token, at a cache that running requests
/// fill. Whatever is evicted may have to be computed again, delays who waits meanwhile and evicts in turn. Chosen by
/// simulation: with caches too small for their conversations it lowered mean and p99 TTFT by up to a tenth and a sixth; with
/// ample ones, and for one hot prefix, it changes nothing that can be measured.
pub const EVICTION_WEIGHT: f64 = 10.0;

/// Terms of one worker's cost, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Own requests ahead.
    pub queue_ms: f64,
    /// Requests ahead that only the engine knows.
    pub waiting_ms: f64,
    /// This prompt.
    pub prefill_ms: f64,
    /// Wait for free KV blocks.
    pub room_ms: f64,
    /// Delay of own requests there, weighted.
    pub harm_ms: f64,
    /// Delay of requests that only the engine knows, weighted.
    pub waiting_harm_ms: f64,
    /// Delay of this answer's tokens by own requests there.
    pub decode_ms: f64,
    /// Delay of own requests' tokens there by this one's context.
    pub crowd_ms: f64,
    /// Prefixes that are pushed out.
    pub evict_ms: f64,
    /// Requests ahead that only the kernel sees, beyond `waiting_ms`.
    pub foreign_ms: f64,
    /// Delay of requests that only the kernel sees, weighted, beyond `waiting_harm_ms`.
    pub foreign_harm_ms: f64,
}

impl Terms {
    /// Predicted time to first token.
    pub fn ttft_ms(&self) -> f64 {
        self.queue_ms + self.waiting_ms + self.foreign_ms + self.prefill_ms + self.room_ms
    }

    /// What this gateway knows by itself.
    pub fn own_ms(&self) -> f64 {
        self.queue_ms + self.prefill_ms + self.harm_ms + self.decode_ms + self.crowd_ms
    }

    /// What only the kernel on its node sees.
    pub fn kernel_ms(&self) -> f64 {
        self.foreign_ms + self.foreign_harm_ms
    }

    /// What only the engine can tell.
    pub fn engine_ms(&self) -> f64 {
        self.waiting_ms + self.room_ms + self.waiting_harm_ms + self.evict_ms
    }
}

/// One worker as scored for one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Predicted cached tokens, after the last-token rule.
    pub cached_tokens: u32,
    /// Prompt tokens to compute.
    pub uncached_tokens: u32,
    /// What it costs.
    pub terms: Terms,
    /// Whether the engine's terms are known; they are zero otherwise.
    pub engine_known: bool,
}

impl Score {
    /// What is known without the engine.
    pub(crate) fn own_ms(&self) -> f64 {
        self.terms.own_ms() + if self.engine_known { 0.0 } else { self.terms.kernel_ms() }
    }

    /// What the engine tells, with what the kernel sees beyond it; `None` where the engine is silent.
    pub(crate) fn added_ms(&self) -> Option<f64> {
        self.engine_known.then(|| self.terms.engine_ms() + self.terms.kernel_ms())
    }

    /// Adds what requests cost that only the kernel sees.
    pub(crate) fn with_foreign(mut self, worker: &WorkerView, counts: Option<Counts>) -> Self {
        if let Some(counts) = counts {
            (self.terms.foreign_ms, self.terms.foreign_harm_ms) = foreign::terms(worker, &self.terms, counts);
        }
        self
    }
}

/// Scores `worker` for a request, by what this gateway and the engine know.
pub fn score(facts: &RequestFacts<'_>, hits: &[Hits], worker: &WorkerView, local: &LocalLoad, now_ms: u64) -> Score {
    let cached_tokens = cached_tokens(facts, hits, worker);
    let uncached_tokens = facts.prompt_tokens.saturating_sub(cached_tokens);
    let prefill_ms = worker.rates.prefill_ms(cached_tokens, uncached_tokens);
    let queue_ms = worker.rates.queued_ms(local);
    let mut terms = Terms {
        queue_ms,
        prefill_ms,
        harm_ms: harm_ms(prefill_ms, local.requests),
        decode_ms: decode_ms(&worker.rates, facts, local),
        crowd_ms: crowd_ms(&worker.rates, facts, local.requests),
        ..Terms::default()
    };
    let engine = fresh(worker.engine, now_ms);
    if let Some(engine) = engine {
        terms.waiting_ms = waiting_ms(&worker.rates, engine.others_waiting(), worker.typical_tokens);
        terms.waiting_harm_ms = harm_ms(prefill_ms, engine.others());
        terms.evict_ms = evict_ms(&worker.rates, uncached_tokens, engine.kv_usage);
        terms.room_ms = room_ms(worker, &engine, local.prefill_tokens.saturating_add(uncached_tokens), facts);
    }
    Score { cached_tokens, uncached_tokens, terms, engine_known: engine.is_some() }
}

/// The engine's reading if it is young enough to mean anything.
pub fn fresh(engine: Option<EngineLoad>, now_ms: u64) -> Option<EngineLoad> {
    engine.filter(|load| now_ms.saturating_sub(load.at_ms) <= MAX_LOAD_AGE_MS)
}

/// Requests there: own ones, and what the engine reported beyond those that were own at that time.
pub fn requests(worker: &WorkerView, local: &LocalLoad, now_ms: u64) -> (u32, Option<u32>) {
    (local.requests, fresh(worker.engine, now_ms).map(|load| load.others()))
}

/// Tokens of the prompt that `worker` holds, as the engine would count them: whole blocks, and never the last token of the
/// prompt, which is always computed.
pub fn cached_tokens(facts: &RequestFacts<'_>, hits: &[Hits], worker: &WorkerView) -> u32 {
    let Some(block_size) = worker.block_size.filter(|&size| size > 0 && facts.exact) else { return 0 };
    let Some(at) = facts.chains.iter().position(|chain| chain.block_size == block_size) else { return 0 };
    let blocks = hits.get(at).map_or(0, |hits| hits.of(worker.id));
    blocks.min(facts.prompt_tokens.saturating_sub(1) / block_size) * block_size
}

/// Work of others that waits in an engine. Their requests are taken to be usual ones.
pub fn waiting_ms(rates: &Rates, waiting: u32, typical_tokens: u32) -> f64 {
    let typical = LocalLoad {
        requests: waiting,
        prefill_requests: waiting,
        prefill_tokens: waiting.saturating_mul(typical_tokens),
        prefill_squares: u64::from(waiting).saturating_mul(LocalLoad::squares(typical_tokens, typical_tokens)),
        decode_tokens: 0,
    };
    rates.queued_ms(&typical)
}

/// Wait until `needed_tokens` more fit beside the running requests: these give back all they hold within about the time of
/// one answer, so a lack of a share of it lasts that share of the time.
fn room_ms(worker: &WorkerView, engine: &EngineLoad, needed_tokens: u32, facts: &RequestFacts<'_>) -> f64 {
    let (Some(capacity), Some(block_size)) = (worker.capacity_blocks, worker.block_size) else { return 0.0 };
    let capacity_tokens = f64::from(capacity) * f64::from(block_size);
    let used = capacity_tokens * f64::from(engine.kv_usage);
    let lacking = f64::from(needed_tokens) - (capacity_tokens - used);
    if lacking <= 0.0 || used <= 0.0 {
        return 0.0;
    }
    (lacking / used).min(1.0) * f64::from(facts.output_tokens) * worker.rates.decode_ms
}

/// Delay that this prefill causes to the `requests` that are there before it: those that decode are slowed while it is
/// computed, and those that wait now will be decoding by then.
pub fn harm_ms(prefill_ms: f64, requests: u32) -> f64 {
    HARM_WEIGHT * prefill_ms * f64::from(requests)
}

/// Delay of this answer by the contexts that are there already.
fn decode_ms(rates: &Rates, facts: &RequestFacts<'_>, local: &LocalLoad) -> f64 {
    DECODE_WEIGHT * f64::from(facts.output_tokens) * rates.context_ms * local.context_tokens()
}

/// Delay of the answers of `requests` there by the context of this one, half of its own answer included.
fn crowd_ms(rates: &Rates, facts: &RequestFacts<'_>, requests: u32) -> f64 {
    let answer = f64::from(facts.output_tokens);
    let context = f64::from(facts.prompt_tokens) + answer / 2.0;
    DECODE_WEIGHT * OTHERS_LEFT * answer * rates.context_ms * context * f64::from(requests)
}

/// Harm to cached prefixes: each computed block takes the place of the one unused for longest, and the more of the cache
/// running requests hold, the fresher that one is.
pub fn evict_ms(rates: &Rates, uncached_tokens: u32, kv_usage: f32) -> f64 {
    EVICTION_WEIGHT * rates.beta * f64::from(uncached_tokens) * f64::from(kv_usage)
}
