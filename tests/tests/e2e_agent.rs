//! The node agent beside two engines: load that a client puts on one of them directly, past the gateway, sends the gateway's
//! requests to the other; what the gateway itself sends there is not taken for foreign.

use forebay_tests::client::Client;
use forebay_tests::cluster::{Engine, EngineOptions, Gateway, GatewayOptions, free_port, wait_until};
use forebay_tests::process::{Failure, Process, binary};
use forebay_tests::raw::chat_request;
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpStream;

fn body(text: &str, max_tokens: u32) -> Value {
    json!({"model": "demo", "max_tokens": max_tokens, "stream": true, "messages": [{"role": "user", "content": text}]})
}

/// What the gateway would do with a small request.
async fn explain(admin: &Client) -> Result<Value, String> {
    admin.post_json("/explain?dialect=chat", &body("which one?", 2)).await
}

/// A worker of an explanation.
fn candidate<'a>(explanation: &'a Value, url: &str) -> &'a Value {
    let all = explanation["candidates"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|candidate| candidate["worker"] == url).unwrap_or(&Value::Null)
}

/// Clients that go past the gateway; what they ask for takes far longer than the test.
fn direct_clients(engine: &Engine) -> Result<Vec<TcpStream>, Failure> {
    let failed = |error: std::io::Error| Failure(error.to_string());
    let mut direct = Vec::new();
    for n in 0..4 {
        let mut stream = TcpStream::connect(engine.address).map_err(failed)?;
        let asked = body(&format!("direct {n}"), 10_000).to_string();
        stream.write_all(&chat_request(engine.address, asked.as_bytes())).map_err(failed)?;
        direct.push(stream);
    }
    Ok(direct)
}

#[tokio::test]
async fn requests_go_where_direct_clients_do_not() -> Result<(), Failure> {
    let folder = tempfile::tempdir().map_err(|error| Failure(error.to_string()))?;
    let options = EngineOptions { speedup: 1.0, ..EngineOptions::default() };
    let mut engines = Vec::new();
    for name in ["first", "second"] {
        engines.push(Engine::start(name, &options, folder.path()).await?);
    }
    let (listen, metrics) = (free_port()?, free_port()?);
    let file = folder.path().join("agent.toml");
    let text = format!(
        "[load]\nlisten = \"127.0.0.1:{listen}\"\nmetrics = \"127.0.0.1:{metrics}\"\nworkers = [\"{}\", \"{}\"]\n\
         sockets_period_ms = 200\nstate_dir = \"{}\"\n",
        engines[0].address,
        engines[1].address,
        folder.path().display()
    );
    std::fs::write(&file, text).map_err(|error| Failure(error.to_string()))?;
    let arguments = ["load".to_owned(), "--config".to_owned(), file.display().to_string()];
    let agent = Process::spawn("agent", &binary("forebay-agent")?, arguments, folder.path().join("agent.log"))?;
    // With a tokenizer of its own: asking engines for token ids would be work there, and seen.
    let gateway = GatewayOptions {
        agent: Some(format!("127.0.0.1:{listen}")),
        extra: "[health]\nmetrics_interval = \"1h\"\n".to_owned(),
        ..GatewayOptions::default()
    };
    let (busy, free) = (engines[0].url(), engines[1].url());
    let mut gateway = Gateway::start(&gateway, &[busy.clone(), free.clone()], folder.path()).await?;

    let direct = direct_clients(&engines[0])?;
    let admin = gateway.admin.clone();
    wait_until("the gateway avoids the engine with direct clients", &mut gateway.process, async || {
        let explanation = explain(&admin).await?;
        let (first, second) = (candidate(&explanation, &busy), candidate(&explanation, &free));
        let seen = first["harm_ms"].as_f64() > second["harm_ms"].as_f64() && !first["agent_age_ms"].is_null();
        // Its first reading of the engines is old by then, so this is the agent's doing.
        let alone = first["load_age_ms"].as_u64().is_some_and(|age_ms| age_ms > 3_000);
        if seen && alone && explanation["chosen"] == free.as_str() { Ok(()) } else { Err(explanation.to_string()) }
    })
    .await?;

    drop(direct);
    wait_until("nothing foreign is left", &mut gateway.process, async || {
        let explanation = explain(&admin).await?;
        let first = candidate(&explanation, &busy);
        let nothing = first["harm_ms"].as_f64() == Some(0.0) && first["foreign_ms"].as_f64() == Some(0.0);
        if nothing && explanation["without_agents"].is_null() { Ok(()) } else { Err(explanation.to_string()) }
    })
    .await?;

    // The gateway's own requests are its own, wherever it sends them.
    let own = gateway.client.clone();
    let asked = body("mine", 2_000);
    let mine = async { own.post_json("/v1/chat/completions", &asked).await.map(drop) };
    let look = async {
        for _ in 0..20 {
            let explanation = explain(&admin).await?;
            for url in [&busy, &free] {
                let foreign = candidate(&explanation, url)["foreign_ms"].as_f64();
                if foreign.is_some_and(|ms| ms > 0.0) {
                    return Err(format!("own requests were taken for foreign: {explanation}"));
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        Ok(())
    };
    tokio::select! {
        looked = look => looked.map_err(Failure)?,
        _ = mine => {}
    }
    let page = agent.log_text();
    assert!(page.contains("sockets L1"), "the agent says what is on: {page}");
    Ok(())
}
