//! The summary at the start: what listens, which engines answered, what is degraded.

use crate::admin::Console;
use crate::cli::say;
use crate::config::policy_name;
use crate::fleet::{WorkerStatus, state_name};
use crate::signal::cache_events::FeedReport;
use crate::tasks::TaskGroup;
use forebay_routing::view::{CacheKnowledge, WorkerState};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::time::Duration;

/// Engines that have not answered by then are listed as such; they are asked again whatever the summary said.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks.
const STEP: Duration = Duration::from_millis(50);

/// Workers listed one by one; the rest is a number.
const MAX_LINES: usize = 32;

/// Says what listens at once, the rest when every engine has answered or [`PATIENCE`] is over.
pub(super) fn start(console: &Arc<Console>, (clients, operators): (SocketAddr, SocketAddr), tasks: &TaskGroup) {
    let policy = policy_name(console.gateway.config.routing.policy);
    say(&format!(
        "forebay {}\n  clients    http://{clients}   policy {policy}\n  operators  http://{operators}   /status /workers /metrics /explain",
        env!("CARGO_PKG_VERSION")
    ));
    let console = console.clone();
    tasks.spawn("summary", async move {
        // Whoever has not answered is named below.
        _ = tokio::time::timeout(PATIENCE, settled(&console)).await;
        for line in summary(&console).await {
            say(&line);
        }
    });
}

async fn settled(console: &Console) {
    loop {
        let sites = console.discovery.sites();
        if !sites.is_empty() && sites.iter().all(|site| site.introduced) {
            return;
        }
        tokio::time::sleep(STEP).await;
    }
}

async fn summary(console: &Console) -> Vec<String> {
    let workers = console.gateway.fleet.describe().await;
    let silent: Vec<_> = console.discovery.sites().into_iter().filter(|site| !site.introduced).collect();
    let ready = workers.iter().filter(|worker| worker.view.state == WorkerState::Ready).count();
    let mut lines = vec![format!("  workers    {ready} ready, {} engines have not answered", silent.len())];
    let feeds = console.feeds.reports();
    let answered = workers.iter().map(|worker| worker_line(worker, &feeds));
    let waiting =
        silent.iter().map(|site| format!("    ✗ {}  {}", site.url, site.problem.as_deref().unwrap_or("no answer yet")));
    let mut listed: Vec<String> = answered.chain(waiting).collect();
    if listed.len() > MAX_LINES {
        let more = listed.len() - MAX_LINES;
        listed.truncate(MAX_LINES);
        listed.push(format!("    … and {more} more, see /workers"));
    }
    lines.append(&mut listed);
    if workers.is_empty() && silent.is_empty() {
        lines.push("    none yet: add [[workers]] to the file, --worker, or POST /workers".to_owned());
    }
    lines.extend(degraded(console, &workers, silent.len()));
    lines
}

fn worker_line(worker: &WorkerStatus, feeds: &[FeedReport]) -> String {
    let mark = if worker.view.state == WorkerState::Ready { "✓" } else { "✗" };
    // A feed is named by the worker's URL, with `@rank` where there are several.
    let mine = |feed: &&FeedReport| {
        feed.worker.strip_prefix(&*worker.url).is_some_and(|rank| rank.is_empty() || rank.starts_with('@'))
    };
    let cache = match (worker.view.cache, feeds.iter().find(mine)) {
        (CacheKnowledge::Events, _) => "KV events".to_owned(),
        // Events count once the first was heard, which an engine without traffic may never send.
        (CacheKnowledge::Approximate, Some(feed)) => format!("KV events ({})", feed.state.name()),
        (CacheKnowledge::Approximate, None) => "no KV events".to_owned(),
    };
    let blocks = worker.view.block_size.map_or_else(|| "blocks unknown".to_owned(), |size| format!("blocks of {size}"));
    format!("    {mark} {}  {}  {}  {blocks}, {cache}", worker.url, worker.model, state_name(worker.view.state))
}

/// What serves worse than it could, and why.
fn degraded(console: &Console, workers: &[WorkerStatus], silent: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    if silent > 0 {
        lines.push(format!("    {silent} engines take no traffic: they have not answered (see above)"));
    }
    for status in console.gateway.tokenizers.status() {
        if let Some(problem) = status.problem {
            lines.push(format!("    model {}: token ids from {}: {problem}", status.model, status.source.label()));
        }
        if let Some(because) = status.slow_because {
            lines.push(format!("    model {}: the fast encoder is off: {because}", status.model));
        }
    }
    for worker in workers {
        lines.extend(worker.facts.degraded.iter().map(|what| format!("    {}: {what}", worker.url)));
        lines.extend(worker.problem.iter().map(|what| format!("    {}: {what}", worker.url)));
    }
    if lines.is_empty() {
        return vec!["  degraded   nothing".to_owned()];
    }
    lines.truncate(MAX_LINES);
    lines.insert(0, "  degraded".to_owned());
    lines
}
