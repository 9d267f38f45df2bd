//! Keys: who comes in, what they are told, and what of it engines and logs see.

use crate::client::{CHAT, post};
use crate::engine::{Engine, json, write};
use crate::rig::Rig;
use forebay::doors::keys::{KEY_BYTES, make};

/// A gateway with two keys: one may use, one may both.
async fn guarded(engine: &Engine) -> (Rig, tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let (user, line) = make("acme", "use", [1; KEY_BYTES]).unwrap();
    let (operator, other) = make("ops", "use,operate", [2; KEY_BYTES]).unwrap();
    std::fs::write(&path, format!("{line}\n{other}\n")).unwrap();
    let rig = Rig::with(&[engine], |config| config.keys.file = Some(path)).await;
    (rig, folder, user, operator)
}

fn with(request: String, fields: &str) -> String {
    request.replacen("host: gateway\r\n", &format!("host: gateway\r\n{fields}"), 1)
}

#[tokio::test]
async fn without_a_good_key_nothing_reaches_an_engine_and_with_one_the_key_does_not() {
    let engine = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let (rig, _folder, user, _) = guarded(&engine).await;
    let cases = [
        (String::new(), 401, "no API key"),
        ("authorization: Bearer fbk_00\r\n".to_owned(), 401, "not known"),
        (format!("authorization: Basic {user}\r\n"), 401, "no API key"),
        (format!("authorization: Bearer {user}x\r\n"), 401, "not known"),
    ];
    for (fields, status, word) in cases {
        let mut client = rig.client().await;
        client.send(with(post("/v1/chat/completions", CHAT), &fields)).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{fields}");
        assert!(answer.error().contains(word), "{fields}: {}", answer.text());
        assert!(answer.field("www-authenticate").is_some_and(|value| value.starts_with("Bearer")));
        assert_eq!(answer.field("x-forebay-error"), None, "codes are for operators");
        assert!(client.is_closed().await, "the body was not read");
    }
    assert!(engine.seen().is_empty());
    for fields in [format!("authorization: Bearer {user}\r\n"), format!("x-api-key: {user}\r\n")] {
        let mut client = rig.client().await;
        client.send(with(post("/v1/chat/completions", CHAT), &fields)).await;
        assert_eq!(client.answer().await.status, 200);
    }
    for seen in engine.seen() {
        assert!(
            !seen.head.contains(&user) && seen.field("authorization").is_none() && seen.field("x-api-key").is_none()
        );
    }
}

#[tokio::test]
async fn load_balancers_and_preflights_need_no_key_and_the_list_of_models_does() {
    let engine = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let (rig, _folder, user, _) = guarded(&engine).await;
    let mut client = rig.client().await;
    let mut ask = async |method: &str, path: &str, fields: &str| {
        client.send(format!("{method} {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n")).await;
        client.answer_to(method).await
    };
    assert_eq!(ask("GET", "/health", "").await.status, 200);
    assert_eq!(ask("OPTIONS", "/v1/chat/completions", "").await.status, 200);
    assert_eq!(ask("GET", "/v1/models", "").await.status, 401, "a bodiless request keeps its connection");
    assert_eq!(ask("GET", "/v1/models", &format!("x-api-key: {user}\r\n")).await.status, 200);
    assert_eq!(ask("GET", "/some/engine/path", "").await.status, 401);
}

#[tokio::test]
async fn faults_are_written_in_the_dialect_of_the_path_and_codes_are_shown_to_operators_alone() {
    let engine = Engine::start(|_| vec![write(json(200, "{}"))]).await;
    let (rig, _folder, user, operator) = guarded(&engine).await;
    let mut client = rig.client().await;
    client.send(post("/v1/messages", "{}")).await;
    let answer = client.answer().await;
    let value: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!((answer.status, &value["type"]), (401, &"error".into()));
    assert_eq!(value["error"]["type"], "authentication_error");
    for (key, code) in [(&user, None), (&operator, Some("model_not_found"))] {
        let mut client = rig.client().await;
        let body = CHAT.replace("\"m\"", "\"none\"");
        client.send(with(post("/v1/chat/completions", &body), &format!("authorization: Bearer {key}\r\n"))).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("x-forebay-error")), (404, code));
    }
}
