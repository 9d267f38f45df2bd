//! A client that leaves is seen in every phase: the engine's connection closes and everything is given back.
//!
//! The promise is 100 ms. On a busy test machine the bound is wide; every deadline that could end these exchanges instead
//! is a minute away.

use crate::client::{CHAT, STREAM};
use crate::engine::{EVENTS, Engine, ROLE, Step, frame, token, write};
use crate::rig::Rig;
use forebay_routing::Policy;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Far below every deadline, far above what the promise needs.
const SOON: Duration = Duration::from_secs(5);

/// Sends `body`, waits for the engine to have the request (and the client to have `sign`, if any), leaves, and checks that
/// the engine sees it.
async fn leave(body: &str, steps: Vec<Step>, sign: Option<&str>) {
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(body).await;
    engine.wait_seen(1).await;
    if let Some(sign) = sign {
        client.wait_for(sign).await;
    }
    assert_eq!(rig.in_flight(), 1);
    let left = Instant::now();
    drop(client);
    let closed = engine.wait_closed(1).await;
    assert!(closed.duration_since(left) < SOON, "{:?}", closed.duration_since(left));
    rig.wait_idle().await;
    assert_eq!(engine.seen().len(), 1, "nothing is tried again for who left");
}

#[tokio::test]
async fn while_the_first_byte_is_awaited() {
    leave(CHAT, vec![Step::UntilClosed], None).await;
    leave(STREAM, vec![Step::UntilClosed], None).await;
}

#[tokio::test]
async fn while_frames_without_output_are_held() {
    leave(STREAM, vec![write(format!("{EVENTS}{}", frame(ROLE))), Step::UntilClosed], None).await;
}

#[tokio::test]
async fn while_a_stream_runs() {
    let start = format!("{EVENTS}{}{}", frame(ROLE), frame(&token("hello")));
    leave(STREAM, vec![write(start), Step::UntilClosed], Some("hello")).await;
}

#[tokio::test]
async fn while_a_whole_answer_is_read() {
    let start = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\":";
    leave(CHAT, vec![write(start), Step::UntilClosed], None).await;
    let start = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\n{\"id\":\r\n";
    leave(CHAT, vec![write(start), Step::UntilClosed], None).await;
}

#[tokio::test]
async fn while_a_large_answer_is_passed_on() {
    let start = format!("HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n{}", "x".repeat(2 << 20));
    let engine = Engine::start(move |_| vec![write(start.as_str()), Step::UntilClosed]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    client.wait_for("content-length: 9000000").await;
    drop(client);
    engine.wait_closed(1).await;
    rig.wait_idle().await;
}

#[tokio::test]
async fn while_the_body_is_read() {
    let engine = Engine::start(|_| vec![Step::UntilClosed]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n{\"model\"").await;
    while rig.gateway.limits.buffered() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(client);
    rig.wait_idle().await;
    while rig.gateway.limits.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(engine.seen().is_empty());
}

#[tokio::test]
async fn while_a_connection_to_the_engine_is_opened() {
    let engine = Engine::narrow(|_| vec![Step::UntilClosed]);
    let rig = Rig::start(&[&engine]).await;
    let _crowd = engine.stop_accepting().await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    while rig.in_flight() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let left = Instant::now();
    drop(client);
    rig.wait_idle().await;
    assert!(left.elapsed() < SOON, "{:?}", left.elapsed());
    assert!(engine.seen().is_empty());
}

#[tokio::test]
async fn while_the_request_is_sent() {
    // An engine that reads the head and no further, and a body larger than any socket buffer.
    let stuck = Arc::new(Notify::new());
    let engine = Engine::start(|_| Vec::new()).await;
    engine.stop_reading(stuck.clone());
    let rig = Rig::with(&[], |config| {
        config.listen.max_body_bytes = 64 << 20;
        config.listen.max_buffered_bytes = 128 << 20;
    })
    .await;
    rig.add(&engine.url());
    rig.wait_ready(1).await;
    let mut client = rig.client().await;
    let body = CHAT.replace("hi", &"x".repeat(32 << 20));
    client.chat(&body).await;
    while rig.in_flight() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let left = Instant::now();
    drop(client);
    rig.wait_idle().await;
    assert!(left.elapsed() < SOON, "{:?}", left.elapsed());
    stuck.notify_one();
}

#[tokio::test]
async fn a_storm_of_leaving_clients_leaves_nothing_behind() {
    let engine = Engine::start(|_| vec![write(format!("{EVENTS}{}", frame(&token("x")))), Step::UntilClosed]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = rig.client().await;
        client.chat(STREAM).await;
        clients.push(client);
    }
    engine.wait_seen(100).await;
    assert_eq!(rig.in_flight(), 100);
    drop(clients);
    engine.wait_closed(100).await;
    rig.wait_idle().await;
}

#[tokio::test]
async fn while_the_prompt_is_tokenised() {
    // Without files of its own the gateway asks the engine for the ids, and this engine takes its time.
    let engine = Engine::start(|seen| {
        assert!(seen.head.starts_with("POST /tokenize"), "{}", seen.head);
        vec![Step::UntilClosed]
    })
    .await;
    let rig = Rig::with(&[&engine], |config| config.routing.policy = Policy::Kv).await;
    rig.gateway.tokenizers.set_engines("m", vec![engine.url()]);
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    engine.wait_seen(1).await;
    let left = Instant::now();
    drop(client);
    let closed = engine.wait_closed(1).await;
    assert!(closed.duration_since(left) < SOON, "{:?}", closed.duration_since(left));
    rig.wait_idle().await;
    assert_eq!(engine.seen().len(), 1, "the request itself was never sent");
}
