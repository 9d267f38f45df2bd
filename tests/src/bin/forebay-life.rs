//! `make bench-life`: how true the simulator is.
#![forbid(unsafe_code)]

use clap::Parser;
use forebay_tests::console::{complain, say};
use forebay_tests::life::{Both, Slice, run};
use forebay_tests::process::Failure;
use std::process::ExitCode;

/// Offers one slice of a workload to the simulator and to a real gateway with mock engines, and compares what both say.
#[derive(Parser)]
#[command(name = "forebay-life", version)]
struct Arguments {
    /// A committed workload.
    #[arg(long, default_value = "rag")]
    workload: String,
    /// Mock engines.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Part of the capacity.
    #[arg(long, default_value_t = 0.7)]
    load: f64,
    /// Engine time.
    #[arg(long, default_value_t = 600.0)]
    seconds: f64,
    /// Engine time ÷ real time. Whatever the machine adds counts so many times.
    #[arg(long, default_value_t = 2.0)]
    speedup: f64,
}

fn tell(both: &Both) {
    let ratio = |pair: (f64, f64)| pair.1 / pair.0.max(f64::MIN_POSITIVE);
    say(format!("{} requests measured, {} not served in life", both.requests, both.failed));
    say("                 simulated      lived      ratio");
    for (what, pair) in [("TTFT p50 ms", both.ttft_p50_ms), ("TTFT p99 ms", both.ttft_p99_ms), ("hit", both.hit)] {
        say(format!("{what:<14} {:>11.3} {:>10.3} {:>10.3}", pair.0, pair.1, ratio(pair)));
    }
    say(format!(
        "RESULT life_ttft_p50_x={:.3} life_ttft_p99_x={:.3} life_hit_x={:.3} life_failed={}",
        ratio(both.ttft_p50_ms),
        ratio(both.ttft_p99_ms),
        ratio(both.hit),
        both.failed
    ));
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let slice = Slice {
        workload: arguments.workload,
        workers: arguments.workers,
        load: arguments.load,
        seconds: arguments.seconds,
        speedup: arguments.speedup,
    };
    let work = async {
        let folder = tempfile::Builder::new().prefix("forebay-life-").tempdir();
        let folder = folder.map_err(|error| Failure(format!("no temporary folder: {error}")))?;
        run(&slice, folder.path()).await
    };
    let done = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => Err(Failure(format!("no runtime: {error}"))),
    };
    match done {
        Ok(both) => {
            tell(&both);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            complain(format!("life: {failure}"));
            ExitCode::FAILURE
        }
    }
}
