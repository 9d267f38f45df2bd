use super::*;
use crate::connect::Protocol;
use crate::workload::{Mode, Shape};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Answers every request of `connections` connections with `answer` until they close; how many it answered.
async fn serve(listener: TcpListener, connections: usize, answer: &'static str) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let (mut socket, _) = listener.accept().await.unwrap();
        tasks.spawn(async move {
            let (mut buffer, mut answered) = (Vec::new(), 0);
            while socket.read_buf(&mut buffer).await.unwrap_or(0) > 0 {
                // Bodies here fit one segment and end with the last brace of the JSON.
                if buffer.ends_with(b"}") {
                    buffer.clear();
                    answered += 1;
                    socket.write_all(answer.as_bytes()).await.unwrap();
                }
            }
            answered
        });
    }
    tasks.join_all().await.into_iter().sum()
}

fn planned(port: u16, protocol: Protocol, stream: bool, requests: u64) -> (Plan, Workload, Label) {
    let shape = Shape {
        mode: Mode::Distinct,
        prompt_bytes: 100,
        groups: 0,
        shared_bytes: 0,
        max_tokens: 2,
        stream,
        model: "m".into(),
        port,
    };
    let plan = Plan {
        dialer: Dialer::new(port, protocol, None).unwrap(),
        target: Target { stream, quickack: true },
        connections: 2,
        streams: 2,
        warmup: 4,
        limit: Limit { requests: Some(requests), duration: None },
        rate: None,
        watched: vec![Watched { name: "client".into(), pids: vec![std::process::id()] }],
    };
    (plan, Workload::new(shape, "t", 1), Label { test: "t".into(), peer: "p".into(), rep: 1 })
}

async fn run_against(answer: &'static str, stream: bool, requests: u64) -> (Sample, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (plan, workload, label) = planned(port, Protocol::Http1, stream, requests);
    tokio::join!(run(plan, workload, label), serve(listener, 2, answer))
}

/// Answers every stream of one HTTP/2 connection with `answer` once its body is whole; how many, and how large bodies were.
async fn serve_http2(listener: TcpListener, answer: &'static [u8]) -> (usize, usize) {
    let (socket, _) = listener.accept().await.unwrap();
    let mut connection = h2::server::handshake(socket).await.unwrap();
    let (mut streams, mut bytes) = (0, 0);
    while let Some(stream) = connection.accept().await {
        let Ok((request, mut respond)) = stream else { break };
        streams += 1;
        let announced = request.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
        bytes += announced;
        let mut sender = respond.send_response(http::Response::new(()), false).unwrap();
        sender.send_data(bytes::Bytes::from_static(answer), true).unwrap();
    }
    (streams, bytes)
}

#[tokio::test]
async fn every_measured_request_is_counted_once() {
    let (sample, answered) = run_against("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", false, 10).await;
    assert_eq!((sample.requests, sample.errors, answered), (10, 0, 14), "{:?}", sample.first_error);
    assert_eq!(sample.latency_us.unwrap().count, 10);
    assert!(sample.processes["client"].threads > 0);
    assert_eq!(sample.processes["client"].cpu_us_per_chunk, None);
}

#[tokio::test]
async fn stream_events_are_timed() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
        2c\r\ndata: {\"content\":\"~T00000000000000000001\"}\n\n\r\n\
        14\r\ndata: {\"text\":\"b\"}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    let (sample, _) = run_against(answer, true, 6).await;
    assert_eq!((sample.requests, sample.errors, sample.chunks), (6, 0, 12), "{:?}", sample.first_error);
    assert_eq!(sample.ttft_us.unwrap().count, 6);
    assert_eq!(sample.oneway_us.unwrap().count, 6);
}

#[tokio::test]
async fn failures_are_counted_and_never_timed() {
    let (sample, _) = run_against("HTTP/1.1 503 no\r\ncontent-length: 4\r\n\r\nbusy", false, 0).await;
    assert_eq!((sample.requests, sample.latency_us), (0, None));
    assert!(sample.errors >= 2);
    assert_eq!(sample.first_error.as_deref(), Some("status 503: busy"));
    let (sample, _) = run_against("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true, 0).await;
    assert_eq!(sample.first_error.as_deref(), Some("no event with text in the stream"));
}

#[tokio::test]
async fn http2_requests_share_a_connection_and_count_alike() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (plan, workload, label) = planned(listener.local_addr().unwrap().port(), Protocol::H2c, true, 10);
    let answer = b"data: {\"content\":\"~T00000000000000000001\"}\n\ndata: [DONE]\n\n";
    let (sample, (streams, bytes)) = tokio::join!(run(plan, workload, label), serve_http2(listener, answer));
    assert_eq!((sample.requests, sample.errors, sample.chunks), (10, 0, 10), "{:?}", sample.first_error);
    assert_eq!(streams, 14, "both clients, both phases, on the one connection that was accepted");
    assert!(bytes > 14 * 100);
}
