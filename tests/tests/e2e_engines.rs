//! Engines other than vLLM as workers: SGLang and TensorRT-LLM, found, read, watched and served; ids forwarded where they
//! are proven; the routes of other routers.

use forebay_tests::client::Client;
use forebay_tests::cluster::{Engine, EngineOptions, Gateway, GatewayOptions, MODEL, tokenizer_folder};
use forebay_tests::process::Failure;
use forebay_tests::scene::{Scene, folder};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Longest wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn flavored(flags: &[&str]) -> EngineOptions {
    EngineOptions { extra: flags.iter().map(|flag| (*flag).to_owned()).collect(), ..EngineOptions::default() }
}

/// Asks until `ready` likes the answer.
async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await? {
            return Ok(found);
        }
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn workers(gateway: &Gateway) -> Result<Vec<Value>, Failure> {
    let listed = gateway.admin.read_json("/workers").await?;
    Ok(listed["workers"].as_array().cloned().unwrap_or_default())
}

fn long_chat(turn: &str) -> Value {
    let story = "The forebay of a plant takes what the river brings. ".repeat(40);
    json!({"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": format!("{story}{turn}")}]})
}

/// Sends chats with a common beginning until what was predicted to be cached is what the engine found; the tokens.
async fn exact_hits(gateway: &Gateway, turns: usize) -> Result<u64, Failure> {
    for turn in 0..turns {
        let answer = gateway.client.post_json("/v1/chat/completions", &long_chat(&turn.to_string())).await?;
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert!(cached.is_some(), "{answer}");
    }
    let records = eventually("every request is in the log", async || {
        let records = gateway.records();
        Ok((records.len() >= turns).then_some(records))
    })
    .await?;
    let last = records.last().ok_or_else(|| Failure("no records".to_owned()))?;
    assert_eq!(last["predicted_cached_tokens"], last["cached_tokens"], "{last}");
    Ok(last["cached_tokens"].as_u64().unwrap_or_default())
}

#[tokio::test]
async fn sglang_is_found_read_and_routed_by_its_events() -> Result<(), Failure> {
    let older = |metrics| vec!["--flavor", "sglang", "--no-sglang-loads", "--sglang-metrics", metrics];
    for flags in [vec!["--flavor", "sglang"], older("colon"), older("underscore")] {
        let options = flavored(&flags);
        let scene = Scene::start(2, options, GatewayOptions::default()).await?;
        let listed = eventually("both are known by their events and loads", async || {
            let listed = workers(&scene.gateway).await?;
            let known = |worker: &Value| worker["cache"] == "events" && worker["engine"].is_object();
            Ok(listed.iter().all(known).then_some(listed))
        })
        .await?;
        for worker in &listed {
            let seen = (&worker["engine_kind"], &worker["block_size"], &worker["capacity_blocks"]);
            assert_eq!(seen, (&json!("sglang"), &json!(16), &json!(16_384)), "{worker}");
            assert_eq!(worker["degraded"], json!([]), "{worker}");
        }
        assert!(exact_hits(&scene.gateway, 6).await? > 300, "the common beginning was found");
    }
    Ok(())
}

#[tokio::test]
async fn an_sglang_that_restarts_is_another_one() -> Result<(), Failure> {
    let scene = Scene::start(1, flavored(&["--flavor", "sglang"]), GatewayOptions::default()).await?;
    exact_hits(&scene.gateway, 3).await?;
    let before = workers(&scene.gateway).await?[0]["id"].clone();
    scene.engines[0].client.post_json("/_ctl", &json!({"restart": {"down_ms": 100}})).await?;
    // Its instance has another name: its cache is empty, and the worker another one.
    eventually("the worker is another one", async || {
        // Requests make its events come, as they would in service.
        let _ = scene.gateway.client.post_json("/v1/chat/completions", &long_chat("x")).await;
        let listed = workers(&scene.gateway).await?;
        Ok((listed[0]["state"] == "ready" && listed[0]["id"] != before).then_some(()))
    })
    .await
}

#[tokio::test]
async fn tensorrt_llm_serves_chats_and_completions() -> Result<(), Failure> {
    let options = EngineOptions { tokenizer: false, ..flavored(&["--flavor", "trtllm"]) };
    let scene = Scene::start(2, options, GatewayOptions { tokenizer: false, ..GatewayOptions::default() }).await?;
    let listed = eventually("both tell their load", async || {
        let listed = workers(&scene.gateway).await?;
        Ok(listed.iter().all(|worker| worker["engine"].is_object()).then_some(listed))
    })
    .await?;
    for worker in &listed {
        let seen = (&worker["engine_kind"], &worker["block_size"], &worker["cache"]);
        assert_eq!(seen, (&json!("tensorrt-llm"), &json!(16), &json!("approximate")), "{worker}");
    }
    let client = &scene.gateway.client;
    let chat = client.post_json("/v1/chat/completions", &long_chat("")).await?;
    assert_eq!(chat["usage"]["completion_tokens"], 8, "{chat}");
    let text = client.post_json("/v1/completions", &json!({"model": MODEL, "prompt": "Once", "max_tokens": 3})).await?;
    assert_eq!(text["usage"]["completion_tokens"], 3, "{text}");
    let mut streamed = long_chat("");
    (streamed["stream"], streamed["stream_options"]) = (json!(true), json!({"include_usage": true}));
    let outcome = client.stream_chat(&streamed).await;
    assert_eq!((outcome.completion_tokens, outcome.end), (8, forebay_tests::client::End::Complete));
    Ok(())
}

/// A gateway that forwards ids, in front of one engine.
async fn forwarding(flavor: &str) -> Result<(Engine, Gateway, tempfile::TempDir), Failure> {
    let folder = folder()?;
    let engine = Engine::start("engine", &flavored(&["--flavor", flavor]), folder.path()).await?;
    let tokenizer = tokenizer_folder()?;
    let extra =
        format!("[[models]]\nname = \"{MODEL}\"\ntokenizer = \"{}\"\nforward_token_ids = true\n", tokenizer.display());
    let options = GatewayOptions { tokenizer: false, extra, ..GatewayOptions::default() };
    let gateway = Gateway::start(&options, &[engine.url()], folder.path()).await?;
    Ok((engine, gateway, folder))
}

async fn given(engine: &Client) -> Result<u64, Failure> {
    Ok(engine.read_json("/_ctl").await?["given_prompts"].as_u64().unwrap_or_default())
}

/// Sends `body` until the engine gets its prompt as ids; the answer of that time.
async fn forwarded(engine: &Engine, gateway: &Gateway, path: &str, body: &Value) -> Result<Value, Failure> {
    // The comparison with the engine runs beside the first requests.
    eventually("ids are forwarded", async || {
        let before = given(&engine.client).await?;
        let answer = gateway.client.post_json(path, body).await?;
        Ok((given(&engine.client).await? > before).then_some(answer))
    })
    .await
}

const TEXT: &str = "Grüße 👩‍👩‍👧: the water\u{a0}rises\r\n\tand <|im_end|> falls, 12345 times.";

#[tokio::test]
async fn vllm_gets_the_ids_that_it_would_have_made() -> Result<(), Failure> {
    let (engine, gateway, _folder) = forwarding("vllm").await?;
    let own = engine.client.post_json("/tokenize", &json!({"prompt": TEXT})).await?["tokens"].clone();
    let body = json!({"model": MODEL, "prompt": TEXT, "max_tokens": 4, "return_token_ids": true, "seed": 7});
    let answer = forwarded(&engine, &gateway, "/v1/completions", &body).await?;
    assert_eq!(answer["choices"][0]["prompt_token_ids"], own, "{answer}");
    let direct = engine.client.post_json("/v1/completions", &body).await?;
    assert_eq!(answer["choices"][0]["text"], direct["choices"][0]["text"]);
    // Its chats take none, and an echo would be what the ids decode to.
    let before = given(&engine.client).await?;
    gateway.client.post_json("/v1/chat/completions", &long_chat("")).await?;
    gateway
        .client
        .post_json("/v1/completions", &json!({"model": MODEL, "prompt": TEXT, "max_tokens": 1, "echo": false}))
        .await?;
    assert_eq!(given(&engine.client).await?, before);
    Ok(())
}

#[tokio::test]
async fn sglang_gets_the_ids_that_it_would_have_made() -> Result<(), Failure> {
    let (engine, gateway, _folder) = forwarding("sglang").await?;
    let body = json!({"text": TEXT, "sampling_params": {"max_new_tokens": 4}});
    let direct = engine.client.post_json("/generate", &body).await?;
    let answer = forwarded(&engine, &gateway, "/generate", &body).await?;
    assert_eq!((&answer["text"], &answer["output_ids"]), (&direct["text"], &direct["output_ids"]));
    let chat = json!({"model": MODEL, "max_tokens": 4, "return_token_ids": true, "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]});
    let own = engine.client.post_json("/tokenize", &json!({"messages": chat["messages"]})).await?["tokens"].clone();
    let answer = forwarded(&engine, &gateway, "/v1/chat/completions", &chat).await?;
    assert_eq!(answer["prompt_token_ids"], own, "{answer}");
    // Tools are rendered by each engine in its own way.
    let mut tooled = chat;
    tooled["tools"] = json!([{"type": "function", "function": {"name": "level", "parameters": {"type": "object"}}}]);
    let before = given(&engine.client).await?;
    gateway.client.post_json("/v1/chat/completions", &tooled).await?;
    assert_eq!(given(&engine.client).await?, before);
    Ok(())
}

#[tokio::test]
async fn ids_are_forwarded_only_where_that_is_asked_for() -> Result<(), Failure> {
    let scene = Scene::start(1, EngineOptions::default(), GatewayOptions::default()).await?;
    // As long as a comparison takes, and then some: the metric says that it has been made.
    for _ in 0..3 {
        let body = json!({"model": MODEL, "prompt": TEXT, "max_tokens": 2});
        scene.gateway.client.post_json("/v1/completions", &body).await?;
    }
    assert_eq!(given(&scene.engines[0].client).await?, 0);
    assert!(!scene.gateway.admin.read_text("/metrics").await?.contains("forebay_tokenize_forwarded_total"));
    Ok(())
}

#[tokio::test]
async fn scripts_for_other_routers_steer_this_one() -> Result<(), Failure> {
    let plain = EngineOptions { tokenizer: false, ..flavored(&["--flavor", "sglang"]) };
    let scene =
        Scene::start(1, plain.clone(), GatewayOptions { tokenizer: false, ..GatewayOptions::default() }).await?;
    let second = Engine::start("second", &plain, scene.folder.path()).await?;
    let (admin, url) = (&scene.gateway.admin, second.url());
    admin.post_json(&format!("/add_worker?url={url}&wait=true"), &Value::Null).await?;
    let listed = admin.read_json("/list_workers").await?;
    assert!(listed["urls"].as_array().is_some_and(|urls| urls.len() == 2 && urls.contains(&json!(url))), "{listed}");
    let loads = admin.read_json("/get_loads").await?;
    assert_eq!(loads["workers"][0]["load"], 0, "{loads}");
    scene.gateway.client.post_json("/v1/chat/completions", &long_chat("")).await?;
    let flushed = admin.post_json("/flush_cache", &Value::Null).await?;
    assert_eq!(flushed["flushed"].as_array().map(Vec::len), Some(2), "{flushed}");
    for path in ["/liveness", "/readiness"] {
        admin.read_json(path).await?;
        scene.gateway.client.read_json(path).await?;
    }
    admin.post_json(&format!("/remove_worker?url={url}"), &Value::Null).await?;
    eventually("it is gone", async || {
        let listed = admin.read_json("/list_workers").await?;
        Ok((listed["urls"].as_array().map(Vec::len) == Some(1)).then_some(()))
    })
    .await?;
    let refused = admin.post_json("/remove_worker", &Value::Null).await.expect_err("no url");
    assert!(refused.contains("?url="), "{refused}");
    Ok(())
}
