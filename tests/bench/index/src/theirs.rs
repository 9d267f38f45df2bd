//! dynamo-kv-router's default index behind [`Side`]: the concurrent compressed radix tree under its thread pool. Events go
//! to threads of its own, look-ups run in the caller's thread on the tree itself.

use crate::side::{Hand, Side};
use crate::workload::{BLOCK, Block, Load, Op};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, LocalBlockHash, RouterEvent, SyncIndexer, ThreadPoolIndexer};
use std::collections::VecDeque;
use tokio::runtime::{Builder, Runtime};

/// `router_event_threads` as documented.
pub const DEFAULT_THREADS: usize = 4;

pub struct Theirs {
    runtime: Runtime,
    indexer: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    sequences: Vec<Box<[LocalBlockHash]>>,
}

impl Theirs {
    pub fn new(load: &Load, event_threads: usize) -> Self {
        let mut theirs = Self::for_events(load, event_threads);
        let sequence = |prompt: &Box<[Block]>| prompt.iter().map(|block| LocalBlockHash(block.local)).collect();
        theirs.sequences = load.prompts.iter().map(sequence).collect();
        theirs
    }

    /// Without what requests compute for themselves: looks nothing up.
    pub fn for_events(_: &Load, event_threads: usize) -> Self {
        let runtime = Builder::new_current_thread().build().expect("a runtime without drivers needs nothing");
        let indexer = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), event_threads, BLOCK);
        Self { runtime, indexer, sequences: Vec::new() }
    }
}

impl Side for Theirs {
    type Hand<'a> = TheirHand<'a>;

    fn hands<'a>(&'a mut self, load: &'a Load, writers: usize, readers: usize) -> Vec<TheirHand<'a>> {
        let Self { runtime, indexer, sequences } = self;
        let hand = |_| TheirHand { runtime, indexer, sequences, load, prepared: VecDeque::new(), sent: 0 };
        (0..writers + readers).map(hand).collect()
    }
}

pub struct TheirHand<'a> {
    runtime: &'a Runtime,
    indexer: &'a ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    sequences: &'a [Box<[LocalBlockHash]>],
    load: &'a Load,
    prepared: VecDeque<RouterEvent>,
    sent: u64,
}

impl TheirHand<'_> {
    fn event(&mut self, op: &Op) -> Option<RouterEvent> {
        let data = match op {
            Op::Lookup { .. } => return None,
            Op::Store { request, from, to, .. } => {
                let prompt = &self.load.prompts[*request as usize];
                let block = |block: &Block| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(block.name),
                    tokens_hash: LocalBlockHash(block.local),
                    mm_extra_info: None,
                };
                KvCacheEventData::Stored(KvCacheStoreData {
                    parent_hash: from.checked_sub(1).map(|at| ExternalSequenceBlockHash(prompt[at as usize].name)),
                    start_position: Some(*from),
                    blocks: prompt[*from as usize..*to as usize].iter().map(block).collect(),
                })
            }
            Op::Remove { names, .. } => KvCacheEventData::Removed(KvCacheRemoveData {
                block_hashes: names.iter().map(|name| ExternalSequenceBlockHash(*name)).collect(),
            }),
        };
        let event_id = self.sent;
        self.sent += 1;
        Some(RouterEvent::new(u64::from(op.worker()), KvCacheEvent { event_id, data, dp_rank: 0 }))
    }
}

impl Hand for TheirHand<'_> {
    fn prepare(&mut self, op: &Op) {
        let event = self.event(op);
        self.prepared.extend(event);
    }

    fn look_up(&mut self, request: u32) -> (usize, u32) {
        let found = self.indexer.backend().find_matches(&self.sequences[request as usize], false);
        let longest = found.scores.values().copied().max();
        (found.scores.len(), longest.unwrap_or_default())
    }

    fn apply(&mut self, op: &Op) {
        let event = self.prepared.pop_front().or_else(|| self.event(op));
        if let Some(event) = event {
            self.indexer.enqueue_event(event).expect("its threads run until it is dropped");
        }
    }

    fn wait(&self) {
        self.runtime.block_on(self.indexer.flush());
    }
}
