//! The prefix index beside the default one of dynamo-kv-router 1.6.1, on one trace, in one process, in turns.
//!
//! `forebay-index-bench check|speed|latency|memory|hash|ingest|snapshot|all [workers]`; see README.md for what is measured and how. Prints tables
//! and, for `all`, the line `RESULT …`.

mod check;
mod latency;
mod memory;
mod ours;
mod side;
mod snapshot;
mod speed;
mod theirs;
mod workload;

use std::process::ExitCode;

/// Fleet of the figures in the last line.
const RESULT_WORKERS: u32 = 1_000;
/// Fleet on which every look-up is compared with the engines' caches.
const CHECKED_WORKERS: u32 = 64;
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
        ["check", workers] => check::compare(number(workers)),
        ["snapshot"] => snapshot::time(),
        ["ingest"] => speed::ingest(),
        ["all"] => all(),
        _ => {
            eprintln!(
                "usage: forebay-index-bench check WORKERS | speed WORKERS | latency WORKERS | memory | hash | ingest | snapshot | all"
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn all() {
    check::compare(CHECKED_WORKERS);
    let hash_us = speed::hash();
    speed::ingest();
    snapshot::time();
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
