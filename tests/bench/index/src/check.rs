//! Forebay's index beside the caches that the events tell of, at every look-up of the trace.

use crate::ours::Ours;
use crate::side::{Hand, Side};
use crate::workload::{Load, Op};
use forebay_routing::WorkerId;
use std::collections::HashSet;

/// Replays the trace on `workers` engines; a look-up that credits any of them another prefix than its cache has ends the
/// program.
pub fn compare(workers: u32) {
    let load = Load::trace(workers);
    let mut caches: Vec<HashSet<u64>> = (0..workers).map(|_| HashSet::new()).collect();
    let mut ours = Ours::new(&load);
    let mut hand = ours.hands(&load, 1, 0).pop().expect("one was asked for");
    let (mut look_ups, mut credited) = (0_u64, 0_u64);
    for op in &load.ops {
        match op {
            Op::Lookup { request, .. } => {
                let prompt = &load.prompts[*request as usize];
                let hits = hand.hits(*request);
                for (slot, cache) in (0..).zip(&caches) {
                    let held = prompt.iter().take_while(|block| cache.contains(&block.name)).count() as u32;
                    let found = hits.of(WorkerId::new(slot, 0));
                    assert_eq!(found, held, "request {request}, worker {slot}");
                    credited += u64::from(held);
                }
                look_ups += 1;
            }
            Op::Store { worker, request, from, to } => {
                let blocks = &load.prompts[*request as usize][*from as usize..*to as usize];
                caches[*worker as usize].extend(blocks.iter().map(|block| block.name));
                hand.apply(op);
            }
            Op::Remove { worker, names } => {
                for name in names {
                    caches[*worker as usize].remove(name);
                }
                hand.apply(op);
            }
        }
    }
    println!("check, {workers} workers: {look_ups} look-ups, {credited} blocks credited, all as in the caches");
}
