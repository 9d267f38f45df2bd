//! Limits and deadlines of the clients' side, socket options, and the drain.

use crate::client::{CHAT, STREAM, post};
use crate::engine::{END, EVENTS, Engine, FINISH, Step, frame, json, token, write};
use crate::rig::Rig;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Notify;

async fn quick() -> Engine {
    Engine::start(|_| vec![write(json(200, "{}"))]).await
}

#[tokio::test]
async fn a_head_over_the_limit_is_431() {
    let engine = quick().await;
    let rig = Rig::with(&[&engine], |config| config.listen.max_header_bytes = 2_000).await;
    for head in [
        format!("GET /x HTTP/1.1\r\nhost: a\r\nx: {}", "y".repeat(3_000)),
        format!("GET /x HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(3_000)),
        format!("GET /x HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(150)),
    ] {
        let mut client = rig.client().await;
        client.send(head).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("x-forebay-error")), (431, Some("header_too_large")));
        answer.error();
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn heads_and_bodies_have_one_deadline_each_however_they_trickle() {
    let engine = quick().await;
    let rig = Rig::with(&[&engine], |config| {
        config.listen.header_timeout = Duration::from_millis(600);
        config.listen.body_timeout = Duration::from_millis(600);
    })
    .await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n";
    for (start, trickle, code) in [("GET /", "x", "header_timeout"), (head, "y", "body_timeout")] {
        let mut client = rig.client().await;
        client.send(start).await;
        // A deadline that began anew with each byte would never pass.
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if client.socket.try_write(trickle.as_bytes()).is_err() {
                break;
            }
        }
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("x-forebay-error")), (408, Some(code)));
    }
    rig.wait_idle().await;
}

#[tokio::test]
async fn an_idle_connection_ends_quietly() {
    let engine = quick().await;
    let rig = Rig::with(&[&engine], |config| config.listen.keepalive_timeout = Duration::from_millis(300)).await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    assert_eq!(client.answer().await.status, 200);
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn connections_beyond_the_limit_are_told_so() {
    let engine = quick().await;
    let rig = Rig::with(&[&engine], |config| config.listen.max_connections = 2).await;
    let (mut first, mut second) = (rig.client().await, rig.client().await);
    for client in [&mut first, &mut second] {
        client.chat(CHAT).await;
        assert_eq!(client.answer().await.status, 200);
    }
    let mut third = rig.client().await;
    let answer = third.answer().await;
    assert_eq!((answer.status, answer.field("x-forebay-error")), (503, Some("too_many_connections")));
    assert_eq!((answer.field("retry-after"), answer.field("connection")), (Some("1"), Some("close")));
    drop((first, third));
    while rig.gateway.limits.connections() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut fourth = rig.client().await;
    fourth.chat(CHAT).await;
    assert_eq!(fourth.answer().await.status, 200, "there is room again");
}

#[tokio::test]
async fn all_bodies_together_are_bounded() {
    let bell = Arc::new(Notify::new());
    let steps = vec![Step::Wait(bell.clone()), write(json(200, "{}"))];
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::with(&[&engine], |config| config.listen.max_buffered_bytes = 100_000).await;
    let large = CHAT.replace("hi", &"x".repeat(60_000));
    let mut first = rig.client().await;
    first.chat(&large).await;
    engine.wait_seen(1).await;
    let mut second = rig.client().await;
    second.chat(&large).await;
    let answer = second.answer().await;
    assert_eq!((answer.status, answer.field("x-forebay-error")), (503, Some("buffers_full")));
    assert!(answer.field("retry-after").is_some());
    bell.notify_one();
    assert_eq!(first.answer().await.status, 200);
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_client_that_asks_first_is_invited() {
    let engine = quick().await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    let request = post("/v1/chat/completions", CHAT).replace("host:", "expect: 100-continue\r\nhost:");
    let (head, body) = request.split_at(request.len() - CHAT.len());
    client.send(head).await;
    assert_eq!(client.answer().await.status, 100);
    client.send(body).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(engine.seen()[0].field("expect"), None);
    client.send(request).await;
    assert_eq!(client.answer().await.status, 200, "who did not wait is not invited");
}

/// Nagle off, asked of the kernel: for the socket of this process whose peer is `peer`.
fn nodelay_towards(peer: SocketAddr) -> Vec<bool> {
    sockets_towards(peer).iter().map(|socket| socket.nodelay().unwrap()).collect()
}

/// Whether the kernel asks a silent `peer` for a sign of life.
pub fn keepalive_towards(peer: SocketAddr) -> Vec<bool> {
    sockets_towards(peer).iter().map(|socket| rustix::net::sockopt::socket_keepalive(socket).unwrap()).collect()
}

fn sockets_towards(peer: SocketAddr) -> Vec<std::net::TcpStream> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(fd) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        if !std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:")) {
            continue;
        }
        // SAFETY: the descriptor was open just now and is only looked at; were it closed meanwhile, the calls on its
        // duplicate, or the duplication itself, would fail with EBADF.
        #[expect(unsafe_code, reason = "the standard library has no safe way to look at another owner's socket")]
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let Ok(duplicate) = borrowed.try_clone_to_owned() else { continue };
        let socket = std::net::TcpStream::from(duplicate);
        if socket.peer_addr().is_ok_and(|address| address == peer) {
            found.push(socket);
        }
    }
    found
}

#[tokio::test]
async fn no_socket_waits_to_fill_its_segments() {
    let bell = Arc::new(Notify::new());
    let steps = vec![Step::Wait(bell.clone()), write(json(200, "{}"))];
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    engine.wait_seen(1).await;
    let accepted = nodelay_towards(client.socket.local_addr().unwrap());
    assert_eq!(accepted, [true], "the accepted socket");
    let opened = nodelay_towards(engine.address);
    assert!(!opened.is_empty() && opened.iter().all(|nodelay| *nodelay), "{opened:?}");
    bell.notify_one();
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn a_drain_lets_streams_finish_and_takes_nothing_new() {
    let bell = Arc::new(Notify::new());
    let steps = vec![
        write(format!("{EVENTS}{}", frame(&token("a")))),
        Step::Wait(bell.clone()),
        write(frame(FINISH) + &frame("[DONE]") + END),
    ];
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::start(&[&engine]).await;
    let address = rig.address;
    let mut idle = rig.client().await;
    let mut waiting = rig.client().await;
    waiting.send("GET /v1/mod").await;
    let mut streaming = rig.client().await;
    streaming.chat(STREAM).await;
    streaming.wait_for("\"a\"").await;
    let mut draining = std::pin::pin!(rig.drain());
    let mut poll = async |until: &mut (dyn Future<Output = bool> + Unpin)| {
        tokio::select! {
            biased;
            _ = &mut draining => panic!("drained with a stream running"),
            done = until => done,
        }
    };
    assert!(poll(&mut Box::pin(idle.is_closed())).await);
    assert!(poll(&mut Box::pin(async { wait_refused(address).await })).await);
    let last = async {
        waiting.send("els HTTP/1.1\r\nhost: a\r\n\r\n").await;
        waiting.answer().await.field("connection") == Some("close")
    };
    assert!(poll(&mut Box::pin(last)).await, "a request that had begun is answered, the last one here");
    bell.notify_one();
    let (drained, answer) = tokio::join!(draining, streaming.answer());
    assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n") && !answer.text().contains("error"));
    assert_eq!(drained.cut, 0);
}

async fn wait_refused(address: SocketAddr) -> bool {
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

#[tokio::test]
async fn a_drain_out_of_time_ends_streams_in_an_error_event() {
    let engine = Engine::start(|_| vec![write(format!("{EVENTS}{}", frame(&token("a")))), Step::UntilClosed]).await;
    let rig = Rig::with(&[&engine], |config| config.listen.drain_timeout = Duration::from_millis(300)).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    client.wait_for("\"a\"").await;
    let (drained, answer) = tokio::join!(rig.drain(), client.answer());
    assert_eq!(drained.cut, 1);
    assert!(answer.complete && answer.text().contains("shutting down"), "{}", answer.text());
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    engine.wait_closed(1).await;
}
