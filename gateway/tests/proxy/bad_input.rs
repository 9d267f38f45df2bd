//! Bad input from either side: a clear answer, and nothing wedged.

use crate::client::CHAT;
use crate::engine::{Engine, Step, json, write};
use crate::rig::Rig;

async fn echo() -> Engine {
    Engine::start(|seen| vec![write(json(200, &format!("{{\"bytes\":{}}}", seen.body.len())))]).await
}

/// The gateway still serves.
async fn still_serves(rig: &Rig) {
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    assert_eq!(client.answer().await.status, 200);
    rig.wait_idle().await;
}

fn chat_of(bytes: usize) -> String {
    let empty = CHAT.replace("hi", "");
    empty.replace("\"content\":\"\"", &format!("\"content\":\"{}\"", "x".repeat(bytes - empty.len())))
}

#[tokio::test]
async fn bodies_of_any_size_within_the_limit_arrive_whole() {
    let engine = echo().await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    for size in [200, 65_535, 65_536, 65_537, 4 << 20] {
        let body = chat_of(size);
        client.chat(&body).await;
        let answer = client.answer().await;
        assert_eq!(answer.text(), format!("{{\"bytes\":{size}}}"));
        assert_eq!(engine.seen().last().unwrap().body, body.as_bytes());
    }
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_chunked_body_arrives_with_a_length() {
    let engine = echo().await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    let body = chat_of(100_000);
    client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for part in body.as_bytes().chunks(7_777) {
        client.send(format!("{:x};x=y\r\n", part.len())).await;
        client.send(part).await;
        client.send("\r\n").await;
    }
    client.send("0\r\ntrailer: x\r\n\r\n").await;
    assert_eq!(client.answer().await.text(), "{\"bytes\":100000}");
    assert_eq!(engine.seen()[0].field("content-length"), Some("100000"));
    client.chat(CHAT).await;
    assert_eq!(client.answer().await.status, 200, "the connection is still in step");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_without_reading_on() {
    let engine = echo().await;
    let rig = Rig::with(&[&engine], |config| config.listen.max_body_bytes = 1_000).await;
    let mut announced = rig.client().await;
    announced.send("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n").await;
    let mut expecting = rig.client().await;
    expecting
        .send("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n")
        .await;
    let mut chunked = rig.client().await;
    chunked.send("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
    chunked.send(format!("3e9\r\n{}\r\n", "x".repeat(1_001))).await;
    for mut client in [announced, expecting, chunked] {
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("connection")), (413, Some("close")));
        assert!(answer.error().contains("max_body_bytes"));
        assert_eq!(answer.field("x-forebay-error"), Some("body_too_large"));
        assert!(client.is_closed().await);
    }
    assert!(engine.seen().is_empty());
    still_serves(&rig).await;
}

#[tokio::test]
async fn requests_that_two_readers_could_read_differently_are_refused() {
    let engine = echo().await;
    let rig = Rig::start(&[&engine]).await;
    for (request, status) in [
        (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
        ("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        ("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcX\r\n", 400),
        ("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 501),
        ("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01", 400),
    ] {
        let mut client = rig.client().await;
        client.send(request).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("connection")), (status, Some("close")), "{request}");
        answer.error();
        assert!(client.is_closed().await, "what follows is not taken for a request");
    }
    assert!(engine.seen().is_empty());
    still_serves(&rig).await;
}

#[tokio::test]
async fn bodies_that_are_no_chat_are_refused_in_openais_shape_and_the_connection_is_kept() {
    let engine = echo().await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    let deep = format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    for (body, status) in [
        ("not json", 400),
        ("", 400),
        (deep.as_str(), 400),
        (r#"{"model":7,"messages":[]}"#, 400),
        (r#"{"model":"m","messages":[],"stream":"yes"}"#, 400),
        (r#"{"model":"m","model":"n","messages":[]}"#, 400),
        (r#"{"model":"unknown","messages":[]}"#, 404),
    ] {
        client.chat(body).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{body:.60}");
        answer.error();
        assert_eq!(answer.field("connection"), None);
    }
    client
        .send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 13\r\n\r\n{\"model\":\"\xff\"}")
        .await;
    assert_eq!(client.answer().await.status, 400);
    assert!(engine.seen().is_empty());
    still_serves(&rig).await;
}

#[tokio::test]
async fn an_engine_that_breaks_http_is_a_502_with_its_reason() {
    let engine = Engine::start(|_| Vec::new()).await;
    let rig = Rig::start(&[&engine]).await;
    for (name, steps, code) in [
        ("garbage", vec![write("SSH-2.0-OpenSSH_9.2\r\n")], "upstream_garbage"),
        ("no status", vec![write("HTTP/1.1 abc\r\n\r\n")], "upstream_garbage"),
        ("switch", vec![write("HTTP/1.1 101 Switching Protocols\r\n\r\n")], "upstream_garbage"),
        (
            "two framings",
            vec![write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}")],
            "upstream_garbage",
        ),
        (
            "bad chunk",
            vec![write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n{}")],
            "upstream_garbage",
        ),
        ("closes at once", vec![Step::Close], "upstream_closed"),
        ("half a head", vec![write("HTTP/1.1 200 OK\r\ncontent-"), Step::Close], "upstream_cut"),
        (
            "shorter than announced",
            vec![write("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}"), Step::Close],
            "upstream_cut",
        ),
        (
            "no last chunk",
            vec![write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"), Step::Close],
            "upstream_cut",
        ),
    ] {
        engine.script(move |_| steps.clone());
        let mut client = rig.client().await;
        client.chat(CHAT).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("x-forebay-error")), (502, Some(code)), "{name}");
        assert!(!answer.error().contains("127.0.0.1"), "engines stay unnamed");
    }
    engine.script(|_| vec![write(json(200, "{}"))]);
    still_serves(&rig).await;
}

#[tokio::test]
async fn more_than_announced_is_not_the_next_answer() {
    let engine =
        Engine::start(|_| vec![write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n")]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    for _ in 0..3 {
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.text(), "{}");
    }
    let connections: Vec<usize> = engine.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 1, 2], "such a connection is not used again");
}

#[tokio::test]
async fn informational_answers_are_skipped() {
    let engine = Engine::start(|_| {
        let early = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(2);
        vec![write(early), write(json(200, "{}"))]
    })
    .await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    assert_eq!(client.answer().await.text(), "{}");
    engine.script(|_| vec![write("HTTP/1.1 100 Continue\r\n\r\n".repeat(100))]);
    client.chat(CHAT).await;
    assert_eq!(client.answer().await.status, 502);
}
