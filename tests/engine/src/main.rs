//! `forebay-engine`: flags, engines, one line for each, wait for a signal.
#![forbid(unsafe_code)]

use clap::Parser;
use forebay_engine::cli::Cli;
use forebay_engine::{EngineHandle, start};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Exit status for a configuration that cannot work (`EX_CONFIG`'s neighbour `EX_USAGE`).
const EXIT_USAGE: u8 = 64;

#[expect(clippy::print_stderr, reason = "what keeps a program from starting goes to stderr")]
fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("forebay-engine: {why}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if cli.threads > 0 {
        runtime.worker_threads(cli.threads);
    }
    let runtime = runtime.enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let mut stop = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
        let mut engines = Vec::new();
        for config in cli.resolve()? {
            let text = if config.codec.is_real() { "tokenizer" } else { "bytes (no tokenizer given)" };
            let model = config.model.clone();
            let engine = start(config).await.map_err(|e| e.to_string())?;
            announce(&engine, &model, text);
            engines.push(engine);
        }
        tokio::select! {
            _ = stop.recv() => {}
            result = tokio::signal::ctrl_c() => result.map_err(|e| e.to_string())?,
        }
        for engine in engines {
            engine.stop().await;
        }
        Ok(())
    })
}

#[expect(clippy::print_stdout, reason = "one line for each engine is what scripts wait for")]
fn announce(engine: &EngineHandle, model: &str, text: &str) {
    let events = engine.event_endpoints(0).map_or("off".to_owned(), |(endpoint, _)| endpoint);
    println!("engine {} model={model} text={text} kv_events={events}", engine.url());
}
