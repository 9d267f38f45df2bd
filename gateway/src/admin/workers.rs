//! `/workers`: who serves, who does not and why; adding and removing by hand.

use super::Console;
use super::reply::{self, Answer};
use super::routes::parameter;
use crate::config::networks::Hosts;
use crate::config::resolved::Worker;
use crate::discover::{SiteStatus, WorkerUrl};
use crate::error::Fault;
use crate::fleet::{WorkerStatus, state_name};
use crate::signal::cache_events::Attach;
use forebay_routing::view::{CacheKnowledge, EngineLoad, WorkerState};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeSet;
use tokio::time::Duration;

/// How long `?wait=true` waits for an engine to serve: longer than one that is up needs to introduce itself, shorter than
/// a client's patience.
const WAIT: Duration = Duration::from_secs(30);

/// Between two looks while waiting.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// One entry of `GET /workers`.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    url: String,
    rank: Option<u16>,
    id: Option<String>,
    model: Option<String>,
    state: &'static str,
    problem: Option<String>,
    degraded: Vec<String>,
    engine_kind: Option<&'static str>,
    version: Option<String>,
    max_model_len: Option<u32>,
    block_size: Option<u32>,
    capacity_blocks: Option<u32>,
    cache: Option<&'static str>,
    engine: Option<Engine>,
    in_flight: Option<InFlight>,
    rates: Option<Rates>,
    failures: u32,
    ejections: u64,
    failed_checks: u32,
}

#[derive(Debug, Serialize)]
struct Engine {
    running: u32,
    waiting: u32,
    kv_usage: f32,
    age_ms: u64,
}

#[derive(Debug, Serialize)]
struct InFlight {
    requests: u32,
    prefill_tokens: u32,
    decode_tokens: u32,
}

#[derive(Debug, Serialize)]
struct Rates {
    alpha: f64,
    beta: f64,
    gamma: f64,
    decode_ms: f64,
    context_ms: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct List {
    workers: Vec<Entry>,
}

/// Every worker, then every engine that has not made one yet.
pub(super) async fn list(console: &Console) -> List {
    let now_ms = console.clock.now_ms();
    let described = console.gateway.fleet.describe().await;
    let known: BTreeSet<String> = described.iter().map(|worker| base(&worker.url).to_owned()).collect();
    let mut workers: Vec<Entry> = described.into_iter().map(|worker| entry(worker, now_ms)).collect();
    let waiting = console.discovery.sites().into_iter().filter(|site| !known.contains(base(&site.url)));
    workers.extend(waiting.map(unknown));
    List { workers }
}

fn entry(worker: WorkerStatus, now_ms: u64) -> Entry {
    let WorkerStatus { id, url, model, problem, facts, view, local, failures, ejections, failed_checks } = worker;
    let engine = |load: EngineLoad| Engine {
        running: load.running,
        waiting: load.waiting,
        kv_usage: load.kv_usage,
        age_ms: now_ms.saturating_sub(load.at_ms),
    };
    Entry {
        url: url.to_string(),
        rank: view.rank,
        id: Some(id.to_string()),
        model: Some(model.to_string()),
        state: state_name(view.state),
        problem,
        degraded: facts.degraded,
        engine_kind: Some(facts.kind.label()),
        version: facts.version,
        max_model_len: facts.max_model_len,
        block_size: view.block_size,
        capacity_blocks: view.capacity_blocks,
        cache: Some(match view.cache {
            CacheKnowledge::Events => "events",
            CacheKnowledge::Approximate => "approximate",
        }),
        engine: view.engine.map(engine),
        in_flight: Some(InFlight {
            requests: local.requests,
            prefill_tokens: local.prefill_tokens,
            decode_tokens: local.decode_tokens,
        }),
        rates: Some(Rates {
            alpha: view.rates.alpha,
            beta: view.rates.beta,
            gamma: view.rates.gamma,
            decode_ms: view.rates.decode_ms,
            context_ms: view.rates.context_ms,
        }),
        failures,
        ejections,
        failed_checks,
    }
}

fn unknown(site: SiteStatus) -> Entry {
    Entry {
        url: site.url,
        rank: None,
        id: None,
        model: None,
        state: state_name(WorkerState::Starting),
        problem: site.problem,
        degraded: Vec::new(),
        engine_kind: None,
        version: None,
        max_model_len: None,
        block_size: None,
        capacity_blocks: None,
        cache: None,
        engine: None,
        in_flight: None,
        rates: None,
        failures: 0,
        ejections: 0,
        failed_checks: 0,
    }
}

/// A worker's URL without its rank.
fn base(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.rsplit_once('@').map_or(url, |(base, _)| base)
}

/// What may be said of a worker when it is added; the same keys as in the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    url: String,
    model: Option<String>,
    ranks: Option<u16>,
    kv_events: Option<String>,
    kv_replay: Option<String>,
    block_size: Option<u32>,
}

/// `POST /workers`.
pub(super) async fn add(console: &Console, query: &str, body: &[u8]) -> Result<Answer, Fault> {
    let wanted: Wanted = serde_json::from_slice(body).map_err(|error| {
        Fault::client(
            400,
            "bad_worker",
            format!("the body is not a worker: {error}; write {{\"url\":\"http://host:port\"}}"),
        )
    })?;
    let Wanted { url, model, ranks, kv_events, kv_replay, block_size } = wanted;
    let zero = [("ranks", ranks == Some(0)), ("block_size", block_size == Some(0))];
    if let Some((field, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
        return Err(Fault::client(400, "bad_worker", format!("{field} is 0; leave it out or write 1 or more"))
            .with_param(*field));
    }
    let parsed = WorkerUrl::parse(&url).map_err(bad_url)?;
    let allowed = &console.gateway.config.admin.allow_workers;
    check_host(allowed, "url", &parsed.host)?;
    for (field, endpoint) in [("kv_events", &kv_events), ("kv_replay", &kv_replay)] {
        let Some(endpoint) = endpoint else { continue };
        let attach = Attach::parse(endpoint, &parsed.host)
            .map_err(|error| Fault::client(400, "bad_worker", error.to_string()).with_param(field))?;
        // A path or a port of this machine is not for others to name.
        let target = attach.tcp_target().ok_or_else(|| {
            let message =
                format!("{field}: only tcp://host:port is taken here; write others into the configuration file");
            Fault::client(403, "host_not_allowed", message).with_param(field)
        })?;
        let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
        check_host(allowed, field, host)?;
    }
    let url = parsed.canonical();
    let worker =
        Worker { url: url.clone(), server_name: None, model, ranks, kv_events, kv_replay, block_size, agent: None };
    let added = console.discovery.add(worker).map_err(bad_url)?;
    if parameter(query, "wait").is_some_and(|wait| wait == "true") {
        return wait_until_ready(console, &url).await;
    }
    Ok(reply::json(StatusCode::ACCEPTED, &json!({"url": url, "added": added})))
}

/// `DELETE /workers`.
pub(super) fn remove(console: &Console, query: &str, body: &[u8]) -> Result<Answer, Fault> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Unwanted {
        url: String,
    }
    let url = match parameter(query, "url") {
        Some(url) => url,
        None => {
            let unwanted: Unwanted = serde_json::from_slice(body).map_err(|error| {
                let message =
                    format!("no ?url=… and the body names none: {error}; write {{\"url\":\"http://host:port\"}}");
                Fault::client(400, "bad_worker", message)
            })?;
            unwanted.url
        }
    };
    let url = WorkerUrl::parse(&url).map(|parsed| parsed.canonical()).map_err(bad_url)?;
    if !console.discovery.remove(&url) {
        return Err(Fault::client(404, "worker_not_found", format!("{url} is not among the workers")).with_param("url"));
    }
    Ok(reply::json(StatusCode::ACCEPTED, &json!({"url": url, "removed": true})))
}

fn check_host(allowed: &Hosts, field: &'static str, host: &str) -> Result<(), Fault> {
    if allowed.has(host) {
        return Ok(());
    }
    let message = format!("{field}: {host} is not among the hosts that may be added (admin.allow_workers)");
    Err(Fault::client(403, "host_not_allowed", message).with_param(field))
}

fn bad_url(error: crate::discover::UrlError) -> Fault {
    Fault::client(400, "bad_worker_url", error.to_string()).with_param("url")
}

async fn wait_until_ready(console: &Console, url: &str) -> Result<Answer, Fault> {
    let ready = async {
        loop {
            let described = console.gateway.fleet.describe().await;
            let of_url = |worker: &&WorkerStatus| base(&worker.url) == base(url);
            if described.iter().filter(of_url).any(|worker| worker.view.state == WorkerState::Ready) {
                return;
            }
            tokio::time::sleep(WAIT_STEP).await;
        }
    };
    if tokio::time::timeout(WAIT, ready).await.is_ok() {
        return Ok(reply::json(StatusCode::OK, &json!({"url": url, "state": "ready"})));
    }
    let problem =
        console.discovery.sites().into_iter().find(|site| base(&site.url) == base(url)).and_then(|site| site.problem);
    let problem = problem.unwrap_or_else(|| "it has not answered".to_owned());
    let message =
        format!("{url} does not serve after {} s ({problem}); it stays listed and is asked again", WAIT.as_secs());
    Err(Fault::worker(504, "worker_not_ready", message))
}
