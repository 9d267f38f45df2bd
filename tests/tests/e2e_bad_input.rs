//! Bytes that no well-behaved client sends, to the real gateway: each gets a clear answer, and the next request is served.

use forebay_tests::process::Failure;
use forebay_tests::raw::{Answer, chat_request, exchange};
use forebay_tests::scene::Scene;
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

/// Sends `request`, then proves that the gateway still serves.
async fn send(request: impl FnOnce(std::net::SocketAddr) -> Vec<u8>) -> Result<Answer, Failure> {
    let scene = Scene::plain().await?;
    let address = scene.gateway.address;
    let answer = exchange(address, &request(address)).await?;
    let after = exchange(address, &chat_request(address, good_body("still there?").as_bytes())).await?;
    assert_eq!(after.status, 200, "the gateway must go on serving: {after:?}");
    Ok(answer)
}

fn good_body(text: &str) -> String {
    json!({"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": text}]}).to_string()
}

/// The error object of an answer in OpenAI's shape.
fn error_of(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let error = body["error"].clone();
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer:?}");
    assert!(error["type"].is_string() && error["code"] == status, "{answer:?}");
    error
}

#[tokio::test]
async fn not_json_is_400() -> Result<(), Failure> {
    let answer = send(|address| chat_request(address, b"model=demo&messages=hi")).await?;
    error_of(&answer, 400);
    Ok(())
}

#[tokio::test]
async fn empty_body_is_400() -> Result<(), Failure> {
    let answer = send(|address| chat_request(address, b"")).await?;
    error_of(&answer, 400);
    Ok(())
}

#[tokio::test]
async fn depth_of_ten_thousand_is_refused_or_served() -> Result<(), Failure> {
    let nested = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let body = format!(
        r#"{{"model":"demo","max_tokens":2,"messages":[{{"role":"user","content":"hi"}}],"metadata":{nested}}}"#
    );
    let answer = send(|address| chat_request(address, body.as_bytes())).await?;
    error_of(&answer, 400);
    Ok(())
}

#[tokio::test]
async fn a_body_of_65537_bytes_works() -> Result<(), Failure> {
    let frame = good_body("").len();
    let body = good_body(&"w ".repeat(32_769)[..65_537 - frame]);
    assert_eq!(body.len(), 65_537);
    let answer = send(|address| chat_request(address, body.as_bytes())).await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    let whole: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert!(whole["usage"]["prompt_tokens"].as_u64().expect("usage") > 16_000, "the engine saw all of it: {whole}");
    Ok(())
}

#[tokio::test]
async fn a_body_of_4_mib_works() -> Result<(), Failure> {
    // Most of it in a field that nobody knows, so that the prompt fits an engine's context.
    let frame = |filler: &str| {
        json!({
            "model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}], "filler": filler,
        })
    };
    let body = frame(&"x".repeat(4 * MIB - frame("").to_string().len())).to_string();
    assert_eq!(body.len(), 4 * MIB);
    let answer = send(|address| chat_request(address, body.as_bytes())).await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn over_the_limit_is_413_at_once() -> Result<(), Failure> {
    // Announces 65 MiB and sends nothing: an answer can only come without reading on.
    let answer = send(|address| {
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n", 65 * MIB)
            .into_bytes()
    })
    .await?;
    error_of(&answer, 413);
    Ok(())
}

#[tokio::test]
async fn wrong_types_name_the_field() -> Result<(), Failure> {
    let cases = [
        (json!({"model": 7, "messages": []}), "model"),
        (json!({"model": "demo", "messages": "hello"}), "messages"),
        (json!({"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": "yes"}), "stream"),
        (json!({"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}), "max_tokens"),
    ];
    let scene = Scene::plain().await?;
    for (body, field) in cases {
        let answer =
            exchange(scene.gateway.address, &chat_request(scene.gateway.address, body.to_string().as_bytes())).await?;
        let error = error_of(&answer, 400);
        let named = error["param"] == field || error["message"].as_str().is_some_and(|m| m.contains(field));
        assert!(named, "{field} is not named: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn unknown_model_is_404() -> Result<(), Failure> {
    let body = json!({"model": "nobody", "messages": [{"role": "user", "content": "x"}]}).to_string();
    let answer = send(|address| chat_request(address, body.as_bytes())).await?;
    let error = error_of(&answer, 404);
    assert!(error["message"].as_str().is_some_and(|message| message.contains("nobody")), "{error}");
    Ok(())
}

#[tokio::test]
async fn content_length_with_transfer_encoding_is_refused() -> Result<(), Failure> {
    let answer = send(|address| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n\
             0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: {address}\r\n\r\n"
        )
        .into_bytes()
    })
    .await?;
    assert_eq!(answer.status, 400, "{answer:?}");
    let whole = serde_json::from_str::<Value>(&answer.body);
    assert!(whole.is_ok(), "one answer and no more: the bytes after it must not be taken for a request: {answer:?}");
    Ok(())
}

#[tokio::test]
async fn bad_chunking_is_refused() -> Result<(), Failure> {
    let answer = send(|address| {
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{{}}\r\n0\r\n\r\n")
            .into_bytes()
    })
    .await?;
    assert!(answer.status == 400 || answer.status == 0, "refused or closed, never served: {answer:?}");
    Ok(())
}

#[tokio::test]
async fn chunked_body_works() -> Result<(), Failure> {
    let body = good_body("in pieces");
    let (head, tail) = body.split_at(20);
    let answer = send(|address| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
             {:x}\r\n{head}\r\n{:x}\r\n{tail}\r\n0\r\n\r\n",
            head.len(),
            tail.len()
        )
        .into_bytes()
    })
    .await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn invalid_utf8_is_400() -> Result<(), Failure> {
    let mut body = good_body("here: ").into_bytes();
    let at = body.windows(5).position(|window| window == b"here:").expect("the text is there");
    body.splice(at..at, [0xff, 0xfe]);
    let answer = send(|address| chat_request(address, &body)).await?;
    error_of(&answer, 400);
    Ok(())
}

#[tokio::test]
async fn an_endless_head_is_431() -> Result<(), Failure> {
    let answer = send(|address| {
        let filler = format!("x-filler: {}\r\n", "a".repeat(1_000));
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\n{}", filler.repeat(200)).into_bytes()
    })
    .await?;
    assert!(answer.status == 431 || answer.status == 400, "{answer:?}");
    Ok(())
}
