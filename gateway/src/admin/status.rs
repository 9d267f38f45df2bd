//! `/status`: what a person wants to know first, in one answer.

use super::Console;
use crate::config::policy_name;
use crate::config::reload::ReloadState;
use crate::fleet::state_name;
use crate::signal::cache_events::{Alarm, FeedReport, SnapshotReport};
use crate::tokenize::{ModelStatus, Source};
use forebay_routing::FleetView;
use forebay_routing::view::WorkerState;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug, Serialize)]
pub(super) struct Status {
    version: &'static str,
    pid: u32,
    uptime_ms: u64,
    ready: bool,
    draining: bool,
    models: Vec<Model>,
    workers: Workers,
    feeds: Vec<Feed>,
    /// Where what is known of caches is saved, if anywhere.
    snapshot: Option<SnapshotReport>,
    config: ConfigStatus,
    doors: DoorsStatus,
    /// How often each named limit was hit; limits never hit are absent.
    limits_hit: BTreeMap<String, u64>,
    open_connections: usize,
    buffered_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Model {
    name: String,
    base: Option<String>,
    adapter: bool,
    policy: &'static str,
    workers: usize,
    ready_workers: usize,
    block_sizes: Vec<u32>,
    tokens: Tokens,
}

/// Where a model's token ids come from.
#[derive(Debug, Serialize)]
struct Tokens {
    source: &'static str,
    encoder: Option<&'static str>,
    slow_because: Option<String>,
    problem: Option<String>,
    /// Requests whose ids or counts differed from the engine's.
    differences: u64,
}

#[derive(Debug, Default, Serialize)]
struct Workers {
    total: usize,
    /// By state; states nobody is in are absent.
    states: BTreeMap<&'static str, usize>,
    /// Engines that have not introduced themselves, and why.
    waiting: Vec<Waiting>,
}

#[derive(Debug, Serialize)]
struct Waiting {
    url: String,
    problem: Option<String>,
}

/// Where one feed of KV events stands.
#[derive(Debug, Serialize)]
struct Feed {
    worker: String,
    endpoint: String,
    state: &'static str,
    problem: Option<String>,
    /// What somebody has to look after.
    alarms: Vec<&'static str>,
    generation: u32,
    last_seq: Option<u64>,
    silent_ms: Option<u64>,
    lag_ms: Option<u64>,
    blocks: u64,
    /// Of those, blocks believed with less credit since events were lost.
    unconfirmed_blocks: u64,
    gaps: u64,
    replays: u64,
    cold_starts: u64,
    lost_gaps: u64,
    restarts: u64,
    duplicates: u64,
    /// Messages and events that could not be read, by kind.
    errors: BTreeMap<&'static str, u64>,
    /// Blocks that are not indexed although their event was well-formed, by reason.
    ignored_blocks: BTreeMap<&'static str, u64>,
    /// Prompt tokens expected to be cached there, of the requests whose engine told how many were.
    predicted_hit_tokens: u64,
    realised_hit_tokens: u64,
}

#[derive(Debug, Serialize)]
struct ConfigStatus {
    file: Option<PathBuf>,
    #[serde(flatten)]
    reload: ReloadState,
}

/// Who may come in, in numbers.
#[derive(Debug, Serialize)]
struct DoorsStatus {
    asks_for_keys: bool,
    keys: usize,
    /// Why the files as they are now are not in force.
    problem: Option<String>,
}

pub(super) async fn read(console: &Console) -> Status {
    let gateway = &console.gateway;
    let view = gateway.fleet.view();
    let now_ms = console.clock.now_ms();
    Status {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        uptime_ms: now_ms,
        ready: console.has_ready_worker() && !console.is_draining(),
        draining: console.is_draining(),
        models: models(console, &view),
        workers: workers(console, &view),
        snapshot: console.feeds.snapshot(),
        feeds: console.feeds.reports().into_iter().map(|report| feed(report, now_ms)).collect(),
        config: ConfigStatus { file: console.file.clone(), reload: console.reloader.state() },
        doors: DoorsStatus {
            asks_for_keys: gateway.doors.ask_for_keys(),
            keys: gateway.doors.keys(),
            problem: gateway.doors.problem(),
        },
        limits_hit: gateway.observer.limits_hit().into_iter().collect(),
        open_connections: gateway.limits.connections(),
        buffered_bytes: gateway.limits.buffered(),
    }
}

fn models(console: &Console, view: &FleetView) -> Vec<Model> {
    let sources = console.gateway.tokenizers.status();
    let ready = |position: &&u32| {
        view.workers.get(**position as usize).is_some_and(|worker| worker.state == WorkerState::Ready)
    };
    let models = view.models.iter().map(|model| Model {
        name: model.name.clone(),
        base: model.base.clone(),
        adapter: model.lora,
        policy: policy_name(console.gateway.policy(&model.name)),
        workers: model.workers.len(),
        ready_workers: model.workers.iter().filter(ready).count(),
        block_sizes: model.block_sizes.clone(),
        tokens: tokens(sources.iter().find(|source| source.model == model.domain_model())),
    });
    models.collect()
}

fn tokens(status: Option<&ModelStatus>) -> Tokens {
    Tokens {
        source: status.map_or(Source::Text, |status| status.source).label(),
        encoder: status.and_then(|status| status.encoder),
        slow_because: status.and_then(|status| status.slow_because.clone()),
        problem: status.and_then(|status| status.problem.clone()),
        differences: status.map_or(0, |status| status.differences),
    }
}

fn workers(console: &Console, view: &FleetView) -> Workers {
    let mut workers = Workers { total: view.workers.len(), ..Workers::default() };
    for worker in &view.workers {
        *workers.states.entry(state_name(worker.state)).or_default() += 1;
    }
    let waiting = console.discovery.sites().into_iter().filter(|site| !site.introduced);
    workers.waiting = waiting.map(|site| Waiting { url: site.url, problem: site.problem }).collect();
    workers
}

fn feed(report: FeedReport, now_ms: u64) -> Feed {
    Feed {
        worker: report.worker.to_string(),
        endpoint: report.endpoint,
        state: report.state.name(),
        problem: report.problem,
        alarms: report.alarms.into_iter().map(Alarm::name).collect(),
        generation: report.generation,
        last_seq: report.last_seq,
        silent_ms: report.last_event_ms.map(|at_ms| now_ms.saturating_sub(at_ms)),
        lag_ms: report.lag_ms,
        blocks: report.blocks,
        unconfirmed_blocks: report.unconfirmed,
        gaps: report.gaps,
        replays: report.replays,
        cold_starts: report.cold_starts,
        lost_gaps: report.lost,
        restarts: report.restarts,
        duplicates: report.duplicates,
        errors: report.errors,
        ignored_blocks: report.ignored,
        predicted_hit_tokens: report.predicted_tokens,
        realised_hit_tokens: report.realised_tokens,
    }
}
