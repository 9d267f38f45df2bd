//! Readers beside the writer of a shard, in every order that a model checker finds: `make loom`.
//!
//! A reader may see the state before a change or after it, of several changes any prefix. It may never credit a worker
//! with a block that this worker never had.

use crate::WorkerId;
use crate::block::ChainHash;
use crate::index::Spot;
use crate::index::claim::{Bounds, Claim, From, Held, Surroundings};
use crate::index::plane::{self, Plane};
use crate::index::segment::Record;
use crate::index::shard::Shard;
use crate::index::table::Table;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// Switches between threads that are not forced, in one order: more find nothing more and take for ever.
const PREEMPTIONS: usize = 2;
/// Steps of one order at most.
const BRANCHES: usize = 20_000;

const V: WorkerId = WorkerId::new(0, 0);
const W: WorkerId = WorkerId::new(1, 0);
/// `A` and `Z` have one slot in the table.
const A: ChainHash = ChainHash(8);
const Z: ChainHash = ChainHash(16);
const B: ChainHash = ChainHash(33);
const X: ChainHash = ChainHash(34);

#[derive(Default)]
struct Alone(AtomicUsize);

impl Surroundings for Alone {
    fn is_live(&self, _: &Record) -> bool {
        true
    }

    fn first_to_begin(&self, _: &[ChainHash]) -> Option<usize> {
        None
    }

    fn children(&self, _: Spot) -> Option<Arc<AtomicU32>> {
        None
    }

    fn publish(&self, _: usize, _: Arc<Table>) {}

    fn dangling(&self) -> &AtomicUsize {
        &self.0
    }
}

fn hold(shard: &Shard, worker: WorkerId, chain: &[ChainHash]) -> Held {
    let alone = Alone::default();
    let bounds = Bounds { index: &alone, max_bytes: usize::MAX };
    let claim = Claim { worker, plane: Plane::HELD, until: 0, now: 0 };
    let from = From { parent: None, position: 0 };
    let mut held = shard.hold_ahead(claim, from, chain, u64::MAX, &bounds).expect("there is room");
    let mut done = held.count;
    while done < chain.len() {
        let inside = shard.hold_inside(claim, held.last(), &chain[done..], u64::MAX, &bounds);
        let from = From { parent: Some(held.last()), position: done as u32 };
        held =
            inside.or_else(|| shard.hold_ahead(claim, from, &chain[done..], u64::MAX, &bounds)).expect("there is room");
        done += held.count;
    }
    held
}

fn release(shard: &Shard, worker: WorkerId, spot: Spot) {
    let alone = Alone::default();
    let bounds = Bounds { index: &alone, max_bytes: usize::MAX };
    shard.amend(spot, worker, &bounds, |view| view.clear(Plane::HELD, 1 << spot.offset));
}

/// What `worker` is credited of `chain`, as a look-up would.
fn credit(shard: &Shard, worker: WorkerId, chain: &[ChainHash]) -> usize {
    let mut position = 0;
    while let Some(segment) = chain.get(position).and_then(|head| shard.find(*head)) {
        let count = segment.matching(0, &chain[position..]);
        let blocks = (segment.view(worker).bits(Plane::HELD).trailing_ones() as usize).min(count);
        position += blocks;
        if blocks < count || count == 0 {
            break;
        }
    }
    position
}

/// What the slot of the segment of `chain` tells of `worker`, if it tells all.
fn glance(shard: &Shard, worker: WorkerId, chain: &[ChainHash]) -> Option<usize> {
    let glance = shard.glance(chain[0]).filter(|glance| glance.is_front_of(chain))?;
    let own = glance.records().find(|(key, _)| plane::worker(*key) == worker);
    Some(own.map_or(0, |(_, bits)| (bits.trailing_ones() as usize).min(glance.len)))
}

fn check(write: impl Fn(&Shard) + Send + Sync + Copy + 'static, read: impl Fn(&Shard) + Send + Sync + Copy + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = BRANCHES;
    builder.check(move || {
        let shard = Arc::new(Shard::new(0).0);
        hold(&shard, V, &[A, B]);
        let reader = {
            let shard = shard.clone();
            thread::spawn(move || read(&shard))
        };
        write(&shard);
        reader.join().expect("its assertions hold");
    });
}

#[test]
fn a_fork_is_no_credit_for_who_went_the_other_way() {
    check(
        |shard| {
            hold(shard, W, &[A, X]);
            assert_eq!((credit(shard, W, &[A, X]), credit(shard, V, &[A, X])), (2, 1));
        },
        |shard| {
            assert!(credit(shard, V, &[A, X]) <= 1);
            assert!(credit(shard, W, &[A, B]) <= 1);
            assert_eq!(credit(shard, V, &[A, B]), 2, "it was there all the time");
        },
    );
}

#[test]
fn blocks_appended_in_place_show_with_their_hashes_or_not_at_all() {
    check(
        |shard| {
            hold(shard, V, &[A, B, X]);
            hold(shard, W, &[A]);
            assert_eq!(credit(shard, V, &[A, B, X]), 3);
        },
        |shard| {
            let found = credit(shard, V, &[A, B, X]);
            assert!(found == 2 || found == 3, "{found}");
            assert!(credit(shard, W, &[A, B]) <= 1);
            assert_eq!(credit(shard, V, &[A, B, Z]), 2);
        },
    );
}

#[test]
fn a_slot_that_changes_hands_names_no_other_segment() {
    check(
        |shard| {
            let held = hold(shard, V, &[A, B]);
            release(shard, V, held.spot.after(1));
            release(shard, V, held.spot);
            hold(shard, W, &[Z, B]);
            assert_eq!((credit(shard, V, &[A]), credit(shard, W, &[Z, B])), (0, 2));
        },
        |shard| {
            assert!(credit(shard, V, &[A, B]) <= 2);
            assert_eq!(credit(shard, V, &[Z, B]), 0);
            assert_eq!(credit(shard, W, &[A, B]), 0);
        },
    );
}

/// Length, hashes and holders in a slot are of one moment, whichever.
#[test]
fn a_glance_mixes_no_two_moments() {
    check(
        |shard| {
            let held = hold(shard, V, &[A, B, X]);
            release(shard, V, held.spot.after(2));
            hold(shard, W, &[A, B]);
            assert_eq!((glance(shard, V, &[A, B]), glance(shard, W, &[A, B])), (Some(2), Some(2)));
        },
        |shard| {
            assert!(matches!(glance(shard, V, &[A, B, X]), None | Some(2 | 3)));
            assert!(matches!(glance(shard, V, &[A, B]), None | Some(2)));
            assert!(matches!(glance(shard, W, &[A, B, X]), None | Some(0 | 2)));
        },
    );
}
