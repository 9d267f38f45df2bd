//! What users run, unchanged: the official SDKs of OpenAI and Anthropic, curl, the clients of `vllm bench serve` and aiperf,
//! against the real gateway and a mock engine.

#![expect(clippy::print_stdout, reason = "a test says why it was skipped, and shows the suite's report")]

use forebay_tests::cluster::{EngineOptions, GatewayOptions, MODEL, tokenizer_folder};
use forebay_tests::process::{Failure, repository};
use forebay_tests::scene::Scene;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

/// Interpreter that `make setup` equips. `None`, with the reason printed, where it is absent and not required.
#[expect(clippy::disallowed_methods, reason = "FOREBAY_REQUIRE is a switch of the suites, not of the gateway")]
fn python() -> Option<std::path::PathBuf> {
    let path = repository().join(".cache/venv/bin/python");
    if path.is_file() {
        return Some(path);
    }
    assert!(
        std::env::var("FOREBAY_REQUIRE").is_err(),
        "{} is missing and FOREBAY_REQUIRE is set; run `make setup`",
        path.display()
    );
    println!("skipped: {} is missing; run `make setup`", path.display());
    None
}

/// The certificate of `localhost`, as configuration.
fn certificate() -> String {
    let file = |name: &str| fixture(name).display().to_string();
    format!("[[certificates]]\nchain_file = \"{}\"\nkey_file = \"{}\"\n", file("a.pem"), file("a.key"))
}

fn fixture(name: &str) -> std::path::PathBuf {
    repository().join("gateway/tests/fixtures/tls").join(name)
}

#[tokio::test]
async fn the_openai_sdk_works_unchanged() -> Result<(), Failure> {
    let Some(python) = python() else { return Ok(()) };
    let scene = Scene::start(2, EngineOptions::default(), GatewayOptions::default()).await?;
    sdk(&python, &scene, "sdk.py", &format!("http://{}", scene.gateway.address)).await
}

#[tokio::test]
async fn the_anthropic_sdk_works_unchanged() -> Result<(), Failure> {
    let Some(python) = python() else { return Ok(()) };
    let scene = Scene::start(2, EngineOptions::default(), GatewayOptions::default()).await?;
    sdk(&python, &scene, "anthropic_sdk.py", &format!("http://{}", scene.gateway.address)).await
}

#[tokio::test]
async fn both_sdks_work_over_tls() -> Result<(), Failure> {
    let Some(python) = python() else { return Ok(()) };
    let options = GatewayOptions { extra: certificate(), ..GatewayOptions::default() };
    let scene = Scene::start(2, EngineOptions::default(), options).await?;
    let url = format!("https://localhost:{}", scene.gateway.address.port());
    sdk(&python, &scene, "sdk.py", &url).await?;
    sdk(&python, &scene, "anthropic_sdk.py", &url).await
}

/// Runs an SDK's suite against the gateway at `url`.
async fn sdk(python: &Path, scene: &Scene, suite: &str, url: &str) -> Result<(), Failure> {
    let script = repository().join("tests/e2e").join(suite);
    let output =
        output(Command::new(python).arg(script).args([url, MODEL]).env("SSL_CERT_FILE", fixture("ca.pem"))).await?;
    let report = String::from_utf8_lossy(&output.stderr);
    println!("{report}");
    assert!(output.status.success(), "{report}\ngateway log:\n{}", scene.gateway.process.log_tail());
    let ran = report.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
    assert!(ran.is_some_and(|cases| cases >= 12), "the suite must have run: {report}");
    Ok(())
}

async fn output(command: &mut Command) -> Result<std::process::Output, Failure> {
    command
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|e| Failure(format!("{:?}: {e}", command.as_std().get_program())))
}

#[tokio::test]
async fn a_client_in_the_shape_of_vllm_bench_serve_works_unchanged() -> Result<(), Failure> {
    let Some(python) = python() else { return Ok(()) };
    let scene = Scene::start(2, EngineOptions::default(), GatewayOptions::default()).await?;
    let script = repository().join("tests/e2e/bench_serve.py");
    let output = output(Command::new(python).arg(script).args([&scene.gateway.client.base(), MODEL])).await?;
    let report = String::from_utf8_lossy(&output.stdout);
    println!("{report}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{report}");
    let lines: Vec<Value> = report.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let completed: Vec<_> =
        lines.iter().map(|line| (line["completed"].as_u64(), line["total_output_tokens"].as_u64())).collect();
    assert_eq!(completed, [(Some(24), Some(24 * 16)); 2], "{report}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs .cache/aiperf, some 1.2 GB: make test-aiperf"]
async fn aiperf_works_unchanged() -> Result<(), Failure> {
    let scene = Scene::start(2, EngineOptions::default(), GatewayOptions::default()).await?;
    let tokenizer = tokenizer_folder()?.display().to_string();
    for endpoint in ["chat", "completions"] {
        let artifacts = scene.folder.path().join(endpoint);
        let mut command = Command::new(repository().join(".cache/aiperf/bin/aiperf"));
        command.args(["profile", "--model", MODEL, "--url", &scene.gateway.client.base(), "--endpoint-type", endpoint]);
        command.args(["--streaming", "--tokenizer", &tokenizer, "--request-count", "40", "--concurrency", "8"]);
        command.args(["--synthetic-input-tokens-mean", "200", "--output-tokens-mean", "16", "--ui", "none"]);
        let output = output(command.arg("--output-artifact-dir").arg(&artifacts)).await?;
        let report = String::from_utf8_lossy(&output.stdout);
        println!("{report}");
        assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
        let export = artifacts.join("profile_export_aiperf.json");
        let text = std::fs::read_to_string(&export).map_err(|e| Failure(format!("{}: {e}", export.display())))?;
        let export: Value = serde_json::from_str(&text).map_err(|e| Failure(e.to_string()))?;
        assert_eq!(export["request_count"]["avg"].as_f64(), Some(40.0), "{text}");
        assert_eq!(export["output_sequence_length"]["avg"].as_f64(), Some(16.0), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn curl_streams() -> Result<(), Failure> {
    let scene = Scene::plain().await?;
    let port = scene.gateway.address.port();
    curl(&[], &format!("http://127.0.0.1:{port}"), "HTTP/1.1 200").await?;
    curl(&["--http2-prior-knowledge"], &format!("http://127.0.0.1:{port}"), "HTTP/2 200").await
}

#[tokio::test]
async fn curl_streams_over_tls_in_both_versions() -> Result<(), Failure> {
    let engine = EngineOptions { tokenizer: false, ..EngineOptions::default() };
    let options = GatewayOptions { tokenizer: false, extra: certificate(), ..GatewayOptions::default() };
    let scene = Scene::start(1, engine, options).await?;
    let url = format!("https://localhost:{}", scene.gateway.address.port());
    let authority = fixture("ca.pem").display().to_string();
    curl(&["--cacert", &authority, "--http1.1"], &url, "HTTP/1.1 200").await?;
    curl(&["--cacert", &authority, "--http2"], &url, "HTTP/2 200").await
}

/// One stream by curl, to its end.
async fn curl(options: &[&str], url: &str, status: &str) -> Result<(), Failure> {
    let body = format!(
        r#"{{"model":"{MODEL}","stream":true,"max_tokens":5,"messages":[{{"role":"user","content":"hello"}}]}}"#
    );
    let output = Command::new("curl")
        .args(["-sS", "-N", "-i", "--max-time", "60", "-H", "content-type: application/json", "-d", &body])
        .args(options)
        .arg(format!("{url}/v1/chat/completions"))
        .output()
        .await
        .map_err(|e| Failure(format!("curl: {e}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with(status), "{text}");
    assert!(text.to_ascii_lowercase().contains("content-type: text/event-stream"), "{text}");
    assert!(text.contains("\"finish_reason\":\"length\""), "{text}");
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
    assert!(!text.contains("\"usage\":{"), "usage was not asked for: {text}");
    Ok(())
}
