//! What will happen, in order of time, and of making where times are equal.

use forebay_engine::model::CacheEvent;
use forebay_routing::view::EngineLoad;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Something that will happen.
pub(super) enum Event {
    Arrive(usize),
    StepEnds { worker: usize, life: u32 },
    Heard { gateway: usize, worker: usize, life: u32, events: Rc<Vec<CacheEvent>> },
    Lost { gateway: usize, worker: usize, life: u32 },
    Scrape,
    Read { gateway: usize, worker: usize, load: EngineLoad },
    Sweep,
    Script(usize),
    Broke { job: usize },
    Back { worker: usize },
}

struct Entry {
    at_us: u64,
    number: u64,
    event: Event,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The earliest first, out of a heap that gives the greatest.
        (other.at_us, other.number).cmp(&(self.at_us, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// See the module page.
#[derive(Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Entry>,
    made: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at_us: u64, event: Event) {
        self.made += 1;
        self.heap.push(Entry { at_us, number: self.made, event });
    }

    /// What is next, and when.
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|entry| (entry.at_us, entry.event))
    }
}
