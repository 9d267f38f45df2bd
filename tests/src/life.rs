//! The simulator beside life: the same requests through the simulator and through a real gateway with mock engines.
//!
//! Both sides have the engines' scheduler in common and nothing else: here the requests go through sockets, parsing, KV events on
//! ZMQ, scrapes and the gateway's own bookkeeping. Prompts are token ids made from the workload's blocks, so that equal blocks
//! are equal prefixes; answers are the engines' own, so no later prompt goes on from one, in the simulator neither.

use crate::client::{End, Outcome};
use crate::cluster::{Engine, EngineOptions, Gateway, GatewayOptions, MODEL};
use crate::console::Progress;
use crate::process::Failure;
use forebay_sim::hardware::Hardware;
use forebay_sim::measure::{Summary, percentile, summarise};
use forebay_sim::policy::Spec;
use forebay_sim::scenario::Scenario;
use forebay_sim::workload::{Definition, Offered, Request};
use forebay_sim::{compare, world};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Seed of requests and policy.
const SEED: u64 = 1;
/// Real time between two scrapes, the gateway's default, and from a step's end to its events being known.
const SCRAPE: Duration = Duration::from_secs(1);
const EVENT_DELAY: Duration = Duration::from_millis(1);
/// Token ids that every vocabulary has.
const VOCABULARY: u64 = 30_000;

/// What is replayed.
#[derive(Clone, Debug)]
pub struct Slice {
    /// A committed workload.
    pub workload: String,
    /// Engines.
    pub workers: usize,
    /// Part of the capacity.
    pub load: f64,
    /// Engine time, seconds.
    pub seconds: f64,
    /// Engine time ÷ real time.
    pub speedup: f64,
}

/// What both sides found, in engine time.
#[derive(Clone, Debug)]
pub struct Both {
    /// Requests offered.
    pub requests: usize,
    /// Median time to first token: simulated, lived, ms.
    pub ttft_p50_ms: (f64, f64),
    /// Its 99th percentile.
    pub ttft_p99_ms: (f64, f64),
    /// Share of prompt tokens from caches.
    pub hit: (f64, f64),
    /// Requests that life did not serve.
    pub failed: usize,
}

/// Runs the slice on both sides.
pub async fn run(slice: &Slice, folder: &Path) -> Result<Both, Failure> {
    let definition = Definition::committed(&slice.workload)?;
    let capacity = compare::capacity("standard", &slice.workload)
        .ok_or_else(|| Failure(format!("the capacity for {} is not known", slice.workload)))?;
    let rate = capacity * slice.load * slice.workers as f64;
    let offered = definition.draw(rate, (rate * slice.seconds) as usize, SEED).with_unknown_answers();
    let hardware = Hardware::committed("standard")?;
    let (simulated, from_us) = simulate(slice, &offered, &hardware)?;
    let lived = live(slice, &offered, &hardware, folder).await?;
    let measured: Vec<&Outcome> = offered
        .requests
        .iter()
        .zip(&lived)
        .filter(|(request, _)| request.at_us >= from_us)
        .map(|(_, lived)| lived)
        .collect();
    let mut ttft: Vec<f64> = measured.iter().filter_map(|outcome| Some(outcome.ttft_ms? * slice.speedup)).collect();
    ttft.sort_unstable_by(f64::total_cmp);
    let sum = |count: fn(&Outcome) -> u32| measured.iter().map(|outcome| f64::from(count(outcome))).sum::<f64>();
    let hit = sum(|outcome| outcome.cached_tokens.unwrap_or(0)) / sum(|outcome| outcome.prompt_tokens).max(1.0);
    Ok(Both {
        requests: measured.len(),
        ttft_p50_ms: (simulated.ttft_p50_ms, percentile(&ttft, 0.5)),
        ttft_p99_ms: (simulated.ttft_p99_ms, percentile(&ttft, 0.99)),
        hit: (simulated.hit, hit),
        failed: lived.iter().filter(|outcome| outcome.end != End::Complete).count(),
    })
}

fn simulate(slice: &Slice, offered: &Offered, hardware: &Hardware) -> Result<(Summary, u64), Failure> {
    let mut scenario = Scenario::healthy(slice.workers, hardware.clone());
    let engine_us = |real: Duration| (real.as_secs_f64() * slice.speedup * 1e6) as u64;
    scenario.signals.load_interval_us = engine_us(SCRAPE);
    scenario.signals.event_delay_us = engine_us(EVENT_DELAY);
    let prompts = world::prepare(offered);
    let outcomes = world::run(&scenario, offered, &prompts, &Spec::parse("kv")?, SEED)?;
    let from_us = (offered.horizon_us as f64 * scenario.warm_up) as u64;
    Ok((summarise(&offered.requests, &outcomes, hardware, slice.workers, from_us), from_us))
}

async fn live(slice: &Slice, offered: &Offered, hardware: &Hardware, folder: &Path) -> Result<Vec<Outcome>, Failure> {
    let limits = hardware.limits(offered.block_tokens);
    let options = EngineOptions {
        block_size: offered.block_tokens,
        blocks: limits.blocks as u32,
        speedup: slice.speedup,
        tokenizer: false,
        ..EngineOptions::default()
    };
    let mut engines = Vec::with_capacity(slice.workers);
    for number in 0..slice.workers {
        engines.push(Engine::start(&format!("engine-{number}"), &options, folder).await?);
    }
    let urls: Vec<String> = engines.iter().map(Engine::url).collect();
    let gateway =
        Gateway::start(&GatewayOptions { tokenizer: false, ..GatewayOptions::default() }, &urls, folder).await?;
    let mut progress = Progress::start("in life", offered.requests.len() as u64);
    let start = Instant::now();
    let mut running = JoinSet::new();
    for (at, request) in offered.requests.iter().enumerate() {
        let (client, body) = (gateway.client.clone(), body(request, offered.block_tokens, at as u64));
        let due = start + Duration::from_secs_f64(request.at_us as f64 / 1e6 / slice.speedup);
        running.spawn(async move {
            tokio::time::sleep_until(due).await;
            (at, client.stream_completion(&body()).await)
        });
    }
    let mut outcomes = Vec::with_capacity(offered.requests.len());
    while let Some(done) = running.join_next().await {
        outcomes.push(done.map_err(|error| Failure(format!("a request ended in a panic: {error}")))?);
        progress.step();
    }
    progress.finish();
    gateway.process.stop().await;
    for engine in engines {
        engine.process.stop().await;
    }
    outcomes.sort_by_key(|(at, _)| *at);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Makes the request's body when it is needed: all at once they would be gigabytes.
fn body(request: &Request, block_tokens: u32, number: u64) -> impl FnOnce() -> Value + Send + 'static {
    let (blocks, prompt_tokens, output_tokens) = (request.blocks.clone(), request.prompt_tokens, request.output_tokens);
    move || {
        let token = |place: u32| {
            let whole = prompt_tokens / block_tokens;
            let block = place / block_tokens;
            // What does not fill a block is this request's alone, as is its answer.
            let what = if block < whole { blocks[block as usize] } else { number ^ 1 << 63 };
            (what ^ what >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(place)) % VOCABULARY
        };
        let prompt: Vec<u64> = (0..prompt_tokens).map(token).collect();
        json!({
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
    }
}
