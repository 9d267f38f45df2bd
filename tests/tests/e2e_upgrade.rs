//! A new process takes over under load: no connection is refused, no stream is broken, and one that cannot serve changes nothing.

use forebay_tests::client::{Client, End};
use forebay_tests::cluster::{EngineOptions, GatewayOptions, MODEL, wait_until};
use forebay_tests::process::{Failure, signal};
use forebay_tests::scene::Scene;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// Streams that are open when the new process takes over.
const STREAMS: usize = 40;

fn body(tokens: u32) -> Value {
    json!({"model": MODEL, "stream": true, "max_tokens": tokens, "messages": [{"role": "user", "content": "a long one"}]})
}

async fn scene() -> Result<Scene, Failure> {
    let engine = EngineOptions { tokenizer: false, speedup: 2.0, ..EngineOptions::default() };
    Scene::start(2, engine, GatewayOptions { tokenizer: false, ..GatewayOptions::default() }).await
}

async fn pid(scene: &Scene) -> Result<u32, String> {
    let status = scene.gateway.admin.read_json("/status").await?;
    status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).ok_or_else(|| status.to_string())
}

#[tokio::test]
async fn a_new_process_takes_over_without_a_refused_connection_or_a_broken_stream() -> Result<(), Failure> {
    let mut scene = scene().await?;
    let old = scene.gateway.process.pid();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let client = Client::new(format!("http://{}", scene.gateway.address));
        streams.spawn(async move { client.stream_chat(&body(200)).await });
    }
    // Whoever comes meanwhile, on a connection of their own.
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut newcomers = JoinSet::new();
    for _ in 0..4 {
        let (stop, served, address) = (stop.clone(), served.clone(), scene.gateway.address);
        newcomers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let outcome = Client::new(format!("http://{address}")).stream_chat(&body(2)).await;
                assert_eq!(outcome.end, End::Complete, "{outcome:?}");
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while served.load(Ordering::Relaxed) < 8 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    signal(old, "USR2")?;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let new = loop {
        match pid(&scene).await {
            Ok(pid) if pid != old => break pid,
            _ => {
                assert!(tokio::time::Instant::now() < deadline, "no new process: {}", scene.gateway.process.log_tail())
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let outcome = take_over(&mut scene, &mut streams, &served).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = newcomers.join_next().await {
        ended.map_err(|e| Failure(format!("a newcomer was not served: {e}")))?;
    }
    signal(new, "TERM")?;
    outcome
}

/// The old process ends once its streams have; the new one serves on.
async fn take_over(
    scene: &mut Scene,
    streams: &mut JoinSet<forebay_tests::client::Outcome>,
    served: &AtomicU32,
) -> Result<(), Failure> {
    while let Some(outcome) = streams.join_next().await {
        let outcome = outcome.map_err(|e| Failure(e.to_string()))?;
        assert_eq!(outcome.end, End::Complete, "{outcome:?}");
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while scene.gateway.process.ended().is_none() {
        assert!(tokio::time::Instant::now() < deadline, "the old process ends: {}", scene.gateway.process.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = served.load(Ordering::Relaxed);
    while served.load(Ordering::Relaxed) < before + 8 {
        assert!(tokio::time::Instant::now() < deadline, "the new process serves");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_new_process_that_cannot_start_changes_nothing() -> Result<(), Failure> {
    let mut scene = scene().await?;
    let old = scene.gateway.process.pid();
    let file = scene.folder.path().join("forebay.toml");
    std::fs::write(&file, "[routing]\npolicy = \"astrology\"\n").map_err(|e| Failure(e.to_string()))?;
    signal(old, "USR2")?;
    let log = scene.folder.path().join("gateway.log");
    wait_until("refusal", &mut scene.gateway.process, async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains("this one goes on") { Ok(()) } else { Err(text) }
    })
    .await?;
    assert_eq!(pid(&scene).await.map_err(Failure)?, old, "the admin listener is back");
    let outcome = scene.gateway.client.stream_chat(&body(2)).await;
    assert_eq!(outcome.end, End::Complete, "{outcome:?}");
    Ok(())
}
