//! Look-ups while events are applied as fast as they can be, and how long a change takes to show.

use crate::ours::Ours;
use crate::side::{Hand, Side, quantile, spread};
use crate::theirs::{DEFAULT_THREADS, Theirs};
use crate::workload::{Load, Op};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

const RUNS: usize = 5;

/// Figures for the last line.
#[derive(Clone, Copy, Default)]
pub struct Compared {
    /// Ours / theirs, the better of their thread counts.
    pub lookup_p99_ratio: f64,
    /// From handing an event over until a look-up shows it.
    pub visible_p99_us: f64,
}

/// Half of the trace is there before; during the other half one thread looks prompts up.
pub fn compare(workers: u32) -> Compared {
    let load = Load::trace(workers);
    println!("\nlook-ups while events are applied at full rate, {workers} workers, µs (medians of {RUNS} runs)");
    println!("| | p50 | p99 | p99.9 | visible p50 | visible p99 |");
    println!("|---|---|---|---|---|---|");
    let (mut ours, mut one, mut default) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.push(measure(Ours::new(&load), &load));
        one.push(measure(Theirs::new(&load, 1), &load));
        default.push(measure(Theirs::new(&load, DEFAULT_THREADS), &load));
    }
    let rows = [("Forebay", ours), ("Dynamo, 1 event thread", one), ("Dynamo, 4 event threads (default)", default)];
    let rows = rows.map(|(name, runs)| {
        let median = |pick: fn(&Tail) -> f64| spread(runs.iter().map(pick).collect()).0;
        let tail = Tail {
            p50: median(|tail| tail.p50),
            p99: median(|tail| tail.p99),
            p999: median(|tail| tail.p999),
            visible_p50: median(|tail| tail.visible_p50),
            visible_p99: median(|tail| tail.visible_p99),
        };
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} |",
            tail.p50, tail.p99, tail.p999, tail.visible_p50, tail.visible_p99
        );
        tail
    });
    let [ours, one, default] = rows;
    Compared { lookup_p99_ratio: ours.p99 / one.p99.min(default.p99), visible_p99_us: ours.visible_p99 }
}

struct Tail {
    p50: f64,
    p99: f64,
    p999: f64,
    visible_p50: f64,
    visible_p99: f64,
}

/// Of the stores in the second part every so-many-th is timed until a look-up shows it; the others keep the index busy.
const PROBE_EVERY: usize = 9;

fn measure<S: Side>(mut side: S, load: &Load) -> Tail {
    let half = load.ops.len() / 2;
    let mut hands = side.hands(load, 1, 1);
    let (mut reader, mut writer) = (hands.pop().expect("asked for"), hands.pop().expect("asked for"));
    load.ops[..half].iter().for_each(|op| writer.apply(op));
    reader.wait();
    let rest: Vec<&Op> = load.ops[half..].iter().filter(|op| !matches!(op, Op::Lookup { .. })).collect();
    rest.iter().for_each(|op| writer.prepare(op));
    let asked: Vec<u32> = load.ops[half..].iter().filter_map(request).collect();
    let done = AtomicBool::new(false);
    let mut times = Vec::with_capacity(1 << 20);
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            rest.iter().for_each(|op| writer.apply(op));
            writer.wait();
            done.store(true, Ordering::Release);
        });
        for request in asked.iter().cycle() {
            let started = Instant::now();
            black_box(reader.look_up(*request));
            times.push(started.elapsed().as_secs_f64() * 1e6);
            if done.load(Ordering::Acquire) {
                break;
            }
        }
    });
    drop((hands, reader));
    times.sort_by(f64::total_cmp);
    let mut visible = probe(side, load);
    visible.sort_by(f64::total_cmp);
    Tail {
        p50: quantile(&times, 0.5),
        p99: quantile(&times, 0.99),
        p999: quantile(&times, 0.999),
        visible_p50: quantile(&visible, 0.5),
        visible_p99: quantile(&visible, 0.99),
    }
}

fn request(op: &Op) -> Option<u32> {
    match op {
        Op::Lookup { request, .. } => Some(*request),
        _ => None,
    }
}

/// µs from handing over a store of a prompt that nobody has until another thread's look-ups find all of it. The writer
/// goes on when it was found, so what a probe waits for is at most the few stores before it.
fn probe<S: Side>(mut side: S, load: &Load) -> Vec<f64> {
    let mut hands = side.hands(load, 1, 1);
    let (mut reader, mut writer) = (hands.pop().expect("asked for"), hands.pop().expect("asked for"));
    let base = Instant::now();
    let nanos = || base.elapsed().as_nanos() as u64;
    let (sent, sent_at, found) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(0));
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let (sent, sent_at, found, nanos) = (&sent, &sent_at, &found, &nanos);
        let probes = load.probes.clone();
        scope.spawn(move || {
            for request in probes {
                let to = load.prompts[request as usize].len() as u32;
                let store = Op::Store { worker: request % load.workers, request, from: 0, to };
                writer.prepare(&store);
                if request as usize % PROBE_EVERY == 0 {
                    sent_at.store(nanos(), Ordering::Relaxed);
                    sent.store(request, Ordering::Release);
                    writer.apply(&store);
                    while found.load(Ordering::Acquire) != request {
                        std::hint::spin_loop();
                    }
                } else {
                    writer.apply(&store);
                }
            }
            sent.store(u32::MAX, Ordering::Release);
        });
        loop {
            match sent.load(Ordering::Acquire) {
                u32::MAX => break,
                request if request != 0 && request != found.load(Ordering::Relaxed) => {
                    let whole = load.prompts[request as usize].len() as u32;
                    while reader.look_up(request).1 < whole {
                        std::hint::spin_loop();
                    }
                    times.push((nanos() - sent_at.load(Ordering::Relaxed)) as f64 / 1e3);
                    found.store(request, Ordering::Release);
                }
                _ => std::hint::spin_loop(),
            }
        }
    });
    times
}
