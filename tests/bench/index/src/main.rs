//! The prefix index beside the default one of dynamo-kv-router 1.6.1, on one trace, in one process, in turns.
//!
//! `forebay-index-bench speed|latency|memory|hash|all [workers]`; see README.md for what is measured and how. Prints tables
//! and, for `all`, the line `RESULT …`.

mod latency;
mod memory;
mod ours;
mod side;
mod speed;
mod theirs;
mod workload;

use std::process::ExitCode;

/// Fleet of the figures in the last line.
const RESULT_WORKERS: u32 = 1_000;
const FLEETS: [u32; 5] = [1, 8, 64, RESULT_WORKERS, 10_000];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().unwrap_or(RESULT_WORKERS);
    match words[..] {
        ["speed", workers] => drop(speed::compare(number(workers))),
        ["latency", workers] => drop(latency::compare(number(workers))),
        ["memory"] => drop(memory::compare()),
        // One side in a fresh process: what another run left in the allocator would not be counted.
        ["memory-of", side, load] => memory::report(side, load),
        ["hash"] => drop(speed::hash()),
        ["profile", workers] => speed::profile(number(workers)),
        ["ingest"] => speed::ingest(),
        ["all"] => all(),
        _ => {
            eprintln!("usage: forebay-index-bench speed WORKERS | latency WORKERS | memory | hash | ingest | all");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn all() {
    let hash_us = speed::hash();
    speed::ingest();
    let bytes = memory::compare();
    let mut ratio = 0.0;
    for workers in FLEETS {
        let found = speed::compare(workers);
        if workers == RESULT_WORKERS {
            ratio = found;
        }
    }
    let mut tail = latency::Compared::default();
    for workers in FLEETS {
        let found = latency::compare(workers);
        if workers == RESULT_WORKERS {
            tail = found;
        }
    }
    println!(
        "RESULT ops_ratio={ratio:.2} lookup_p99_ratio={:.2} bytes_per_membership={:.1} bytes_unique={:.1} \
         visible_p99_us={:.1} hash_50k_us={hash_us:.1}",
        tail.lookup_p99_ratio, bytes.trace, bytes.unique, tail.visible_p99_us
    );
}
