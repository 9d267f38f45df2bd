//! `forebay doctor`: proves against live engines that they fit, with the code that serves.
//!
//! It starts what the gateway knows with (discovery, event feeds, tokenizers), lets no client in, and reports what came
//! of it: one table for each engine, ✓ good, ! works but worse than it could, ✗ does not work, and what to do.

use super::table::Table;
use super::{Exit, complain, say};
use crate::app::Parts;
use crate::clock::Clock;
use crate::config::resolved::Worker;
use crate::config::{Config, Sources};
use crate::discover::WorkerUrl;
use crate::doors::{Doors, Towards};
use crate::fleet::WorkerStatus;
use crate::signal::cache_events::{FeedReport, FeedState};
use crate::signal::http::Peer;
use crate::tasks::TaskGroup;
use std::sync::Arc;
use tokio::time::{Duration, Instant};

/// For engines to introduce themselves, report a load and replay their events.
const PATIENCE: Duration = Duration::from_secs(15);

/// Between two looks.
const STEP: Duration = Duration::from_millis(50);

/// Health checks whose median is shown.
const PINGS: usize = 5;

/// How one check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Worse,
    Bad,
}

impl Verdict {
    fn mark(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Worse => "!",
            Self::Bad => "✗",
        }
    }
}

/// One line of the table.
#[derive(Debug)]
struct Finding {
    verdict: Verdict,
    check: &'static str,
    found: String,
    /// What to do, empty where nothing is to be done.
    remedy: String,
}

fn finding(verdict: Verdict, check: &'static str, found: impl Into<String>, remedy: &str) -> Finding {
    Finding { verdict, check, found: found.into(), remedy: remedy.to_owned() }
}

/// Examines every configured engine.
pub async fn run(sources: &Sources) -> Exit {
    let loaded = match sources.load() {
        Ok(loaded) => loaded,
        Err(problems) => {
            complain(&format!("the configuration does not hold together\n{problems}"));
            return Exit::Usage;
        }
    };
    let mut config = loaded.config;
    config.workers.extend(resolve_names(&config).await);
    if config.workers.is_empty() {
        complain("no engine to examine; name one with --worker http://host:port or with --config FILE");
        return Exit::Usage;
    }
    let config = Arc::new(config);
    let tasks = TaskGroup::new();
    let doors = match Doors::load(&config) {
        Ok(doors) => Arc::new(doors),
        Err(error) => {
            complain(&error.to_string());
            return Exit::Usage;
        }
    };
    let parts = match Parts::start(&config, None, doors, Clock::start(), &tasks).await {
        Ok(parts) => parts,
        Err(error) => {
            complain(&error.to_string());
            return error.exit();
        }
    };
    if let Err(error) = parts.discovery.reconcile(config.workers.clone()) {
        complain(&error.to_string());
        return Exit::Usage;
    }
    // What has not come by then is missing, and named.
    _ = tokio::time::timeout(PATIENCE, settled(&parts, &config)).await;
    let mut all_good = true;
    for worker in &config.workers {
        let findings = examine(&parts, &config, worker).await;
        all_good &= findings.iter().all(|finding| finding.verdict != Verdict::Bad);
        say(&format!("{}\n{}\n", worker.url, render(&findings)));
    }
    tasks.drain(STEP).await;
    say(if all_good { "every engine fits" } else { "something does not work: see the lines with ✗" });
    if all_good { Exit::Done } else { Exit::Unavailable }
}

/// Every address of every DNS name as a worker; a name that cannot be resolved is said and left out.
async fn resolve_names(config: &Config) -> Vec<Worker> {
    let mut workers = Vec::new();
    for pool in &config.dns {
        match tokio::net::lookup_host((pool.name.as_str(), pool.port)).await {
            Ok(addresses) => workers.extend(addresses.map(|address| pool.worker(address))),
            Err(error) => complain(&format!("dns: {}: {error}; check the name", pool.name)),
        }
    }
    workers
}

/// Waits until every engine has introduced itself, told its load and replayed its events.
async fn settled(parts: &Parts, config: &Config) {
    loop {
        let sites = parts.discovery.sites();
        let introduced = sites.len() >= config.workers.len() && sites.iter().all(|site| site.introduced);
        let has_load = |worker: &WorkerStatus| worker.view.engine.is_some();
        let replayed = parts.feeds.reports().iter().all(|feed| feed.state == FeedState::Live);
        if introduced && replayed && parts.fleet.describe().await.iter().all(has_load) {
            return;
        }
        tokio::time::sleep(STEP).await;
    }
}

async fn examine(parts: &Parts, config: &Config, worker: &Worker) -> Vec<Finding> {
    let mut findings = vec![reach(parts, config, worker).await];
    let same = |url: &str| base(url) == base(&worker.url);
    let mut ranks = parts.fleet.describe().await;
    ranks.retain(|status| same(&status.url));
    let Some(first) = ranks.first() else { return findings };
    findings.push(model(first));
    findings.push(blocks(first));
    findings.push(load(&ranks));
    findings.push(rank_count(&ranks, worker));
    let feeds = parts.feeds.reports();
    findings.extend(
        ranks.iter().map(|status| {
            events(feeds.iter().find(|feed| *feed.worker == *label(status)), status.facts.degraded.first())
        }),
    );
    findings.push(tokens(parts, first).await);
    findings
}

fn base(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.rsplit_once('@').map_or(url, |(base, _)| base)
}

fn label(status: &WorkerStatus) -> String {
    status.view.rank.map_or_else(|| status.url.to_string(), |rank| format!("{}@{rank}", base(&status.url)))
}

async fn reach(parts: &Parts, config: &Config, worker: &Worker) -> Finding {
    let site = parts.discovery.sites().into_iter().find(|site| base(&site.url) == base(&worker.url));
    let problem = site.as_ref().and_then(|site| site.problem.clone());
    if !site.is_some_and(|site| site.introduced) {
        let remedy = "start the engine, or correct the URL; /health and /v1/models must answer";
        return finding(Verdict::Bad, "reachable", problem.unwrap_or_else(|| "no answer".to_owned()), remedy);
    }
    match median_ms(config, worker).await {
        Ok(ms) => finding(Verdict::Good, "reachable", format!("/health in {ms:.1} ms (median of {PINGS})"), ""),
        Err(why) => finding(Verdict::Bad, "reachable", why, "it answered once and then no more: look at its log"),
    }
}

async fn median_ms(config: &Config, worker: &Worker) -> Result<f64, String> {
    let url = WorkerUrl::parse(&worker.url).map_err(|error| error.to_string())?;
    let found = tokio::net::lookup_host((url.host.as_str(), url.port)).await;
    let address = found.map_err(|error| error.to_string())?.next().ok_or("the name has no address")?;
    let name = worker.server_name.as_deref().unwrap_or(&url.host);
    let doors = Doors::load(config).map_err(|error| error.to_string())?;
    let towards = url.secure.then(|| Towards::new(Arc::new(doors), name.into()));
    let peer = Peer { address, authority: url.authority, deadline: config.health.timeout, key: None, towards };
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let started = Instant::now();
        peer.get("/health").await.map_err(|error| error.to_string())?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[PINGS / 2])
}

fn model(status: &WorkerStatus) -> Finding {
    let version = status.facts.version.as_deref().unwrap_or("unknown version");
    let length = status.facts.max_model_len.map_or_else(String::new, |length| format!(", up to {length} tokens"));
    let names = &status.facts.names;
    let more = if names.is_empty() { String::new() } else { format!(", {} more names", names.len()) };
    finding(Verdict::Good, "model", format!("{} ({version}{length}{more})", status.model), "")
}

fn blocks(status: &WorkerStatus) -> Finding {
    match (status.view.block_size, status.view.capacity_blocks) {
        (Some(size), Some(capacity)) => {
            finding(Verdict::Good, "block size", format!("{size} tokens, {capacity} blocks"), "")
        }
        (Some(size), None) => {
            let remedy = "its /metrics does not tell the capacity; the wait for free blocks is not predicted";
            finding(Verdict::Worse, "block size", format!("{size} tokens, capacity unknown"), remedy)
        }
        (None, _) => {
            let remedy = "set block_size of this worker; until then its cache counts for nothing";
            finding(Verdict::Bad, "block size", "unknown", remedy)
        }
    }
}

fn load(ranks: &[WorkerStatus]) -> Finding {
    let silent = ranks.iter().filter(|status| status.view.engine.is_none()).count();
    let Some(load) = ranks.iter().find_map(|status| status.view.engine).filter(|_| silent == 0) else {
        let remedy = "its /metrics lacks running, waiting or KV usage; only own requests count as load";
        return finding(Verdict::Worse, "load", format!("unknown for {silent} of {} ranks", ranks.len()), remedy);
    };
    let found =
        format!("{} running, {} waiting, {:.0} % of KV in use", load.running, load.waiting, load.kv_usage * 100.0);
    finding(Verdict::Good, "load", found, "")
}

fn rank_count(ranks: &[WorkerStatus], worker: &Worker) -> Finding {
    let found = match ranks {
        [only] if only.view.rank.is_none() => "one".to_owned(),
        several => format!("{} named", several.len()),
    };
    match worker.ranks {
        Some(wanted) if usize::from(wanted) != ranks.len() => {
            let remedy = "ranks of this worker and the engine's --data-parallel-size differ";
            finding(Verdict::Bad, "ranks", format!("{found}, configured {wanted}"), remedy)
        }
        _ => finding(Verdict::Good, "ranks", found, ""),
    }
}

fn events(feed: Option<&FeedReport>, degraded: Option<&String>) -> Finding {
    const START: &str = "start the engine with --enable-prefix-caching and --kv-events-config with endpoint and \
                         replay_endpoint; until then its cache is guessed";
    let Some(feed) = feed else {
        let why = degraded.cloned().unwrap_or_else(|| "none published".to_owned());
        return finding(Verdict::Worse, "KV events", why, START);
    };
    let place = &feed.endpoint;
    if let Some(problem) = &feed.problem {
        return finding(Verdict::Bad, "KV events", format!("{place}: {problem}"), "correct kv_events of this worker");
    }
    let errors: u64 = feed.errors.values().sum();
    match feed.state {
        FeedState::Live if errors > 0 => {
            let found = format!("{place}: {errors} messages could not be read");
            finding(Verdict::Bad, "KV events", found, "the engine's event format is unknown here: report its version")
        }
        FeedState::Live if feed.replays > 0 && feed.cold_starts == 0 => {
            let found = format!("{place}: replay answered, {} blocks known", feed.blocks);
            finding(Verdict::Good, "KV events", found, "")
        }
        FeedState::Live => {
            let remedy = "set replay_endpoint in --kv-events-config, so that a restart of the gateway forgets nothing";
            finding(Verdict::Worse, "KV events", format!("{place}: live, no replay"), remedy)
        }
        FeedState::Connecting | FeedState::Replaying | FeedState::Silent | FeedState::Failed => {
            let remedy = "its port must be reachable from here, and replay_endpoint another port than endpoint";
            finding(Verdict::Bad, "KV events", format!("{place}: {}", feed.state.name()), remedy)
        }
    }
}

async fn tokens(parts: &Parts, status: &WorkerStatus) -> Finding {
    let model = &*status.model;
    if parts.tokenizers.digest(model).is_none() {
        let broken =
            parts.tokenizers.status().into_iter().find(|known| known.model == model).and_then(|known| known.problem);
        return match broken {
            Some(problem) => finding(Verdict::Bad, "tokens", problem, "correct tokenizer of this model"),
            None => {
                let remedy = "name the folder with its tokenizer.json: --tokenizer MODEL=FOLDER, or [[models]]";
                finding(Verdict::Worse, "tokens", "no local tokenizer: the engine is asked for ids", remedy)
            }
        };
    }
    match parts.tokenizers.check_parity(model, base(&status.url)).await {
        Err(fault) => {
            finding(Verdict::Worse, "tokens", fault.message, "the engine's /tokenize must answer to prove parity")
        }
        Ok(report) => match report.first_difference {
            None => {
                finding(Verdict::Good, "tokens", format!("{} probe chats: ids equal the engine's", report.cases), "")
            }
            Some(difference) => {
                let token = |id: Option<u32>| id.map_or_else(|| "end".to_owned(), |id| id.to_string());
                let found = format!(
                    "probe chat {}: token {} is {} here and {} at the engine",
                    difference.case,
                    difference.position,
                    token(difference.ours),
                    token(difference.theirs)
                );
                finding(
                    Verdict::Bad,
                    "tokens",
                    found,
                    "use the tokenizer and chat template that the engine was started with",
                )
            }
        },
    }
}

fn render(findings: &[Finding]) -> String {
    let mut table = Table::new(&["", "check", "found", "what to do"]);
    for finding in findings {
        table.push(vec![
            finding.verdict.mark().to_owned(),
            finding.check.to_owned(),
            finding.found.clone(),
            finding.remedy.clone(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(state: FeedState) -> FeedReport {
        FeedReport { endpoint: "tcp://a:1".to_owned(), state, ..FeedReport::default() }
    }

    #[test]
    fn events_are_good_only_with_a_replay_that_was_answered() {
        let verdict = |feed: &FeedReport| events(Some(feed), None).verdict;
        let answered = FeedReport { replays: 1, ..feed(FeedState::Live) };
        assert_eq!(verdict(&answered), Verdict::Good);
        assert_eq!(verdict(&feed(FeedState::Live)), Verdict::Worse);
        assert_eq!(verdict(&FeedReport { cold_starts: 1, ..answered.clone() }), Verdict::Worse);
        assert_eq!(verdict(&FeedReport { errors: [("payload", 1)].into(), ..answered }), Verdict::Bad);
        assert_eq!(verdict(&feed(FeedState::Replaying)), Verdict::Bad);
        assert_eq!(verdict(&FeedReport { problem: Some("no".to_owned()), ..feed(FeedState::Failed) }), Verdict::Bad);
        assert_eq!(events(None, None).verdict, Verdict::Worse);
    }
}
