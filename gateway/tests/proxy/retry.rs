//! What is tried again, where, how often, and what is not.

use crate::client::{CHAT, STREAM, post};
use crate::engine::{EVENTS, Engine, FINISH, ROLE, Step, frame, json, token, whole_stream, write};
use crate::rig::Rig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

async fn good(text: &'static str) -> Engine {
    Engine::start(move |_| vec![write(json(200, &format!("{{\"by\":\"{text}\"}}")))]).await
}

async fn bad(steps: Vec<Step>) -> Engine {
    Engine::start(move |_| steps.clone()).await
}

/// With `first` and a good engine, every request is served by the good one in the end. The first one is asked at least `times`.
async fn served_by_the_other(first: Engine, times: usize) {
    let second = good("b").await;
    let rig = Rig::with(&[&first, &second], |config| config.routing.retry_budget = 1.0).await;
    let mut client = rig.client().await;
    for _ in 0..4 {
        client.chat(CHAT).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.text()), (200, "{\"by\":\"b\"}"));
    }
    assert!(first.seen().len() >= times && second.seen().len() == 4);
    rig.wait_idle().await;
}

#[tokio::test]
async fn an_engine_that_resets_closes_or_babbles_is_replaced() {
    served_by_the_other(bad(vec![Step::Reset]).await, 2).await;
    served_by_the_other(bad(vec![Step::Close]).await, 2).await;
    served_by_the_other(bad(vec![write("garbage\r\n\r\n")]).await, 2).await;
    served_by_the_other(bad(vec![write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"), Step::Close]).await, 2).await;
}

#[tokio::test]
async fn a_busy_or_broken_engine_is_replaced() {
    // A busy one is left alone for a while after the first answer.
    for (status, times) in [(429, 1), (503, 1), (500, 2), (502, 2), (504, 2)] {
        served_by_the_other(bad(vec![write(json(status, "{}"))]).await, times).await;
    }
}

#[tokio::test]
async fn an_engine_that_is_gone_is_replaced() {
    let (first, second) = (good("a").await, good("b").await);
    let rig = Rig::start(&[&first, &second]).await;
    first.stop_listening().await;
    let mut client = rig.client().await;
    for _ in 0..6 {
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.text(), "{\"by\":\"b\"}");
    }
}

#[tokio::test]
async fn an_engine_that_takes_no_connection_in_time_is_replaced() {
    let (first, second) = (Engine::narrow(|_| vec![write(json(200, "{\"by\":\"a\"}"))]), good("b").await);
    let rig = Rig::with(&[&first, &second], |config| {
        config.upstream.connect_timeout = std::time::Duration::from_millis(300);
        // Its idle connection from the last request would serve.
        config.upstream.pool_size = 0;
    })
    .await;
    let _crowd = first.stop_accepting().await;
    let mut client = rig.client().await;
    for _ in 0..4 {
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.text(), "{\"by\":\"b\"}");
    }
    rig.wait_idle().await;
}

#[tokio::test]
async fn when_all_are_busy_the_engines_own_answer_is_passed_on() {
    let busy = || bad(vec![write("HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy")]);
    let (first, second) = (busy().await, busy().await);
    let rig = Rig::start(&[&first, &second]).await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.field("retry-after"), answer.text()), (503, Some("7"), "busy"));
    assert_eq!((first.seen().len(), second.seen().len()), (1, 1), "each was asked once");
}

#[tokio::test]
async fn errors_are_retried_within_the_budget_and_then_passed_on() {
    let (first, second) = (bad(vec![write(json(500, "{}"))]).await, bad(vec![write(json(500, "{}"))]).await);
    let rig = Rig::start(&[&first, &second]).await;
    let mut client = rig.client().await;
    for _ in 0..50 {
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.status, 500);
    }
    let retries = first.seen().len() + second.seen().len() - 50;
    assert!((1..=6).contains(&retries), "{retries} retries for 50 requests");
}

#[tokio::test]
async fn attempts_are_bounded() {
    let mut engines = Vec::new();
    for _ in 0..5 {
        engines.push(bad(vec![Step::Reset]).await);
    }
    let rig = Rig::with(&engines.iter().collect::<Vec<_>>(), |config| config.routing.max_attempts = 3).await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.field("x-forebay-error")), (502, Some("upstream_closed")));
    assert_eq!(engines.iter().map(|engine| engine.seen().len()).sum::<usize>(), 3);
}

#[tokio::test]
async fn a_pooled_connection_that_turns_out_closed_costs_nothing() {
    // Serves one request per connection and closes when it sees the second, as an engine does whose idle time-out and the
    // gateway's request cross.
    let engine = Engine::start(|_| Vec::new()).await;
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    engine.script(move |seen| {
        let again = count.fetch_add(1, Ordering::SeqCst);
        if again % 2 == 1 && seen.connection == again / 2 { vec![Step::Close] } else { vec![write(json(200, "{}"))] }
    });
    let rig = Rig::with(&[&engine], |config| config.routing.max_attempts = 1).await;
    let mut client = rig.client().await;
    for _ in 0..5 {
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.status, 200);
    }
    assert!(served.load(Ordering::SeqCst) > 5, "connections did turn out closed");
}

#[tokio::test]
async fn connections_are_used_again() {
    let engine = good("a").await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    for _ in 0..10 {
        client.chat(CHAT).await;
        client.answer().await;
    }
    assert!(engine.seen().iter().all(|seen| seen.connection == 0));
}

#[tokio::test]
async fn no_more_idle_connections_are_kept_than_may_be() {
    let bell = Arc::new(Notify::new());
    let steps = vec![Step::Wait(bell.clone()), write(json(200, "{}"))];
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::with(&[&engine], |config| config.upstream.pool_size = 1).await;
    let mut clients = Vec::new();
    for round in 1..=2 {
        clients.clear();
        for _ in 0..3 {
            let mut client = rig.client().await;
            client.chat(CHAT).await;
            clients.push(client);
        }
        engine.wait_seen(3 * round).await;
        let ring = async {
            loop {
                bell.notify_waiters();
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let answers = async {
            for client in &mut clients {
                assert_eq!(client.answer().await.status, 200);
            }
        };
        tokio::select! {
            () = answers => {}
            () = ring => {}
        }
        rig.wait_idle().await;
    }
    let connections: std::collections::BTreeSet<usize> = engine.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections.len(), 5, "of three that ended one was kept");
}

#[tokio::test]
async fn a_stream_cut_before_output_moves_to_another_engine() {
    let cut = bad(vec![write(format!("{EVENTS}: hello\n\n{}", frame(ROLE))), Step::Close]).await;
    let cut_inside = bad(vec![write(format!("{EVENTS}{}", &frame(&token("lost"))[..20])), Step::Reset]).await;
    let whole = Engine::start(|_| vec![write(whole_stream(&["a", "b"]))]).await;
    let rig = Rig::with(&[&cut, &cut_inside, &whole], |config| config.routing.retry_budget = 1.0).await;
    for _ in 0..3 {
        let mut client = rig.client().await;
        client.chat(STREAM).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200);
        let expected =
            [ROLE, &token("a"), &token("b"), FINISH, "[DONE]"].map(|data| format!("data: {data}\n\n")).concat();
        assert_eq!(answer.text(), expected, "only the engine that served is heard");
    }
    assert!(cut.seen().len() + cut_inside.seen().len() > 0);
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_stream_cut_after_output_ends_in_an_error_event_and_is_not_retried() {
    for end in [Step::Close, Step::Reset] {
        let start = format!("{EVENTS}{}{}", frame(ROLE), frame(&token("a")));
        let bell = Arc::new(Notify::new());
        let half = frame(&token("half"));
        let engine = bad(vec![write(start), Step::Wait(bell.clone()), write(&half[..25]), end]).await;
        let rig = Rig::start(&[&engine]).await;
        let other = good("b").await;
        let mut client = rig.client().await;
        client.chat(STREAM).await;
        client.wait_for("\"a\"").await;
        rig.add(&other.url());
        rig.wait_ready(2).await;
        bell.notify_one();
        let answer = client.answer().await;
        assert!(answer.complete, "the stream ends as HTTP");
        let events: Vec<&str> = answer.text().split_terminator("\n\n").collect();
        assert_eq!(events.len(), 4, "{events:?}");
        let error: serde_json::Value = serde_json::from_str(events[2].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(error["error"]["code"], 502);
        assert!(!error.to_string().contains("127.0.0.1"));
        assert_eq!(events[3], "data: [DONE]");
        assert!(other.seen().is_empty());
        rig.wait_idle().await;
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.text(), "{\"by\":\"b\"}", "the connection is still in step");
    }
}

#[tokio::test]
async fn a_stream_that_ends_well_formed_but_unfinished_is_not_taken_for_whole() {
    let engine = bad(vec![write(format!("{EVENTS}{}0\r\n\r\n", frame(&token("a"))))]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    let text = client.answer().await.text().to_owned();
    assert!(text.contains("\"error\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn an_unknown_post_is_not_sent_twice_once_an_engine_has_it() {
    let (first, second) = (bad(vec![Step::Reset]).await, bad(vec![Step::Reset]).await);
    let rig = Rig::start(&[&first, &second]).await;
    let mut client = rig.client().await;
    client.send(post("/v1/unknown", "{}")).await;
    assert_eq!(client.answer().await.status, 502);
    assert_eq!(first.seen().len() + second.seen().len(), 1);
    client.send("GET /v1/unknown HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 502);
    assert_eq!(first.seen().len() + second.seen().len(), 3, "a GET is");
}

#[tokio::test]
async fn an_engine_may_answer_before_it_has_read_the_body() {
    let engine = Engine::start(|_| Vec::new()).await;
    engine.answer_to_heads(json(401, "{}"));
    let rig = Rig::with(&[], |_| {}).await;
    rig.add(&engine.url());
    rig.wait_ready(1).await;
    let mut client = rig.client().await;
    client.chat(&CHAT.replace("hi", &"x".repeat(4 << 20))).await;
    assert_eq!(client.answer().await.status, 401);
}
