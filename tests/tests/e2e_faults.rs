//! Failures while requests run: a killed engine, a gateway told to stop, an engine that comes back.

use forebay_tests::client::End;
use forebay_tests::cluster::{Engine, EngineOptions, GatewayOptions, MODEL, wait_until};
use forebay_tests::demo::replay::Endings;
use forebay_tests::process::{Failure, signal};
use forebay_tests::scene::Scene;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinSet;

fn body(text: &str, max_tokens: u32) -> Value {
    json!({
        "model": MODEL, "stream": true, "stream_options": {"include_usage": true}, "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": text}],
    })
}

#[tokio::test]
async fn a_killed_engine_loses_nothing_that_had_not_begun() -> Result<(), Failure> {
    const REQUESTS: usize = 160;
    // Long answers, so that many streams are open when the engine dies.
    let engine = EngineOptions { speedup: 4.0, ..EngineOptions::default() };
    let mut scene = Scene::start(4, engine, GatewayOptions::default()).await?;
    let mut running = JoinSet::new();
    for number in 0..REQUESTS {
        let client = scene.gateway.client.clone();
        running.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number as u64 * 15)).await;
            client.stream_chat(&body(&format!("question {number}: {}", "why ".repeat(200)), 120)).await
        });
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = running.join_next().await {
        outcomes.push(outcome.map_err(|e| Failure(e.to_string()))?);
        if outcomes.len() == REQUESTS / 4 {
            scene.engines[1].process.kill();
        }
    }
    let endings = Endings::of(&outcomes);
    assert_eq!((endings.lost, endings.silent), (0, 0), "{endings:?} {outcomes:#?}");
    assert!(endings.told > 0, "the dead engine must have been answering somebody: {endings:?}");
    assert_eq!(endings.complete + endings.told, REQUESTS);
    Ok(())
}

#[tokio::test]
async fn sigterm_lets_streams_end() -> Result<(), Failure> {
    let engine = EngineOptions { speedup: 4.0, tokenizer: false, ..EngineOptions::default() };
    let gateway = GatewayOptions { tokenizer: false, ..GatewayOptions::default() };
    let mut scene = Scene::start(1, engine, gateway).await?;
    let client = scene.gateway.client.clone();
    let mut running = JoinSet::new();
    for number in 0..4 {
        let client = client.clone();
        running.spawn(async move { client.stream_chat(&body(&format!("stream {number}"), 300)).await });
    }
    let (engine, admin) = (&scene.engines[0], &scene.gateway.admin);
    wait_until("streams", &mut scene.gateway.process, async || {
        let page = engine.client.read_text("/metrics").await?;
        let running = page.lines().find(|line| line.starts_with("vllm:num_requests_running")).unwrap_or_default();
        if running.ends_with(" 4") || running.ends_with(" 4.0") { Ok(()) } else { Err(running.to_owned()) }
    })
    .await?;
    signal(scene.gateway.process.pid(), "TERM")?;
    let not_ready = async || match admin.read_text("/readyz").await {
        Ok(text) => Err(format!("still ready: {text}")),
        Err(_) => Ok(()),
    };
    wait_until("drain", &mut scene.gateway.process, not_ready).await?;
    while let Some(outcome) = running.join_next().await {
        let outcome = outcome.map_err(|e| Failure(e.to_string()))?;
        assert_eq!(outcome.end, End::Complete, "{outcome:?}");
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = scene.gateway.process.ended() {
            break status;
        }
        assert!(tokio::time::Instant::now() < deadline, "the gateway must end once its streams have");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(status.success(), "{status}");
    Ok(())
}

#[tokio::test]
async fn an_engine_that_joins_later_gets_traffic() -> Result<(), Failure> {
    // In turn, because membership is the subject: `kv` may rightly keep an idle fleet's requests at the engine whose
    // rates it has learned.
    let engines = EngineOptions { tokenizer: false, ..EngineOptions::default() };
    let in_turn = GatewayOptions { policy: "round-robin".to_owned(), tokenizer: false, ..GatewayOptions::default() };
    let scene = Scene::start(1, engines, in_turn).await?;
    let late = EngineOptions { tokenizer: false, ..EngineOptions::default() };
    let late = Engine::start("late", &late, scene.folder.path()).await?;
    scene.gateway.admin.post_json("/workers", &json!({"url": late.url()})).await?;
    let mut gateway = scene.gateway;
    wait_until("second worker", &mut gateway.process, async || {
        let listed = gateway.admin.read_json("/workers").await?;
        let ready = listed["workers"].as_array().map_or(0, |w| w.iter().filter(|w| w["state"] == "ready").count());
        if ready == 2 { Ok(()) } else { Err(listed.to_string()) }
    })
    .await?;
    let mut served = std::collections::BTreeSet::new();
    for number in 0..40 {
        let outcome = gateway.client.stream_chat(&body(&format!("{number} is a number"), 2)).await;
        assert_eq!(outcome.end, End::Complete, "{outcome:?}");
    }
    for engine in [&scene.engines[0], &late] {
        let page = engine.client.read_text("/metrics").await?;
        let total: f64 = page
            .lines()
            .filter(|line| line.starts_with("vllm:request_success_total"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        if total > 0.0 {
            served.insert(engine.url());
        }
    }
    assert_eq!(served.len(), 2, "both engines must have served: {served:?}");
    Ok(())
}
