//! The gateway's entry point: logging, configuration, runtime, build, announce, wait, drain, say how it ended.
#![forbid(unsafe_code)]

use forebay::app::{App, Signals};
use forebay::cli::{self, Command, Exit, KeyCommand};
use forebay::config::{Config, Environment, Sources};
use forebay::observe::log;
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let exit = match cli::parse(std::env::args_os()) {
        Ok(command) => run(command, Environment::of_process()),
        Err(exit) => exit,
    };
    exit.into()
}

fn run(command: Command, environment: Environment) -> Exit {
    match command {
        Command::Serve(settings) => serve(settings.sources(environment)),
        Command::Check { file, reference } => cli::check::run(file, reference, environment),
        Command::Explain { admin, completions, body } => {
            on_one_thread(|runtime| runtime.block_on(cli::explain::run(admin, completions, &body)))
        }
        Command::Key { command: KeyCommand::New { tenant, roles } } => cli::key::new(&tenant, &roles),
        Command::Doctor(settings) => {
            let sources = settings.sources(environment);
            on_one_thread(|runtime| runtime.block_on(cli::doctor::run(&sources)))
        }
    }
}

fn serve(sources: Sources) -> Exit {
    log::start(sources.environment.find("FOREBAY_LOG"));
    let loaded = match sources.load() {
        Ok(loaded) => loaded,
        Err(problems) => {
            cli::complain(&format!("the configuration does not hold together\n{problems}"));
            return Exit::Usage;
        }
    };
    for note in &loaded.notes {
        tracing::warn!("configuration: {note}");
    }
    let runtime = match runtime(&loaded.config) {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no runtime: {error}")),
    };
    runtime.block_on(async {
        let mut signals = match Signals::listen() {
            Ok(signals) => signals,
            Err(error) => return failed(&format!("no signals: {error}")),
        };
        let mut app = match App::start(sources, loaded).await {
            Ok(app) => app,
            Err(error) => {
                cli::complain(&error.to_string());
                return error.exit();
            }
        };
        app.announce();
        let arguments: Vec<_> = std::env::args_os().collect();
        let stop = app.wait(&mut signals, &arguments).await;
        tracing::info!("{}: draining; a second signal ends at once", stop.name());
        tokio::select! {
            drained = app.drain() => match drained.cut {
                0 => tracing::info!("drained: every request ran to its end"),
                cut => tracing::warn!("drained: {cut} connections were cut at listen.drain_timeout"),
            },
            again = signals.next() => tracing::warn!("{} again: ended without draining", again.name()),
        }
        Exit::Done
    })
}

fn runtime(config: &Config) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = config.listen.threads {
        builder.worker_threads(threads);
    }
    builder.thread_name("forebay").enable_all().build()
}

fn on_one_thread(work: impl FnOnce(&Runtime) -> Exit) -> Exit {
    match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => work(&runtime),
        Err(error) => failed(&format!("no runtime: {error}")),
    }
}

fn failed(why: &str) -> Exit {
    cli::complain(why);
    Exit::Internal
}
