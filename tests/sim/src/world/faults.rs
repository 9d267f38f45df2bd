//! What goes wrong, who comes and who goes.

use super::queue::Event;
use super::{BREAK_US, Engine, MAX_ATTEMPTS, PROBE_US, World};
use crate::scenario::Happening;
use forebay_routing::view::WorkerState;

impl World<'_> {
    pub(super) fn happen(&mut self, what: Happening) {
        match what {
            Happening::Crash(worker) => self.crash(worker),
            Happening::Restart(worker) => {
                if let Ok(model) =
                    self.scenario.hardware.model(self.offered.block_tokens, self.scenario.slowness_of(worker))
                {
                    let engine = &mut self.engines[worker];
                    (engine.model, engine.step, engine.is_up) = (model, None, true);
                    self.push(self.now_us + PROBE_US, Event::Back { worker });
                }
            }
            Happening::Slow(worker, times) => self.engines[worker].model.set_speedup(1.0 / times),
            // A worker that cannot be built would have been refused at the start.
            Happening::Join => drop(self.join()),
            Happening::Leave(worker) => {
                self.gateways.iter_mut().for_each(|gateway| gateway.set_state(worker, WorkerState::Draining));
                self.engines[worker].is_leaving = true;
                self.dismiss(worker);
            }
        }
    }

    pub(super) fn join(&mut self) -> Result<(), String> {
        let slowness = self.scenario.slowness_of(self.engines.len());
        let model =
            self.scenario.hardware.model(self.offered.block_tokens, slowness).map_err(|error| error.to_string())?;
        let capacity = model.limits().blocks as u32;
        let class = if slowness == 1.0 { "standard".to_owned() } else { format!("x{slowness}") };
        let now_ms = self.now_us / 1_000;
        self.gateways.iter_mut().for_each(|gateway| gateway.join(capacity, &class, now_ms));
        self.engines.push(Engine { model, step: None, life: 0, is_up: true, is_leaving: false });
        Ok(())
    }

    fn crash(&mut self, worker: usize) {
        let engine = &mut self.engines[worker];
        engine.life += 1;
        engine.is_up = false;
        engine.step = None;
        for job in 0..self.jobs.len() {
            if self.jobs[job].sent.as_ref().is_some_and(|sent| sent.worker == worker) {
                self.push(self.now_us + BREAK_US, Event::Broke { job });
            }
        }
    }

    /// The connection of a request broke. Before the first token it goes elsewhere.
    pub(super) fn broke(&mut self, job: usize) {
        let entry = &self.jobs[job];
        let Some(sent) = &entry.sent else { return };
        let (worker, id, tokens) = (sent.worker, sent.id, entry.outcome.tokens);
        self.gateways[entry.gateway].failed(worker, id);
        self.release(job, tokens);
        if tokens == 0 && self.jobs[job].tried.len() < MAX_ATTEMPTS {
            self.jobs[job].outcome.cached_tokens = None;
            self.send(job);
        } else {
            self.open -= 1;
        }
    }
    /// Lets a worker go that leaves and has nothing left to do.
    pub(super) fn dismiss(&mut self, worker: usize) {
        let engine = &self.engines[worker];
        if engine.is_leaving && engine.is_up && !engine.model.has_work() {
            let now_ms = self.now_us / 1_000;
            self.gateways.iter_mut().for_each(|gateway| gateway.leave(worker, now_ms));
            self.engines[worker].is_up = false;
        }
    }
}
