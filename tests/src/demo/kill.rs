//! One of four engines is killed in the middle of the load: nobody may lose a request that had not begun to answer.

use super::ledger::Ledger;
use super::replay::{Endings, failure_examples, replay};
use super::stage::{Stage, clear};
use crate::cluster::GatewayOptions;
use crate::console::say;
use crate::process::Failure;

/// Share of the requests after which the engine dies.
const KILL_AFTER: f64 = 0.4;

/// Kills one engine under load and counts how the requests ended; returns whether none was lost or cut in silence.
pub async fn run(stage: &Stage) -> Result<bool, Failure> {
    let mut engines = stage.start_engines(stage.speedup()).await?;
    let gateway = stage.start_gateway(&engines, GatewayOptions::default()).await?;
    let mut victim = engines.swap_remove(1);
    let victim_url = victim.url();
    let killed_after = (stage.requests as f64 * KILL_AFTER) as usize;
    let mut finished = 0;
    let outcomes = replay(&gateway.client, &stage.sessions, stage.pace, "kill -9", |_| {
        finished += 1;
        if finished == killed_after {
            victim.process.kill();
        }
    })
    .await;
    let endings = Endings::of(&outcomes);
    let ledger = Ledger::read(&gateway, &outcomes).await?;
    let served = ledger.requests(&outcomes);
    say(format!("SIGKILL of {victim_url} after {killed_after} of {} requests", stage.requests));
    for (worker, requests) in &served {
        say(format!("  {worker}: {requests} requests"));
    }
    for example in failure_examples(&outcomes) {
        say(format!("  {example}"));
    }
    clear(engines, gateway).await;
    say(format!(
        "RESULT kill_requests={} kill_complete={} kill_lost_before_commit={} kill_error_events={} kill_silent={}",
        outcomes.len(),
        endings.complete,
        endings.lost,
        endings.told,
        endings.silent
    ));
    // A run in which the dead engine held nothing proves nothing.
    let proven = served.get(&victim_url).is_some_and(|&requests| requests > 0);
    Ok(proven && endings.lost == 0 && endings.silent == 0)
}
