//! One run: a warm-up, then a measured phase, on the same connections and one thread.
//!
//! Between the phases, and after the second, nothing is in flight: CPU readings taken there belong to measured requests
//! and to nothing else. A closed loop sends on each connection as soon as the last answer is whole; a paced run sends
//! request k at k / rate, or as soon after as a connection is free.

use crate::client::{Client, ExchangeError, Target, Timing, micros};
use crate::connect::Dialer;
use crate::http2::Session;
use crate::procfs::{Usage, Watched};
use crate::sample::{ProcessUse, Sample};
use crate::stats::Distribution;
use crate::workload::Workload;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Duration, Instant, sleep, sleep_until};

/// A run with so many failures is over: it measures nothing.
const MAX_ERRORS: u64 = 500;
/// Rest of a connection after a failure, so that a dead router is not hammered.
const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// What ends a phase. No new request is sent then; those in flight are awaited.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// So many requests.
    pub requests: Option<u64>,
    /// So long.
    pub duration: Option<Duration>,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where to.
    pub dialer: Dialer,
    /// How answers are read.
    pub target: Target,
    /// Clients: requests in flight. Each has a connection of its own, but for HTTP/2.
    pub connections: usize,
    /// Clients of one HTTP/2 connection.
    pub streams: usize,
    /// Requests of the warm-up.
    pub warmup: u64,
    /// End of the measured phase.
    pub limit: Limit,
    /// Requests per second of a paced run.
    pub rate: Option<f64>,
    /// Processes to measure.
    pub watched: Vec<Watched>,
}

/// Names of a run, for its sample.
#[derive(Clone, Debug)]
pub struct Label {
    /// Test.
    pub test: String,
    /// Router.
    pub peer: String,
    /// Repetition.
    pub rep: u64,
}

/// Everything that happened.
#[derive(Debug, Default)]
struct Tally {
    issued: u64,
    latency_us: Vec<u32>,
    ttft_us: Vec<u32>,
    gaps_us: Vec<u32>,
    oneway_us: Vec<u32>,
    chunks: u64,
    errors: u64,
    first_error: Option<String>,
}

impl Tally {
    fn record(&mut self, outcome: Result<Timing, ExchangeError>) {
        match outcome {
            Ok(mut timing) => {
                self.latency_us.push(micros(timing.latency));
                self.ttft_us.extend(timing.ttft.map(micros));
                self.gaps_us.append(&mut timing.gaps_us);
                self.oneway_us.append(&mut timing.oneway_us);
                self.chunks += timing.chunks;
            }
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }

    /// Forgets the warm-up's figures, keeps its errors.
    fn end_warmup(&mut self) {
        *self = Self { errors: self.errors, first_error: self.first_error.take(), ..Self::default() };
    }
}

/// What the connections of a phase share; one thread, so borrows last between two awaits only.
struct Phase {
    target: Target,
    limit: Limit,
    rate: Option<f64>,
    started: Instant,
    workload: RefCell<Workload>,
    tally: RefCell<Tally>,
}

impl Phase {
    /// Claims the next request: its number, or `None` when the phase is over.
    fn claim(&self, request: &mut Vec<u8>) -> Option<u64> {
        let mut tally = self.tally.borrow_mut();
        let over = self.limit.requests.is_some_and(|most| tally.issued >= most)
            || self.limit.duration.is_some_and(|most| self.started.elapsed() >= most)
            || tally.errors >= MAX_ERRORS;
        if over {
            return None;
        }
        tally.issued += 1;
        self.workload.borrow_mut().write_request(request);
        Some(tally.issued - 1)
    }

    async fn drive(self: Rc<Self>, mut client: Client) -> Client {
        let mut request = Vec::new();
        while let Some(number) = self.claim(&mut request) {
            if let Some(rate) = self.rate {
                sleep_until(self.started + Duration::from_secs_f64(number as f64 / rate)).await;
            }
            let outcome = client.exchange(self.target, &request).await;
            let failed = outcome.is_err();
            self.tally.borrow_mut().record(outcome);
            if failed {
                sleep(ERROR_PAUSE).await;
            }
        }
        client
    }
}

/// Runs a plan on the current thread's runtime and sums it up.
pub async fn run(plan: Plan, workload: Workload, label: Label) -> Sample {
    // One for both phases: HTTP/2 connections live in it.
    LocalSet::new().run_until(run_phases(plan, workload, label)).await
}

/// The clients of a plan, none connected yet.
fn clients(plan: &Plan) -> Vec<Client> {
    let dialer = Rc::new(plan.dialer.clone());
    if !dialer.is_http2() {
        return (0..plan.connections).map(|_| Client::alone(dialer.clone())).collect();
    }
    let sessions = plan.connections.div_ceil(plan.streams.max(1)).max(1);
    let sessions: Vec<Rc<Session>> = (0..sessions).map(|_| Rc::new(Session::new(dialer.clone()))).collect();
    (0..plan.connections).map(|client| Client::sharing(sessions[client % sessions.len()].clone())).collect()
}

async fn run_phases(plan: Plan, workload: Workload, label: Label) -> Sample {
    let load = load_average();
    let clients = clients(&plan);
    let warmup = Limit { requests: Some(plan.warmup), duration: None };
    let (clients, workload, mut tally) =
        run_phase(phase(&plan, warmup, None, workload, Tally::default()), clients).await;
    tally.end_warmup();
    let before = Usage::read_all(&plan.watched);
    let measured = phase(&plan, plan.limit, plan.rate, workload, tally);
    let started = measured.started;
    let (_, _, mut tally) = run_phase(measured, clients).await;
    let seconds = started.elapsed().as_secs_f64();
    let after = Usage::read_all(&plan.watched);
    let requests = tally.latency_us.len();
    Sample {
        test: label.test,
        peer: label.peer,
        rep: label.rep,
        load,
        connections: plan.connections,
        requests,
        seconds,
        chunks: tally.chunks,
        errors: tally.errors,
        latency_us: Distribution::of(&mut tally.latency_us),
        ttft_us: Distribution::of(&mut tally.ttft_us),
        gap_us: Distribution::of(&mut tally.gaps_us),
        oneway_us: Distribution::of(&mut tally.oneway_us),
        processes: process_uses(&before, &after, seconds, requests, tally.chunks),
        first_error: tally.first_error,
    }
}

fn phase(plan: &Plan, limit: Limit, rate: Option<f64>, workload: Workload, tally: Tally) -> Phase {
    let (workload, tally) = (RefCell::new(workload), RefCell::new(tally));
    Phase { target: plan.target, limit, rate, started: Instant::now(), workload, tally }
}

async fn run_phase(phase: Phase, clients: Vec<Client>) -> (Vec<Client>, Workload, Tally) {
    let phase = Rc::new(phase);
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn_local(Rc::clone(&phase).drive(client));
    }
    let clients = tasks.join_all().await;
    let phase = Rc::into_inner(phase).expect("every task that shared the phase has ended");
    (clients, phase.workload.into_inner(), phase.tally.into_inner())
}

/// What each set of processes used between two readings. Sets that were not read both times are left out.
fn process_uses(
    before: &BTreeMap<String, Usage>,
    after: &BTreeMap<String, Usage>,
    seconds: f64,
    requests: usize,
    chunks: u64,
) -> BTreeMap<String, ProcessUse> {
    let uses = after.iter().filter_map(|(name, after)| {
        let before = before.get(name)?;
        let cpu_us = after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1e3;
        let used = ProcessUse {
            cpu_us_per_request: cpu_us / requests.max(1) as f64,
            cpu_us_per_chunk: (chunks > 0).then(|| cpu_us / chunks as f64),
            cores: cpu_us / 1e6 / seconds,
            rss_mb_start: before.rss_kb / 1024,
            rss_mb: after.rss_kb / 1024,
            threads: after.threads,
        };
        Some((name.clone(), used))
    });
    uses.collect()
}

fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests;
