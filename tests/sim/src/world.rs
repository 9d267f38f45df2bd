//! The run itself: one queue of events in virtual time.
//!
//! ```text
//! arrivals ─► Gateway::send ─► Engine (forebay_engine::model) ─► step ends ─► tokens, KV events ─┐
//!    ▲             ▲                                                                             │
//!    │             └──── readings, events: late, lost or wrong as the scenario says ◄────────────┤
//!    └── retries: a worker died before the first token ◄──────────── faults, joins, leaves ──────┘
//! ```
//!
//! Events at one instant happen in the order in which they were made, and nothing else in a run has an order that is not
//! given: one scenario, workload, policy and seed have one result, to the byte.

mod faults;
mod queue;

use crate::gateway::{Answer, AskWorld, Gateway, Prompt, Sent};
use crate::measure::Outcome;
use crate::policy::{Router, Spec, Truth};
use crate::scenario::Scenario;
use crate::workload::Offered;
use forebay_engine::model::{CacheEvent, FinishReason, Model, Request, RequestId, StepOutcome};
use forebay_routing::block::HashKey;
use forebay_routing::view::EngineLoad;
use forebay_routing::{LocalLoad, WorkerId};
use hashbrown::HashSet;
use queue::{Event, Queue};
use std::rc::Rc;

/// Sends of one request, the first included, as in the gateway.
const MAX_ATTEMPTS: usize = 3;
/// Until a gateway hears that a worker is back, µs: a health check.
const PROBE_US: u64 = 1_000_000;
/// Until a gateway sees that a connection broke, µs.
const BREAK_US: u64 = 1_000;
/// Between two sweeps of the index, µs.
const SWEEP_US: u64 = 1_000_000;
/// After the last arrival nothing that is still not served within this time is served in time, µs.
const PATIENCE_US: u64 = 180_000_000;

struct Engine {
    model: Model,
    /// What the present step will show when it ends.
    step: Option<StepOutcome>,
    /// Goes up with every crash, so that what was under way is known to be gone.
    life: u32,
    is_up: bool,
    is_leaving: bool,
}

#[derive(Default)]
struct Job {
    gateway: usize,
    sent: Option<Sent>,
    tried: Vec<WorkerId>,
    outcome: Outcome,
}

/// See the module page.
pub struct World<'a> {
    scenario: &'a Scenario,
    offered: &'a Offered,
    prompts: &'a [Prompt],
    now_us: u64,
    queue: Queue,
    engines: Vec<Engine>,
    gateways: Vec<Gateway>,
    routers: Vec<Box<dyn Router>>,
    jobs: Vec<Job>,
    open: usize,
    rng: fastrand::Rng,
    /// Blocks that were computed somewhere before.
    known: HashSet<u64>,
    truth: Vec<Truth>,
}

/// Hashes every prompt; shared by all policies that are offered the same.
pub fn prepare(offered: &Offered) -> Vec<Prompt> {
    let key = key();
    offered.requests.iter().map(|request| Prompt::new(&key, request, offered.block_tokens)).collect()
}

fn key() -> HashKey {
    HashKey::derive(&[7; 32])
}

/// Runs `offered` through `scenario` under a policy; outcomes by request.
pub fn run(
    scenario: &Scenario,
    offered: &Offered,
    prompts: &[Prompt],
    policy: &Spec,
    seed: u64,
) -> Result<Vec<Outcome>, String> {
    let mut world = World::new(scenario, offered, prompts, policy, seed)?;
    world.go();
    Ok(world.jobs.into_iter().map(|job| job.outcome).collect())
}

impl<'a> World<'a> {
    fn new(
        scenario: &'a Scenario,
        offered: &'a Offered,
        prompts: &'a [Prompt],
        policy: &Spec,
        seed: u64,
    ) -> Result<Self, String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let ever = scenario.workers_ever();
        let gateways =
            (0..scenario.gateways).map(|_| Gateway::new(key(), offered.block_tokens, rng.u64(..))).collect::<Vec<_>>();
        let routers = gateways.iter().map(|_| policy.build(ever, offered.block_tokens, &scenario.hardware)).collect();
        let mut world = Self {
            scenario,
            offered,
            prompts,
            now_us: 0,
            queue: Queue::default(),
            engines: Vec::new(),
            gateways,
            routers,
            jobs: offered.requests.iter().map(|_| Job::default()).collect(),
            open: offered.requests.len(),
            rng,
            known: HashSet::new(),
            truth: Vec::new(),
        };
        for _ in 0..scenario.workers {
            world.join()?;
        }
        for (at, request) in offered.requests.iter().enumerate() {
            world.jobs[at].gateway = world.rng.usize(..scenario.gateways);
            world.jobs[at].outcome = Outcome::offered(request);
            world.push(request.at_us, Event::Arrive(at));
        }
        for (at, (at_us, _)) in scenario.script.iter().enumerate() {
            world.push(*at_us, Event::Script(at));
        }
        world.push(SWEEP_US, Event::Sweep);
        if scenario.signals.load_interval_us > 0 {
            world.push(0, Event::Scrape);
        }
        Ok(world)
    }

    fn push(&mut self, at_us: u64, event: Event) {
        self.queue.push(at_us, event);
    }

    fn go(&mut self) {
        let end_us = self.offered.horizon_us + PATIENCE_US;
        while self.open > 0 {
            let Some((at_us, event)) = self.queue.pop().filter(|(at_us, _)| *at_us <= end_us) else { break };
            self.now_us = at_us;
            self.handle(event);
        }
        let nothing = LocalLoad::default();
        let is_idle = || self.gateways.iter().flat_map(|gateway| gateway.loads()).all(|load| *load == nothing);
        assert!(self.open > 0 || is_idle(), "every request gives back what it took");
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(job) => self.send(job),
            Event::StepEnds { worker, life } if self.engines[worker].life == life => self.end_step(worker),
            Event::Heard { gateway, worker, life, events } if self.engines[worker].life == life => {
                self.gateways[gateway].hear(worker, &events);
            }
            Event::Lost { gateway, worker, life } if self.engines[worker].life == life => {
                self.gateways[gateway].miss_events(worker);
            }
            Event::StepEnds { .. } | Event::Heard { .. } | Event::Lost { .. } => {}
            Event::Scrape => self.scrape(),
            Event::Read { gateway, worker, load } => self.gateways[gateway].read(worker, load),
            Event::Sweep => {
                let now_ms = self.now_us / 1_000;
                self.gateways.iter_mut().for_each(|gateway| gateway.sweep(now_ms));
                self.push(self.now_us + SWEEP_US, Event::Sweep);
            }
            Event::Script(at) => self.happen(self.scenario.script[at].1),
            Event::Broke { job } => self.broke(job),
            Event::Back { worker } => self.gateways.iter_mut().for_each(|gateway| gateway.restarted(worker)),
        }
    }

    fn send(&mut self, job: usize) {
        let prompt = &self.prompts[job];
        let gateway = self.jobs[job].gateway;
        let router = &mut *self.routers[gateway];
        if router.wants_truth() {
            self.truth.clear();
            let truth = self
                .engines
                .iter()
                .map(|engine| Truth::of(&engine.model, &engine.step, prompt, self.now_us, self.scenario));
            self.truth.extend(truth);
        }
        let ask = AskWorld { now_ms: self.now_us / 1_000, truth: router.wants_truth().then_some(&self.truth[..]) };
        let tried = &self.jobs[job].tried;
        let sent = self.gateways[gateway].send(router, job as u64, prompt, tried, ask);
        let Some(sent) = sent else {
            self.open -= 1;
            return;
        };
        let worker = sent.worker;
        self.jobs[job].tried.push(sent.id);
        self.jobs[job].outcome.predicted_cached = sent.cached_tokens;
        self.jobs[job].sent = Some(sent);
        if !self.engines[worker].is_up {
            return self.push(self.now_us + BREAK_US, Event::Broke { job });
        }
        let request = Request::from_hashes(
            RequestId(job as u64),
            prompt.tokens as usize,
            self.offered.requests[job].output_tokens as usize,
            FinishReason::Length,
            prompt.hashes.clone(),
            self.offered.block_tokens as usize,
        );
        if self.engines[worker].model.submit(self.now_us, request).is_err() {
            self.release(job, 0);
            self.open -= 1;
            return;
        }
        self.start_step(worker);
    }

    /// Begins a step unless one is under way or there is nothing to do.
    fn start_step(&mut self, worker: usize) {
        let engine = &mut self.engines[worker];
        if engine.step.is_some() || !engine.is_up {
            return;
        }
        let Some(step) = engine.model.step(self.now_us) else { return };
        let (ends_at_us, life) = (step.ends_at_us, engine.life);
        for admitted in &step.admitted {
            let job = admitted.id.0 as usize;
            let outcome = &mut self.jobs[job].outcome;
            if outcome.cached_tokens.is_none() {
                let cached = admitted.cached_tokens as u32;
                outcome.cached_tokens = Some(cached);
                let prompt = &self.prompts[job].chains[0].hashes;
                let computed = &prompt[(cached / self.offered.block_tokens) as usize..];
                let again = computed.iter().filter(|hash| !self.known.insert(hash.0)).count();
                outcome.recomputed_tokens = again as u32 * self.offered.block_tokens;
            }
        }
        for preempted in &step.preempted {
            self.jobs[preempted.0 as usize].outcome.preemptions += 1;
        }
        self.engines[worker].step = Some(step);
        self.push(ends_at_us, Event::StepEnds { worker, life });
    }

    fn end_step(&mut self, worker: usize) {
        let Some(step) = self.engines[worker].step.take() else { return };
        for produced in &step.produced {
            let job = produced.id.0 as usize;
            let (prompt, entry) = (&self.prompts[job], &mut self.jobs[job]);
            let gateway = &mut self.gateways[entry.gateway];
            let Some(sent) = &entry.sent else { continue };
            entry.outcome.token(self.now_us);
            if produced.position == 0 {
                gateway.first_token(sent, prompt);
                self.routers[entry.gateway].first_token(job as u64);
            }
            gateway.token(sent);
            if produced.finish.is_some() {
                self.finish(job);
            }
        }
        self.tell(worker, step.events);
        self.start_step(worker);
        self.dismiss(worker);
    }

    fn finish(&mut self, job: usize) {
        let output_tokens = self.offered.requests[job].output_tokens;
        let entry = &mut self.jobs[job];
        entry.outcome.is_served = true;
        let outcome = &entry.outcome;
        let answer = Answer {
            output_tokens,
            cached_tokens: outcome.cached_tokens.filter(|_| self.scenario.signals.cached_tokens_told),
            ttft_ms: outcome.ttft_ms().unwrap_or(0.0),
            itl_ms: outcome.itl_ms(),
            now_ms: self.now_us / 1_000,
        };
        if let Some(sent) = &entry.sent {
            entry.outcome.worker = Some(sent.worker);
            self.gateways[entry.gateway].learn(sent, &self.prompts[job], &answer);
        }
        self.release(job, output_tokens);
        self.open -= 1;
    }

    /// Gives back what the job holds at its gateway.
    fn release(&mut self, job: usize, tokens: u32) {
        let entry = &mut self.jobs[job];
        if let Some(sent) = entry.sent.take() {
            self.gateways[entry.gateway].count_out(&sent, &self.prompts[job], tokens);
            self.routers[entry.gateway].done(job as u64);
        }
    }

    /// KV events on their way to every gateway.
    fn tell(&mut self, worker: usize, events: Vec<CacheEvent>) {
        if events.is_empty() {
            return;
        }
        let events = Rc::new(events);
        let (life, at_us) = (self.engines[worker].life, self.now_us + self.scenario.signals.event_delay_us);
        for gateway in 0..self.gateways.len() {
            let event = if self.rng.f64() < self.scenario.signals.event_loss {
                Event::Lost { gateway, worker, life }
            } else {
                Event::Heard { gateway, worker, life, events: events.clone() }
            };
            self.push(at_us, event);
        }
    }

    /// Reads every engine's load.
    fn scrape(&mut self) {
        let signals = &self.scenario.signals;
        for worker in 0..self.engines.len() {
            let engine = &self.engines[worker];
            if !engine.is_up {
                continue;
            }
            let load = engine.model.load();
            let capacity = engine.model.limits().blocks as f32;
            let is_liar = worker < signals.idle_liars;
            let honest = |value: usize| if is_liar { 0 } else { value as u32 };
            let load = EngineLoad {
                running: honest(load.running),
                waiting: honest(load.waiting),
                kv_usage: honest(load.used_blocks) as f32 / capacity,
                at_ms: self.now_us / 1_000,
                ..EngineLoad::default()
            };
            for gateway in 0..self.gateways.len() {
                if self.rng.f64() >= signals.load_loss {
                    self.push(self.now_us + signals.load_delay_us, Event::Read { gateway, worker, load });
                }
            }
        }
        let own_us = self.routers.first().and_then(|router| router.load_interval_us());
        self.push(self.now_us + own_us.unwrap_or(signals.load_interval_us), Event::Scrape);
    }
}
