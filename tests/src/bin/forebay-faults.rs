//! `make bench-faults`: engines that die, hang or fail, gateways that are replaced, and minutes of both.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use forebay_tests::console::{complain, say};
use forebay_tests::faults::kill::{self, BLOWS};
use forebay_tests::faults::load::Row;
use forebay_tests::faults::replace::{self, OPEN};
use forebay_tests::faults::report::Report;
use forebay_tests::faults::soak;
use forebay_tests::process::Failure;
use std::process::ExitCode;

/// Length of the whole soak and of the short one, s.
const SOAK_S: [u64; 2] = [600, 40];

/// Runs the fault benchmark; the last line is `RESULT …`.
#[derive(Parser)]
#[command(name = "forebay-faults", version)]
struct Arguments {
    /// A short variant, which shows that everything runs.
    #[arg(long, env = "QUICK", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    quick: bool,
    /// Parts to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Kill, Part::Replace, Part::Soak])]
    parts: Vec<Part>,
    /// Length of the soak, s.
    #[arg(long)]
    soak_s: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Engines fail.
    Kill,
    /// The gateway is replaced.
    Replace,
    /// Minutes of churn.
    Soak,
}

async fn run(arguments: &Arguments) -> Result<Report, Failure> {
    let mut report = Report::default();
    let (streams, open) = if arguments.quick { (kill::STREAMS / 5, OPEN / 5) } else { (kill::STREAMS, OPEN) };
    if arguments.parts.contains(&Part::Kill) {
        for blow in BLOWS {
            report.kills.push(told(kill::run(blow, streams).await?));
        }
    }
    if arguments.parts.contains(&Part::Replace) {
        report.replacements.push(told(replace::drain(open).await?));
        report.replacements.push(told(replace::upgrade(open).await?));
        report.replacements.push(told(replace::reload(streams).await?));
    }
    if arguments.parts.contains(&Part::Soak) {
        let seconds = arguments.soak_s.unwrap_or(SOAK_S[usize::from(arguments.quick)]);
        say(format!("soak: {seconds} s"));
        report.soak = Some(soak::run(seconds).await?);
    }
    Ok(report)
}

fn told(row: Row) -> Row {
    say(format!("{}: {:?}, {:.0} s", row.name, row.endings, row.seconds));
    row
}

async fn run_or_stop(arguments: &Arguments) -> Result<Report, Failure> {
    tokio::select! {
        report = run(arguments) => report,
        // Dropping the run kills every process that it started.
        _ = tokio::signal::ctrl_c() => Err(Failure("interrupted; engines and gateway are ended".to_owned())),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let report = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(run_or_stop(&arguments)),
        Err(error) => Err(Failure(format!("no runtime: {error}"))),
    };
    match report {
        Ok(report) => {
            say(format!("\n{}", report.render().trim_end()));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            complain(format!("faults: {failure}"));
            ExitCode::FAILURE
        }
    }
}
