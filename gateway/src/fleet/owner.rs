//! The owner task: the only writer of membership and of the published view.

mod kernel;
mod verdict;

use super::ejection::Verdict;
use super::member::{Member, WorkerStatus};
use super::{Event, Facts, Handle, JoinError, Shared};
use crate::config::resolved::Health;
use forebay_routing::WorkerId;
use forebay_routing::event::{Effect, EventRefusal, FleetEvent, FleetState, ServedName, WorkerKey};
use forebay_routing::view::{CacheKnowledge, EngineLoad, WorkerState};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Duration, Instant, sleep_until};

/// Between two publications that no state change asks for: at most 200 a second.
const PUBLISH_EVERY: Duration = Duration::from_millis(5);

/// The same for each worker, where these are many: a view costs some 0.1 µs for each, and may take a hundredth of a core.
const PUBLISH_EVERY_WORKER: Duration = Duration::from_micros(10);

/// How often ejected and draining workers are looked at, while there are any.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Events applied before a due publication gets its turn.
const EVENTS_PER_TURN: usize = 256;

/// What an event asks of the next publication.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Nothing,
    Soon,
    Now,
}

pub(super) struct Owner {
    shared: Arc<Shared>,
    health: Health,
    state: FleetState,
    /// By slot, parallel to the published handles.
    members: Vec<Option<Member>>,
    /// Slots of ejected and leaving workers.
    watched: BTreeSet<usize>,
    need: Need,
    /// Whether the published handles differ from the members'.
    handles_changed: bool,
    /// Given once the turn's changes are published, so that whoever waited sees them.
    answers: Vec<Answer>,
}

/// What somebody waits for.
enum Answer {
    Joined(oneshot::Sender<Result<Arc<Handle>, JoinError>>, Arc<Handle>),
    Restarted(oneshot::Sender<()>),
    Described(oneshot::Sender<Vec<WorkerStatus>>),
}

impl Owner {
    pub(super) fn new(shared: Arc<Shared>, health: Health) -> Self {
        Self {
            shared,
            health,
            state: FleetState::new(),
            members: Vec::new(),
            watched: BTreeSet::new(),
            need: Need::Nothing,
            handles_changed: false,
            answers: Vec::new(),
        }
    }

    /// Applies events until the group is cancelled.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Event>) {
        let mut published = Instant::now();
        let mut look = Instant::now() + LOOK_EVERY;
        let mut batch = Vec::with_capacity(EVENTS_PER_TURN);
        loop {
            let wakes = match (self.need, !self.watched.is_empty()) {
                (Need::Soon, true) => Some(look.min(published + self.pause())),
                (Need::Soon, false) => Some(published + self.pause()),
                (_, true) => Some(look),
                (_, false) => None,
            };
            tokio::select! {
                biased;
                count = inbox.recv_many(&mut batch, EVENTS_PER_TURN) => if count == 0 { return },
                () = sleep_until(wakes.unwrap_or_else(Instant::now)), if wakes.is_some() => {}
            }
            for event in batch.drain(..) {
                let need = self.apply(event);
                self.need = self.need.max(need);
            }
            let now = Instant::now();
            if now >= look {
                look = now + LOOK_EVERY;
                let need = self.look();
                self.need = self.need.max(need);
            }
            if self.need == Need::Now || (self.need == Need::Soon && now >= published + self.pause()) {
                published = now;
                self.publish();
            }
            self.answer();
        }
    }

    /// Between two publications that can wait.
    fn pause(&self) -> Duration {
        PUBLISH_EVERY.max(PUBLISH_EVERY_WORKER * self.members.len() as u32)
    }

    fn answer(&mut self) {
        for answer in std::mem::take(&mut self.answers) {
            match answer {
                Answer::Joined(reply, handle) => {
                    let id = handle.id();
                    if reply.send(Ok(handle)).is_err() {
                        // The caller is gone: its worker leaves again.
                        let need = self.leave(id);
                        self.need = self.need.max(need);
                    }
                }
                // Nobody waits any more when these fail.
                Answer::Restarted(reply) => drop(reply.send(())),
                Answer::Described(reply) => drop(reply.send(self.describe())),
            }
        }
    }

    fn apply(&mut self, event: Event) -> Need {
        match event {
            Event::Join { key, block_size, probe, reply } => self.join(key, block_size, probe, reply),
            Event::Learned { worker, facts } => self.learn(worker, *facts),
            Event::Names { worker, names } => self.name(worker, names),
            Event::BlockSize { worker, block_size } => {
                if let Some(member) = self.member(worker) {
                    member.event_block_size = Some(block_size);
                }
                self.reduce(
                    FleetEvent::CacheLearned { worker, block_size: Some(block_size), capacity_blocks: None },
                    Need::Now,
                )
            }
            Event::Checked { worker, outcome, started_ms } => self.check(worker, outcome, started_ms),
            Event::Load { worker, load } => self.load(worker, load),
            Event::Cache { worker, knowledge } => self.know(worker, knowledge),
            Event::Restart { worker, reply } => {
                self.answers.push(Answer::Restarted(reply));
                self.restart(worker)
            }
            Event::Feedback { worker, feedback } => self.feed_back(worker, feedback),
            Event::Kernel { worker, report } => self.hear_agent(worker, &report),
            Event::Leave { worker } => self.leave(worker),
            Event::Describe { reply } => {
                self.answers.push(Answer::Described(reply));
                Need::Nothing
            }
        }
    }

    fn join(
        &mut self,
        key: WorkerKey,
        block_size: Option<u32>,
        probe: Arc<Notify>,
        reply: oneshot::Sender<Result<Arc<Handle>, JoinError>>,
    ) -> Need {
        let at_ms = self.shared.clock.now_ms();
        let joined = FleetEvent::Joined { key: key.clone(), hardware: None, block_size, at_ms };
        let id = match self.state.apply(joined) {
            Effect::Joined(id) => id,
            // It was on its way out, or its configuration changed: it begins anew in its slot.
            Effect::Known(id) => match self.state.apply(FleetEvent::Restarted { worker: id }) {
                Effect::Restarted { old, new } => {
                    self.shared.index.forget(old);
                    let cache = CacheKnowledge::Approximate;
                    self.state.apply(FleetEvent::KnowledgeChanged { worker: new, cache });
                    new
                }
                _ => id,
            },
            _ => {
                let _ = reply.send(Err(JoinError::Full));
                return Need::Nothing;
            }
        };
        let at = id.slot as usize;
        if self.members.len() <= at {
            self.members.resize_with(at + 1, || None);
        }
        let before = self.members[at].as_ref().map(|member| &*member.handle);
        let handle = Arc::new(Handle::new(id, &key, probe, before));
        let member = Member::new(handle.clone(), &self.health);
        self.members[at] = Some(member);
        self.show_state(id);
        self.handles_changed = true;
        self.answers.push(Answer::Joined(reply, handle));
        Need::Now
    }

    fn learn(&mut self, worker: WorkerId, facts: Facts) -> Need {
        let Some(member) = self.member(worker) else { return Need::Nothing };
        let block_size = member.event_block_size.or(facts.block_size);
        let (names, capacity_blocks) = (facts.names.clone(), facts.capacity_blocks);
        let drafts = facts.drafts;
        member.facts = facts;
        self.shared.index.set_drafts(worker, drafts);
        let named = self.name(worker, names);
        self.reduce(FleetEvent::CacheLearned { worker, block_size, capacity_blocks }, Need::Now).max(named)
    }

    fn name(&mut self, worker: WorkerId, names: Vec<ServedName>) -> Need {
        let effect = self.state.apply(FleetEvent::NamesLearned { worker, names: names.clone() });
        let Some(member) = self.member(worker) else { return Need::Nothing };
        member.facts.names = names;
        if effect == Effect::Refused(EventRefusal::NameLeftOut) {
            let problem = "some of its names were left out: too many, or they mean another model elsewhere";
            tracing::warn!(worker = %member.handle.label, problem);
            member.facts.degraded.retain(|known| known != problem);
            member.facts.degraded.push(problem.to_owned());
        }
        if effect == Effect::Unchanged { Need::Nothing } else { Need::Now }
    }

    fn know(&mut self, worker: WorkerId, cache: CacheKnowledge) -> Need {
        let effect = self.state.apply(FleetEvent::KnowledgeChanged { worker, cache });
        if effect == Effect::Changed {
            self.shared.index.forget_placements(worker);
            return Need::Now;
        }
        Need::Nothing
    }

    fn check(&mut self, worker: WorkerId, outcome: Result<(), String>, started_ms: u64) -> Need {
        let now_ms = self.shared.clock.now_ms();
        let shared = self.shared.clone();
        let Some(member) = self.member(worker) else { return Need::Nothing };
        let label = member.handle.label.clone();
        if outcome.is_err() {
            shared.metrics.failed_check(&label);
        }
        let ejected = member.check(outcome, started_ms, now_ms) == Verdict::Eject;
        if ejected {
            shared.metrics.ejected(&label);
            let model = member.handle.model.clone();
            self.hasten(&model);
        }
        let Some(member) = self.member(worker) else { return Need::Nothing };
        if member.state() == WorkerState::Down {
            shared.metrics.forget_engine(&label);
            self.reduce(FleetEvent::LoadLost { worker }, Need::Soon);
        }
        self.show_state(worker)
    }

    fn load(&mut self, worker: WorkerId, load: EngineLoad) -> Need {
        let Some(member) = self.member(worker) else { return Need::Nothing };
        let label = member.handle.label.clone();
        let need = self.reduce(FleetEvent::LoadReported { worker, load }, Need::Soon);
        if need == Need::Soon {
            self.shared.metrics.engine(&label, &load);
        }
        need
    }

    fn restart(&mut self, worker: WorkerId) -> Need {
        let Effect::Restarted { old, new } = self.state.apply(FleetEvent::Restarted { worker }) else {
            return Need::Nothing;
        };
        let shared = self.shared.clone();
        shared.index.forget(old);
        if let Some(member) = self.members.get_mut(old.slot as usize).and_then(Option::as_mut) {
            let label = &member.handle.label;
            tracing::info!(worker = %label, %old, %new, "engine restarted: what was known of its cache is forgotten");
            shared.metrics.restarted(label);
            shared.metrics.forget_engine(label);
            member.handle.generation.store(new.generation, Ordering::Release);
            member.restart();
        }
        self.show_state(new);
        Need::Now
    }

    fn leave(&mut self, worker: WorkerId) -> Need {
        let Some(member) = self.member(worker) else { return Need::Nothing };
        member.leaving = true;
        let id = member.handle.id();
        let need = self.show_state(id);
        need.max(self.look())
    }

    /// Ejected workers whose probe is due, draining workers that are idle.
    fn look(&mut self) -> Need {
        let now_ms = self.shared.clock.now_ms();
        let mut need = Need::Nothing;
        for at in self.watched.iter().copied().collect::<Vec<_>>() {
            let Some(member) = &mut self.members[at] else { continue };
            if member.breaker.tick(now_ms) == Verdict::Probe {
                member.handle.probe.notify_one();
            }
            if member.leaving && member.handle.counters.is_idle() {
                self.free(at);
                need = Need::Now;
            }
        }
        let members = &self.members;
        self.watched.retain(|&at| members[at].as_ref().is_some_and(must_look));
        need
    }

    fn free(&mut self, at: usize) {
        let Some(member) = self.members[at].take() else { return };
        let worker = member.handle.id();
        let at_ms = self.shared.clock.now_ms();
        let effect = self.state.apply(FleetEvent::Left { worker, at_ms });
        debug_assert_eq!(effect, Effect::Left(worker), "members and the reducer's slots go together");
        self.shared.index.forget(worker);
        self.handles_changed = true;
        let label = &member.handle.label;
        if self.members.iter().flatten().all(|other| other.handle.label != *label) {
            self.shared.metrics.forget(label);
        }
    }

    /// The worker that `id` names now or named before its engine restarted.
    fn member(&mut self, id: WorkerId) -> Option<&mut Member> {
        let member = self.members.get_mut(id.slot as usize)?.as_mut()?;
        member.handle.answers_to(id).then_some(member)
    }

    /// Applies `event`; `need` when it changed something.
    fn reduce(&mut self, event: FleetEvent, need: Need) -> Need {
        match self.state.apply(event) {
            Effect::Changed => need,
            Effect::Refused(refusal) => {
                tracing::debug!(?refusal, "fleet event refused");
                Need::Nothing
            }
            _ => Need::Nothing,
        }
    }

    /// Brings a member's state into the reducer; a change is published at once.
    fn show_state(&mut self, id: WorkerId) -> Need {
        let Some(member) = self.member(id) else { return Need::Nothing };
        let (state, worker, label) = (member.state(), member.handle.id(), member.handle.label.clone());
        let model = member.handle.model.clone();
        if must_look(member) {
            self.watched.insert(worker.slot as usize);
        }
        let need = self.reduce(FleetEvent::StateChanged { worker, state }, Need::Now);
        self.shared.metrics.state(&label, state);
        if need == Need::Now {
            tracing::info!(worker = %label, ?state, "worker changed state");
            if state == WorkerState::Ready {
                self.warm_up(worker);
            } else {
                self.hasten(&model);
            }
        }
        need
    }

    /// It has just come or come back: its share grows over `health.slow_start`.
    fn warm_up(&mut self, worker: WorkerId) {
        let warm_at_ms = self.shared.clock.now_ms() + self.shared.slow_start_ms;
        if let Some(member) = self.member(worker) {
            member.handle.warm_at_ms.store(warm_at_ms, Ordering::Relaxed);
        }
    }

    fn publish(&mut self) {
        self.need = Need::Nothing;
        // Handles of new workers come before the view that names them, those of old ones go with it.
        if std::mem::take(&mut self.handles_changed) {
            let handles =
                self.members.iter().map(|member| member.as_ref().map(|member| member.handle.clone())).collect();
            self.shared.handles.store(Arc::new(handles));
        }
        self.shared.view.store(Arc::new(self.state.view()));
        self.shared.metrics.publications.inc();
    }

    fn describe(&self) -> Vec<WorkerStatus> {
        let view = self.state.view();
        let mut all: Vec<_> = self.members.iter().flatten().filter_map(|member| member.status(&view)).collect();
        all.sort_by(|a, b| (&a.url, a.view.rank).cmp(&(&b.url, b.view.rank)));
        all
    }
}

/// Whether time alone may change it: its probe comes due, or its last request ends.
fn must_look(member: &Member) -> bool {
    member.leaving || member.breaker.due_ms().is_some()
}
