//! Block operations a second: look-ups and events together, until the last event is applied.

use crate::ours::Ours;
use crate::side::{Hand, Side, pin, quantile, spread};
use crate::theirs::{DEFAULT_THREADS, Theirs};
use crate::workload::{BLOCK, Load, Op};
use forebay_routing::WorkerId;
use forebay_routing::block::{self, Domain, HashKey};
use forebay_routing::index::PrefixIndex;
use forebay_routing::index::ledger::{ExternalHash, Ledger};
use std::hint::black_box;
use std::time::Instant;

const RUNS: usize = 5;
const CORES: [usize; 2] = [1, 2];

/// Replays the trace on `workers` engines; returns ours / theirs on as many cores as there are.
pub fn compare(workers: u32) -> f64 {
    let load = Load::trace(workers);
    let block_ops = load.block_ops() as f64;
    println!(
        "\nspeed, {workers} workers: {} requests, {} events, {block_ops} block operations, {} blocks, {} memberships",
        load.prompts.len(),
        load.ops.iter().filter(|op| !matches!(op, Op::Lookup { .. })).count(),
        load.distinct,
        load.memberships
    );
    println!(
        "| Cores | Forebay M block ops/s | Dynamo, 4 event threads (default) | Dynamo, best | Ratio to the better |"
    );
    println!("|---|---|---|---|---|");
    let mut ratio = 0.0;
    for cores in CORES {
        pin(cores);
        let theirs = |threads: usize| block_ops / replay(Theirs::new(&load, threads), &load, cores) / 1e6;
        let tried = [1, 2, DEFAULT_THREADS].map(|threads| (theirs(threads), threads));
        let best = tried.into_iter().max_by(|one, other| one.0.total_cmp(&other.0)).map_or(1, |(_, threads)| threads);
        let (mut ours, mut default, mut tuned) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            ours.push(block_ops / replay(Ours::new(&load), &load, cores) / 1e6);
            default.push(theirs(DEFAULT_THREADS));
            tuned.push(if best == DEFAULT_THREADS { default[default.len() - 1] } else { theirs(best) });
        }
        let (ours, default, tuned) = (spread(ours), spread(default), spread(tuned));
        ratio = ours.0 / default.0.max(tuned.0);
        let show = |(median, least, most): (f64, f64, f64)| format!("{median:.2} ({least:.2}–{most:.2})");
        println!("| {cores} | {} | {} | {} with {best} | {ratio:.2} |", show(ours), show(default), show(tuned));
    }
    pin(usize::MAX);
    ratio
}

/// Seconds from the first operation until everything is applied.
fn replay<S: Side>(mut side: S, load: &Load, threads: usize) -> f64 {
    let mut hands = side.hands(load, threads, 1);
    let waiter = hands.pop().expect("one reader was asked for");
    let part = |part| load.ops.iter().filter(|op| op.worker() as usize % threads == part).collect();
    let parts: Vec<Vec<&Op>> = (0..threads).map(part).collect();
    for (hand, part) in hands.iter_mut().zip(&parts) {
        part.iter().for_each(|op| hand.prepare(op));
    }
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (mut hand, part) in hands.into_iter().zip(&parts) {
            scope.spawn(move || {
                for op in part {
                    match op {
                        Op::Lookup { request, .. } => drop(black_box(hand.look_up(*request))),
                        event => hand.apply(event),
                    }
                }
            });
        }
    });
    waiter.wait();
    started.elapsed().as_secs_f64()
}

/// Median µs for the chain hashes of 50,000 tokens.
pub fn hash() -> f64 {
    let key = HashKey::derive(&[5; 32]);
    let tokens: Vec<u32> = (0..50_000_u32).map(|at| at.wrapping_mul(2_654_435_761) % 151_936).collect();
    let mut out = Vec::new();
    let mut times: Vec<f64> = (0..2_000)
        .map(|_| {
            out.clear();
            let started = Instant::now();
            block::chain(&key, Domain(1), BLOCK, black_box(&tokens), &mut out);
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let median = quantile(&times, 0.5);
    println!("\nhash 50,000 tokens: median {median:.1} µs, best {:.1}, p99 {:.1}", times[0], quantile(&times, 0.99));
    median
}

/// Events with token ids, as they come from an engine: hashed and applied in one thread.
pub fn ingest() {
    pin(1);
    let key = HashKey::derive(&[5; 32]);
    let rates = (0..RUNS)
        .map(|_| {
            let index = PrefixIndex::with_budget(4 << 30);
            let mut ledgers: Vec<Ledger> = (0..64).map(|slot| Ledger::new(WorkerId::new(slot, 0))).collect();
            let mut blocks = 0;
            let mut seconds = 0.0;
            for request in 0..4_000_u32 {
                let tokens: Vec<u32> = (0..128 * BLOCK).map(|at| at ^ request << 12).collect();
                let names: Vec<ExternalHash> =
                    (0..128_u64).map(|at| ExternalHash(crate::workload::mix(u64::from(request) << 8 | at))).collect();
                let started = Instant::now();
                let ledger = &mut ledgers[request as usize % 64];
                blocks += ledger.stored(&index, &key, Domain(1), None, &names, &tokens, BLOCK).blocks;
                seconds += started.elapsed().as_secs_f64();
            }
            f64::from(blocks) / seconds / 1e6
        })
        .collect();
    let (median, least, most) = spread(rates);
    println!("\ningest with token ids, one core: {median:.2} M blocks/s ({least:.2}–{most:.2}), hashing included");
    pin(usize::MAX);
}
