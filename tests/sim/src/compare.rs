//! Many runs: every policy is offered the very same requests, seed by seed, so that differences are differences of policy.

use crate::hardware::Hardware;
use crate::measure::{Summary, summarise};
use crate::policy::Spec;
use crate::scenario::Scenario;
use crate::workload::Definition;
use crate::world;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What least-loaded still serves within its objective at a load of 1.
const CAPACITY_GOODPUT: f64 = 0.9;
/// Halvings of the interval in which the capacity lies.
const CAPACITY_STEPS: u32 = 9;
/// Seeds that a capacity is the mean of.
const CAPACITY_SEEDS: u64 = 3;
/// Requests a second and worker between which it is looked for.
const CAPACITY_RANGE: (f64, f64) = (0.05, 20.0);
/// Two-sided 95 % points of Student's t by degrees of freedom, from 1.
const STUDENT: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];

/// What is compared.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names and definitions.
    pub workloads: Vec<(String, Definition)>,
    /// Name of the engines' kind.
    pub engine: String,
    /// How many there are, signals, faults.
    pub scenario: Scenario,
    /// Parts of the capacity.
    pub loads: Vec<f64>,
    /// Seeds 1 to so many.
    pub seeds: u64,
    /// Who is compared.
    pub policies: Vec<Spec>,
    /// Of the requests that the workload asks for, how many are offered.
    pub share: f64,
    /// Threads.
    pub threads: usize,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Workload.
    pub workload: String,
    /// Kind of engines.
    pub engine: String,
    /// Workers.
    pub workers: usize,
    /// Part of the capacity.
    pub load: f64,
    /// Seed.
    pub seed: u64,
    /// Policy.
    pub policy: String,
    /// What came of it.
    pub summary: Summary,
}

/// Requests a second and worker that are a load of 1, by engine and workload: committed, so that a load is the same load
/// whatever becomes of the code.
pub fn capacity(engine: &str, workload: &str) -> Option<f64> {
    let table: BTreeMap<String, BTreeMap<String, f64>> =
        toml::from_str(include_str!("../workloads/capacity.toml")).ok()?;
    table.get(engine)?.get(workload).copied()
}

/// Runs the plan; `progress` is called after each run with how many there are.
pub fn execute(plan: &Plan, progress: impl Fn(usize) + Sync) -> Result<Vec<Run>, String> {
    let mut cells = Vec::new();
    for (name, definition) in &plan.workloads {
        let capacity = capacity(&plan.engine, name).ok_or_else(|| {
            format!("the capacity of {} for {name} is not known: give --rate, or add it", plan.engine)
        })?;
        for &load in &plan.loads {
            cells.extend((1..=plan.seeds).map(|seed| Cell { name, definition, load, seed, rate: capacity * load }));
        }
    }
    let (next, total) = (AtomicUsize::new(0), cells.len() * plan.policies.len());
    let results: Mutex<Vec<Done>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(at) else { return };
                    let runs = cell.run(plan, || progress(total));
                    results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, runs));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    let runs: Result<Vec<Vec<Run>>, String> = results.into_iter().map(|(_, runs)| runs).collect();
    Ok(runs?.into_iter().flatten().collect())
}

/// Place of a cell in the plan, and its runs.
type Done = (usize, Result<Vec<Run>, String>);

struct Cell<'a> {
    name: &'a str,
    definition: &'a Definition,
    load: f64,
    seed: u64,
    /// Requests a second and worker.
    rate: f64,
}

impl Cell<'_> {
    fn run(&self, plan: &Plan, done: impl Fn()) -> Result<Vec<Run>, String> {
        let workers = plan.scenario.workers;
        let count = f64::from(self.definition.requests_per_worker) * workers as f64 * plan.share;
        let summaries = offer(
            self.definition,
            &plan.scenario,
            &plan.policies,
            Offer { rate: self.rate * workers as f64, count: count as usize, seed: self.seed },
            done,
        )?;
        let run = |(policy, summary): (&Spec, Summary)| Run {
            workload: self.name.to_owned(),
            engine: plan.engine.clone(),
            workers,
            load: self.load,
            seed: self.seed,
            policy: policy.name.clone(),
            summary,
        };
        Ok(plan.policies.iter().zip(summaries).map(run).collect())
    }
}

/// How much is offered.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Requests a second.
    pub rate: f64,
    /// Requests.
    pub count: usize,
    /// Seed of requests and policies.
    pub seed: u64,
}

/// Offers the same requests to each policy.
pub fn offer(
    definition: &Definition,
    scenario: &Scenario,
    policies: &[Spec],
    offer: Offer,
    done: impl Fn(),
) -> Result<Vec<Summary>, String> {
    let offered = definition.draw(offer.rate, offer.count, offer.seed);
    let prompts = world::prepare(&offered);
    let from_us = (offered.horizon_us as f64 * scenario.warm_up) as u64;
    let mut summaries = Vec::with_capacity(policies.len());
    for policy in policies {
        let outcomes = world::run(scenario, &offered, &prompts, policy, offer.seed)?;
        let workers = scenario.workers_ever();
        summaries.push(summarise(&offered.requests, &outcomes, &scenario.hardware, workers, from_us));
        done();
    }
    Ok(summaries)
}

/// The highest rate, in requests a second and worker, at which least-loaded serves 90 % within the objective.
pub fn find_capacity(definition: &Definition, hardware: &Hardware, workers: usize) -> Result<f64, String> {
    let scenario = Scenario::healthy(workers, hardware.clone());
    let policies = [Spec::parse("least-requests")?];
    let count = definition.requests_per_worker as usize * workers;
    let goodput = |rate: f64| -> Result<f64, String> {
        let mut sum = 0.0;
        for seed in 1..=CAPACITY_SEEDS {
            let offer_of = Offer { rate: rate * workers as f64, count, seed: 1_000 + seed };
            sum += offer(definition, &scenario, &policies, offer_of, || {})?[0].goodput;
        }
        Ok(sum / CAPACITY_SEEDS as f64)
    };
    let (mut low, mut high) = CAPACITY_RANGE;
    for _ in 0..CAPACITY_STEPS {
        let middle = (low * high).sqrt();
        if goodput(middle)? >= CAPACITY_GOODPUT { low = middle } else { high = middle }
    }
    Ok(low)
}

/// Mean and half of its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean.
    pub mean: f64,
    /// Half the interval; 0 where there is one value only.
    pub half: f64,
}

impl Estimate {
    /// Of these values, by Student's t.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        if values.len() < 2 {
            return Self { mean, half: 0.0 };
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let student = STUDENT.get(values.len() - 2).copied().unwrap_or(1.96);
        Self { mean, half: student * (variance / count).sqrt() }
    }
}

/// Runs of one cell by policy, over seeds.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Workload, engine, workers, load.
    pub cell: (&'a str, &'a str, usize, f64),
    /// Policy.
    pub policy: &'a str,
    /// By seed, ascending.
    pub runs: Vec<&'a Run>,
}

impl Row<'_> {
    /// Mean and interval of a figure.
    pub fn estimate(&self, figure: impl Fn(&Summary) -> f64) -> Estimate {
        Estimate::of(&self.runs.iter().map(|run| figure(&run.summary)).collect::<Vec<_>>())
    }
}

/// Groups runs by cell and policy, in the order in which they first occur.
pub fn rows(runs: &[Run]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for run in runs {
        let cell = (run.workload.as_str(), run.engine.as_str(), run.workers, run.load);
        match rows.iter_mut().find(|row| row.cell == cell && row.policy == run.policy) {
            Some(row) => row.runs.push(run),
            None => rows.push(Row { cell, policy: &run.policy, runs: vec![run] }),
        }
    }
    rows
}

/// Geometric mean over `pairs` of ratios; `None` of none.
pub fn geometric_mean(ratios: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = ratios.into_iter().map(|ratio| ratio.max(1e-9).ln()).collect();
    if logs.is_empty() { None } else { Some((logs.iter().sum::<f64>() / logs.len() as f64).exp()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        let estimate = Estimate::of(&[1.0, 2.0, 3.0]);
        assert_eq!(estimate.mean, 2.0);
        assert!((estimate.half - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(Estimate::of(&[5.0]), Estimate { mean: 5.0, half: 0.0 });
        assert!((geometric_mean([2.0, 8.0]).unwrap() - 4.0).abs() < 1e-9);
        assert_eq!(geometric_mean([]), None);
    }

    #[test]
    fn every_committed_workload_has_a_capacity() {
        for engine in crate::hardware::names() {
            for workload in crate::workload::names() {
                assert!(capacity(engine, workload).is_some(), "{engine} {workload}");
            }
        }
    }
}
