//! `bench-report`: prints the report of one suite; its last line is the `RESULT` line.

use clap::Parser;
use forebay_bench::report::goal::{goals, result_line};
use forebay_bench::report::page::render_page;
use forebay_bench::report::suite::{Suite, SuiteError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Report of one suite of the proxy benchmark.
#[derive(Debug, Parser)]
#[command(name = "bench-report")]
struct Arguments {
    /// Folder that the suite wrote.
    dir: PathBuf,
}

fn main() -> ExitCode {
    match report(&Arguments::parse().dir) {
        Ok(text) => print_text(&text),
        Err(error) => fail(&error.to_string()),
    }
}

fn report(dir: &Path) -> Result<String, SuiteError> {
    let suite = Suite::load(dir)?;
    Ok(format!("{}\n{}\n", render_page(&suite), result_line(&goals(&suite))))
}

#[expect(clippy::print_stdout, reason = "the report is the program's output")]
fn print_text(text: &str) -> ExitCode {
    print!("{text}");
    ExitCode::SUCCESS
}

#[expect(clippy::print_stderr, reason = "a command's errors go to standard error")]
fn fail(reason: &str) -> ExitCode {
    eprintln!("bench-report: {reason}");
    ExitCode::FAILURE
}
