//! The node agent's entry point: which role, its configuration, run until told to stop.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use forebay_agent::config::Config;
use forebay_agent::{doctor, guard, load};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// What the kernel knows of this node's engines, and a guard before them.
#[derive(Parser)]
#[command(name = "forebay-agent", version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Watch this node's engines and tell gateways of them.
    Load {
        /// TOML file with a table [load].
        #[arg(long)]
        config: PathBuf,
    },
    /// Refuse connections at the ingress interface.
    Guard {
        /// TOML file with a table [guard].
        #[arg(long)]
        config: PathBuf,
        /// Detach a pinned guard and remove its pins, and end.
        #[arg(long)]
        remove: bool,
    },
    /// Say what this node and these privileges allow.
    Doctor,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| EnvFilter::new("warn,forebay=info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(Arguments::parse().role) {
        Ok(code) => code,
        Err(why) => {
            tracing::error!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run(role: Role) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    match role {
        Role::Load { config } => {
            let settings = Config::read(&config)?.load.ok_or("the file has no table [load]")?;
            runtime.block_on(async { load::run(settings, stop()?).await })?;
        }
        Role::Guard { config, remove } => {
            let settings = Config::read(&config)?.guard.ok_or("the file has no table [guard]")?;
            if remove {
                guard::remove(&settings)?;
            } else {
                runtime.block_on(async { guard::run(settings, stop()?).await })?;
            }
        }
        Role::Doctor => {
            let (report, all) = doctor::report();
            print(&report);
            return Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(2) });
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "the report is what was asked for")]
fn print(report: &str) {
    print!("{report}");
}

/// Ends at SIGTERM or SIGINT.
fn stop() -> Result<impl Future<Output = ()>, String> {
    let listen = |kind| signal(kind).map_err(|error| format!("no signals: {error}"));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
