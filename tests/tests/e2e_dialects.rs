//! Conformance tables: every dialect × {whole, stream, error, cut, limit, no route}, as pairs of request and answer in
//! `tests/data/dialects/`, one file for each dialect, through a real gateway in front of a mock engine.
//!
//! `FOREBAY_WRITE=1` writes the answers anew; look at the difference before it is committed.

#![expect(clippy::print_stdout, reason = "says which files it wrote")]

use forebay_tests::client::{Client, Reply};
use forebay_tests::cluster::{EngineOptions, GatewayOptions};
use forebay_tests::process::{Failure, repository};
use forebay_tests::scene::Scene;
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Files whose engine is played as SGLang; the others meet a vLLM.
const SGLANG: [&str; 3] = ["generate", "sglang_chat", "missing_routes"];

/// Largest body that the gateway takes here.
const MAX_BODY: &str = "32KiB";

/// One pair.
#[derive(Debug)]
struct Case {
    /// `whole`, `stream`, `error`, `cut after N frames`, `limit …`.
    title: String,
    path: String,
    /// As it stands in the file: `x{N}` is that many times x.
    body: String,
    answer: String,
}

/// `=== title`, `POST path`, body, `---`, answer.
fn read(text: &str) -> Result<Vec<Case>, Failure> {
    let case = |part: &str| {
        let broken = |what: &str| Failure(format!("{what} in {part}"));
        let (request, answer) = part.split_once("\n---\n").ok_or_else(|| broken("no ---"))?;
        let mut lines = request.splitn(3, '\n');
        let mut line = || lines.next().unwrap_or_default();
        let (title, path, body) = (line(), line(), line());
        let path = path.strip_prefix("POST ").ok_or_else(|| broken("no POST"))?;
        let strip = |text: &str| text.trim_end_matches('\n').to_owned();
        Ok(Case { title: title.to_owned(), path: path.to_owned(), body: strip(body), answer: strip(answer) })
    };
    text.split("=== ").skip(1).map(case).collect()
}

fn written(head: &str, cases: &[Case]) -> String {
    let mut text = head.to_owned();
    for Case { title, path, body, answer } in cases {
        let _ = write!(text, "=== {title}\nPOST {path}\n{body}\n---\n{answer}\n\n");
    }
    text
}

/// The body as it is sent.
fn expanded(body: &str) -> String {
    let repeated = body.split_once("x{").and_then(|(before, rest)| {
        let (count, after) = rest.split_once('}')?;
        Some(format!("{before}{}{after}", "x".repeat(count.parse().ok()?)))
    });
    repeated.unwrap_or_else(|| body.to_owned())
}

/// The answer as the file shows it: times set to 0.
fn shown(reply: &Reply) -> String {
    let mut text = format!("{} {}\n", reply.status, reply.content_type);
    let mut rest = reply.text.as_str();
    while let Some(at) =
        ["\"created\":", "\"created_at\":"].iter().filter_map(|key| Some(rest.find(key)? + key.len())).min()
    {
        let (before, after) = rest.split_at(at);
        text += before;
        text.push('0');
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    text + rest.trim_end()
}

/// Faults that a case's title asks for.
fn faults(title: &str) -> serde_json::Value {
    let frames = title.strip_prefix("cut after ").and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    frames.map_or(json!([]), |frames| json!([{ "kind": "cut", "after_chunks": frames, "next": 1 }]))
}

/// Answers of all cases, in order.
async fn answers(cases: &[Case], gateway: &Client, engine: &Client) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for case in cases {
        engine.post_json("/_ctl", &json!({ "faults": faults(&case.title) })).await?;
        all.push(shown(&gateway.post_text(&case.path, "golden", expanded(&case.body)).await?));
    }
    Ok(all)
}

fn folder() -> PathBuf {
    repository().join("tests/data/dialects")
}

/// Runs the files that `wanted` names in front of one engine.
async fn run(flavor: &str, wanted: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let flags = ["--flavor", flavor, "--one-token-frames", "--no-kv-events", "--lora", "style"];
    let engine = EngineOptions { tokenizer: false, extra: flags.map(str::to_owned).into(), ..EngineOptions::default() };
    let extra = "[[models]]\nname = \"demo\"\naliases = \"gpt-4o, claude-sonnet-4\"\n".to_owned();
    let max_body = Some(MAX_BODY.to_owned());
    let options = GatewayOptions { tokenizer: false, extra, max_body, ..GatewayOptions::default() };
    let scene = Scene::start(1, engine, options).await?;
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .map_err(|e| Failure(format!("{}: {e}", folder().display())))?
        .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned))
        .filter(|name| wanted(name))
        .collect();
    names.sort();
    let mut differences = String::new();
    for name in &names {
        let path = folder().join(format!("{name}.txt"));
        let text = std::fs::read_to_string(&path).map_err(|e| Failure(format!("{}: {e}", path.display())))?;
        let mut cases = read(&text)?;
        let answers = answers(&cases, &scene.gateway.client, &scene.engines[0].client).await?;
        for (case, got) in cases.iter_mut().zip(answers) {
            if case.answer != got {
                let _ = writeln!(differences, "{name}: {}\n  expected: {}\n  got:      {got}", case.title, case.answer);
                case.answer = got;
            }
        }
        if writes() {
            let head = text.split("=== ").next().unwrap_or_default();
            std::fs::write(&path, written(head, &cases)).map_err(|e| Failure(e.to_string()))?;
            println!("wrote {}", path.display());
        }
    }
    assert!(names.len() >= 3, "{names:?}");
    assert!(writes() || differences.is_empty(), "{differences}");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a switch of this suite, not of the gateway")]
fn writes() -> bool {
    std::env::var("FOREBAY_WRITE").is_ok()
}

#[tokio::test]
async fn answers_of_vllm_are_the_committed_ones() -> Result<(), Failure> {
    run("vllm", |name| !SGLANG.contains(&name)).await
}

#[tokio::test]
async fn answers_of_sglang_are_the_committed_ones() -> Result<(), Failure> {
    run("sglang", |name| SGLANG.contains(&name)).await
}

/// Every dialect that generates has all of them.
#[test]
fn the_tables_are_whole() -> Result<(), Box<dyn std::error::Error>> {
    for (name, streams) in [
        ("chat", true),
        ("completions", true),
        ("responses", true),
        ("messages", true),
        ("generate", true),
        ("tokens_in", true),
        ("count_tokens", false),
        ("embeddings", false),
        ("pooling", false),
        ("rerank", false),
        ("score", false),
        ("tokenize", false),
    ] {
        let cases = read(&std::fs::read_to_string(folder().join(format!("{name}.txt")))?)?;
        let has = |kind: &str| cases.iter().any(|case| case.title.starts_with(kind));
        let wanted: &[&str] =
            if streams { &["whole", "stream", "error", "cut", "limit"] } else { &["whole", "error", "limit"] };
        for kind in wanted {
            assert!(has(kind), "{name} has no case `{kind}`");
        }
    }
    Ok(())
}
