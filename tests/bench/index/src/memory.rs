//! Memory for each (block, worker) pair: resident size with the index filled, less that without, each in a fresh process.

use crate::ours::Ours;
use crate::side::{Hand, Side, resident_bytes, spread};
use crate::theirs::{DEFAULT_THREADS, Theirs};
use crate::workload::Load;
use crate::{FLEETS, RESULT_WORKERS};
use std::process::Command;

/// Resident memory varies little from process to process.
const RUNS: usize = 3;

/// Forebay's bytes for each membership.
pub struct Bytes {
    pub trace: f64,
    pub unique: f64,
}

/// Both sides on the trace at every size of fleet, and where nothing is shared.
pub fn compare() -> Bytes {
    println!("\nmemory, bytes for each (block, worker) pair");
    println!("| Load | Pairs | Distinct blocks | Forebay | Dynamo |");
    println!("|---|---|---|---|---|");
    let mut bytes = Bytes { trace: f64::NAN, unique: f64::NAN };
    for name in FLEETS.map(|workers| workers.to_string()).into_iter().chain(["unique".to_owned()]) {
        let load = load(&name);
        let figure = |side: &str| spread((0..RUNS).map(|_| measure(side, &name)).collect()).0;
        let (ours, theirs) = (figure("ours"), figure("theirs"));
        println!("| {name} | {} | {} | {ours:.1} | {theirs:.1} |", load.memberships, load.distinct);
        if name == "unique" {
            bytes.unique = ours;
        } else if name == RESULT_WORKERS.to_string() {
            bytes.trace = ours;
        }
    }
    bytes
}

fn load(name: &str) -> Load {
    name.parse().map_or_else(|_| Load::unique(RESULT_WORKERS), Load::trace)
}

fn measure(side: &str, name: &str) -> f64 {
    let this = std::env::current_exe().expect("a running program has a path");
    let output = Command::new(this).args(["memory-of", side, name]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.trim().parse().unwrap_or(f64::NAN)
}

/// Fills one index in this process and prints its bytes for each membership.
pub fn report(side: &str, name: &str) {
    let load = load(name);
    let bytes = match side {
        "ours" => fill(Ours::for_events(&load), &load),
        _ => fill(Theirs::for_events(&load, DEFAULT_THREADS), &load),
    };
    println!("{}", bytes as f64 / load.memberships as f64);
}

/// Events are made one by one: memory of earlier ones is used again and hides nothing of the index.
fn fill<S: Side>(mut side: S, load: &Load) -> usize {
    give_back_free_memory();
    let before = resident_bytes();
    let mut hands = side.hands(load, 1, 0);
    for (at, op) in load.ops.iter().enumerate() {
        hands[0].apply(op);
        // A short queue: events that wait are not part of an index.
        if at % 64 == 0 {
            hands[0].wait();
        }
    }
    hands[0].wait();
    give_back_free_memory();
    resident_bytes().saturating_sub(before)
}

/// What making the load took and freed would otherwise serve the index, unseen.
fn give_back_free_memory() {
    // SAFETY: the function takes a number, and only touches memory that the allocator has free.
    unsafe { libc::malloc_trim(0) };
}
