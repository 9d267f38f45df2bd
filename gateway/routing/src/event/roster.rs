//! Slots, models and learned rates of the fleet: the state behind [`FleetView`].

use super::{
    Effect, EventRefusal, FleetEvent, MAX_MODELS, MAX_NAMES_PER_WORKER, MAX_WORKERS, SLOT_REST_MS, ServedName,
    WorkerKey,
};
use crate::WorkerId;
use crate::rates::{Fit, Observation, PRIOR, Rates};
use crate::view::{CacheKnowledge, EngineLoad, FabricLoad, FleetView, KernelLoad, ModelView, WorkerState, WorkerView};
use hashbrown::HashMap;
use std::collections::{BTreeSet, VecDeque};
use xxhash_rust::xxh3::Xxh3Default;

/// The fleet as its owner keeps it.
#[derive(Debug, Default)]
pub struct FleetState {
    version: u64,
    slots: Vec<Slot>,
    /// Freed slots and when each may be given away, oldest first.
    resting: VecDeque<(u32, u64)>,
    by_key: HashMap<WorkerKey, u32>,
    models: Vec<Model>,
    by_name: HashMap<String, u32>,
    classes: HashMap<Class, ClassFit>,
}

/// Workers of one class learn rates together.
type Class = (String, Option<String>);

#[derive(Debug, Default)]
struct ClassFit {
    fit: Fit,
    members: u32,
    /// Exchanges that it learned from.
    observed: u64,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    tenant: Option<Box<Tenant>>,
}

#[derive(Debug)]
struct Tenant {
    key: WorkerKey,
    class: Class,
    affinity: u64,
    names: Vec<ServedName>,
    state: WorkerState,
    block_size: Option<u32>,
    capacity_blocks: Option<u32>,
    cache: CacheKnowledge,
    engine: Option<EngineLoad>,
    kernel: Option<KernelLoad>,
    fabric: Option<FabricLoad>,
    fit: Fit,
    /// How many the class had learned from when this worker's last exchange came.
    observed: u64,
}

#[derive(Debug)]
struct Model {
    name: String,
    base: Option<String>,
    lora: bool,
    slots: BTreeSet<u32>,
}

impl FleetState {
    /// An empty fleet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one event. Total: any event in any state is answered, none panics.
    pub fn apply(&mut self, event: FleetEvent) -> Effect {
        let effect = match event {
            FleetEvent::Joined { key, hardware, block_size, at_ms } => self.join(key, hardware, block_size, at_ms),
            FleetEvent::Left { worker, at_ms } => self.leave(worker, at_ms),
            FleetEvent::Restarted { worker } => self.restart(worker),
            FleetEvent::NamesLearned { worker, names } => self.learn_names(worker, names),
            FleetEvent::StateChanged { worker, state } => {
                self.change(worker, |tenant| replace(&mut tenant.state, state))
            }
            FleetEvent::LoadReported { worker, load } => self.change(worker, |tenant| report(tenant, load)),
            FleetEvent::LoadLost { worker } => self.change(worker, |tenant| replace(&mut tenant.engine, None)),
            FleetEvent::KernelReported { worker, load, fabric } => {
                self.change(worker, |tenant| report_kernel(tenant, load, fabric))
            }
            FleetEvent::CacheLearned { worker, block_size, capacity_blocks } => {
                self.change(worker, |tenant| learn_cache(tenant, block_size, capacity_blocks))
            }
            FleetEvent::KnowledgeChanged { worker, cache } => {
                self.change(worker, |tenant| replace(&mut tenant.cache, cache))
            }
            FleetEvent::Observed { worker, observation } => self.observe(worker, &observation),
        };
        if !matches!(effect, Effect::Unchanged | Effect::Known(_)) {
            self.version += 1;
        }
        effect
    }

    /// Increases whenever the next view may differ from the last.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What makes `worker` that worker; `None` once that generation is gone.
    pub fn key(&self, worker: WorkerId) -> Option<&WorkerKey> {
        self.tenant(worker).map(|tenant| &tenant.key)
    }

    /// The present identity of a key.
    pub fn find(&self, key: &WorkerKey) -> Option<WorkerId> {
        let slot = *self.by_key.get(key)?;
        Some(WorkerId::new(slot, self.slots.get(slot as usize)?.generation))
    }

    /// Builds the snapshot that decisions read. O(workers + names).
    pub fn view(&self) -> FleetView {
        let mut positions = vec![u32::MAX; self.slots.len()];
        let mut workers = Vec::with_capacity(self.by_key.len());
        // Workers of one class mostly follow each other.
        let mut class: Option<(&Class, Rates, u64)> = None;
        for (slot, entry) in self.slots.iter().enumerate() {
            let Some(tenant) = &entry.tenant else { continue };
            if let Some(position) = positions.get_mut(slot) {
                *position = workers.len() as u32;
            }
            let (class_rates, observed) = match class {
                Some((known, rates, observed)) if *known == tenant.class => (rates, observed),
                _ => self
                    .classes
                    .get(&tenant.class)
                    .map_or((PRIOR, 0), |class| (class.fit.rates(&PRIOR), class.observed)),
            };
            class = Some((&tenant.class, class_rates, observed));
            let missed = observed.saturating_sub(tenant.observed);
            workers.push(view_worker(WorkerId::new(slot as u32, entry.generation), tenant, &class_rates, missed));
        }
        let models = self.models.iter().map(|model| view_model(model, &positions, &workers)).collect();
        FleetView { version: self.version, workers, models }
    }

    fn tenant(&self, worker: WorkerId) -> Option<&Tenant> {
        let slot = self.slots.get(worker.slot as usize).filter(|slot| slot.generation == worker.generation)?;
        slot.tenant.as_deref()
    }

    fn change(&mut self, worker: WorkerId, change: impl FnOnce(&mut Tenant) -> Effect) -> Effect {
        let slot = self.slots.get_mut(worker.slot as usize).filter(|slot| slot.generation == worker.generation);
        match slot.and_then(|slot| slot.tenant.as_deref_mut()) {
            Some(tenant) => change(tenant),
            None => Effect::Refused(EventRefusal::UnknownWorker),
        }
    }

    fn join(&mut self, key: WorkerKey, hardware: Option<String>, block_size: Option<u32>, at_ms: u64) -> Effect {
        if let Some(known) = self.find(&key) {
            return Effect::Known(known);
        }
        let Some(slot) = self.free_slot(at_ms) else { return Effect::Refused(EventRefusal::FleetFull) };
        let class = (key.model.clone(), hardware);
        self.classes.entry(class.clone()).or_default().members += 1;
        self.by_key.insert(key.clone(), slot);
        let model = key.model.clone();
        let entry = &mut self.slots[slot as usize];
        entry.tenant = Some(Box::new(Tenant {
            affinity: affinity(&key),
            key,
            class,
            names: Vec::new(),
            state: WorkerState::Starting,
            block_size: block_size.filter(|&size| size > 0),
            capacity_blocks: None,
            cache: CacheKnowledge::Approximate,
            engine: None,
            kernel: None,
            fabric: None,
            fit: Fit::default(),
            observed: 0,
        }));
        let id = WorkerId::new(slot, entry.generation);
        self.serve(slot, &model, None, false);
        Effect::Joined(id)
    }

    /// A slot that may be given away at `at_ms`; its index is valid in `slots`.
    fn free_slot(&mut self, at_ms: u64) -> Option<u32> {
        if self.resting.front().is_some_and(|&(_, free_at_ms)| free_at_ms <= at_ms) {
            return self.resting.pop_front().map(|(slot, _)| slot);
        }
        if self.slots.len() >= MAX_WORKERS {
            return None;
        }
        self.slots.push(Slot::default());
        Some(self.slots.len() as u32 - 1)
    }

    fn leave(&mut self, worker: WorkerId, at_ms: u64) -> Effect {
        let Some(entry) = self.slots.get_mut(worker.slot as usize).filter(|slot| slot.generation == worker.generation)
        else {
            return Effect::Refused(EventRefusal::UnknownWorker);
        };
        let Some(tenant) = entry.tenant.take() else { return Effect::Refused(EventRefusal::UnknownWorker) };
        // The last generation is never given away, so that no identifier repeats: that slot retires.
        if entry.generation < u32::MAX {
            entry.generation += 1;
            self.resting.push_back((worker.slot, at_ms.saturating_add(SLOT_REST_MS)));
        }
        self.by_key.remove(&tenant.key);
        if let Some(class) = self.classes.get_mut(&tenant.class) {
            class.members -= 1;
            if class.members == 0 {
                self.classes.remove(&tenant.class);
            }
        }
        for model in &mut self.models {
            model.slots.remove(&worker.slot);
        }
        Effect::Left(worker)
    }

    fn restart(&mut self, worker: WorkerId) -> Effect {
        let slot = self.slots.get_mut(worker.slot as usize).filter(|slot| slot.generation == worker.generation);
        let Some((generation, tenant)) =
            slot.and_then(|slot| slot.tenant.as_deref_mut().map(|tenant| (&mut slot.generation, tenant)))
        else {
            return Effect::Refused(EventRefusal::UnknownWorker);
        };
        if *generation == u32::MAX {
            return Effect::Refused(EventRefusal::FleetFull);
        }
        *generation += 1;
        tenant.engine = None;
        tenant.kernel = None;
        Effect::Restarted { old: worker, new: WorkerId::new(worker.slot, *generation) }
    }

    fn learn_names(&mut self, worker: WorkerId, mut names: Vec<ServedName>) -> Effect {
        let Some(tenant) = self.tenant(worker) else { return Effect::Refused(EventRefusal::UnknownWorker) };
        let base = tenant.key.model.clone();
        let listed = names.len();
        names.truncate(MAX_NAMES_PER_WORKER);
        names.retain(|served| served.name != base);
        if tenant.names == names {
            return Effect::Unchanged;
        }
        for model in self.models.iter_mut().filter(|model| model.name != base) {
            model.slots.remove(&worker.slot);
        }
        let mut complete = listed <= MAX_NAMES_PER_WORKER;
        for served in &names {
            complete &= self.serve(worker.slot, &served.name, Some(&base), served.lora);
        }
        self.change(worker, |tenant| {
            tenant.names = names;
            if complete { Effect::Changed } else { Effect::Refused(EventRefusal::NameLeftOut) }
        })
    }

    /// Lists `slot` under `name`; false when the name is taken by another meaning or there are too many.
    fn serve(&mut self, slot: u32, name: &str, base: Option<&str>, lora: bool) -> bool {
        let position = match self.by_name.get(name) {
            Some(&position) => position,
            None if self.models.len() < MAX_MODELS => {
                let model = Model { name: name.to_owned(), base: None, lora, slots: BTreeSet::new() };
                self.models.push(model);
                let position = self.models.len() as u32 - 1;
                self.by_name.insert(name.to_owned(), position);
                position
            }
            None => return false,
        };
        let Some(model) = self.models.get_mut(position as usize) else { return false };
        // A name that nobody serves any more may come back with another meaning.
        if model.slots.is_empty() {
            model.base = base.map(str::to_owned);
            model.lora = lora;
        }
        let same = model.base.as_deref() == base && model.lora == lora;
        if same {
            model.slots.insert(slot);
        }
        same
    }

    fn observe(&mut self, worker: WorkerId, observation: &Observation) -> Effect {
        let Some(tenant) = self.tenant(worker) else { return Effect::Refused(EventRefusal::UnknownWorker) };
        let class_rates = self.classes.get(&tenant.class).map_or(PRIOR, |class| class.fit.rates(&PRIOR));
        // Requests of others queue there: the measured time says nothing about the worker's speed.
        let observation = if tenant.engine.is_some_and(|load| load.others_waiting() > observation.load.prefill_requests)
        {
            Observation { ttft_ms: None, ..*observation }
        } else {
            *observation
        };
        let class = tenant.class.clone();
        let mut observed = 0;
        if let Some(class) = self.classes.get_mut(&class) {
            class.fit.observe(&observation, &PRIOR);
            class.observed += 1;
            observed = class.observed;
        }
        self.change(worker, |tenant| {
            tenant.observed = observed;
            if tenant.fit.observe(&observation, &class_rates) { Effect::Changed } else { Effect::Unchanged }
        })
    }
}

fn replace<T: PartialEq>(field: &mut T, value: T) -> Effect {
    if *field == value {
        return Effect::Unchanged;
    }
    *field = value;
    Effect::Changed
}

fn report(tenant: &mut Tenant, load: EngineLoad) -> Effect {
    if !load.kv_usage.is_finite() || load.kv_usage < 0.0 {
        return Effect::Refused(EventRefusal::Absurd);
    }
    if tenant.engine.is_some_and(|last| last.at_ms > load.at_ms) {
        return Effect::Unchanged;
    }
    replace(&mut tenant.engine, Some(EngineLoad { kv_usage: load.kv_usage.min(1.0), ..load }))
}

fn report_kernel(tenant: &mut Tenant, load: KernelLoad, fabric: Option<FabricLoad>) -> Effect {
    if tenant.kernel.is_some_and(|last| last.at_ms > load.at_ms) {
        return Effect::Unchanged;
    }
    match (replace(&mut tenant.kernel, Some(load)), replace(&mut tenant.fabric, fabric)) {
        (Effect::Unchanged, Effect::Unchanged) => Effect::Unchanged,
        _ => Effect::Changed,
    }
}

fn learn_cache(tenant: &mut Tenant, block_size: Option<u32>, capacity_blocks: Option<u32>) -> Effect {
    if block_size == Some(0) || capacity_blocks == Some(0) {
        return Effect::Refused(EventRefusal::Absurd);
    }
    let before = (tenant.block_size, tenant.capacity_blocks);
    tenant.block_size = block_size.or(tenant.block_size);
    tenant.capacity_blocks = capacity_blocks.or(tenant.capacity_blocks);
    if before == (tenant.block_size, tenant.capacity_blocks) { Effect::Unchanged } else { Effect::Changed }
}

/// `missed`: exchanges that the worker's class has learned from since its own last one.
fn view_worker(id: WorkerId, tenant: &Tenant, class_rates: &Rates, missed: u64) -> WorkerView {
    WorkerView {
        id,
        affinity: tenant.affinity,
        rank: tenant.key.rank,
        state: tenant.state,
        block_size: tenant.block_size,
        capacity_blocks: tenant.capacity_blocks,
        cache: tenant.cache,
        engine: tenant.engine,
        kernel: tenant.kernel,
        fabric: tenant.fabric,
        rates: tenant.fit.rates_within(class_rates, missed),
        typical_tokens: tenant.fit.typical_tokens(),
    }
}

fn view_model(model: &Model, positions: &[u32], workers: &[WorkerView]) -> ModelView {
    let listed: Vec<u32> = model
        .slots
        .iter()
        .filter_map(|&slot| positions.get(slot as usize).copied())
        .filter(|&position| position != u32::MAX)
        .collect();
    let sizes: BTreeSet<u32> =
        listed.iter().filter_map(|&position| workers.get(position as usize)?.block_size).collect();
    ModelView {
        name: model.name.clone(),
        base: model.base.clone(),
        lora: model.lora,
        workers: listed,
        block_sizes: sizes.into_iter().collect(),
    }
}

/// Where a worker stands on the ring; from its URL and rank alone, so that gateways and restarts agree.
fn affinity(key: &WorkerKey) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(&(key.url.len() as u64).to_le_bytes());
    hasher.update(key.url.as_bytes());
    hasher.update(&key.rank.map_or(u32::MAX, u32::from).to_le_bytes());
    hasher.digest()
}
