//! The engine itself, in virtual time: what a continuous-batching server with a paged, prefix-cached KV cache does.
//!
//! Pure: no clock, no I/O, no threads, no randomness. A driver (the live server or a simulator) calls
//! [`Model::submit`] when a request arrives, [`Model::step`] when the engine is free, waits until
//! [`StepOutcome::ends_at_us`], hands out what the step produced, and calls `step` again. [`Model::abort`] may come at
//! any moment between two steps.
//!
//! ```text
//!             ┌───────────── preempted (last admitted first, recomputed later) ──────────────┐
//!             ▼                                                                              │
//! submit ─► waiting ──(prefix looked up, blocks for the next chunk found)──► running ──► finished
//!                                                                              │
//!                              abort, at any place, frees the blocks ◄─────────┘
//! ```
//!
//! Rules, all of them vLLM's:
//! - one step serves the running requests first, in order of admission, then admits waiting ones in order of arrival,
//!   within `max_batched_tokens` and `max_sequences`; a prompt that does not fit is prefilled in chunks;
//! - a prefix hit covers complete blocks only and never the last token, so that there is always something to compute;
//! - a block becomes findable when the step that fills it is scheduled, whether prompt or output filled it;
//! - a prompt that was wholly cached recomputes its last block into a second copy, published and removed on its own;
//! - when no block is free the request admitted last loses its blocks and starts again from what the cache still has.
//!
//! Invariants: every block is either free or held by at least one running request; the oldest running request always
//! fits, so that every request ends ([`Limits::max_model_tokens`] never exceeds the cache).

pub mod curve;
pub mod hash;
pub mod pool;
pub mod request;
mod schedule;

#[cfg(test)]
mod tests;

pub use curve::Curve;
pub use hash::{BlockHash, Domain, Rule};
pub use pool::{BlockPool, CacheEvent, StoredBlocks};
pub use request::{FinishReason, Request, RequestId};

use hashbrown::HashMap;
use request::Sequence;
use std::collections::VecDeque;

/// What bounds one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Tokens of one KV block.
    pub block_tokens: usize,
    /// KV blocks of the cache.
    pub blocks: usize,
    /// Tokens that one step may compute.
    pub max_batched_tokens: usize,
    /// Requests that may run at once.
    pub max_sequences: usize,
    /// Longest prompt plus output, in tokens.
    pub max_model_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            blocks: 16_384,
            max_batched_tokens: 8_192,
            max_sequences: 256,
            max_model_tokens: 131_072,
        }
    }
}

/// Why a model or a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A limit of zero, or a context that the cache cannot hold.
    #[error("{0}")]
    BadLimits(String),
    /// Prompt plus output exceed the context.
    #[error("{tokens} tokens exceed the context of {limit}")]
    TooLong {
        /// Prompt plus output tokens.
        tokens: usize,
        /// `Limits::max_model_tokens`.
        limit: usize,
    },
    /// An empty prompt or an empty output.
    #[error("a request needs at least one prompt token and one output token")]
    Empty,
    /// Hashed for another block size.
    #[error("the request was hashed for blocks of another size")]
    BlockSize,
    /// Not one hash for each complete block.
    #[error("the request needs one hash for each complete block of prompt and output")]
    Hashes,
}

/// How much an engine is doing. Instantaneous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in the batch.
    pub running: usize,
    /// Requests that wait for admission, preempted ones included.
    pub waiting: usize,
    /// Blocks held by running requests, each counted once.
    pub used_blocks: usize,
}

/// One token that a step produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Whose token.
    pub id: RequestId,
    /// Its place in the output, from 0.
    pub position: usize,
    /// Set when it was the last one.
    pub finish: Option<FinishReason>,
}

/// A request that entered the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Which one.
    pub id: RequestId,
    /// Tokens taken from the prefix cache.
    pub cached_tokens: usize,
    /// Prompt length, tokens.
    pub prompt_tokens: usize,
    /// Time spent waiting, µs.
    pub waited_us: u64,
    /// Set when it had been preempted before.
    pub resumed: bool,
}

/// What one step did, all of it visible from `ends_at_us` on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// When it began, µs.
    pub began_at_us: u64,
    /// When it ends, µs; always later than `began_at_us`.
    pub ends_at_us: u64,
    /// Tokens produced, in batch order.
    pub produced: Vec<Produced>,
    /// Requests admitted, in order.
    pub admitted: Vec<Admitted>,
    /// Requests that lost their blocks, in order.
    pub preempted: Vec<RequestId>,
    /// Cache events in the order they happened; publish them as one batch.
    pub events: Vec<CacheEvent>,
    /// Prompt (and recomputed) tokens computed.
    pub prefill_tokens: usize,
    /// Requests that decoded one token.
    pub decode_tokens: usize,
    /// Load while the step runs.
    pub load: Load,
}

/// One engine: scheduler, block cache, cost curve.
#[derive(Debug)]
pub struct Model {
    limits: Limits,
    curve: Curve,
    speedup: f64,
    pool: BlockPool,
    sequences: HashMap<RequestId, Sequence>,
    waiting: VecDeque<RequestId>,
    running: Vec<RequestId>,
}

impl Model {
    /// An idle engine with an empty cache. Every step takes what `curve` says divided by `speedup`.
    pub fn new(limits: Limits, curve: Curve, speedup: f64) -> Result<Self, Refusal> {
        let bad = |what: &str| Err(Refusal::BadLimits(what.to_owned()));
        if limits.block_tokens == 0 || limits.blocks == 0 || limits.max_batched_tokens == 0 || limits.max_sequences == 0
        {
            return bad("block tokens, blocks, batched tokens and sequences must be at least 1");
        }
        if limits.max_model_tokens > limits.blocks.saturating_mul(limits.block_tokens) {
            return bad("the context must fit into the KV cache: lower max-model-len or raise the number of blocks");
        }
        if !(speedup.is_finite() && speedup > 0.0) {
            return bad("speedup must be a positive number");
        }
        let pool = BlockPool::new(limits.blocks, limits.block_tokens);
        Ok(Self {
            limits,
            curve,
            speedup,
            pool,
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
        })
    }

    /// Queues `request`, which arrived at `now_us`.
    pub fn submit(&mut self, now_us: u64, request: Request) -> Result<(), Refusal> {
        let tokens = request.prompt_tokens() + request.output_tokens();
        if request.prompt_tokens() == 0 || request.output_tokens() == 0 {
            return Err(Refusal::Empty);
        }
        if request.block_tokens() != self.limits.block_tokens {
            return Err(Refusal::BlockSize);
        }
        if request.hashes().len() != tokens / self.limits.block_tokens {
            return Err(Refusal::Hashes);
        }
        if tokens > self.limits.max_model_tokens {
            return Err(Refusal::TooLong { tokens, limit: self.limits.max_model_tokens });
        }
        let id = request.id();
        self.sequences.insert(id, Sequence::new(request, now_us));
        self.waiting.push_back(id);
        Ok(())
    }

    /// Forgets `id` and frees its blocks. `false` when it is not here (finished, or never was).
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(sequence) = self.sequences.remove(&id) else { return false };
        self.waiting.retain(|&other| other != id);
        self.running.retain(|&other| other != id);
        self.pool.release(&sequence.blocks);
        true
    }

    /// Empties the prefix cache; `false`, and nothing done, while any request holds blocks. The event is published by
    /// the next step, as the real engine does.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.clear()
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// What the engine is doing between steps.
    pub fn load(&self) -> Load {
        Load { running: self.running.len(), waiting: self.waiting.len(), used_blocks: self.pool.used() }
    }

    /// From the next step on, every step takes what the curve says divided by `speedup`; one that cannot be is ignored.
    pub fn set_speedup(&mut self, speedup: f64) {
        if speedup.is_finite() && speedup > 0.0 {
            self.speedup = speedup;
        }
    }

    /// Leading tokens of a prompt that the cache could serve now.
    pub fn findable_tokens(&self, hashes: &[BlockHash], prompt_tokens: usize) -> usize {
        self.pool.longest_prefix(hashes, prompt_tokens).len() * self.limits.block_tokens
    }

    /// Prompt tokens still to compute of the requests that are here, as (tokens before, tokens to compute), in no order. A
    /// waiting request counts with what the cache could serve it now.
    pub fn pending_prefill(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let running = self.running.iter().filter_map(|id| {
            let sequence = self.sequences.get(id).filter(|sequence| !sequence.decoding)?;
            Some((sequence.computed, sequence.known().saturating_sub(sequence.computed)))
        });
        let waiting = self.waiting.iter().filter_map(|id| {
            let sequence = self.sequences.get(id)?;
            let cached = self.findable_tokens(sequence.request.hashes(), sequence.known());
            Some((cached, sequence.known() - cached))
        });
        running.chain(waiting)
    }

    /// The limits it was built with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}
