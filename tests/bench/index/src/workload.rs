//! What is replayed: requests of a trace on a fleet of engines with caches of their own, as look-ups and events.
//!
//! Fixed before anything was tuned: the Mooncake conversation trace (12,031 requests; 512-token blocks, each split into 32
//! engine blocks of 16 tokens), or one generated in its shape where the file is absent. A request goes to the engine that its
//! conversation went to before (its second trace block names it), one in five anywhere. Every engine keeps 16,384 blocks and
//! evicts the least recently used ones, tails first. Each request is one look-up, then one event with what its engine
//! evicted and events of at most 128 blocks (a prefill step of 2,048 tokens) with what it stored.

use serde::Deserialize;
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

/// Tokens of an engine block.
pub const BLOCK: u32 = 16;
const SPLIT: u64 = 32;
const CAPACITY: usize = 16_384;
const STEP_BLOCKS: usize = 128;
/// One request in so many leaves its conversation's engine.
const STRAY: u32 = 5;
const SEED: u64 = 20_251_130;
const PROBES: u32 = 9_000;
/// Requests where nothing is shared: memory does not depend on how many.
const UNIQUE_REQUESTS: usize = 4_000;

/// One block as an event tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The engine's name.
    pub name: u64,
    /// Hash of its tokens.
    pub local: u64,
}

/// One thing that happens.
pub enum Op {
    /// A prompt is looked up before it goes to `worker`.
    Lookup { worker: u32, request: u32 },
    /// Blocks `from..to` of a request's prompt come into a worker's cache.
    Store { worker: u32, request: u32, from: u32, to: u32 },
    /// Blocks leave a worker's cache.
    Remove { worker: u32, names: Box<[u64]> },
}

impl Op {
    /// Whose events these are, or who gets the prompt.
    pub fn worker(&self) -> u32 {
        match self {
            Self::Lookup { worker, .. } | Self::Store { worker, .. } | Self::Remove { worker, .. } => *worker,
        }
    }

    /// Blocks looked up, stored or removed.
    pub fn blocks(&self, load: &Load) -> usize {
        match self {
            Self::Lookup { request, .. } => load.prompts[*request as usize].len(),
            Self::Store { from, to, .. } => (to - from) as usize,
            Self::Remove { names, .. } => names.len(),
        }
    }
}

/// Requests and what happens because of them.
pub struct Load {
    pub workers: u32,
    pub prompts: Vec<Box<[Block]>>,
    pub ops: Vec<Op>,
    /// (block, worker) pairs when all is done.
    pub memberships: usize,
    /// Distinct blocks then.
    pub distinct: usize,
    /// Further prompts, of [`STEP_BLOCKS`] blocks that nobody has: for probes.
    pub probes: Range<u32>,
}

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
}

impl Load {
    /// The trace on `workers` engines.
    pub fn trace(workers: u32) -> Self {
        let requests = requests();
        let prompts = requests.iter().map(|ids| prompt(ids.iter().copied())).collect();
        Self::run(workers, prompts, &requests, Some(CAPACITY))
    }

    /// Prompts of the trace's lengths that share nothing, on engines that evict nothing.
    pub fn unique(workers: u32) -> Self {
        let mut requests: Vec<Vec<u64>> = requests().into_iter().take(UNIQUE_REQUESTS).collect();
        for (at, ids) in (1_u64..).zip(&mut requests) {
            ids.iter_mut().for_each(|id| *id = mix(*id ^ at << 32));
        }
        let prompts = requests.iter().map(|ids| prompt(ids.iter().copied())).collect();
        Self::run(workers, prompts, &requests, None)
    }

    fn run(workers: u32, prompts: Vec<Box<[Block]>>, requests: &[Vec<u64>], capacity: Option<usize>) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut caches: Vec<Cache> = (0..workers).map(|_| Cache::default()).collect();
        let mut ops = Vec::new();
        for (request, (blocks, ids)) in (0_u32..).zip(prompts.iter().zip(requests)) {
            let conversation = ids.get(1).or(ids.first()).copied().unwrap_or_default();
            let stray = rng.u32(0..STRAY) == 0;
            let worker = if stray { rng.u32(0..workers) } else { (mix(conversation) % u64::from(workers)) as u32 };
            ops.push(Op::Lookup { worker, request });
            caches[worker as usize].serve(worker, request, blocks, capacity, &mut ops);
        }
        let memberships = caches.iter().map(|cache| cache.used.len()).sum();
        let mut all: Vec<u64> = caches.iter().flat_map(|cache| cache.used.keys().copied()).collect();
        all.sort_unstable();
        all.dedup();
        let first = prompts.len() as u32;
        let extra =
            (0..PROBES).map(|probe| prompt((0..STEP_BLOCKS as u64 / SPLIT).map(|at| mix(!u64::from(probe * 64) - at))));
        let prompts: Vec<Box<[Block]>> = prompts.into_iter().chain(extra).collect();
        Self { workers, prompts, ops, memberships, distinct: all.len(), probes: first..first + PROBES }
    }

    /// All blocks of all operations.
    pub fn block_ops(&self) -> usize {
        self.ops.iter().map(|op| op.blocks(self)).sum()
    }
}

/// An engine's cache: blocks by the time of their last use.
#[derive(Default)]
struct Cache {
    used: HashMap<u64, u64>,
    order: std::collections::BTreeMap<u64, u64>,
    clock: u64,
}

impl Cache {
    fn serve(&mut self, worker: u32, request: u32, blocks: &[Block], capacity: Option<usize>, ops: &mut Vec<Op>) {
        let held = blocks.iter().take_while(|block| self.used.contains_key(&block.name)).count();
        let whole = capacity.map_or(blocks.len(), |capacity| blocks.len().min(capacity));
        // What is reused is pinned; then room is made.
        for block in &blocks[..held] {
            if let Some(at) = self.used.get(&block.name) {
                self.order.remove(at);
            }
        }
        let new = blocks[held..whole].iter().filter(|block| !self.used.contains_key(&block.name)).count();
        let excess = capacity.map_or(0, |capacity| (self.used.len() + new).saturating_sub(capacity));
        let mut gone = Vec::new();
        while gone.len() < excess {
            let Some((_, name)) = self.order.pop_first() else { break };
            self.used.remove(&name);
            gone.push(name);
        }
        if !gone.is_empty() {
            ops.push(Op::Remove { worker, names: gone.into() });
        }
        for from in (held..whole).step_by(STEP_BLOCKS) {
            let to = (from + STEP_BLOCKS).min(whole);
            ops.push(Op::Store { worker, request, from: from as u32, to: to as u32 });
        }
        // Freed tail first.
        for block in blocks[..whole].iter().rev() {
            self.clock += 1;
            if let Some(before) = self.used.insert(block.name, self.clock) {
                self.order.remove(&before);
            }
            self.order.insert(self.clock, block.name);
        }
    }
}

fn prompt(ids: impl Iterator<Item = u64>) -> Box<[Block]> {
    let mut name = 0;
    let locals = ids.flat_map(|id| (0..SPLIT).map(move |part| mix(id * SPLIT + part + 1)));
    locals
        .map(|local| {
            name = mix(name ^ local);
            Block { name, local }
        })
        .collect()
}

/// Trace blocks of every request.
fn requests() -> Vec<Vec<u64>> {
    let file = "shared/data/mooncake/conversation_trace.jsonl";
    let places = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let found = places.ancestors().map(|place| place.join(file)).find_map(|path| fs::read_to_string(path).ok());
    let parse = |line: &str| serde_json::from_str(line).ok().map(|line: Line| line.hash_ids);
    match found {
        Some(text) => text.lines().filter_map(parse).collect(),
        None => {
            eprintln!("{file} is not there: a trace is generated in its shape");
            generated()
        }
    }
}

/// 12,031 requests of about 24 trace blocks: one head for all, conversations that grow by a few blocks each turn, a third
/// of what is asked seen before.
fn generated() -> Vec<Vec<u64>> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut conversations: Vec<Vec<u64>> = Vec::new();
    let mut next = 1;
    let mut fresh = |count: u32| {
        let ids = (next..next + u64::from(count)).collect::<Vec<u64>>();
        next += u64::from(count);
        ids
    };
    let mut requests = Vec::new();
    for _ in 0..12_031 {
        let turn = if !conversations.is_empty() && rng.u32(0..100) < 40 {
            Some(rng.usize(0..conversations.len()))
        } else {
            None
        };
        let ids = match turn {
            Some(at) => {
                let grown = 1 + rng.u32(0..8);
                conversations[at].extend(fresh(grown));
                conversations[at].clone()
            }
            None => {
                let length = (1.0 / (rng.f64() + 0.02)).min(40.0) * 6.0;
                let mut ids = vec![0];
                ids.extend(fresh(length as u32 + 1));
                conversations.push(ids.clone());
                ids
            }
        };
        requests.push(ids);
    }
    requests
}

/// SplitMix64's finaliser.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
