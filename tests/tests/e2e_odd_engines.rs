//! Engines that answer garbage, close early or lie about length: the client always gets a well-formed end.

use forebay_tests::client::End;
use forebay_tests::cluster::{Gateway, GatewayOptions, MODEL};
use forebay_tests::process::Failure;
use forebay_tests::raw::{OddEngine, chat_request, exchange};
use forebay_tests::scene::folder;
use serde_json::json;

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n";

fn body(stream: bool) -> serde_json::Value {
    json!({"model": MODEL, "stream": stream, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]})
}

/// A gateway whose only engine answers `answer`.
async fn gateway_before(answer: &[u8]) -> Result<(Gateway, OddEngine, tempfile::TempDir), Failure> {
    let folder = folder()?;
    let engine = OddEngine::start(MODEL, answer).await?;
    let gateway = Gateway::start(
        &GatewayOptions { tokenizer: false, ..GatewayOptions::default() },
        &[engine.url()],
        folder.path(),
    )
    .await?;
    Ok((gateway, engine, folder))
}

#[tokio::test]
async fn garbage_instead_of_http_is_502() -> Result<(), Failure> {
    let (gateway, _engine, _folder) = gateway_before(b"\x00\x01\x02 this is no status line\r\n\r\n").await?;
    let answer = exchange(gateway.address, &chat_request(gateway.address, body(false).to_string().as_bytes())).await?;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(answer.body.contains("\"error\""), "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn closing_without_a_byte_is_502() -> Result<(), Failure> {
    let (gateway, _engine, _folder) = gateway_before(b"").await?;
    let answer = exchange(gateway.address, &chat_request(gateway.address, body(false).to_string().as_bytes())).await?;
    assert_eq!(answer.status, 502, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn a_body_shorter_than_announced_never_looks_whole() -> Result<(), Failure> {
    let (gateway, _engine, _folder) = gateway_before(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 5000\r\n\r\n{\"id\":\"x\",",
    )
    .await?;
    let answer = exchange(gateway.address, &chat_request(gateway.address, body(false).to_string().as_bytes())).await?;
    let whole = answer.status == 200
        && serde_json::from_str::<serde_json::Value>(&answer.body).is_ok_and(|b| b.get("error").is_none());
    assert!(!whole, "{answer:?}");
    assert!(gateway.client.read_json("/v1/models").await.is_ok(), "the gateway goes on");
    Ok(())
}

#[tokio::test]
async fn a_stream_cut_after_content_ends_in_an_error_event() -> Result<(), Failure> {
    let event = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"half an ans\"},\"finish_reason\":null}]}\n\n";
    // A chunked body whose last chunk never comes.
    let cut = format!("{STREAM_HEAD}transfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n", event.len());
    let (gateway, _engine, _folder) = gateway_before(cut.as_bytes()).await?;
    let outcome = gateway.client.stream_chat(&body(true)).await;
    assert!(matches!(outcome.end, End::ErrorEvent(_)), "{outcome:?}");
    assert_eq!(outcome.text, "half an ans");
    Ok(())
}

#[tokio::test]
async fn a_stream_without_content_is_lost_before_commit() -> Result<(), Failure> {
    let (gateway, _engine, _folder) = gateway_before(format!("{STREAM_HEAD}\r\n").as_bytes()).await?;
    let outcome = gateway.client.stream_chat(&body(true)).await;
    assert!(matches!(outcome.end, End::BeforeCommit(_)), "{outcome:?}");
    Ok(())
}

#[tokio::test]
async fn an_engines_own_error_passes_verbatim() -> Result<(), Failure> {
    let (gateway, _engine, _folder) = gateway_before(
        b"HTTP/1.1 422 Unprocessable Entity\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 51\r\n\r\n\
          {\"error\":{\"message\":\"engine says no\",\"code\":422}}  ",
    )
    .await?;
    let answer = exchange(gateway.address, &chat_request(gateway.address, body(false).to_string().as_bytes())).await?;
    assert_eq!(answer.status, 422, "{answer:?}");
    assert_eq!(answer.body, "{\"error\":{\"message\":\"engine says no\",\"code\":422}}  ");
    Ok(())
}
