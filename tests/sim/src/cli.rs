//! The command line.

use crate::bench;
use crate::compare::{self, Offer, Plan, Run};
use crate::hardware::{self, Hardware};
use crate::policy::{self, Spec};
use crate::report::{html::html, json::json, table::table};
use crate::scenario::{Happening, Scenario};
use crate::workload::{self, Definition};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};

/// Simulates a fleet of LLM engines behind routing policies, in virtual time
#[derive(Debug, Parser)]
#[command(name = "forebay-sim", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One policy, one workload, one load: all figures
    Run(RunArguments),
    /// Policies side by side on the same requests
    Compare(CompareArguments),
    /// The rate at which least-loaded still serves 90 % within the objective, as workloads/capacity.toml has it
    Capacity(CapacityArguments),
    /// Every policy in every cell, and the goals in one RESULT line
    Bench(bench::Arguments),
    /// Workloads, engines and policies
    List,
}

#[derive(Debug, Args)]
struct FleetArguments {
    /// Workers
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Kind of engine
    #[arg(long, default_value = "standard")]
    engine: String,
    /// Gateways that share the requests; each knows what itself has sent
    #[arg(long, default_value_t = 1)]
    gateways: usize,
    /// How many times as long steps take, by worker, repeated: 1,1,1,2
    #[arg(long, value_delimiter = ',')]
    slowness: Vec<f64>,
    /// Until gateways know an engine's KV events
    #[arg(long, default_value_t = 2)]
    event_delay_ms: u64,
    /// Share of event batches that are lost for good
    #[arg(long, default_value_t = 0.0)]
    event_loss: f64,
    /// Between two readings of an engine's load; 0: never
    #[arg(long, default_value_t = 1_000)]
    load_interval_ms: u64,
    /// Share of readings that are lost
    #[arg(long, default_value_t = 0.0)]
    load_loss: f64,
    /// Engines that always report to be idle
    #[arg(long, default_value_t = 0)]
    idle_liars: usize,
    /// What happens when: crash:WORKER@SECONDS, restart:…, leave:…, slow:WORKER:TIMES@SECONDS, join@SECONDS
    #[arg(long, value_delimiter = ',')]
    happening: Vec<String>,
}

#[derive(Debug, Args)]
struct RunArguments {
    #[command(flatten)]
    fleet: FleetArguments,
    /// A committed workload
    #[arg(long, default_value = "conversation")]
    workload: String,
    /// A trace of your own, in Mooncake's JSON Lines
    #[arg(long, conflicts_with = "workload")]
    trace: Option<PathBuf>,
    /// Tokens that one id of the trace stands for
    #[arg(long, default_value_t = 512)]
    trace_block: u32,
    /// Policy, or policy:key=value,…
    #[arg(long, default_value = "kv")]
    policy: String,
    /// Part of the capacity
    #[arg(long, default_value_t = 0.9)]
    load: f64,
    /// Requests a second instead
    #[arg(long)]
    rate: Option<f64>,
    /// Requests
    #[arg(long)]
    requests: Option<usize>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CompareArguments {
    #[command(flatten)]
    fleet: FleetArguments,
    /// Workloads; all that are not held out
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Policies, separated by blanks; all
    #[arg(long, value_delimiter = ' ')]
    policies: Vec<String>,
    /// Parts of the capacity
    #[arg(long, value_delimiter = ',', default_values_t = [0.6, 0.9, 1.1])]
    loads: Vec<f64>,
    /// Seeds 1 to so many
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Of the requests of each workload, how many are offered
    #[arg(long, default_value_t = 1.0)]
    share: f64,
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Write a page with plots
    #[arg(long)]
    html: Option<PathBuf>,
    /// Write all figures
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct CapacityArguments {
    /// Workloads; all
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Kinds of engine; all
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
}

impl Arguments {
    /// Does what was asked; the error is for people.
    pub fn execute(self) -> Result<(), String> {
        match self.command {
            Command::Run(arguments) => arguments.execute(),
            Command::Compare(arguments) => arguments.execute(),
            Command::Capacity(arguments) => arguments.execute(),
            Command::Bench(arguments) => arguments.execute(),
            Command::List => {
                list();
                Ok(())
            }
        }
    }
}

impl FleetArguments {
    fn scenario(&self) -> Result<Scenario, String> {
        if self.workers == 0 || self.gateways == 0 || self.slowness.iter().any(|times| *times <= 0.0 || times.is_nan())
        {
            return Err("workers, gateways and slowness must be positive".to_owned());
        }
        let mut scenario = Scenario::healthy(self.workers, Hardware::committed(&self.engine)?);
        scenario.slowness = self.slowness.clone();
        scenario.gateways = self.gateways;
        scenario.signals.event_delay_us = self.event_delay_ms * 1_000;
        scenario.signals.event_loss = self.event_loss;
        scenario.signals.load_interval_us = self.load_interval_ms * 1_000;
        scenario.signals.load_loss = self.load_loss;
        scenario.signals.idle_liars = self.idle_liars;
        for text in &self.happening {
            scenario.script.push(happening(text)?);
        }
        scenario.script.sort_by_key(|(at_us, _)| *at_us);
        let ever = scenario.workers_ever();
        let worker_of = |what: &Happening| match what {
            Happening::Crash(worker) | Happening::Restart(worker) | Happening::Leave(worker) => *worker,
            Happening::Slow(worker, _) => *worker,
            Happening::Join => 0,
        };
        match scenario.script.iter().find(|(_, what)| worker_of(what) >= ever) {
            Some((_, what)) => Err(format!("{what:?}: there are only {ever} workers")),
            None => Ok(scenario),
        }
    }
}

fn happening(text: &str) -> Result<(u64, Happening), String> {
    let bad = || {
        format!("`{text}` is none of crash:WORKER@SECONDS, restart:…, leave:…, slow:WORKER:TIMES@SECONDS, join@SECONDS")
    };
    let (what, seconds) = text.split_once('@').ok_or_else(bad)?;
    let at_us = (seconds.parse::<f64>().map_err(|_| bad())? * 1e6) as u64;
    let words: Vec<&str> = what.split(':').collect();
    let worker = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok()).ok_or_else(bad);
    let happening = match words[0] {
        "crash" => Happening::Crash(worker(1)?),
        "restart" => Happening::Restart(worker(1)?),
        "leave" => Happening::Leave(worker(1)?),
        "slow" => {
            let times = words.get(2).and_then(|word| word.parse::<f64>().ok()).filter(|times| *times > 0.0);
            Happening::Slow(worker(1)?, times.ok_or_else(bad)?)
        }
        "join" => Happening::Join,
        _ => return Err(bad()),
    };
    Ok((at_us, happening))
}

impl RunArguments {
    fn execute(self) -> Result<(), String> {
        let scenario = self.fleet.scenario()?;
        let definition = self.definition()?;
        let workers = self.fleet.workers as f64;
        let rate = match self.rate {
            Some(rate) if rate > 0.0 => rate,
            Some(_) => return Err("--rate must be positive".to_owned()),
            None => {
                let known = compare::capacity(&self.fleet.engine, &self.workload).filter(|_| self.trace.is_none());
                known.ok_or("the capacity for this workload is not known: give --rate")? * workers * self.load
            }
        };
        let count = self.requests.unwrap_or(definition.requests_per_worker as usize * self.fleet.workers);
        let policy = Spec::parse(&self.policy)?;
        let asked = Offer { rate, count, seed: self.seed };
        let summary = compare::offer(&definition, &scenario, std::slice::from_ref(&policy), asked, || {})?.remove(0);
        let run = Run {
            workload: self.trace.as_deref().map_or(self.workload.clone(), |path| path.display().to_string()),
            engine: self.fleet.engine.clone(),
            workers: self.fleet.workers,
            load: self.load,
            seed: self.seed,
            policy: policy.name,
            summary,
        };
        say(&if self.json { json(&[run])? } else { table(&[run]) });
        Ok(())
    }

    fn definition(&self) -> Result<Definition, String> {
        let Some(path) = &self.trace else { return Definition::committed(&self.workload) };
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lines = workload::read_mooncake(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let each = (lines.len() / self.fleet.workers).max(1) as u32;
        if self.trace_block == 0 {
            return Err("--trace-block must be at least 1".to_owned());
        }
        Ok(Definition::from_trace(lines, self.trace_block, each))
    }
}

impl CompareArguments {
    fn execute(self) -> Result<(), String> {
        let plan = self.plan()?;
        let runs = with_progress(&plan)?;
        say(&table(&runs));
        if let Some(path) = &self.html {
            write(path, &html(&runs))?;
        }
        if let Some(path) = &self.json {
            write(path, &json(&runs)?)?;
        }
        Ok(())
    }

    fn plan(&self) -> Result<Plan, String> {
        let mut workloads = Vec::new();
        if self.workloads.is_empty() {
            for name in workload::names() {
                workloads.push((name.to_owned(), Definition::committed(name)?));
            }
            workloads.retain(|(_, definition)| !definition.held_out);
        }
        for name in &self.workloads {
            workloads.push((name.clone(), Definition::committed(name)?));
        }
        let policies: Result<Vec<Spec>, String> = if self.policies.is_empty() {
            policy::named().map(|(name, _)| Spec::parse(name)).collect()
        } else {
            self.policies.iter().map(|name| Spec::parse(name)).collect()
        };
        Ok(Plan {
            workloads,
            engine: self.fleet.engine.clone(),
            scenario: self.fleet.scenario()?,
            loads: self.loads.clone(),
            seeds: self.seeds.max(1),
            policies: policies?,
            share: self.share,
            threads: self.threads,
        })
    }
}

/// Runs a plan with a bar on standard error, where that is a terminal.
pub(crate) fn with_progress(plan: &Plan) -> Result<Vec<Run>, String> {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left") {
        bar.set_style(style);
    }
    let runs = compare::execute(plan, |total| {
        bar.set_length(total as u64);
        bar.inc(1);
    });
    bar.finish_and_clear();
    runs
}

impl CapacityArguments {
    fn execute(self) -> Result<(), String> {
        let all = |given: Vec<String>, names: Vec<&str>| {
            if given.is_empty() { names.into_iter().map(str::to_owned).collect() } else { given }
        };
        for engine in all(self.engines, hardware::names().collect()) {
            let hardware = Hardware::committed(&engine)?;
            say(&format!("[{engine}]"));
            for name in all(self.workloads.clone(), workload::names().collect()) {
                let capacity = compare::find_capacity(&Definition::committed(&name)?, &hardware, 8)?;
                say(&format!("{name} = {capacity:.3}"));
            }
        }
        Ok(())
    }
}

fn list() {
    say("workloads");
    for name in workload::names() {
        if let Ok(definition) = Definition::committed(name) {
            say(&format!("  {name:<20} {}{}", definition.about, if definition.held_out { " (held out)" } else { "" }));
        }
    }
    say("engines");
    hardware::names().for_each(|name| say(&format!("  {name}")));
    say("policies");
    policy::named().for_each(|(name, about)| say(&format!("  {name:<20} {about}")));
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[expect(clippy::print_stdout, reason = "what a command was asked for goes to standard output")]
pub(crate) fn say(text: &str) {
    println!("{text}");
}
