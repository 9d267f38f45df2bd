//! One gateway: the routing core of the product, fed as the product feeds it.
//!
//! Index, ledgers, fleet reducer and loads are `forebay_routing`'s own; this file only does what the gateway's fleet owner,
//! event feeds and `serve.rs` do around them. Rivals see the same facts, hits, loads and readings through [`Ask`].

use crate::policy::{Ask, Router};
use forebay_engine::model::{BlockHash, CacheEvent};
use forebay_routing::block::{self, ChainHash, Domain, HashKey, LocalHash};
use forebay_routing::event::{Effect, WorkerKey};
use forebay_routing::facts::BlockChain;
use forebay_routing::index::ledger::{ExternalHash, Ledger};
use forebay_routing::index::{CacheReport, Hits, PrefixIndex};
use forebay_routing::rates::Observation;
use forebay_routing::view::{CacheKnowledge, EngineLoad, WorkerState};
use forebay_routing::{DecideInput, Decision, FleetEvent, FleetState, FleetView, LocalLoad, RequestFacts, WorkerId};
use std::sync::Arc;

/// Memory of one gateway's index; no run comes near.
const INDEX_BYTES: usize = 256 << 20;
/// What an answer is taken for before any was seen, and the weight of the past, as in the gateway.
const FIRST_OUTPUT_TOKENS: u32 = 256;
const OUTPUT_MEMORY: u32 = 5;
/// Where an engine's block hash carries what its tokens hash to, so that events need no tokens.
const LOCAL_BYTES: std::ops::Range<usize> = 0..8;

/// Hashes of one prompt and answer, as gateways and engines name blocks.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Length of the prompt.
    pub tokens: u32,
    /// Chain of its complete blocks.
    pub chains: [BlockChain; 1],
    /// For engines: every complete block of prompt and answer.
    pub hashes: Arc<[BlockHash]>,
    /// Conversation.
    pub session: u64,
}

impl Prompt {
    /// Hashes a request.
    pub fn new(key: &HashKey, request: &crate::workload::Request, block_tokens: u32) -> Self {
        let whole = (request.prompt_tokens / block_tokens) as usize;
        let mut chain = Vec::with_capacity(whole);
        let mut last = None;
        let engine = |(at, &local): (usize, &u64)| {
            let ChainHash(hash) = block::link(key, last, LocalHash(local));
            last = Some(ChainHash(hash));
            if at < whole {
                chain.push(ChainHash(hash));
            }
            let mut bytes = [0; 32];
            bytes[LOCAL_BYTES].copy_from_slice(&local.to_be_bytes());
            bytes[24..].copy_from_slice(&hash.to_be_bytes());
            BlockHash::from_bytes(bytes)
        };
        let hashes = request.blocks.iter().enumerate().map(engine).collect();
        let chains = [BlockChain { block_size: block_tokens, hashes: chain }];
        Self { tokens: request.prompt_tokens, chains, hashes, session: request.session }
    }
}

/// What one request was told to do, and what stood there.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Slot of the worker in the scenario.
    pub worker: usize,
    /// Its identity when the request was sent.
    pub id: WorkerId,
    /// Prompt tokens taken for cached.
    pub cached_tokens: u32,
    /// Prompt tokens to compute.
    pub uncached_tokens: u32,
    /// What was in flight there.
    pub load: LocalLoad,
    /// When, ms.
    pub at_ms: u64,
}

/// See the module page.
pub struct Gateway {
    key: HashKey,
    state: FleetState,
    view: FleetView,
    index: PrefixIndex,
    ledgers: Vec<Ledger>,
    /// Identity by worker of the scenario.
    ids: Vec<WorkerId>,
    /// In flight by worker of the scenario.
    loads: Vec<LocalLoad>,
    /// In the order of the view.
    local: Vec<LocalLoad>,
    hits: [Hits; 1],
    output_tokens: u32,
    cursor: u64,
    rng: fastrand::Rng,
    block_tokens: u32,
}

impl Gateway {
    /// A gateway that knows of no worker.
    pub fn new(key: HashKey, block_tokens: u32, seed: u64) -> Self {
        Self {
            key,
            state: FleetState::new(),
            view: FleetView::default(),
            index: PrefixIndex::with_budget(INDEX_BYTES),
            ledgers: Vec::new(),
            ids: Vec::new(),
            loads: Vec::new(),
            local: Vec::new(),
            hits: [Hits::default()],
            output_tokens: FIRST_OUTPUT_TOKENS,
            cursor: 0,
            rng: fastrand::Rng::with_seed(seed),
            block_tokens,
        }
    }

    /// A worker appears and is ready; workers join in the scenario's order.
    pub fn join(&mut self, capacity_blocks: u32, class: &str, now_ms: u64) {
        let key = WorkerKey { model: "m".to_owned(), url: format!("http://w{}", self.ids.len()), rank: None };
        let joined = FleetEvent::Joined {
            key,
            hardware: Some(class.to_owned()),
            block_size: Some(self.block_tokens),
            at_ms: now_ms,
        };
        let Effect::Joined(worker) = self.state.apply(joined) else { return };
        self.ids.push(worker);
        self.ledgers.push(Ledger::new(worker));
        self.loads.push(LocalLoad::default());
        let (block_size, capacity) = (Some(self.block_tokens), Some(capacity_blocks));
        self.state.apply(FleetEvent::CacheLearned { worker, block_size, capacity_blocks: capacity });
        self.state.apply(FleetEvent::KnowledgeChanged { worker, cache: CacheKnowledge::Events });
        self.set_state(self.ids.len() - 1, WorkerState::Ready);
    }

    /// Health or membership of a worker changed.
    pub fn set_state(&mut self, worker: usize, state: WorkerState) {
        self.state.apply(FleetEvent::StateChanged { worker: self.ids[worker], state });
    }

    /// A worker is gone for good.
    pub fn leave(&mut self, worker: usize, now_ms: u64) {
        self.state.apply(FleetEvent::Left { worker: self.ids[worker], at_ms: now_ms });
        self.index.forget(self.ids[worker]);
    }

    /// A worker came back empty.
    pub fn restarted(&mut self, worker: usize) {
        let restarted = FleetEvent::Restarted { worker: self.ids[worker] };
        if let Effect::Restarted { old, new } = self.state.apply(restarted) {
            self.index.forget(old);
            self.ids[worker] = new;
            self.ledgers[worker] = Ledger::new(new);
        }
        self.set_state(worker, WorkerState::Ready);
    }

    /// One batch of an engine's KV events.
    pub fn hear(&mut self, worker: usize, events: &[CacheEvent]) {
        let ledger = &mut self.ledgers[worker];
        for event in events {
            match event {
                CacheEvent::Stored(stored) => {
                    let names: Vec<_> = stored.hashes.iter().map(|hash| ExternalHash(hash.low64())).collect();
                    let local = |hash: &BlockHash| {
                        let mut local = [0; 8];
                        local.copy_from_slice(&hash.bytes()[LOCAL_BYTES]);
                        LocalHash(u64::from_be_bytes(local))
                    };
                    let locals: Vec<_> = stored.hashes.iter().map(local).collect();
                    let parent = stored.parent.map(|parent| ExternalHash(parent.low64()));
                    ledger.stored_hashed(&self.index, &self.key, Domain(0), parent, &names, &locals);
                }
                CacheEvent::Removed(hash) => {
                    ledger.removed(&self.index, ExternalHash(hash.low64()));
                }
                CacheEvent::Cleared => ledger.cleared(&self.index),
            }
        }
    }

    /// A batch is lost and cannot be replayed.
    pub fn miss_events(&mut self, worker: usize) {
        self.ledgers[worker].unconfirm(&self.index);
    }

    /// A reading of an engine's load.
    pub fn read(&mut self, worker: usize, mut load: EngineLoad) {
        let own = self.loads[worker];
        (load.own_requests, load.own_waiting) = (own.requests, own.prefill_requests);
        self.state.apply(FleetEvent::LoadReported { worker: self.ids[worker], load });
    }

    /// Housekeeping, once a second.
    pub fn sweep(&mut self, now_ms: u64) {
        self.index.sweep(now_ms);
    }

    /// Chooses and counts in; `None` when nobody may be chosen.
    pub fn send(
        &mut self,
        router: &mut dyn Router,
        job: u64,
        prompt: &Prompt,
        tried: &[WorkerId],
        ask: AskWorld<'_>,
    ) -> Option<Sent> {
        self.refresh();
        self.index.lookup(&prompt.chains[0].hashes, ask.now_ms, router.own_placements(), &mut self.hits[0]);
        let facts = RequestFacts {
            model: 0,
            prompt_tokens: prompt.tokens,
            exact: true,
            chains: &prompt.chains,
            text_hash: prompt.chains[0].hashes.first().map_or(0, |hash| hash.0),
            session: Some(prompt.session),
            output_tokens: self.output_tokens,
            completions: 1,
        };
        let input = DecideInput {
            facts: &facts,
            view: &self.view,
            among: None,
            local: &self.local,
            hits: &self.hits,
            exclude: tried,
            cursor: self.cursor,
            now_ms: ask.now_ms,
        };
        self.cursor += 1;
        let asked = Ask { input: &input, job, truth: ask.truth };
        let decision = router.choose(&asked, &mut self.rng)?;
        Some(self.count_in(&decision, prompt, ask.now_ms))
    }

    fn refresh(&mut self) {
        if self.view.version != self.state.version() {
            self.view = self.state.view();
        }
        self.local.clear();
        // Slots are given away in order and none is given twice within a run.
        self.local.extend(self.view.workers.iter().map(|worker| self.loads[worker.id.slot as usize]));
    }

    fn count_in(&mut self, decision: &Decision, prompt: &Prompt, now_ms: u64) -> Sent {
        let worker = decision.worker.slot as usize;
        let load = self.loads[worker];
        let counted = &mut self.loads[worker];
        counted.requests += 1;
        counted.prefill_requests += 1;
        counted.prefill_tokens += decision.uncached_tokens;
        counted.prefill_squares += LocalLoad::squares(prompt.tokens, decision.uncached_tokens);
        if let Some(view) = self.view.worker(decision.worker) {
            let retention = view.retention(decision.ttft_ms);
            self.index.place(decision.worker, &prompt.chains[0].hashes, retention, now_ms);
        }
        Sent {
            worker,
            id: decision.worker,
            cached_tokens: decision.cached_tokens,
            uncached_tokens: decision.uncached_tokens,
            load,
            at_ms: now_ms,
        }
    }

    /// The first token came.
    pub fn first_token(&mut self, sent: &Sent, prompt: &Prompt) {
        self.end_prefill(sent, prompt);
        self.loads[sent.worker].decode_tokens += prompt.tokens;
    }

    /// One more token came.
    pub fn token(&mut self, sent: &Sent) {
        self.loads[sent.worker].decode_tokens += 1;
    }

    fn end_prefill(&mut self, sent: &Sent, prompt: &Prompt) {
        let load = &mut self.loads[sent.worker];
        load.prefill_requests -= 1;
        load.prefill_tokens -= sent.uncached_tokens;
        load.prefill_squares -= LocalLoad::squares(prompt.tokens, sent.uncached_tokens);
    }

    /// The request is over, after `tokens` tokens (0: not even the first came).
    pub fn count_out(&mut self, sent: &Sent, prompt: &Prompt, tokens: u32) {
        if tokens == 0 {
            self.end_prefill(sent, prompt);
        } else {
            self.loads[sent.worker].decode_tokens -= prompt.tokens + tokens;
        }
        self.loads[sent.worker].requests -= 1;
    }

    /// What an answer that came through teaches.
    pub fn learn(&mut self, sent: &Sent, prompt: &Prompt, answer: &Answer) {
        let usual = i64::from(self.output_tokens);
        self.output_tokens = (usual + ((i64::from(answer.output_tokens) - usual) >> OUTPUT_MEMORY)).max(1) as u32;
        let cached = answer.cached_tokens.unwrap_or(0).min(prompt.tokens);
        let observation = Observation {
            cached_tokens: cached,
            uncached_tokens: prompt.tokens - cached,
            ttft_ms: answer.cached_tokens.map(|_| answer.ttft_ms),
            itl_ms: answer.itl_ms,
            load: sent.load,
        };
        self.state.apply(FleetEvent::Observed { worker: sent.id, observation });
        if let Some(cached) = answer.cached_tokens {
            let report = CacheReport {
                predicted_blocks: sent.cached_tokens / self.block_tokens,
                cached_blocks: cached / self.block_tokens,
                placed_at_ms: sent.at_ms,
                now_ms: answer.now_ms,
            };
            self.index.confirm(sent.id, &prompt.chains[0].hashes, report);
        }
    }

    /// A connection broke: the worker takes nothing until it is back.
    pub fn failed(&mut self, worker: usize, id: WorkerId) {
        if self.ids[worker] == id {
            self.set_state(worker, WorkerState::Down);
        }
    }

    /// What this gateway has in flight, by worker of the scenario.
    pub fn loads(&self) -> &[LocalLoad] {
        &self.loads
    }
}

/// What the world adds to a question.
pub struct AskWorld<'a> {
    /// Time.
    pub now_ms: u64,
    /// For the oracle alone.
    pub truth: Option<&'a [crate::policy::Truth]>,
}

/// What an answer says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Tokens generated.
    pub output_tokens: u32,
    /// Prompt tokens from the cache, where the engine tells.
    pub cached_tokens: Option<u32>,
    /// Time to first token.
    pub ttft_ms: f64,
    /// Mean time between tokens, of more than one.
    pub itl_ms: Option<f64>,
    /// Now.
    pub now_ms: u64,
}
