//! The index beside a model that is too simple to be wrong: sets of prefixes for each worker, searched block by block.
//!
//! Prompts come from a small tree whose branches lie anywhere, also across the ends of segments. Names are functions of the
//! whole prefix. A run is repeated by its seed, which every failure names.

use super::*;
use crate::index::feedback::UNCOUNTED_TAIL;
use hashbrown::{HashMap, HashSet};

/// In all runs together. Optimised builds (`make model-index`) do more than a million.
const OPERATIONS: u64 = if cfg!(debug_assertions) { 40_000 } else { 1_600_000 };
const RUNS: u64 = 8;
const WORKERS: usize = 6;
const LONGEST: usize = 300;

/// What the model keeps of a worker.
#[derive(Default)]
struct Cache {
    generation: u32,
    /// Names the feed knows, with their copies.
    copies: HashMap<u64, u16>,
    held: HashSet<u64>,
    host: HashMap<u64, u16>,
    doubted: HashSet<u64>,
    unsure: HashSet<u64>,
}

impl Cache {
    fn store(&mut self, name: u64) {
        let (doubted, unsure) = (self.doubted.remove(&name), self.unsure.remove(&name));
        let is_trusted = self.held.contains(&name) && !doubted && !unsure;
        let copies = self.copies.entry(name).or_default();
        *copies = if is_trusted { (*copies + 1).min(ledger::MAX_COPIES) } else { 1 };
        self.held.insert(name);
    }

    fn remove(&mut self, name: u64) {
        let Some(copies) = self.copies.get_mut(&name) else { return };
        if *copies > 1 && !self.doubted.contains(&name) {
            *copies -= 1;
            return;
        }
        self.copies.remove(&name);
        self.held.remove(&name);
        self.doubted.remove(&name);
        if !self.host.contains_key(&name) {
            self.unsure.remove(&name);
        }
    }

    fn clear(&mut self) {
        *self = Self { generation: self.generation, ..Self::default() };
    }
}

struct Run {
    seed: u64,
    rng: fastrand::Rng,
    index: PrefixIndex,
    key: HashKey,
    ledgers: Vec<Ledger>,
    caches: Vec<Cache>,
    /// Whether events are lost now and then. Stores then name whole prompts, so that the model need not know how far
    /// back a child proves its parents.
    loses_events: bool,
}

/// Names of every prefix of `tokens`.
fn names(tokens: &[u32]) -> Vec<u64> {
    let mut sum = 0;
    tokens
        .iter()
        .map(|&token| {
            sum = scramble(sum ^ u64::from(token));
            sum
        })
        .collect()
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            index: PrefixIndex::with_budget(BUDGET),
            key: key(),
            ledgers: (0..WORKERS).map(|slot| Ledger::new(WorkerId::new(slot as u32, 0))).collect(),
            caches: (0..WORKERS).map(|_| Cache::default()).collect(),
            loses_events: seed % 2 == 1,
        }
    }

    fn worker(&self, at: usize) -> WorkerId {
        WorkerId::new(at as u32, self.caches[at].generation)
    }

    /// One of three stems, left at a random depth for one of a few twigs.
    fn prompt(&mut self) -> Vec<u32> {
        let stem = self.rng.u32(0..3);
        let length = self.rng.usize(1..LONGEST);
        let fork = self.rng.usize(0..5) * 50 + self.rng.usize(0..4);
        let twig = self.rng.u32(1..4);
        (0..length).map(|at| if at < fork { stem } else { stem + 10 * twig } << 16 | at as u32).collect()
    }

    fn step(&mut self) {
        let at = self.rng.usize(0..WORKERS);
        match self.rng.u32(0..100) {
            0..35 => self.store(at),
            35..65 => self.remove(at),
            65..70 => self.mirror(at),
            70..74 => self.remove_from_host(at),
            74..92 => self.confirm(at),
            92..93 => self.restart(at),
            93..94 => self.clear(at),
            94..95 if self.loses_events => self.lose_events(at),
            95..98 => self.place(at),
            _ => drop(self.index.sweep(0)),
        }
    }

    fn store(&mut self, at: usize) {
        let tokens = self.prompt();
        let names = names(&tokens);
        let from = if self.loses_events || self.rng.bool() { 0 } else { self.rng.usize(0..tokens.len()) };
        let cache = &mut self.caches[at];
        let parent = from.checked_sub(1).map(|parent| names[parent]);
        let is_known = |parent: &u64| cache.copies.contains_key(parent) || cache.host.contains_key(parent);
        let hashes: Vec<ExternalHash> = names[from..].iter().map(|&name| ExternalHash(name)).collect();
        let parent_hash = parent.map(ExternalHash);
        let (index, key) = (&self.index, &self.key);
        let applied = self.ledgers[at].stored(index, key, Domain(1), parent_hash, &hashes, &tokens[from..], 1);
        if parent.as_ref().is_none_or(is_known) {
            // A name that responses took from the index may have lost its segment: then it is no parent any more.
            if applied.orphans == 0 {
                assert_eq!(applied.blocks as usize, hashes.len(), "seed {}: {applied:?}", self.seed);
                names[from..].iter().for_each(|&name| cache.store(name));
            } else {
                let is_there = parent.is_some_and(|name| cache.held.contains(&name) || cache.host.contains_key(&name));
                assert!(!is_there, "seed {}: a held parent is an orphan", self.seed);
            }
        } else {
            assert_eq!(applied.orphans as usize, hashes.len(), "seed {}", self.seed);
        }
    }

    fn remove(&mut self, at: usize) {
        let names = names(&self.prompt());
        // Mostly from the tail, as engines do; sometimes from the middle.
        let first = if self.rng.u8(0..4) == 0 { self.rng.usize(0..names.len()) } else { names.len() - 1 };
        let count = self.rng.usize(1..40);
        for &name in names[..=first].iter().rev().take(count) {
            self.ledgers[at].removed(&self.index, ExternalHash(name));
            self.caches[at].remove(name);
        }
    }

    fn mirror(&mut self, at: usize) {
        let names = names(&self.prompt());
        let from = self.rng.usize(0..names.len());
        let place = Place { tier: Tier::Host, group: 0 };
        for &name in names[from..].iter().take(20) {
            let applied = self.ledgers[at].mirrored(&self.index, place, &[ExternalHash(name)]);
            let cache = &mut self.caches[at];
            let is_held = cache.held.contains(&name);
            assert!(!is_held || applied.blocks == 1, "seed {}", self.seed);
            if applied.blocks == 1 {
                let is_trusted = cache.host.contains_key(&name);
                let copies = cache.host.entry(name).or_default();
                *copies = if is_trusted { (*copies + 1).min(ledger::MAX_COPIES) } else { 1 };
                cache.unsure.remove(&name);
            }
        }
    }

    fn remove_from_host(&mut self, at: usize) {
        let names = names(&self.prompt());
        let place = Place { tier: Tier::Host, group: 0 };
        for &name in names.iter().rev().take(40) {
            self.ledgers[at].removed_from(&self.index, place, ExternalHash(name));
            let cache = &mut self.caches[at];
            let Some(copies) = cache.host.get_mut(&name) else { continue };
            *copies -= 1;
            if *copies == 0 {
                cache.host.remove(&name);
                if !cache.held.contains(&name) {
                    cache.unsure.remove(&name);
                }
            }
        }
    }

    /// Compares the hits of a prompt, then lets the engine say that it found fewer, or all.
    fn confirm(&mut self, at: usize) {
        let tokens = self.prompt();
        let names = names(&tokens);
        let chain = chain(&tokens, 1);
        let mut hits = Hits::default();
        self.index.lookup(&chain, 0, false, &mut hits);
        for other in 0..WORKERS {
            self.compare(other, &names, &hits);
        }
        let worker = self.worker(at);
        let predicted = hits.of(worker);
        let cached = if self.rng.bool() { predicted } else { self.rng.u32(0..=predicted) };
        let report = CacheReport { predicted_blocks: predicted, cached_blocks: cached, placed_at_ms: 0, now_ms: 0 };
        self.index.confirm(worker, &chain, report);
        let missed = if cached < predicted { cached as usize } else { cached as usize + UNCOUNTED_TAIL };
        let cache = &mut self.caches[at];
        let told = |cache: &Cache, name: &u64| cache.held.contains(name) || cache.host.contains_key(name);
        let reach = names.iter().take_while(|name| told(cache, name)).count();
        for (depth, name) in names[..reach].iter().enumerate() {
            let was_unsure = cache.unsure.contains(name);
            if depth < cached as usize {
                cache.unsure.remove(name);
            } else if was_unsure && depth >= missed {
                cache.unsure.remove(name);
                cache.held.remove(name);
                cache.host.remove(name);
                cache.doubted.remove(name);
            } else if depth < predicted as usize && !was_unsure && cache.held.contains(name) {
                cache.doubted.insert(*name);
            }
        }
    }

    fn compare(&self, at: usize, names: &[u64], hits: &Hits) {
        let (worker, cache, seed) = (self.worker(at), &self.caches[at], self.seed);
        let rate = self.index.survival(worker);
        let weigh = |has: &dyn Fn(&u64) -> bool| {
            let blocks = names.iter().take_while(|name| has(name)).count();
            let unsure = names[..blocks].iter().filter(|name| cache.unsure.contains(*name)).count();
            (blocks - unsure + (unsure as f64 * rate) as usize) as u32
        };
        let device = weigh(&|name| cache.held.contains(name));
        let host = weigh(&|name| cache.held.contains(name) || cache.host.contains_key(name));
        assert_eq!(hits.of(worker), device, "seed {seed}: {worker} of {} blocks", names.len());
        let found = hits.detail(worker).map_or(device, |detail| detail.host);
        assert_eq!(found, host, "seed {seed}: {worker} with host memory, {:?}", hits.detail(worker));
    }

    fn restart(&mut self, at: usize) {
        self.index.forget(self.worker(at));
        self.caches[at].generation += 1;
        self.caches[at].clear();
        self.ledgers[at] = Ledger::new(self.worker(at));
    }

    fn clear(&mut self, at: usize) {
        self.ledgers[at].cleared(&self.index);
        self.caches[at].clear();
    }

    fn lose_events(&mut self, at: usize) {
        self.ledgers[at].unconfirm(&self.index);
        let cache = &mut self.caches[at];
        cache.unsure = cache.held.iter().chain(cache.host.keys()).copied().collect();
        cache.copies.values_mut().chain(cache.host.values_mut()).for_each(|copies| *copies = 1);
    }

    /// Own placements never take anything away.
    fn place(&mut self, at: usize) {
        let tokens = self.prompt();
        let worker = self.worker(at);
        let chain = chain(&tokens, 1);
        self.index.place(worker, &chain, Retention::Expiring { for_ms: 1_000 }, 0);
        let mut hits = Hits::default();
        self.index.lookup(&chain, 0, true, &mut hits);
        let whole = hits.detail(worker).map_or(hits.of(worker), |detail| detail.device + detail.unconfirmed);
        assert!(whole as usize >= tokens.len(), "seed {}: placed {} and found {whole}", self.seed, tokens.len());
    }
}

#[test]
fn the_index_and_a_plain_model_agree() {
    eprintln!("{OPERATIONS} operations, seeds 0 to {}", RUNS - 1);
    for seed in 0..RUNS {
        let mut run = Run::new(seed);
        for _ in 0..OPERATIONS / RUNS {
            run.step();
        }
        for at in 0..WORKERS {
            run.clear(at);
        }
        sweep_until_empty(&run.index, seed);
    }
}

fn sweep_until_empty(index: &PrefixIndex, seed: u64) {
    for _ in 0..SHARDS / SHARDS_PER_SWEEP {
        index.sweep(1 << 20);
    }
    let stats = index.stats();
    assert_eq!((stats.entries, stats.holders, stats.segments), (0, 0, 0), "seed {seed}");
}
