//! Are predicted hits true? One request at a time every one must be; under load the share is printed.

use super::ledger::{Ledger, Truth};
use super::replay::{Conversation, replay};
use super::stage::{Stage, clear};
use super::workload::Session;
use crate::client::{End, Outcome};
use crate::cluster::{Gateway, GatewayOptions};
use crate::console::{Progress, say};
use crate::feed::{Feed, wait_caught_up};
use crate::process::Failure;

/// Engine speed while requests go one at a time: nothing waits for anything, so time only costs patience.
const FAST: f64 = 200.0;

/// Runs both parts; returns whether every quiet prediction was exact.
pub async fn run(stage: &Stage) -> Result<bool, Failure> {
    let quiet = run_quiet(stage).await?;
    let loaded = run_loaded(stage).await?;
    say(format!(
        "RESULT exact={} of={} load_exact_share={:.4} load_mean_error_tokens={:.1}",
        quiet.truth.exact,
        quiet.truth.compared,
        loaded.exact_share(),
        loaded.mean_error_tokens()
    ));
    Ok(quiet.truth.exact == stage.requests && quiet.truth.compared == stage.requests)
}

/// What the quiet part found.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    /// Predictions against the engines' counts.
    pub truth: Truth,
    /// Requests with a hit, by the engines' count.
    pub with_hit: usize,
    /// Blocks that the engines evicted meanwhile.
    pub evicted_blocks: u64,
}

/// One at a time, own placements off: only the engines' events can be the source of a prediction.
pub async fn run_quiet(stage: &Stage) -> Result<Quiet, Failure> {
    let engines = stage.start_engines(FAST).await?;
    let options = GatewayOptions { own_placements: false, ..GatewayOptions::default() };
    let gateway = stage.start_gateway(&engines, options).await?;
    let mut feeds = Vec::with_capacity(engines.len());
    for engine in &engines {
        feeds.push(Feed::open(&engine.url()).await?);
    }
    let order = interleave(&stage.sessions);
    let mut progress = Progress::start("one by one", order.len() as u64);
    let mut conversations: Vec<Conversation> = stage.sessions.iter().map(Conversation::open).collect();
    let mut outcomes = Vec::with_capacity(order.len());
    for (position, turn) in order {
        let (session, conversation) = (&stage.sessions[position], &mut conversations[position]);
        let outcome = gateway.client.stream_chat(&conversation.ask(session, turn)).await;
        if outcome.end != End::Complete {
            return Err(Failure(format!(
                "session {position} turn {turn}: {:?}\n{}",
                outcome.end,
                gateway.process.log_tail()
            )));
        }
        conversation.hear(&outcome);
        outcomes.push(outcome);
        wait_caught_up(&mut feeds, &gateway).await?;
        progress.step();
    }
    progress.finish();
    let ledger = Ledger::read(&gateway, &outcomes).await?;
    let truth = Truth::of(&ledger, &outcomes);
    let with_hit = outcomes.iter().filter(|outcome| outcome.cached_tokens.unwrap_or(0) > 0).count();
    let evicted_blocks = evicted_blocks(&gateway).await?;
    say(format!(
        "one by one: {} of {} predicted hits exact, {with_hit} requests with a hit, {evicted_blocks} blocks evicted",
        truth.exact, truth.compared
    ));
    for (outcome, predicted) in wrong(&ledger, &outcomes).take(5) {
        say(format!("  {}: predicted {predicted}, engine {:?}", outcome.request_id, outcome.cached_tokens));
    }
    clear(engines, gateway).await;
    Ok(Quiet { truth, with_hit, evicted_blocks })
}

async fn run_loaded(stage: &Stage) -> Result<Truth, Failure> {
    let engines = stage.start_engines(stage.speedup()).await?;
    let gateway = stage.start_gateway(&engines, GatewayOptions::default()).await?;
    let outcomes = replay(&gateway.client, &stage.sessions, stage.pace, "under load", |_| {}).await;
    let ledger = Ledger::read(&gateway, &outcomes).await?;
    clear(engines, gateway).await;
    Ok(Truth::of(&ledger, &outcomes))
}

/// Turns in the order in which they would be asked if every answer took no time, so that sessions alternate as in life.
fn interleave(sessions: &[Session]) -> Vec<(usize, usize)> {
    let mut due: Vec<(f64, usize, usize)> = Vec::new();
    for (position, session) in sessions.iter().enumerate() {
        let mut at = session.arrival_s;
        for (turn, asked) in session.turns.iter().enumerate() {
            at += asked.think_s;
            due.push((at, position, turn));
        }
    }
    due.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    due.into_iter().map(|(_, position, turn)| (position, turn)).collect()
}

fn wrong<'a>(ledger: &'a Ledger, outcomes: &'a [Outcome]) -> impl Iterator<Item = (&'a Outcome, u32)> {
    outcomes.iter().filter_map(|outcome| {
        let predicted = ledger.entry(outcome)?.predicted_cached;
        (Some(predicted) != outcome.cached_tokens).then_some((outcome, predicted))
    })
}

/// Blocks that left the engines' caches, by the gateway's count of their events.
async fn evicted_blocks(gateway: &Gateway) -> Result<u64, Failure> {
    let page = gateway.admin.read_text("/metrics").await?;
    let lines = page.lines().filter(|line| line.starts_with("forebay_feed_removed_blocks_total{"));
    Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64)
}
