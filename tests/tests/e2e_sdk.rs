//! What users run: the official OpenAI SDK and curl, against the real gateway and a mock engine.

#![expect(clippy::print_stdout, reason = "a test says why it was skipped, and shows the suite's report")]

use forebay_tests::cluster::{EngineOptions, GatewayOptions, MODEL};
use forebay_tests::process::{Failure, repository};
use forebay_tests::scene::Scene;
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
    sdk(&python, &scene, &format!("http://{}", scene.gateway.address)).await
}

#[tokio::test]
async fn the_openai_sdk_works_over_tls() -> Result<(), Failure> {
    let Some(python) = python() else { return Ok(()) };
    let options = GatewayOptions { extra: certificate(), ..GatewayOptions::default() };
    let scene = Scene::start(2, EngineOptions::default(), options).await?;
    sdk(&python, &scene, &format!("https://localhost:{}", scene.gateway.address.port())).await
}

/// Runs the SDK's suite against the gateway at `url`.
async fn sdk(python: &std::path::Path, scene: &Scene, url: &str) -> Result<(), Failure> {
    let output = Command::new(python)
        .arg(repository().join("tests/e2e/sdk.py"))
        .args([url, MODEL])
        .env("SSL_CERT_FILE", fixture("ca.pem"))
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|e| Failure(format!("python: {e}")))?;
    let report = String::from_utf8_lossy(&output.stderr);
    println!("{report}");
    assert!(output.status.success(), "{report}\ngateway log:\n{}", scene.gateway.process.log_tail());
    let ran = report.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
    assert!(ran.is_some_and(|cases| cases >= 15), "the suite must have run: {report}");
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
