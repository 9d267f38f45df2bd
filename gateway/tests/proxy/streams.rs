//! Answers on their way through: untouched, at once, bounded.

use crate::client::{CHAT, STREAM, post};
use crate::engine::{END, EVENTS, Engine, FINISH, ROLE, Step, USAGE, frame, json, token, whole_stream, write};
use crate::rig::Rig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

fn events(data: &[&str]) -> String {
    data.iter().map(|data| format!("data: {data}\n\n")).collect()
}

#[tokio::test]
async fn usage_is_asked_for_and_taken_out_unless_the_client_asked() {
    let engine = Engine::start(|_| vec![write(whole_stream(&["a"]))]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    let answer = client.answer().await;
    assert_eq!(answer.field("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.text(), events(&[ROLE, &token("a"), FINISH, "[DONE]"]));
    let sent: serde_json::Value = serde_json::from_slice(&engine.seen()[0].body).unwrap();
    assert_eq!(sent["stream_options"]["include_usage"], true);

    client
        .chat(&STREAM.replace("\"stream\":true", "\"stream\":true,\"stream_options\":{\"include_usage\":true}"))
        .await;
    assert_eq!(client.answer().await.text(), events(&[ROLE, &token("a"), FINISH, USAGE, "[DONE]"]));
}

#[tokio::test]
async fn each_frame_is_passed_on_before_the_next_comes() {
    let bell = Arc::new(Notify::new());
    let mut steps = vec![write(format!("{EVENTS}{}", frame(ROLE)))];
    for word in ["one", "two", "three"] {
        steps.extend([write(frame(&token(word))), Step::Wait(bell.clone())]);
    }
    steps.push(write(frame(FINISH) + &frame("[DONE]") + END));
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    for word in ["one", "two", "three"] {
        client.wait_for(word).await;
        assert!(!String::from_utf8_lossy(client.pending()).contains("[DONE]"));
        bell.notify_one();
    }
    assert!(client.answer().await.complete);
}

#[tokio::test]
async fn a_stream_split_at_any_byte_comes_out_the_same() {
    let text = whole_stream(&["a", "b"]);
    let head = EVENTS.len();
    let engine = Engine::start(|_| Vec::new()).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    for cut in (head..text.len()).step_by(23) {
        let (first, second) = (text[..cut].to_owned(), text[cut..].to_owned());
        engine.script(move |_| {
            vec![write(first.as_str()), Step::Sleep(Duration::from_millis(1)), write(second.as_str())]
        });
        client.chat(STREAM).await;
        assert_eq!(client.answer().await.text(), events(&[ROLE, &token("a"), &token("b"), FINISH, "[DONE]"]), "{cut}");
    }
}

#[tokio::test]
async fn an_old_client_gets_its_stream_without_chunks() {
    let engine = Engine::start(|_| vec![write(whole_stream(&["a"]))]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.send(post("/v1/chat/completions", STREAM).replace("HTTP/1.1", "HTTP/1.0")).await;
    let answer = client.answer().await;
    assert_eq!((answer.field("transfer-encoding"), answer.field("connection")), (None, Some("close")));
    assert_eq!(answer.text(), events(&[ROLE, &token("a"), FINISH, "[DONE]"]));
}

#[tokio::test]
async fn whole_answers_pass_in_every_framing() {
    let body = format!(r#"{{"text":"{}","usage":{{"prompt_tokens":1,"completion_tokens":1}}}}"#, "x".repeat(3 << 20));
    let chunks: String = body.as_bytes().chunks(100_000).fold(String::new(), |mut all, part| {
        all.push_str(&format!("{:x}\r\n{}\r\n", part.len(), std::str::from_utf8(part).unwrap()));
        all
    });
    let engine = Engine::start(|_| Vec::new()).await;
    let rig = Rig::start(&[&engine]).await;
    for answer in [
        json(200, &body),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n").into_bytes(),
        format!("HTTP/1.1 200 OK\r\n\r\n{body}").into_bytes(),
        format!("HTTP/1.0 200 OK\r\n\r\n{body}").into_bytes(),
    ] {
        engine.script(move |_| vec![Step::Write(answer.clone()), Step::Close]);
        let mut client = rig.client().await;
        client.chat(CHAT).await;
        let answer = client.answer().await;
        assert!(answer.complete && answer.body == body.as_bytes());
    }
    engine.script(|_| vec![write("HTTP/1.1 204 No Content\r\n\r\n")]);
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    assert_eq!(client.answer().await.status, 204);
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_large_answer_that_is_cut_is_seen_to_be_cut() {
    let part = "x".repeat(2 << 20);
    for head in
        ["content-length: 9000000\r\n\r\n".to_owned(), format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", 9_000_000)]
    {
        let start = format!("HTTP/1.1 200 OK\r\n{head}{part}");
        let engine = Engine::start(move |_| vec![write(start.as_str()), Step::Close]).await;
        let rig = Rig::start(&[&engine]).await;
        let mut client = rig.client().await;
        client.chat(CHAT).await;
        let answer = client.answer().await;
        assert!(!answer.complete, "{} bytes", answer.body.len());
        rig.wait_idle().await;
    }
}

#[tokio::test]
async fn an_error_answers_a_stream_request_as_the_engine_wrote_it() {
    let engine = Engine::start(|_| vec![write(json(400, "{\"error\":{}}"))]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.field("content-length"), answer.text()), (400, Some("12"), "{\"error\":{}}"));
}

#[tokio::test]
async fn requests_sent_ahead_are_answered_in_order() {
    let count = AtomicUsize::new(0);
    let engine =
        Engine::start(move |_| vec![write(json(200, &count.fetch_add(1, Ordering::SeqCst).to_string()))]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.send(post("/v1/chat/completions", CHAT).repeat(20)).await;
    for expected in 0..20 {
        assert_eq!(client.answer().await.text(), expected.to_string());
    }
}

#[tokio::test]
async fn an_engine_that_falls_silent_ends_in_an_error() {
    let short = Duration::from_millis(300);
    let engine = Engine::start(|_| vec![Step::UntilClosed]).await;
    let rig = Rig::with(&[&engine], |config| {
        config.upstream.first_byte_timeout = short;
        config.upstream.idle_timeout = short;
    })
    .await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.field("x-forebay-error")), (504, Some("upstream_timeout")));
    engine.wait_closed(1).await;

    engine.script(|_| vec![write(format!("{EVENTS}{}", frame(&token("a")))), Step::UntilClosed]);
    client.chat(STREAM).await;
    let answer = client.answer().await;
    assert!(answer.complete && answer.text().contains("idle_timeout"), "{}", answer.text());
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    engine.wait_closed(2).await;
    rig.wait_idle().await;
}

#[tokio::test]
async fn an_idle_deadline_starts_again_with_every_chunk() {
    let mut steps = vec![write(EVENTS)];
    for _ in 0..8 {
        steps.extend([write(frame(&token("a"))), Step::Sleep(Duration::from_millis(500))]);
    }
    steps.push(write(frame(FINISH) + &frame("[DONE]") + END));
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::with(&[&engine], |config| config.upstream.idle_timeout = Duration::from_secs(3)).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    let text = client.answer().await.text().to_owned();
    assert!(!text.contains("error") && text.ends_with("[DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn the_whole_exchange_has_a_deadline() {
    let mut steps = vec![write(EVENTS)];
    for _ in 0..400 {
        steps.extend([write(frame(&token("a"))), Step::Sleep(Duration::from_millis(50))]);
    }
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::with(&[&engine], |config| config.upstream.total_timeout = Duration::from_secs(1)).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    let text = client.answer().await.text().to_owned();
    assert!(text.contains("total_timeout") && text.ends_with("data: [DONE]\n\n"), "{text}");
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off_and_holds_little() {
    let written = Arc::new(AtomicUsize::new(0));
    let engine = Engine::start(|_| Vec::new()).await;
    let token_frame = frame(&token(&"x".repeat(10_000)));
    engine.pour(EVENTS.to_owned(), token_frame, written.clone());
    let rig = Rig::with(&[], |config| config.listen.write_timeout = Duration::from_millis(700)).await;
    rig.add(&engine.url());
    rig.wait_ready(1).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    client.wait_for("xxxx").await;
    rig.wait_idle().await;
    // What fits into four socket buffers, not what an unbounded buffer would take.
    assert!(written.load(Ordering::SeqCst) < 64 << 20, "{}", written.load(Ordering::SeqCst));
}
