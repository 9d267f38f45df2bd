//! tokenize → hash → score: what a request deserves, without sending it.

use super::{Gateway, Session, ms};
use crate::accept::unknown_model;
use crate::dispatch::Chooser;
use crate::error::Fault;
use crate::observe::Record;
use crate::parse::Parsed;
use crate::tokenize::Outcome;
use forebay_routing::decision::Reason;
use forebay_routing::facts::BlockChain;
use forebay_routing::index::Hits;
use forebay_routing::shortlist::{Draw, shortlist};
use forebay_routing::view::{ModelView, WorkerState};
use forebay_routing::{
    DecideInput, Decision, FleetView, LocalLoad, Policy, Refusal, RequestFacts, WorkerId, block, decide,
};
use std::sync::Arc;
use tokio::time::Instant;

/// Bytes of the prompt that text routing hashes: the system prompt and the first turn, which a conversation keeps. A medium
/// that begins there counts whole.
const TEXT_HEAD: usize = 2 * 1024;
/// Bytes per token where a prompt was not tokenised: English text in a large vocabulary.
const BYTES_PER_TOKEN: usize = 4;

/// A request as the router sees it, and what it decided.
pub struct Considered {
    /// Position in [`FleetView::models`]; a model keeps it for the life of the fleet.
    pub model: u32,
    /// The model's policy.
    pub policy: Policy,
    /// Whose tokenizer made them: the model, or the one behind its alias.
    pub tokenizer: Arc<str>,
    /// Token ids or why there are none; `None` where the policy needs none.
    pub tokens: Option<Outcome>,
    /// One per block size in use.
    pub chains: Vec<BlockChain>,
    /// Parallel to `chains`.
    pub hits: Vec<Hits>,
    /// Prompt length, exact where tokenised.
    pub prompt_tokens: u32,
    /// Whether `prompt_tokens` was counted.
    pub exact: bool,
    /// The first choice.
    pub decision: Result<Decision, Refusal>,
    /// Time spent tokenising.
    pub tokenize_ms: f64,
    /// What was in flight at the chosen worker, this request not counted.
    pub load: LocalLoad,
    text_hash: u64,
    session: Option<u64>,
    output_tokens: u32,
    completions: u32,
    cursor: u64,
    rng: fastrand::Rng,
}

/// tokenize → hash → score. Sends, reserves and places nothing.
pub async fn consider(gateway: &Gateway, parsed: &Parsed, session: &Session) -> Result<Considered, Fault> {
    let view = gateway.fleet.view();
    let model = view.model(&parsed.model).ok_or_else(|| unknown_model(&parsed.model))?;
    let served = &view.models[model as usize];
    let prefills = parsed.dialect.prefills();
    let policy = if prefills { gateway.policy(&parsed.model) } else { Policy::LeastLoaded };
    let tokenizer = gateway.tokenizers.owner(&parsed.model, served.domain_model());
    let started = Instant::now();
    let tokens = match policy {
        Policy::Kv => {
            let deadline = started + gateway.config.tokenize.deadline;
            Some(gateway.tokenizers.encode(tokenizer, parsed, deadline).await?)
        }
        Policy::LeastLoaded | Policy::PowerOfTwo | Policy::RoundRobin => None,
        Policy::ConsistentHash | Policy::Session => None,
    };
    let tokenize_ms = if tokens.is_some() { ms(started.elapsed()) } else { 0.0 };
    let chains = hash(gateway, served, parsed, tokens.as_ref());
    let hits = look_up(gateway, &chains);
    let (prompt_tokens, exact) = match &tokens {
        Some(Outcome::Tokens(ids)) => (ids.len() as u32, true),
        _ if !prefills => (0, false),
        _ => ((parsed.prompt.len() / BYTES_PER_TOKEN) as u32, false),
    };
    let (cursor, rng) = gateway.turn();
    let mut considered = Considered {
        model,
        policy,
        text_hash: if exact { 0 } else { text_hash(gateway, parsed, session, policy) },
        session: session.key().map(|key| gateway.fleet.hash_key().text(key)),
        output_tokens: if parsed.dialect.generates() { gateway.expected_output(parsed.max_tokens) } else { 0 },
        completions: parsed.n,
        decision: Err(Refusal::NoWorkers),
        tokenizer: tokenizer.into(),
        tokens,
        chains,
        hits,
        prompt_tokens,
        exact,
        tokenize_ms,
        load: LocalLoad::default(),
        cursor,
        rng,
    };
    considered.decision = considered.decide(gateway, &view, &[]);
    Ok(considered)
}

/// One chain for each block size in use among the model's workers.
fn hash(gateway: &Gateway, model: &ModelView, parsed: &Parsed, tokens: Option<&Outcome>) -> Vec<BlockChain> {
    let Some(Outcome::Tokens(ids)) = tokens else { return Vec::new() };
    let chain = |block_size: u32| {
        let domain = gateway.fleet.domain(model, block_size, parsed.cache_salt.as_deref());
        let mut hashes = Vec::new();
        block::chain(gateway.fleet.hash_key(), domain, block_size, ids, &mut hashes);
        BlockChain { block_size, hashes }
    };
    model.block_sizes.iter().copied().map(chain).collect()
}

fn look_up(gateway: &Gateway, chains: &[BlockChain]) -> Vec<Hits> {
    let now_ms = gateway.clock.now_ms();
    let look = |chain: &BlockChain| {
        let mut hits = Hits::default();
        gateway.fleet.index().lookup(&chain.hashes, now_ms, gateway.config.routing.own_placements, &mut hits);
        hits
    };
    chains.iter().map(look).collect()
}

/// Affinity by text: for the ring policies, and for `kv` where tokens are missing, there after the session.
fn text_hash(gateway: &Gateway, parsed: &Parsed, session: &Session, policy: Policy) -> u64 {
    let key = gateway.fleet.hash_key();
    match (policy, session.key()) {
        (Policy::LeastLoaded | Policy::PowerOfTwo | Policy::RoundRobin, _) => 0,
        (Policy::Kv, Some(session)) => key.text(session),
        (Policy::Kv | Policy::ConsistentHash | Policy::Session, _) => key.text(parsed.affinity_head(TEXT_HEAD)),
    }
}

impl Considered {
    /// What `decide` is told of this request.
    pub fn facts(&self) -> RequestFacts<'_> {
        RequestFacts {
            model: self.model,
            prompt_tokens: self.prompt_tokens,
            exact: self.exact,
            chains: &self.chains,
            text_hash: self.text_hash,
            session: self.session,
            output_tokens: self.output_tokens,
            completions: self.completions,
        }
    }

    fn decide(&mut self, gateway: &Gateway, view: &FleetView, exclude: &[WorkerId]) -> Result<Decision, Refusal> {
        let mut rng = self.rng.clone();
        let (facts, hits, cursor) = (self.facts(), &self.hits[..], self.cursor);
        let mut among = Vec::new();
        let draw = Draw { policy: self.policy, facts: &facts, view, hits, exclude, cursor };
        let decide = |among: Option<&[u32]>, rng: &mut fastrand::Rng| {
            let mut local = Vec::new();
            match among {
                Some(positions) => gateway.fleet.local_loads_of(view, positions, &mut local),
                None => gateway.fleet.local_loads(view, &mut local),
            }
            let now_ms = gateway.clock.now_ms();
            let input = DecideInput { facts: &facts, view, among, local: &local, hits, exclude, cursor, now_ms };
            decide(self.policy, &input, rng)
        };
        let mut decision = Err(Refusal::NoneReady);
        if shortlist(&draw, &mut rng, &mut among) {
            decision = decide(Some(&among), &mut rng);
        }
        if decision.is_err() {
            decision = decide(None, &mut rng);
        }
        self.load =
            decision.as_ref().map_or_else(|_| LocalLoad::default(), |chosen| gateway.fleet.load_of(chosen.worker));
        self.rng = rng;
        decision
    }

    /// Chooses worker after worker for dispatch.
    pub(super) fn chooser<'a>(&'a mut self, gateway: &'a Gateway) -> Scored<'a> {
        Scored { considered: self, gateway }
    }

    fn choose(&mut self, gateway: &Gateway, avoided: &[WorkerId]) -> Result<Decision, Refusal> {
        let view = gateway.fleet.view();
        let decision = if avoided.is_empty() { self.decision.clone() } else { self.decide(gateway, &view, avoided) }?;
        self.decision = Ok(decision.clone());
        Ok(decision)
    }

    fn place(&self, gateway: &Gateway, view: &FleetView, decision: &Decision) {
        let Some(worker) = view.worker(decision.worker) else { return };
        let Some(chain) = worker.block_size.and_then(|size| self.chain(size)) else { return };
        let now_ms = gateway.clock.now_ms();
        gateway.fleet.index().place(decision.worker, &chain.hashes, worker.retention(decision.ttft_ms), now_ms);
    }

    /// The chain at one block size.
    pub fn chain(&self, block_size: u32) -> Option<&BlockChain> {
        self.chains.iter().find(|chain| chain.block_size == block_size)
    }

    /// Fills the record's part on routing.
    pub(super) fn describe(&self, record: &mut Record) {
        record.tokenize_ms = self.tokenize_ms;
        record.prompt_tokens = self.prompt_tokens;
        record.policy = Some(self.policy);
        if let Some(Outcome::Text(reason)) = &self.tokens {
            record.text_reason = Some(reason.label());
        }
    }
}

/// By cost, or whatever the model's policy is.
pub(super) struct Scored<'a> {
    considered: &'a mut Considered,
    gateway: &'a Gateway,
}

impl Chooser for Scored<'_> {
    fn choose(&mut self, avoided: &[WorkerId]) -> Result<Decision, Refusal> {
        self.considered.choose(self.gateway, avoided)
    }

    /// Prompts that follow see the blocks which this one will leave there.
    fn place(&mut self, decision: &Decision) {
        self.considered.place(self.gateway, &self.gateway.fleet.view(), decision);
    }

    fn renew(&mut self) {
        let view = self.gateway.fleet.view();
        self.considered.decision = self.considered.decide(self.gateway, &view, &[]);
    }

    fn model(&self) -> u32 {
        self.considered.model
    }
}

/// Stands for all models together.
const ANY_MODEL: u32 = u32::MAX;

/// For what cannot be scored: any ready worker, the one with the least in flight.
pub(super) struct LeastInFlight<'a>(pub(super) &'a Gateway);

impl Chooser for LeastInFlight<'_> {
    fn choose(&mut self, avoided: &[WorkerId]) -> Result<Decision, Refusal> {
        least_in_flight(self.0, avoided)
    }

    fn place(&mut self, _decision: &Decision) {}

    fn renew(&mut self) {}

    fn model(&self) -> u32 {
        ANY_MODEL
    }
}

fn least_in_flight(gateway: &Gateway, tried: &[WorkerId]) -> Result<Decision, Refusal> {
    let view: Arc<FleetView> = gateway.fleet.view();
    let mut local = Vec::new();
    gateway.fleet.local_loads(&view, &mut local);
    let ready = view.workers.iter().enumerate().filter(|(_, worker)| worker.state == WorkerState::Ready);
    let untried = ready.clone().filter(|(_, worker)| !tried.contains(&worker.id));
    let best = untried.min_by_key(|(position, _)| local.get(*position).map_or(0, |load| load.requests));
    match best {
        Some((position, worker)) => Ok(Decision {
            position: position as u32,
            worker: worker.id,
            cached_tokens: 0,
            uncached_tokens: 0,
            ttft_ms: 0.0,
            reason: Reason::Policy,
        }),
        None if view.workers.is_empty() => Err(Refusal::NoWorkers),
        None if ready.count() == 0 => Err(Refusal::NoneReady),
        None => Err(Refusal::AllTried),
    }
}
