//! Every dialect × {whole, stream, error, cut, limit, no such route}: pairs of requests and answers, byte for byte.

use crate::client::{Answer, post};
use crate::engine::{END, EVENTS, Engine, Step, json, write};
use crate::golden::{GOLDEN, Golden};
use crate::rig::Rig;
use forebay::error::Shape;
use serde_json::{Value, json};

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// A stream of `text`, which is not ended unless `end` says so.
fn stream_steps(text: &str, end: &str) -> Vec<Step> {
    // A chunk without bytes would be the last.
    let payload = if text.is_empty() { String::new() } else { chunk(text) };
    vec![write(format!("{EVENTS}{payload}{end}"))]
}

async fn ask(rig: &Rig, path: &str, body: &str) -> Answer {
    let mut client = rig.client().await;
    client.send(post(path, body)).await;
    client.answer().await
}

/// Message and kind of an error, which must be written in the shape of `path`.
fn told(path: &str, answer: &Answer) -> (String, Option<String>) {
    let value: Value = serde_json::from_slice(&answer.body).unwrap_or_else(|e| panic!("{path}: {e}: {answer:?}"));
    shaped(path, &value, answer.status)
}

fn shaped(path: &str, value: &Value, status: u16) -> (String, Option<String>) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let message = text(&value["error"]["message"]).unwrap_or_else(|| panic!("{path}: {value}"));
    let kind = text(&value["error"]["type"]);
    let expected = match Shape::of_path(path) {
        Shape::OpenAi => {
            let error = &value["error"];
            json!({"error": {"message": message, "type": kind, "param": error["param"], "code": status}})
        }
        Shape::Anthropic => json!({"type": "error", "error": {"type": kind, "message": message}}),
        Shape::SgLang => json!({"error": {"message": message}}),
    };
    assert_eq!(*value, expected, "{path}");
    (message, kind)
}

#[tokio::test]
async fn whole_answers_pass_untouched() {
    let engine = Engine::start(|_| Vec::new()).await;
    let rig = Rig::start(&[&engine]).await;
    for (at, golden) in GOLDEN.iter().enumerate() {
        engine.script(move |_| vec![write(json(200, golden.answer))]);
        let answer = ask(&rig, golden.path, golden.request).await;
        assert_eq!((answer.status, answer.text()), (200, golden.answer), "{}", golden.path);
        let seen = engine.seen();
        assert!(seen[at].head.starts_with(&format!("POST {} HTTP/1.1\r\n", golden.path)), "{}", seen[at].head);
        assert_eq!(String::from_utf8_lossy(&seen[at].body), golden.request);
    }
    rig.wait_idle().await;
}

fn streams() -> impl Iterator<Item = (&'static Golden, &'static str, String)> {
    GOLDEN.iter().filter_map(|golden| Some((golden, golden.stream?, golden.streaming())))
}

#[tokio::test]
async fn streams_pass_untouched() {
    let engine = Engine::start(|_| Vec::new()).await;
    let rig = Rig::start(&[&engine]).await;
    assert_eq!(streams().count(), 6);
    for (golden, stream, request) in streams() {
        engine.script(move |_| stream_steps(stream, END));
        let answer = ask(&rig, golden.path, &request).await;
        assert_eq!((answer.text(), answer.complete), (stream, true), "{}", golden.path);
        assert_eq!(String::from_utf8_lossy(&engine.seen().pop().unwrap().body), request, "{}", golden.path);
    }
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_stream_that_is_cut_ends_in_its_dialects_error() {
    let engine = Engine::start(|_| Vec::new()).await;
    let rig = Rig::start(&[&engine]).await;
    for (golden, stream, request) in streams() {
        let frames: Vec<&str> = stream.split_inclusive("\n\n").collect();
        let kept: String = frames[..golden.cut_after].concat();
        let sent = kept.clone();
        engine.script(move |_| {
            let mut steps = stream_steps(&sent, "");
            steps.push(Step::Close);
            steps
        });
        let answer = ask(&rig, golden.path, &request).await;
        let text = answer.text();
        let tail = text.strip_prefix(&kept).unwrap_or_else(|| panic!("{}: {text}", golden.path));
        assert!(answer.complete, "{}", golden.path);
        let frame = tail.strip_suffix("data: [DONE]\n\n").unwrap_or(tail);
        let ends_by_done = frame.len() < tail.len();
        let (event, data) = frame.split_once("data: ").unwrap();
        let error: Value = serde_json::from_str(data).unwrap();
        match golden.path {
            "/v1/responses" => {
                assert_eq!((event, ends_by_done), ("event: error\n", false));
                assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("server_error")));
                assert_eq!(error["sequence_number"], golden.cut_after, "numbers go on");
                assert!(error["message"].is_string());
            }
            "/v1/messages" => {
                assert_eq!((event, ends_by_done), ("event: error\n", false));
                assert_eq!(shaped(golden.path, &error, 502).1.as_deref(), Some("api_error"));
            }
            path => {
                assert_eq!((event, ends_by_done), ("", true), "{path}");
                shaped(path, &error, 502);
            }
        }
    }
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_stream_cut_before_output_goes_to_another_engine() {
    let (first, second) = (Engine::start(|_| Vec::new()).await, Engine::start(|_| Vec::new()).await);
    // Every request here is tried twice.
    let rig = Rig::with(&[&first, &second], |config| config.routing.retry_budget = 1.0).await;
    for (golden, stream, request) in streams() {
        let start: String = stream.split_inclusive("\n\n").take(golden.quiet).collect();
        let before = first.seen().len() + second.seen().len();
        let total = [first.clone(), second.clone()];
        for engine in [&first, &second] {
            let (start, total) = (start.clone(), total.clone());
            engine.script(move |_| {
                let seen: usize = total.iter().map(|engine| engine.seen().len()).sum();
                if seen > before {
                    return stream_steps(stream, END);
                }
                let mut steps = stream_steps(&start, "");
                steps.push(Step::Close);
                steps
            });
        }
        let answer = ask(&rig, golden.path, &request).await;
        assert_eq!(answer.text(), stream, "{}", golden.path);
        assert_eq!(first.seen().len() + second.seen().len(), before + 2, "{}", golden.path);
    }
}

#[tokio::test]
async fn an_engines_refusal_is_verbatim() {
    let engine = Engine::start(|_| Vec::new()).await;
    let rig = Rig::start(&[&engine]).await;
    for golden in GOLDEN {
        for (status, body) in [(400, r#"{"any": "thing"}"#), (404, r#"{"error":{"message":"no such adapter"}}"#)] {
            engine.script(move |_| vec![write(json(status, body))]);
            let answer = ask(&rig, golden.path, golden.request).await;
            assert_eq!((answer.status, answer.text()), (status, body), "{}", golden.path);
        }
    }
}

#[tokio::test]
async fn a_route_that_the_engine_lacks_is_told_in_the_dialect() {
    let engine = Engine::start(|_| Vec::new()).await;
    let rig = Rig::start(&[&engine]).await;
    for golden in GOLDEN {
        for body in
            [r#"{"detail":"Not Found"}"#, r#"{"error":{"message":"Not Found","code":404}}"#, "404 page not found"]
        {
            engine.script(move |_| vec![write(json(404, body))]);
            let request = golden.stream.map_or_else(|| golden.request.to_owned(), |_| golden.streaming());
            let answer = ask(&rig, golden.path, &request).await;
            assert_eq!(answer.status, 404, "{}", golden.path);
            let (message, kind) = told(golden.path, &answer);
            assert!(message.contains(golden.path), "{message}");
            if golden.path.starts_with("/v1/messages") {
                assert_eq!(kind.as_deref(), Some("not_found_error"));
            }
        }
    }
    assert!(engine.seen().iter().all(|seen| seen.connection == 0), "its connection stays of use");
    rig.wait_idle().await;
}

#[tokio::test]
async fn own_errors_and_limits_have_the_dialects_shape() {
    let engine = Engine::start(|_| vec![Step::Close]).await;
    let rig = Rig::with(&[&engine], |config| config.listen.max_body_bytes = 2_000).await;
    for golden in GOLDEN {
        let unknown = golden.request.replacen(r#""model":"m""#, r#""model":"who""#, 1);
        assert_ne!(unknown, golden.request);
        let answer = ask(&rig, golden.path, &unknown).await;
        assert_eq!(answer.status, 404);
        assert!(told(golden.path, &answer).0.contains("who"));

        let answer = ask(&rig, golden.path, "{").await;
        assert_eq!(answer.status, 400, "{}", golden.path);
        told(golden.path, &answer);

        let large = format!(r#"{{"x":"{}",{}"#, "x".repeat(2_000), &golden.request[1..]);
        let answer = ask(&rig, golden.path, &large).await;
        assert_eq!(answer.status, 413, "{}", golden.path);
        let (_, kind) = told(golden.path, &answer);
        if golden.path.starts_with("/v1/messages") {
            assert_eq!(kind.as_deref(), Some("request_too_large"));
        }

        // The only engine hangs up before it answers.
        let answer = ask(&rig, golden.path, golden.request).await;
        assert_eq!(answer.status, 502, "{}", golden.path);
        told(golden.path, &answer);

        let mut client = rig.client().await;
        client.send(format!("GET {} HTTP/1.1\r\nhost: g\r\n\r\n", golden.path)).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.field("allow")), (405, Some("POST")), "{}", golden.path);
        told(golden.path, &answer);
    }
}

#[tokio::test]
async fn the_model_in_the_body_chooses_the_engine_and_may_be_left_out_where_there_is_one() {
    let (m, n) = (Engine::serving("m", |_| Vec::new()).await, Engine::serving("n", |_| Vec::new()).await);
    let rig = Rig::start(&[&m]).await;
    let nameless = r#"{"text":"hi","sampling_params":{"max_new_tokens":4}}"#;
    m.script(|_| vec![write(json(200, r#"{"served_by":"m"}"#))]);
    n.script(|_| vec![write(json(200, r#"{"served_by":"n"}"#))]);
    assert_eq!(ask(&rig, "/generate", nameless).await.text(), r#"{"served_by":"m"}"#);
    rig.add(&n.url());
    rig.wait_ready(2).await;
    for golden in GOLDEN {
        for (model, expected) in [("m", r#"{"served_by":"m"}"#), ("n", r#"{"served_by":"n"}"#)] {
            let request = golden.request.replacen(r#""model":"m""#, &format!(r#""model":"{model}""#), 1);
            assert_eq!(ask(&rig, golden.path, &request).await.text(), expected, "{}", golden.path);
        }
    }
    let answer = ask(&rig, "/generate", nameless).await;
    assert_eq!(answer.status, 400);
    assert!(told("/generate", &answer).0.contains("model"));
    let answer = ask(&rig, "/v1/embeddings", r#"{"input":"x"}"#).await;
    assert_eq!(answer.status, 400, "OpenAI's clients always name it");
}

#[tokio::test]
async fn an_alias_is_the_model_behind_it_unless_an_engine_has_that_name() {
    let (m, n) = (Engine::serving("m", |_| Vec::new()).await, Engine::serving("n", |_| Vec::new()).await);
    let named = |name: &str, aliases: &[&str]| forebay::config::resolved::Model {
        name: name.to_owned(),
        aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
        ..Default::default()
    };
    // An engine serves `n`, so that alias takes nothing away from it; nobody serves `absent`.
    let models = vec![named("m", &["fast", "n"]), named("absent", &["slow"])];
    let rig = Rig::with(&[&m, &n], |config| config.models = models).await;
    m.script(|_| vec![write(json(200, r#"{"served_by":"m"}"#))]);
    n.script(|_| vec![write(json(200, r#"{"served_by":"n"}"#))]);
    for golden in GOLDEN {
        let asked = |model: &str| golden.request.replacen(r#""model":"m""#, &format!(r#""model":"{model}""#), 1);
        assert_eq!(ask(&rig, golden.path, &asked("fast")).await.text(), r#"{"served_by":"m"}"#, "{}", golden.path);
        let seen = m.seen().pop().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.body), golden.request, "the model itself is asked for");
        assert_eq!(ask(&rig, golden.path, &asked("n")).await.text(), r#"{"served_by":"n"}"#, "{}", golden.path);
        assert_eq!(ask(&rig, golden.path, &asked("slow")).await.status, 404, "{}", golden.path);
    }
    let mut client = rig.client().await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n").await;
    let listed: Value = serde_json::from_str(client.answer().await.text()).unwrap();
    let names: Vec<_> = listed["data"].as_array().unwrap().iter().map(|entry| (&entry["id"], &entry["root"])).collect();
    let (fast, m, n) = (json!("fast"), json!("m"), json!("n"));
    assert_eq!(names, [(&m, &m), (&n, &n), (&fast, &m)]);
    client.send("GET /v1/models/fast HTTP/1.1\r\nhost: g\r\n\r\n").await;
    let card: Value = serde_json::from_str(client.answer().await.text()).unwrap();
    assert_eq!((&card["id"], &card["root"]), (&json!("fast"), &json!("m")));
}
