//! The step as the gateway uses it: sources, deadlines, degradation, parity.

use super::*;
use crate::tokenize::{Shape, Source};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn hello() -> Parsed {
    request(
        Dialect::Chat,
        serde_json::json!({"model": "tiny", "messages": [{"role": "user", "content": "hello world"}]}),
    )
}

/// An engine whose `/tokenize` answers with what `answer` makes of the question; keeps every question.
struct FakeEngine {
    url: String,
    asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Answer = (u16, String);

async fn engine(answer: impl Fn(serde_json::Value) -> Answer + Send + Sync + 'static) -> FakeEngine {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let (answer, counter) = (Arc::new(answer), Arc::clone(&asked));
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (answer, counter) = (Arc::clone(&answer), Arc::clone(&counter));
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let (answer, counter) = (Arc::clone(&answer), Arc::clone(&counter));
                async move {
                    assert_eq!(request.uri().path(), "/tokenize");
                    counter.fetch_add(1, Ordering::SeqCst);
                    let question = request.into_body().collect().await.unwrap().to_bytes();
                    let (status, text) = answer(serde_json::from_slice(&question).unwrap());
                    let response = hyper::Response::builder().status(status).body(Full::new(Bytes::from(text)));
                    Ok::<_, std::convert::Infallible>(response.unwrap())
                }
            });
            let io = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        }
    });
    FakeEngine { url, asked, task }
}

fn ids_answer(ids: &[u32]) -> Answer {
    (200, serde_json::json!({"count": ids.len(), "max_model_len": 8192, "tokens": ids, "token_strs": null}).to_string())
}

#[tokio::test]
async fn encodes_chats_and_completions_of_every_shape() {
    let (tokenizers, registry, _directory) = tiny();
    let chat = encode(&tokenizers, &hello()).await.unwrap();
    let text = "<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n";
    let completion = |prompt: serde_json::Value| {
        request(
            Dialect::Completions,
            serde_json::json!({"model": "tiny", "prompt": prompt, "add_special_tokens": false}),
        )
    };
    assert_eq!(encode(&tokenizers, &completion(text.into())).await.unwrap(), chat);
    assert_eq!(encode(&tokenizers, &completion(serde_json::json!([text]))).await.unwrap(), chat);
    let with_bos = request(Dialect::Completions, serde_json::json!({"model": "tiny", "prompt": text}));
    let with_bos = encode(&tokenizers, &with_bos).await.unwrap();
    assert_eq!((with_bos[0], &with_bos[1..]), (270, &chat[..]), "completions get special tokens, chats do not");
    for ids in [serde_json::json!([5, 6, 7]), serde_json::json!([[5, 6, 7]])] {
        assert_eq!(encode(&tokenizers, &completion(ids)).await, Ok(vec![5, 6, 7]));
    }
    for several in
        [serde_json::json!(["a", "b"]), serde_json::json!([[1], [2]]), serde_json::json!([]), serde_json::json!([1.5])]
    {
        assert_eq!(encode(&tokenizers, &completion(several.clone())).await, Err(TextReason::Unsupported), "{several}");
    }
    assert_eq!(metric(&registry, "forebay_tokenize_requests_total", "tokens"), 6.0);
    assert_eq!(metric(&registry, "forebay_tokenize_requests_total", "unsupported"), 4.0);
    assert!(metric(&registry, "forebay_tokenize_encoded_bytes_total", "") > 0.0);
}

#[tokio::test]
async fn shapes_that_are_not_proven_go_by_text() {
    let (tokenizers, _registry, _directory) = tiny();
    let message = |content: serde_json::Value| serde_json::json!([{"role": "user", "content": content}]);
    let image = message(serde_json::json!([{"type": "image_url", "image_url": {"url": "data:,"}}]));
    let hi = message("hi".into());
    for (what, body) in [
        ("image", serde_json::json!({"messages": image})),
        (
            "audio",
            serde_json::json!({"messages": message(serde_json::json!([{"type": "input_audio", "input_audio": {}}]))}),
        ),
        ("template", serde_json::json!({"messages": hi, "chat_template": "{{ messages }}"})),
        ("truncation", serde_json::json!({"messages": hi, "truncate_prompt_tokens": 3})),
        ("reserved", serde_json::json!({"messages": hi, "chat_template_kwargs": {"tools": []}})),
        ("handed-over ids", serde_json::json!({"messages": hi, "kv_transfer_params": {"prompt_token_ids": [1]}})),
        ("number", serde_json::json!({"messages": message(3.into())})),
        ("nothing", serde_json::json!({"messages": []})),
        ("strings", serde_json::json!({"messages": ["hi"]})),
    ] {
        let mut body = body;
        body["model"] = "tiny".into();
        let outcome = encode(&tokenizers, &request(Dialect::Chat, body)).await;
        let reason = if what == "image" { TextReason::Media } else { TextReason::Unsupported };
        assert_eq!(outcome, Err(reason), "{what}");
    }
    let embeds = request(Dialect::Completions, serde_json::json!({"model": "tiny", "prompt_embeds": "AAAA"}));
    assert_eq!(encode(&tokenizers, &embeds).await, Err(TextReason::Unsupported));
    let unknown = request(Dialect::Chat, serde_json::json!({"model": "who", "messages": hi}));
    assert_eq!(encode(&tokenizers, &unknown).await, Err(TextReason::NoTokenizer));
}

#[tokio::test]
async fn long_prompts_go_through_the_pool_and_past_deadlines_by_text() {
    let (tokenizers, registry, _directory) = tiny();
    for bytes in [20_000, 300_000] {
        let text = "hello the world ".repeat(bytes / 16);
        let body = serde_json::json!({"model": "tiny", "messages": [{"role": "user", "content": text}]});
        let parsed = request(Dialect::Chat, body);
        let past = Instant::now() - Duration::from_millis(1);
        let late = tokenizers.encode("tiny", &parsed, past).await.unwrap();
        assert!(matches!(late, Outcome::Text(TextReason::Late)), "{late:?}");
        let first = encode(&tokenizers, &parsed).await.unwrap();
        assert_eq!(encode(&tokenizers, &parsed).await.unwrap(), first, "remembered");
    }
    assert!(metric(&registry, "forebay_tokenize_jobs_total", "run") >= 2.0);
    assert!(metric(&registry, "forebay_tokenize_reused_bytes_total", "") > 300_000.0);
    assert!(metric(&registry, "forebay_tokenize_memo_bytes", "") > 0.0);
}

#[tokio::test]
async fn a_broken_tokenizer_degrades_its_model_only() {
    let good = tempfile::tempdir().unwrap();
    write_tiny(good.path());
    let garbage = tempfile::tempdir().unwrap();
    write_tiny(garbage.path());
    std::fs::write(garbage.path().join("tokenizer.json"), "{\"version\": \"1.0\"").unwrap();
    let template = tempfile::tempdir().unwrap();
    write_tiny(template.path());
    let with = |name: &str, directory: &Path| resolved::Model { tokenizer: Some(directory.to_owned()), ..model(name) };
    let broken_template = template.path().join("broken.jinja");
    std::fs::write(&broken_template, "{% for m in messages %}").unwrap();
    let models = [
        with("tiny", good.path()),
        with("missing", Path::new("/nonexistent/tokenizer")),
        with("garbage", garbage.path()),
        resolved::Model { chat_template: Some(broken_template), ..with("template", template.path()) },
        resolved::Model { chat_template: Some("/nonexistent.jinja".into()), ..with("no_template", good.path()) },
    ];
    let tokenizers = Tokenizers::new(&settings(), &models, &prometheus::Registry::new()).unwrap();
    assert!(encode(&tokenizers, &hello()).await.is_ok());
    assert!(tokenizers.digest("tiny").is_some() && tokenizers.digest("garbage").is_none());
    let status = tokenizers.status();
    let problem = |name: &str| status.iter().find(|s| s.model == name).unwrap().problem.clone();
    assert_eq!(problem("tiny"), None);
    for (name, expected) in [
        ("missing", "/nonexistent/tokenizer/tokenizer.json: No such file"),
        ("garbage", "tokenizer.json: tokenizer.json: EOF"),
        ("template", "chat template of template: syntax error"),
        ("no_template", "/nonexistent.jinja: No such file"),
    ] {
        let problem = problem(name).unwrap();
        assert!(problem.contains(expected), "{name}: {problem}");
        let body = serde_json::json!({"model": name, "messages": [{"role": "user", "content": "hi"}]});
        assert_eq!(encode(&tokenizers, &request(Dialect::Chat, body)).await, Err(TextReason::NoTokenizer), "{name}");
    }
}

#[tokio::test]
async fn without_a_tokenizer_the_engine_is_asked() {
    let engine = engine(|question| {
        assert_eq!(question["model"], "served");
        match question["messages"][0]["content"].as_str() {
            Some("hi") => {
                assert_eq!(question["tools"][0]["type"], "function");
                assert_eq!(question["chat_template_kwargs"]["enable_thinking"], false);
                ids_answer(&[4, 5, 6])
            }
            Some("fail") => (500, "{}".to_owned()),
            Some("odd") => (200, "{\"tokens\": \"none\"}".to_owned()),
            _ => (200, "not json".to_owned()),
        }
    })
    .await;
    let tokenizers = Tokenizers::new(&settings(), &[], &prometheus::Registry::new()).unwrap();
    tokenizers.set_engines("served", vec![engine.url.clone()]);
    let ask = |content: &str| {
        request(
            Dialect::Chat,
            serde_json::json!({"model": "served", "temperature": 1.0,
            "messages": [{"role": "user", "content": content}], "tools": [{"type": "function"}],
            "chat_template_kwargs": {"enable_thinking": false}}),
        )
    };
    assert_eq!(encode(&tokenizers, &ask("hi")).await, Ok(vec![4, 5, 6]));
    for broken in ["fail", "odd", "else"] {
        assert_eq!(encode(&tokenizers, &ask(broken)).await, Err(TextReason::Failed), "{broken}");
    }
    assert_eq!(engine.asked.load(Ordering::SeqCst), 4);
    let mut effort = serde_json::json!({"model": "served", "messages": [{"role": "user", "content": "hi"}]});
    effort["reasoning_effort"] = "low".into();
    let effort = request(Dialect::Chat, effort);
    assert_eq!(encode(&tokenizers, &effort).await, Err(TextReason::Unsupported), "its /tokenize would ignore it");
    assert_eq!(tokenizers.status()[0].source, Source::Engine);
    tokenizers.set_engines("served", vec!["http://127.0.0.1:1".to_owned()]);
    assert_eq!(encode(&tokenizers, &ask("hi")).await, Err(TextReason::Failed));
    tokenizers.set_engines("served", Vec::new());
    assert_eq!(encode(&tokenizers, &ask("hi")).await, Err(TextReason::NoTokenizer));
}

#[tokio::test]
async fn a_silent_engine_is_late() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tokenizers = Tokenizers::new(&settings(), &[], &prometheus::Registry::new()).unwrap();
    tokenizers.set_engines("tiny", vec![format!("http://{}", listener.local_addr().unwrap())]);
    let outcome = tokenizers.encode("tiny", &hello(), Instant::now() + Duration::from_millis(50)).await.unwrap();
    assert!(matches!(outcome, Outcome::Text(TextReason::Late)), "{outcome:?}");
}

/// An engine with the same tokenizer, which answers `wrong` ids on questions that hold the word "wrong".
async fn twin(directory: &Path) -> FakeEngine {
    let local = Local::load(directory, &model("tiny")).unwrap();
    engine(move |question| {
        let (text, special) = match question["prompt"].as_str() {
            Some(prompt) => (prompt.to_owned(), true),
            None => match text_of(&local, &request(Dialect::Chat, question)) {
                Ok(text) => (text, false),
                Err(_) => return (400, "{}".to_owned()),
            },
        };
        let mut ids = local.encoder.reference(&text, special).unwrap();
        if text.contains("wrong") {
            ids[2] += 1;
        }
        ids_answer(&ids)
    })
    .await
}

#[tokio::test]
async fn parity_with_the_engine_decides_the_source() {
    let (tokenizers, registry, directory) = tiny();
    let same = twin(directory.path()).await;
    let other = engine(|_| ids_answer(&[1, 2, 3])).await;
    tokenizers.set_engines("tiny", vec![same.url.clone()]);

    let report = tokenizers.check_parity("tiny", &same.url).await.unwrap();
    assert_eq!(report.first_difference, None);
    assert!(report.cases >= 14, "{report:?}");
    assert_eq!(tokenizers.status()[0].source, Source::Local);
    let proven = |url: &str| [Shape::Prompt, Shape::Chat].map(|shape| tokenizers.is_proven("tiny", url, shape));
    assert_eq!((proven(&same.url), proven(&other.url)), ([true; 2], [false; 2]));

    let report = tokenizers.check_parity("tiny", &other.url).await.unwrap();
    let difference = report.first_difference.unwrap();
    assert_eq!((difference.case, difference.position, difference.theirs), (0, 0, Some(1)));
    assert_eq!((proven(&same.url), proven(&other.url)), ([false; 2], [false; 2]), "ids that drift are nobody's");
    let status = tokenizers.status().remove(0);
    assert_eq!(status.source, Source::Engine);
    assert!(status.problem.unwrap().contains("probe chats differ"));
    assert_eq!(metric(&registry, "forebay_tokenize_drift_total", "tiny"), 1.0);
    assert_eq!(metric(&registry, "forebay_tokenize_source", "local"), 0.0);
    assert!(encode(&tokenizers, &hello()).await.is_ok(), "the engine is asked now");

    tokenizers.check_parity("tiny", &same.url).await.unwrap();
    let status = tokenizers.status().remove(0);
    assert_eq!((status.source, status.problem), (Source::Local, None), "equal again");
    assert_eq!((proven(&same.url), proven(&other.url)), ([true; 2], [false; 2]));

    assert_eq!(tokenizers.check_parity("who", &same.url).await.unwrap_err().code, "parity_unknown");
    assert_eq!(tokenizers.check_parity("tiny", "http://127.0.0.1:1").await.unwrap_err().code, "parity_unknown");
    assert_eq!(tokenizers.status()[0].source, Source::Local, "an engine that is down proves nothing");
}

#[tokio::test]
async fn an_engine_that_takes_no_chats_proves_prompts_alone() {
    let (tokenizers, _, directory) = tiny();
    let local = Local::load(directory.path(), &model("tiny")).unwrap();
    let texts = engine(move |question| match question["prompt"].as_str() {
        Some(prompt) => ids_answer(&local.encoder.reference(prompt, true).unwrap()),
        None => (400, "{}".to_owned()),
    })
    .await;
    assert_eq!(tokenizers.check_parity("tiny", &texts.url).await.unwrap_err().code, "parity_unknown");
    let proven = [Shape::Prompt, Shape::Chat].map(|shape| tokenizers.is_proven("tiny", &texts.url, shape));
    assert_eq!(proven, [true, false]);
}

#[tokio::test]
async fn drift_steps_a_model_down_to_the_engine_and_then_to_text() {
    let (tokenizers, registry, directory) = tiny();
    let twin = twin(directory.path()).await;
    tokenizers.set_engines("tiny", vec![twin.url.clone()]);
    for _ in 0..100 {
        tokenizers.observe_prompt_tokens("tiny", 10, 10);
    }
    tokenizers.observe_prompt_tokens("tiny", 10, 11);
    assert_eq!(tokenizers.status()[0].source, Source::Local, "one may be chance");
    tokenizers.observe_prompt_tokens("tiny", 10, 11);
    tokenizers.observe_prompt_tokens("tiny", 10, 11);
    assert_eq!(tokenizers.status()[0].source, Source::Engine);
    assert!(encode(&tokenizers, &hello()).await.is_ok());
    for _ in 0..3 {
        tokenizers.observe_prompt_tokens("tiny", 10, 11);
    }
    assert_eq!(tokenizers.status()[0].source, Source::Text);
    assert_eq!(encode(&tokenizers, &hello()).await, Err(TextReason::Drift));
    assert_eq!(metric(&registry, "forebay_tokenize_source", "text"), 1.0);
    assert!(metric(&registry, "forebay_tokenize_drift_total", "tiny") >= 6.0);
    tokenizers.observe_prompt_tokens("who", 1, 2);
}

#[tokio::test]
async fn live_samples_are_compared() {
    let (tokenizers, _registry, directory) = tiny();
    let twin = twin(directory.path()).await;
    let ids = encode(&tokenizers, &hello()).await.unwrap();
    assert_eq!(tokenizers.compare("tiny", &hello(), &ids, &twin.url).await, Some(true));
    assert_eq!(tokenizers.compare("tiny", &hello(), &ids, "http://127.0.0.1:1").await, None);
    assert_eq!(tokenizers.status()[0].source, Source::Local);
    let body = serde_json::json!({"model": "tiny", "messages": [{"role": "user", "content": "wrong"}]});
    let parsed = request(Dialect::Chat, body);
    let ids = encode(&tokenizers, &parsed).await.unwrap();
    assert_eq!(tokenizers.compare("tiny", &parsed, &ids, &twin.url).await, Some(false));
    assert_eq!(tokenizers.status()[0].source, Source::Engine);
    assert!(!tokenizers.samples(), "the share is zero");
}

#[tokio::test]
async fn a_reload_keeps_what_did_not_change() {
    let (tokenizers, _registry, directory) = tiny();
    let digest = tokenizers.digest("tiny").unwrap();
    tokenizers.set_engines("tiny", vec!["http://127.0.0.1:1".to_owned()]);
    let mut tiny = model("tiny");
    tiny.tokenizer = Some(directory.path().to_owned());
    let second = resolved::Model { name: "second".to_owned(), ..tiny.clone() };
    // Files that changed on disk are not read again for the same names.
    std::fs::write(directory.path().join("tokenizer.json"), "{}").unwrap();
    tokenizers.reload(&[tiny, second]);
    assert_eq!(tokenizers.digest("tiny"), Some(digest));
    assert_eq!(tokenizers.digest("second"), None);
    assert_eq!(tokenizers.status().len(), 2);
}

#[test]
fn plain_chats_are_concatenated_only_where_that_is_proven() {
    use crate::tokenize::messages;
    let directory = tempfile::tempdir().unwrap();
    write_tiny(directory.path());
    let local = Local::load(directory.path(), &model("tiny")).unwrap();
    assert!(local.chat.uses_learned());
    let short = |json: &str| local.chat.concatenated(&messages::read(json, 0).unwrap()).is_some();
    assert!(short(r#"[{"role":"user","content":"hi"}]"#));
    assert!(short(
        r#"[{"content":"s","role":"system"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]"#
    ));
    for other in [
        r#"[{"role":"assistant","content":"hi"}]"#,
        r#"[{"role":"user","content":"a"},{"role":"user","content":"b"}]"#,
        r#"[{"role":"user","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"c"}]"#,
        r#"[{"role":"user","content":"a","name":"ann"}]"#,
        r#"[{"role":"user","content":[{"type":"text","text":"a"}]}]"#,
        r#"[{"role":"user","content":""}]"#,
    ] {
        assert!(!short(other), "{other}");
    }
    local.chat.forget_learned();
    assert!(!short(r#"[{"role":"user","content":"hi"}]"#) && !local.chat.uses_learned());
}
