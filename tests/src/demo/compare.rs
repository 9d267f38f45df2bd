//! Round robin, then `kv`: the same sessions at the same times, engines cold before each.

use super::ledger::{Ledger, Truth};
use super::replay::{failure_examples, replay};
use super::report::{Summary, table};
use super::stage::{ENGINES, LOAD, Stage, clear};
use crate::cluster::{GatewayOptions, MODEL};
use crate::console::say;
use crate::process::Failure;

/// Runs both policies and prints the table; returns whether nothing was lost.
pub async fn run(stage: &Stage, keep: bool) -> Result<bool, Failure> {
    announce(stage);
    let round_robin = run_policy(stage, "round-robin", false).await?;
    let kv = run_policy(stage, "kv", keep).await?;
    say(format!("\n{}", table(&[&round_robin, &kv])));
    let lost = round_robin.lost() + kv.lost();
    say(format!(
        "RESULT rr_hit={:.3} kv_hit={:.3} rr_ttft_p99_ms={:.1} kv_ttft_p99_ms={:.1} lost={lost}",
        round_robin.hit, kv.hit, round_robin.ttft_ms.1, kv.ttft_ms.1
    ));
    Ok(lost == 0)
}

fn announce(stage: &Stage) {
    say(format!(
        "{} sessions, {} requests; working set {} tokens, {ENGINES} caches of {} blocks hold {:.1} % of it",
        stage.sessions.len(),
        stage.requests,
        stage.working_set,
        stage.blocks,
        stage.cache_share() * 100.0
    ));
    say(format!(
        "offered load {LOAD} of what the engines do without reuse, for {:.0} s a run (engine speed x{})",
        stage.span_s,
        stage.speedup()
    ));
}

async fn run_policy(stage: &Stage, policy: &str, keep: bool) -> Result<Summary, Failure> {
    let engines = stage.start_engines(stage.speedup()).await?;
    let options = GatewayOptions { policy: policy.to_owned(), ..GatewayOptions::default() };
    let gateway = stage.start_gateway(&engines, options).await?;
    let outcomes = replay(&gateway.client, &stage.sessions, stage.pace, policy, |_| {}).await;
    let ledger = Ledger::read(&gateway, &outcomes).await?;
    let summary = Summary::of(policy, &outcomes, &ledger.computed_tokens(&outcomes));
    for example in failure_examples(&outcomes) {
        say(format!("  {policy}: {example}"));
    }
    let truth = Truth::of(&ledger, &outcomes);
    if policy == "kv" {
        say(format!(
            "  kv under load: {:.1} % of predicted hits exact, mean error {:.1} tokens",
            truth.exact_share() * 100.0,
            truth.mean_error_tokens()
        ));
    }
    if keep {
        leave_running(engines, gateway);
    } else {
        clear(engines, gateway).await;
    }
    Ok(summary)
}

fn leave_running(engines: Vec<crate::cluster::Engine>, gateway: crate::cluster::Gateway) {
    let pids: Vec<String> = engines.iter().map(|engine| engine.process.pid().to_string()).collect();
    say(format!(
        "\nleft running (KEEP=1); try:\n  curl -N http://{}/v1/chat/completions -H 'content-type: application/json' \
         -d '{{\"model\":\"{MODEL}\",\"stream\":true,\"max_tokens\":20,\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'\n  \
         curl http://{}/workers\nend with:\n  kill {} {}",
        gateway.address,
        gateway.admin_address,
        gateway.process.pid(),
        pids.join(" ")
    ));
    gateway.process.leave();
    engines.into_iter().for_each(|engine| engine.process.leave());
}
