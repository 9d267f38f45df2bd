//! What crosses the gateway and what does not.

use crate::client::{CHAT, post};
use crate::engine::{Engine, json, write};
use crate::rig::Rig;

#[tokio::test]
async fn fields_pass_in_both_directions_less_what_belongs_to_a_connection() {
    let engine = Engine::start(|_| {
        vec![write(
            "HTTP/1.1 200 OK\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nconnection: x-hop\r\nx-hop: 1\r\nx-engine: yes\r\n\
             content-length: 2\r\n\r\n{}",
        )]
    })
    .await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    let request = post("/v1/chat/completions", CHAT).replace(
        "host: gateway\r\n",
        "host: gateway\r\nauthorization: Bearer key\r\nx-custom: 1\r\nx-custom: 2\r\nx-data-parallel-rank: 9\r\n\
         x-forebay-class: gold\r\nte: trailers\r\nconnection: keep-alive, x-secret\r\nx-secret: s\r\nx-request-id: req-7\r\n",
    );
    client.send(&request).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text()), (200, "{}"));
    assert_eq!(answer.fields("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(answer.field("x-engine"), Some("yes"));
    assert_eq!(answer.field("x-request-id"), Some("req-7"));
    assert_eq!((answer.field("x-hop"), answer.field("connection")), (None, None));

    let seen = &engine.seen()[0];
    assert_eq!(seen.field("host"), Some(engine.address.to_string().as_str()));
    assert_eq!(seen.field("authorization"), Some("Bearer key"));
    assert_eq!(seen.field("x-request-id"), Some("req-7"));
    assert_eq!(seen.head.matches("x-custom: ").count(), 2);
    for name in ["te", "x-secret", "connection", "x-forebay-class", "x-data-parallel-rank"] {
        assert_eq!(seen.field(name), None, "{name}");
    }
    assert_eq!(seen.body, CHAT.as_bytes());
}

#[tokio::test]
async fn a_request_without_a_fit_id_gets_one() {
    let engine = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    let unfit = "x".repeat(500);
    client.send(post("/v1/chat/completions", CHAT).replace("host:", &format!("x-request-id: {unfit}\r\nhost:"))).await;
    let answer = client.answer().await;
    let id = answer.field("x-request-id").unwrap();
    assert_eq!(id.len(), 32);
    assert_eq!(engine.seen()[0].field("x-request-id"), Some(id));
}

#[tokio::test]
async fn an_engines_4xx_is_passed_on_as_it_is() {
    let body =
        r#"{"error":{"message":"max_tokens is too large","type":"BadRequestError","param":"max_tokens","code":400}}"#;
    let engine = Engine::start(move |_| {
        vec![write(format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-detail: 1\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))]
    })
    .await;
    let other = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    let answer = client.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{}", answer.head);
    assert_eq!((answer.text(), answer.field("x-detail"), answer.field("x-forebay-error")), (body, Some("1"), None));
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn models_and_health_are_answered_here_and_other_paths_by_an_engine() {
    let engine = Engine::start(|seen| vec![write(json(200, seen.head.lines().next().unwrap()))]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    let mut get = async |method: &str, path: &str| {
        client.send(format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        client.answer_to(method).await
    };
    let models: serde_json::Value = serde_json::from_slice(&get("GET", "/v1/models").await.body).unwrap();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&"list".into(), &"m".into()));
    assert_eq!(get("GET", "/v1/models/m").await.status, 200);
    let missing = get("GET", "/v1/models/other").await;
    assert_eq!((missing.status, missing.field("x-forebay-error")), (404, Some("model_not_found")));
    assert_eq!(get("GET", "/health").await.status, 200);
    assert_eq!(get("HEAD", "/health").await.body, b"");
    let wrong = get("GET", "/v1/chat/completions").await;
    assert_eq!((wrong.status, wrong.field("allow")), (405, Some("POST")));
    assert_eq!(get("OPTIONS", "/v1/chat/completions").await.text(), "OPTIONS /v1/chat/completions HTTP/1.1");
    assert_eq!(get("GET", "/some/path?q=1").await.text(), "GET /some/path?q=1 HTTP/1.1");
    client.send(post("/v1/audio/speech", "raw bytes")).await;
    assert_eq!(client.answer().await.text(), "POST /v1/audio/speech HTTP/1.1");
    assert_eq!(engine.seen()[2].body, b"raw bytes");
}

#[tokio::test]
async fn engines_learn_where_a_request_came_from_and_clients_cannot_lie_about_it() {
    let engine = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let networks = forebay::config::networks::Hosts::parse;
    for (trusted, expected) in [("10.0.0.0/8", "127.0.0.1"), ("127.0.0.0/8", "203.0.113.9, 127.0.0.1")] {
        let rig = Rig::with(&[&engine], |config| config.listen.trusted_proxies = networks(trusted).unwrap()).await;
        let mut client = rig.client().await;
        let lie = "host: gateway\r\nx-forwarded-for: 203.0.113.9\r\nx-forwarded-proto: https\r\nx-llm-d-x: 1\r\n";
        client.send(post("/v1/chat/completions", CHAT).replace("host: gateway\r\n", lie)).await;
        assert_eq!(client.answer().await.status, 200);
        let seen = engine.seen().pop().unwrap();
        assert_eq!(seen.field("x-forwarded-for"), Some(expected));
        let scheme = if expected.len() > 10 { "https" } else { "http" };
        assert_eq!(seen.field("x-forwarded-proto"), Some(scheme));
        assert_eq!(seen.head.matches("x-forwarded-").count(), 2);
        assert_eq!(seen.field("x-llm-d-x"), None);
    }
}

#[tokio::test]
async fn compressed_prompts_upgrades_and_engines_levers_are_refused() {
    let engine = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let rig = Rig::start(&[&engine]).await;
    let chat = post("/v1/chat/completions", CHAT);
    let cases = [
        (chat.replace("host:", "content-encoding: gzip\r\nhost:"), 415, "encoded_body"),
        (chat.replace("host:", "connection: upgrade\r\nupgrade: websocket\r\nhost:"), 501, "not_implemented"),
        (post("/flush_cache", ""), 403, "engine_control"),
        (post("/v1/load_lora_adapter", "{}"), 403, "engine_control"),
    ];
    for (request, status, code) in cases {
        let mut client = rig.client().await;
        client.send(request).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("x-forebay-error")), (status, Some(code)));
        answer.error();
    }
    assert!(engine.seen().is_empty());
    let mut client = rig.client().await;
    client
        .send(chat.replace("host:", "content-encoding: identity\r\nconnection: upgrade\r\nupgrade: h2c\r\nhost:"))
        .await;
    assert_eq!(client.answer().await.status, 200);
}
