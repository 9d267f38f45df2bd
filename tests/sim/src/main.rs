//! `forebay-sim`: see the package's README.
#![forbid(unsafe_code)]

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    match forebay_sim::cli::Arguments::parse().execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            complain(&problem);
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "a command says on standard error why it could not run")]
fn complain(problem: &str) {
    eprintln!("forebay-sim: {problem}");
}
