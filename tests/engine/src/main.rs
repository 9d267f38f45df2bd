//! `forebay-engine`: flags, engines, one line for each, wait for a signal.
#![forbid(unsafe_code)]

use clap::Parser;
use forebay_engine::cli::Cli;
use forebay_engine::{start, thin};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Exit status for flags that cannot work, `EX_USAGE` of sysexits.
const EXIT_USAGE: u8 = 64;
/// Bounds the tokenizer's own thread pool, which reads it once; requests are spread over our threads already.
const TOKENIZER_THREADS: &str = "FASTOKENS_BPE_THREADS";

#[expect(clippy::print_stderr, reason = "what keeps a program from starting goes to stderr")]
fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(why) = cap_tokenizer_threads().and_then(|()| run(&cli)) {
        eprintln!("forebay-engine: {why}");
        return ExitCode::from(EXIT_USAGE);
    }
    ExitCode::SUCCESS
}

/// Starts this program again with the pool's bound in its environment, unless it is there.
#[expect(clippy::disallowed_methods, reason = "another crate's setting, not configuration of ours")]
fn cap_tokenizer_threads() -> Result<(), String> {
    if std::env::var_os(TOKENIZER_THREADS).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
    let error = Command::new(program).args(std::env::args_os().skip(1)).env(TOKENIZER_THREADS, "1").exec();
    Err(format!("starting again with {TOKENIZER_THREADS}=1: {error}"))
}

fn run(cli: &Cli) -> Result<(), String> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
    let mut builder = if cli.thin { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if cli.threads > 0 {
        builder.worker_threads(cli.threads);
    }
    let runtime = builder.enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
        let stop = async {
            tokio::select! {
                _ = terminated.recv() => Ok(()),
                result = tokio::signal::ctrl_c() => result.map_err(|e| e.to_string()),
            }
        };
        if cli.thin { run_thin(cli, stop).await } else { run_engines(cli, stop).await }
    })
}

async fn run_engines(cli: &Cli, stop: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let mut engines = Vec::new();
    for config in cli.resolve()? {
        let engine = start(config).await.map_err(|e| e.to_string())?;
        announce(cli, &engine.url(), engine.event_endpoints(0).map(|(endpoint, _)| endpoint));
        engines.push(engine);
    }
    stop.await?;
    for engine in engines {
        engine.stop().await;
    }
    Ok(())
}

async fn run_thin(cli: &Cli, stop: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let engines = thin::start(cli.resolve_thin()?).await.map_err(|e| e.to_string())?;
    for (at, address) in engines.addresses().iter().enumerate() {
        announce(cli, &format!("http://{address}"), engines.event_endpoints().get(at).cloned());
    }
    stop.await?;
    engines.stop().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "one line for each engine is what scripts wait for")]
fn announce(cli: &Cli, url: &str, events: Option<String>) {
    let mode = if cli.thin { "thin" } else { "model" };
    let text = if cli.tokenizer.is_some() { "tokenizer" } else { "bytes(no-tokenizer-given)" };
    println!(
        "engine {url} model={} mode={mode} text={text} kv_events={}",
        cli.model,
        events.as_deref().unwrap_or("off")
    );
}
