//! Engines that die for a moment, or live on as far as the kernel knows and answer nobody.

use crate::client::{CHAT, STREAM};
use crate::engine::{EVENTS, Engine, ROLE, Step, frame, json, whole_stream, write};
use crate::rig::Rig;
use forebay_routing::view::WorkerState;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Requests that are there when it happens.
const REQUESTS: usize = 5;

async fn wait_state(rig: &Rig, state: WorkerState) {
    for _ in 0..2_000 {
        if rig.gateway.fleet.view().workers.iter().any(|worker| worker.state == state) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no worker is {state:?}");
}

#[tokio::test]
async fn a_model_that_loses_its_only_engine_for_a_moment_loses_no_request() {
    // Some have had a head and a frame without output, which is nothing to a client.
    let engine = Engine::start(|seen| {
        let streams = seen.body.windows(6).any(|part| part == b"stream");
        let said = if streams { format!("{EVENTS}{}", frame(ROLE)) } else { String::new() };
        vec![write(said), Step::UntilClosed]
    })
    .await;
    let rig = Rig::with(&[&engine], |config| {
        config.upstream.outage_timeout = Duration::from_secs(60);
        config.health.eject_after = 2;
        config.health.eject_for = Duration::from_secs(600);
    })
    .await;
    let mut clients = Vec::new();
    for number in 0..REQUESTS {
        let mut client = rig.client().await;
        client.chat(if number % 2 == 0 { CHAT } else { STREAM }).await;
        clients.push(client);
    }
    engine.wait_seen(REQUESTS).await;
    // The frames are read by then: only the engine's end is still to be seen.
    tokio::time::sleep(Duration::from_millis(300)).await;
    engine.stop_listening().await;
    wait_state(&rig, WorkerState::Ejected).await;
    // Who comes now finds nobody, and waits with the others.
    let mut late = rig.client().await;
    late.chat(CHAT).await;
    clients.push(late);
    let again = Engine::at(engine.address, |seen| {
        let streams = seen.body.windows(6).any(|part| part == b"stream");
        vec![write(if streams { whole_stream(&["a"]).into_bytes() } else { json(200, "{}") })]
    });
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    assert_eq!(again.seen().len(), REQUESTS + 1, "each is sent once to who came back");
    rig.wait_idle().await;
}

#[tokio::test]
async fn an_outage_is_not_waited_for_longer_than_it_may_last_and_who_leaves_is_forgotten() {
    let engine = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let rig = Rig::with(&[&engine], |config| {
        config.upstream.outage_timeout = Duration::from_secs(2);
        config.upstream.max_queue = 1;
        config.health.eject_after = 1;
        config.health.eject_for = Duration::from_secs(600);
    })
    .await;
    engine.stop_listening().await;
    let mut first = rig.client().await;
    first.chat(CHAT).await;
    wait_state(&rig, WorkerState::Ejected).await;
    let mut crowded = rig.client().await;
    crowded.chat(CHAT).await;
    let answer = crowded.answer().await;
    assert_eq!((answer.status, answer.field("x-forebay-error")), (503, Some("none_ready")), "one waits, no more");
    drop(first);
    rig.wait_idle().await;
    // The place in the queue is free again, and the outage is the same one.
    for _ in 0..2 {
        crowded.chat(CHAT).await;
        let answer = crowded.answer().await;
        assert_eq!((answer.status, answer.field("x-forebay-error")), (503, Some("none_ready")));
        assert!(answer.field("retry-after").is_some());
    }
    assert!(engine.seen().is_empty());
}

#[tokio::test]
async fn an_engine_that_hangs_gives_back_what_waits_for_it_once_it_fails_its_checks() {
    let hung = Engine::start(|_| vec![Step::UntilClosed]).await;
    let rig = Rig::with(&[&hung], |config| {
        config.health.timeout = Duration::from_millis(300);
        config.health.failures = 2;
    })
    .await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    hung.wait_seen(1).await;
    let other = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    rig.add(&other.url());
    rig.wait_ready(2).await;
    hung.fall_sick();
    assert_eq!(client.answer().await.status, 200, "every deadline is a minute away");
    hung.wait_closed(1).await;
    assert_eq!(other.seen().len(), 1);
    rig.wait_idle().await;
}

#[tokio::test]
async fn where_all_engines_fail_their_checks_whoever_waits_goes_on_waiting() {
    let bell = Arc::new(Notify::new());
    let steps = vec![Step::Wait(bell.clone()), write(json(200, "{}"))];
    let busy = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::with(&[&busy], |config| {
        config.health.timeout = Duration::from_millis(300);
        config.health.failures = 2;
    })
    .await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    busy.wait_seen(1).await;
    busy.fall_sick();
    wait_state(&rig, WorkerState::Down).await;
    // Longer than whoever waits takes to look at the engine's health.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(rig.in_flight(), 1);
    bell.notify_one();
    assert_eq!(client.answer().await.status, 200);
}
