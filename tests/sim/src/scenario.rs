//! What surrounds the requests: how large the fleet is, what it hears late, wrongly or never, and what breaks.

use crate::hardware::Hardware;

/// Fleet, signals and faults of one run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Engines at the start.
    pub workers: usize,
    /// Their kind.
    pub hardware: Hardware,
    /// How much longer steps take at worker *i* modulo the length; empty: nowhere.
    pub slowness: Vec<f64>,
    /// Gateways that share the load; each knows only what itself has sent.
    pub gateways: usize,
    /// What gateways are told.
    pub signals: Signals,
    /// What happens when, in order of time.
    pub script: Vec<(u64, Happening)>,
    /// Requests that arrive before this part of the run are served and not measured: caches fill.
    pub warm_up: f64,
}

/// Delays, losses and lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Signals {
    /// From the end of an engine's step to the gateway knowing its KV events, µs.
    pub event_delay_us: u64,
    /// Share of event batches that are lost for good.
    pub event_loss: f64,
    /// Between two readings of an engine's load, µs; 0: never.
    pub load_interval_us: u64,
    /// From the reading to the gateway knowing it, µs.
    pub load_delay_us: u64,
    /// Share of readings that are lost.
    pub load_loss: f64,
    /// Engines (the first so many) that always report to be idle.
    pub idle_liars: usize,
    /// Whether answers say how much of the prompt was cached.
    pub cached_tokens_told: bool,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            event_delay_us: 2_000,
            event_loss: 0.0,
            load_interval_us: 1_000_000,
            load_delay_us: 5_000,
            load_loss: 0.0,
            idle_liars: 0,
            cached_tokens_told: true,
        }
    }
}

/// What happens to a worker. A planner steers the fleet by the same word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Happening {
    /// The process dies with all it holds; gateways learn of it when a connection breaks.
    Crash(usize),
    /// It is back, empty.
    Restart(usize),
    /// From now on steps take so many times as long.
    Slow(usize, f64),
    /// One more worker.
    Join,
    /// It finishes what it has and takes nothing new.
    Leave(usize),
}

impl Scenario {
    /// A healthy fleet of equal workers behind one gateway.
    pub fn healthy(workers: usize, hardware: Hardware) -> Self {
        Self {
            workers,
            hardware,
            slowness: Vec::new(),
            gateways: 1,
            signals: Signals::default(),
            script: Vec::new(),
            warm_up: 0.3,
        }
    }

    /// How many times as long steps take at `worker`.
    pub fn slowness_of(&self, worker: usize) -> f64 {
        let all = &self.slowness;
        if all.is_empty() { 1.0 } else { all[worker % all.len()] }
    }

    /// Workers that there will ever be.
    pub fn workers_ever(&self) -> usize {
        self.workers + self.script.iter().filter(|(_, what)| *what == Happening::Join).count()
    }
}
