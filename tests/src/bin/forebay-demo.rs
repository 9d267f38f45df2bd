//! `make demo`: what a KV-aware policy changes, shown with four mock engines and no GPU.
#![forbid(unsafe_code)]

use clap::Parser;
use forebay_tests::console::complain;
use forebay_tests::demo::stage::{Choice, Cut, Stage};
use forebay_tests::demo::{compare, exact, kill};
use forebay_tests::process::Failure;
use std::process::ExitCode;

/// Sessions of the short variant.
const QUICK_SESSIONS: usize = 60;
/// What is replayed of each of them.
const QUICK_CUT: Cut = Cut { turns: 3, think_s: 1.0 };

/// Replays committed chat sessions against four mock engines and a gateway, and prints what came of it.
#[derive(Parser)]
#[command(name = "forebay-demo", version)]
struct Arguments {
    /// Compare every predicted cache hit with the engine's own count instead of comparing policies.
    #[arg(long, conflicts_with = "kill")]
    exact: bool,
    /// Kill one engine in the middle of the load instead of comparing policies.
    #[arg(long)]
    kill: bool,
    /// Leave gateway and engines running at the end.
    #[arg(long, env = "KEEP", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    keep: bool,
    /// A short variant for continuous integration.
    #[arg(long, env = "DEMO_QUICK", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    quick: bool,
    /// Sessions to replay, in the order of the file.
    #[arg(long)]
    sessions: Option<usize>,
    /// Divides every engine time.
    #[arg(long, default_value_t = 1.5)]
    speedup: f64,
    /// Clients' port of the gateway; 0 takes any free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

async fn run(arguments: Arguments) -> Result<bool, Failure> {
    let folder = tempfile::Builder::new().prefix("forebay-demo-").tempdir();
    let folder = folder.map_err(|e| Failure(format!("no temporary folder: {e}")))?;
    // Logs are worth keeping when something went wrong or goes on; otherwise the folder goes with the demo.
    let path = folder.path().to_path_buf();
    let sessions = arguments.sessions.unwrap_or(if arguments.quick { QUICK_SESSIONS } else { usize::MAX });
    let cut = if arguments.quick { QUICK_CUT } else { Cut::NONE };
    let choice = Choice { sessions, cut, speedup: arguments.speedup, port: arguments.port, folder: path.clone() };
    let work = async {
        let stage = Stage::set(choice).await?;
        match (arguments.exact, arguments.kill) {
            (true, _) => exact::run(&stage).await,
            (_, true) => kill::run(&stage).await,
            _ => compare::run(&stage, arguments.keep).await,
        }
    };
    let passed = tokio::select! {
        passed = work => passed,
        // Dropping `work` kills every process that it started.
        () = told_to_stop() => Err(Failure("interrupted; engines and gateway are ended".to_owned())),
    };
    if arguments.keep || !matches!(passed, Ok(true)) {
        let kept = folder.keep();
        complain(format!("logs: {}", kept.display()));
    }
    passed
}

/// Ends on ctrl-C or SIGTERM.
async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(format!("demo: no runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            complain(format!("demo: {failure}"));
            ExitCode::FAILURE
        }
    }
}
