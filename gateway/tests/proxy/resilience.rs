//! Places, queues, back-pressure, back-off, and who is taken out of service for what.

use crate::client::{CHAT, STREAM};
use crate::engine::{Engine, Step, json, whole_stream, write};
use crate::rig::Rig;
use forebay_routing::view::WorkerState;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

async fn waiting(bell: &Arc<Notify>) -> Engine {
    let steps = vec![Step::Wait(bell.clone()), write(json(200, "{}"))];
    Engine::start(move |_| steps.clone()).await
}

#[tokio::test]
async fn what_finds_no_place_waits_its_turn_and_no_worker_gets_more_than_it_may() {
    let bell = Arc::new(Notify::new());
    let (a, b) = (waiting(&bell).await, waiting(&bell).await);
    let rig = Rig::with(&[&a, &b], |config| {
        config.upstream.max_concurrency = Some(1);
        config.upstream.max_queue = 2;
    })
    .await;
    let mut clients = Vec::new();
    for number in 0..4 {
        let mut client = rig.client().await;
        client.chat(CHAT).await;
        clients.push(client);
        if number < 2 {
            while a.seen().len() + b.seen().len() <= number {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
    assert_eq!((a.seen().len(), b.seen().len()), (1, 1), "each has its one");
    // The queue takes two; which of the next two are those is chance, the fifth is refused.
    let mut fifth = rig.client().await;
    let refused = async {
        loop {
            fifth.chat(CHAT).await;
            let answer = fifth.answer().await;
            if answer.status != 200 {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(20), refused).await.unwrap();
    assert_eq!((answer.status, answer.field("x-forebay-error")), (503, Some("queue_full")));
    assert!(answer.field("retry-after").is_some());
    assert_eq!((a.seen().len(), b.seen().len()), (1, 1));
    let ringing = async {
        loop {
            bell.notify_one();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let answers = async {
        for client in &mut clients {
            assert_eq!(client.answer().await.status, 200);
        }
    };
    tokio::select! {
        () = ringing => {}
        () = answers => {}
    }
    assert_eq!(a.seen().len() + b.seen().len(), 4);
    rig.wait_idle().await;
}

#[tokio::test]
async fn who_waits_too_long_for_a_place_is_told_and_who_leaves_gives_the_queue_back() {
    let bell = Arc::new(Notify::new());
    let engine = waiting(&bell).await;
    let rig = Rig::with(&[&engine], |config| {
        config.upstream.max_concurrency = Some(1);
        config.upstream.max_queue = 1;
        config.upstream.queue_timeout = Duration::from_millis(300);
    })
    .await;
    let mut first = rig.client().await;
    first.chat(CHAT).await;
    engine.wait_seen(1).await;
    for _ in 0..3 {
        let mut leaving = rig.client().await;
        leaving.chat(CHAT).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(leaving);
        let mut waiting = rig.client().await;
        let answer = loop {
            waiting.chat(CHAT).await;
            let answer = waiting.answer().await;
            if answer.field("x-forebay-error") != Some("queue_full") {
                break answer;
            }
        };
        assert_eq!((answer.status, answer.field("x-forebay-error")), (503, Some("queue_timeout")));
    }
    bell.notify_one();
    assert_eq!(first.answer().await.status, 200);
    assert_eq!(engine.seen().len(), 1);
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_worker_that_says_come_back_later_is_left_alone_while_another_is_there() {
    let busy =
        Engine::start(|_| vec![write("HTTP/1.1 429 Too Many\r\nretry-after: 25\r\ncontent-length: 0\r\n\r\n")]).await;
    let free = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let rig = Rig::start(&[&busy, &free]).await;
    let mut client = rig.client().await;
    for _ in 0..10 {
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.status, 200);
    }
    assert_eq!(busy.seen().len(), 1, "asked once, then left alone");
    assert_eq!(free.seen().len(), 10);
    let alone = Rig::start(&[&busy]).await;
    let mut client = alone.client().await;
    for _ in 0..3 {
        client.chat(CHAT).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("retry-after")), (429, Some("25")), "the engine's own words");
    }
    assert_eq!(busy.seen().len(), 4, "with nobody else left it is asked all the same");
}

#[tokio::test]
async fn a_first_byte_that_the_queue_explains_is_not_sought_elsewhere() {
    let bell = Arc::new(Notify::new());
    let engine = waiting(&bell).await;
    let rig = Rig::with(&[&engine], |config| {
        config.upstream.first_byte_timeout = Duration::from_secs(3);
        config.health.eject_after = 1;
    })
    .await;
    let mut first = rig.client().await;
    let mut second = rig.client().await;
    first.chat(CHAT).await;
    engine.wait_seen(1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    second.chat(CHAT).await;
    engine.wait_seen(2).await;
    // Another worker comes, to which they could be sent.
    let other = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    rig.add(&other.url());
    rig.wait_ready(2).await;
    assert_eq!(first.answer().await.status, 504);
    assert_eq!(other.seen().len(), 0, "two at one worker explain the wait");
    assert_eq!(second.answer().await.status, 200, "the one that was alone there is sent elsewhere");
    assert_eq!(other.seen().len(), 1);
}

#[tokio::test]
async fn failures_everywhere_take_out_no_more_than_half() {
    let broken = || Engine::start(|_| vec![write(json(500, "{}"))]);
    let engines = [broken().await, broken().await, broken().await, broken().await];
    let rig = Rig::with(&engines.each_ref(), |config| {
        config.health.eject_after = 2;
        config.health.max_ejected = 0.5;
        config.routing.max_attempts = 1;
    })
    .await;
    let mut client = rig.client().await;
    for _ in 0..60 {
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.status, 500, "there is always somebody to answer");
    }
    let out = || rig.gateway.fleet.view().workers.iter().filter(|worker| worker.state == WorkerState::Ejected).count();
    for _ in 0..2_000 {
        if out() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(out(), 2);
}

#[tokio::test]
async fn a_worker_far_slower_than_its_peers_is_taken_out() {
    let engine = |pause: u64| {
        Engine::start(move |_| vec![Step::Sleep(Duration::from_millis(pause)), write(whole_stream(&["a"]))])
    };
    let engines = [engine(0).await, engine(0).await, engine(1_300).await];
    let rig = Rig::with(&engines.each_ref(), |config| {
        config.health.eject_ttft_factor = 3.0;
        config.health.max_ejected = 0.5;
    })
    .await;
    let mut clients = Vec::new();
    for _ in 0..90 {
        clients.push(rig.client().await);
    }
    for client in &mut clients {
        client.chat(STREAM).await;
    }
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    let slow = engines[2].url();
    let is_out = async {
        loop {
            let described = rig.gateway.fleet.describe().await;
            let out: Vec<_> = described.iter().filter(|worker| worker.view.state == WorkerState::Ejected).collect();
            if let [one] = out[..] {
                return one.url.to_string();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert_eq!(tokio::time::timeout(Duration::from_secs(20), is_out).await.expect("taken out"), slow);
}

#[tokio::test]
async fn a_worker_that_comes_later_gets_its_share_by_and_by() {
    let bell = Arc::new(Notify::new());
    let first = waiting(&bell).await;
    let rig = Rig::with(&[&first], |config| config.health.slow_start = Duration::from_secs(3_600)).await;
    // The first one has no peers, so it warms up alone; time passes for neither. Both are cold then, which is no reason to
    // hold either back.
    let second = waiting(&bell).await;
    rig.add(&second.url());
    rig.wait_ready(2).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = rig.client().await;
        client.chat(CHAT).await;
        clients.push(client);
    }
    let all = async {
        while first.seen().len() + second.seen().len() < 6 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.unwrap();
    assert_eq!((first.seen().len(), second.seen().len()), (3, 3));
}
