//! Rows in which the gateway itself is told to stop, replaced or reconfigured under load.

use super::kill::engine;
use super::load::{Load, Row, chat};
use crate::client::{Client, Outcome};
use crate::cluster::{EngineOptions, GatewayOptions, wait_until};
use crate::process::{Failure, signal};
use crate::scene::Scene;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep, timeout};

/// Streams that are open when the gateway is replaced.
pub const OPEN: usize = 500;
/// Tokens of each: at the engines' pace some ten seconds.
const TOKENS: u32 = 600;
/// Clients that come while it is replaced, each time on a new connection.
const NEWCOMERS: usize = 4;
/// Longest time for everything to end.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two changes of the configuration.
const RELOAD_EVERY: Duration = Duration::from_millis(500);

async fn scene(engines: usize) -> Result<Scene, Failure> {
    let engine = EngineOptions { tokenizer: false, ..engine(0) };
    Scene::start(engines, engine, GatewayOptions { tokenizer: false, ..GatewayOptions::default() }).await
}

/// So many streams, each on a connection of its own, all begun when this returns.
async fn open(scene: &mut Scene, streams: usize) -> Result<JoinSet<Outcome>, Failure> {
    let mut tasks = JoinSet::new();
    for number in 0..streams {
        let client = Client::new(format!("http://{}", scene.gateway.address));
        tasks.spawn(async move { client.stream_chat(&chat(number, TOKENS)).await });
    }
    let admin = scene.gateway.admin.clone();
    wait_until("all streams", &mut scene.gateway.process, async || {
        let page = admin.read_text("/metrics").await?;
        let lines = page.lines().filter(|line| line.starts_with("forebay_worker_requests{"));
        let open: f64 = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        if open >= streams as f64 { Ok(()) } else { Err(format!("{open} of {streams} are open")) }
    })
    .await?;
    Ok(tasks)
}

async fn finish(mut streams: JoinSet<Outcome>) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let all = async {
        while let Some(outcome) = streams.join_next().await {
            outcomes.push(outcome.map_err(|error| Failure(error.to_string()))?);
        }
        Ok::<_, Failure>(())
    };
    timeout(PATIENCE, all).await.map_err(|_| Failure(format!("streams did not end within {PATIENCE:?}")))??;
    Ok(outcomes)
}

/// SIGTERM: what runs ends whole, then the process does.
pub async fn drain(streams: usize) -> Result<Row, Failure> {
    let mut scene = scene(4).await?;
    let running = open(&mut scene, streams).await?;
    let started = Instant::now();
    signal(scene.gateway.process.pid(), "TERM")?;
    let outcomes = finish(running).await?;
    until_ended(&mut scene).await?;
    Ok(Row::of("SIGTERM", format!("{streams} open streams"), &outcomes, started))
}

/// SIGUSR2: a new process takes the listener over, the old one ends with its streams; who comes meanwhile is served.
pub async fn upgrade(streams: usize) -> Result<Row, Failure> {
    let mut scene = scene(4).await?;
    let old = scene.gateway.process.pid();
    let running = open(&mut scene, streams).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let newcomers = newcomers(&scene, &stop);
    let started = Instant::now();
    signal(old, "USR2")?;
    let new = new_process(&scene, old).await?;
    let work = async {
        let outcomes = finish(running).await?;
        until_ended(&mut scene).await?;
        Ok::<_, Failure>(outcomes)
    };
    let outcomes = work.await;
    stop.store(true, Ordering::Relaxed);
    let came = newcomers.join_all().await;
    // It is no child of ours: nobody else would end it.
    signal(new, "TERM")?;
    let mut outcomes = outcomes?;
    let what = format!("{streams} open streams, {} more on new connections", came.iter().map(Vec::len).sum::<usize>());
    outcomes.extend(came.into_iter().flatten());
    Ok(Row::of("binary upgrade", what, &outcomes, started))
}

fn newcomers(scene: &Scene, stop: &Arc<AtomicBool>) -> JoinSet<Vec<Outcome>> {
    let mut tasks = JoinSet::new();
    for number in 0..NEWCOMERS {
        let (stop, address) = (stop.clone(), scene.gateway.address);
        tasks.spawn(async move {
            let mut outcomes = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let client = Client::new(format!("http://{address}"));
                outcomes.push(client.stream_chat(&chat(number, 2)).await);
            }
            outcomes
        });
    }
    tasks
}

/// The process that answers in the old one's place.
async fn new_process(scene: &Scene, old: u32) -> Result<u32, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = scene.gateway.admin.read_json("/status").await;
        let pid = status.ok().and_then(|status| u32::try_from(status["pid"].as_u64()?).ok());
        if let Some(pid) = pid.filter(|pid| *pid != old) {
            return Ok(pid);
        }
        if Instant::now() > deadline {
            return Err(Failure(format!("no new process: {}", scene.gateway.process.log_tail())));
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn until_ended(scene: &mut Scene) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    while scene.gateway.process.ended().is_none() {
        if Instant::now() > deadline {
            return Err(Failure(format!("the old process does not end: {}", scene.gateway.process.log_tail())));
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// SIGHUP again and again under load, each time with another set of engines.
pub async fn reload(streams: usize) -> Result<Row, Failure> {
    let scene = scene(4).await?;
    let file = scene.folder.path().join("forebay.toml");
    let failed = |error: std::io::Error| Failure(format!("{}: {error}", file.display()));
    let whole = std::fs::read_to_string(&file).map_err(failed)?;
    let load = Load::start(&scene.gateway.client, 8, streams, 60);
    let mut changes = 0;
    while !load.is_over() {
        // Without one engine, then with all, then without the next.
        let without = format!("[[workers]]\nurl = \"{}\"\n", scene.engines[changes / 2 % 4].url());
        let text = if changes % 2 == 0 { whole.replace(&without, "") } else { whole.clone() };
        std::fs::write(&file, text).map_err(failed)?;
        signal(scene.gateway.process.pid(), "HUP")?;
        changes += 1;
        sleep(RELOAD_EVERY).await;
    }
    let row = load.end("reload", format!("{changes} times, an engine taken out or put back each time")).await;
    let applied = scene.gateway.admin.read_json("/status").await?["config"]["applied"].as_u64().unwrap_or(0);
    if applied == 0 {
        return Err(Failure("the gateway applied none of the changes".to_owned()));
    }
    Ok(row)
}
