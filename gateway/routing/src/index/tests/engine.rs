//! A brute-force engine: physical blocks in a plain list, searched linearly. Whatever it says it reused must be what the
//! index predicts, for any prompts, evictions and clears, one request at a time.

use super::*;
use proptest::prelude::*;

const BLOCK: usize = 4;

/// One physical block: the tokens up to its end, and when it was freed last.
struct Physical {
    upto: Vec<u32>,
    used: u64,
}

struct Engine {
    capacity: usize,
    blocks: Vec<Physical>,
    clock: u64,
    ledger: Ledger,
}

fn name(upto: &[u32]) -> ExternalHash {
    // Any function of the whole prefix will do; the index may not know it.
    ExternalHash(
        upto.iter()
            .fold(14_695_981_039_346_656_037, |sum, &token| (sum ^ u64::from(token)).wrapping_mul(1_099_511_628_211)),
    )
}

impl Engine {
    fn new(slot: u32, capacity: usize) -> Self {
        Self { capacity, blocks: Vec::new(), clock: 0, ledger: Ledger::new(WorkerId::new(slot, 0)) }
    }

    /// Serves a prompt and publishes what happened; returns the tokens it found cached.
    fn serve(&mut self, index: &PrefixIndex, tokens: &[u32]) -> usize {
        let whole = tokens.len() / BLOCK;
        // The last token is always computed: its logits are needed.
        let most = tokens.len().saturating_sub(1) / BLOCK;
        let held = |blocks: &[Physical], upto: &[u32]| blocks.iter().position(|block| block.upto == upto);
        let cached = (0..most).take_while(|at| held(&self.blocks, &tokens[..(at + 1) * BLOCK]).is_some()).count();
        if whole > self.capacity {
            return cached * BLOCK;
        }
        // Reused blocks are pinned, then room is made for the others: longest unused first.
        let pinned: Vec<usize> = (0..cached).filter_map(|at| held(&self.blocks, &tokens[..(at + 1) * BLOCK])).collect();
        self.clock += 1_000;
        for at in &pinned {
            self.blocks[*at].used = u64::MAX;
        }
        while self.blocks.len() + whole - cached > self.capacity {
            let oldest = (0..self.blocks.len()).min_by_key(|&at| self.blocks[at].used).expect("over capacity");
            let gone = self.blocks.swap_remove(oldest);
            self.ledger.removed(index, name(&gone.upto));
        }
        let hashes: Vec<ExternalHash> = (cached..whole).map(|at| name(&tokens[..(at + 1) * BLOCK])).collect();
        if !hashes.is_empty() {
            let parent = (cached > 0).then(|| name(&tokens[..cached * BLOCK]));
            let new = &tokens[cached * BLOCK..whole * BLOCK];
            let applied = self.ledger.stored(index, &key(), Domain(1), parent, &hashes, new, BLOCK as u32);
            assert_eq!(applied.blocks as usize, hashes.len(), "{applied:?}");
        }
        for at in cached..whole {
            self.blocks.push(Physical { upto: tokens[..(at + 1) * BLOCK].to_vec(), used: u64::MAX });
        }
        // Freed tail first.
        for block in self.blocks.iter_mut().filter(|block| block.used == u64::MAX) {
            block.used = self.clock - block.upto.len() as u64;
        }
        cached * BLOCK
    }

    fn clear(&mut self, index: &PrefixIndex) {
        self.blocks.clear();
        self.ledger.cleared(index);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Serve { slot: usize, branches: Vec<u32>, tail: usize },
    Clear { slot: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0usize..3, prop::collection::vec(0u32..2, 0..8), 0usize..9)
            .prop_map(|(slot, branches, tail)| Step::Serve { slot, branches, tail }),
        1 => (0usize..3).prop_map(|slot| Step::Clear { slot }),
    ]
}

/// A prompt from a small tree: each branch is five tokens, so that branches and blocks do not line up.
fn tokens(branches: &[u32], tail: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = branches.iter().flat_map(|&branch| (0..5).map(move |at| branch * 10 + at)).collect();
    tokens.extend((0..tail as u32).map(|at| 100 + at));
    tokens
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn predicted_hits_equal_what_the_engine_reused(
        capacity in 3usize..40, steps in prop::collection::vec(step(), 1..150),
    ) {
        let index = PrefixIndex::with_budget(BUDGET);
        let mut engines: Vec<Engine> = (0..3).map(|slot| Engine::new(slot, capacity)).collect();
        let mut out = Hits::default();
        for (turn, step) in steps.into_iter().enumerate() {
            match step {
                Step::Clear { slot } => engines[slot].clear(&index),
                Step::Serve { slot, branches, tail } => {
                    let tokens = tokens(&branches, tail);
                    index.lookup(&chain(&tokens, BLOCK as u32), 0, false, &mut out);
                    let most = tokens.len().saturating_sub(1) / BLOCK;
                    let predicted = (out.of(WorkerId::new(slot as u32, 0)) as usize).min(most) * BLOCK;
                    prop_assert_eq!(engines[slot].serve(&index, &tokens), predicted, "turn {}", turn);
                }
            }
        }
        // Nothing is left of engines that dropped everything.
        for engine in &mut engines {
            engine.clear(&index);
        }
        prop_assert_eq!(index.stats().entries, 0);
    }
}
