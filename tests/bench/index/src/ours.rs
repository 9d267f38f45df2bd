//! Forebay's index behind [`Side`]: whoever applies an event does so at once, in its own thread.

use crate::side::{Hand, Side};
use crate::workload::{Block, Load, Op};
use forebay_routing::WorkerId;
use forebay_routing::block::{self, ChainHash, Domain, HashKey, LocalHash};
use forebay_routing::index::ledger::{ExternalHash, Ledger};
use forebay_routing::index::{Hits, Place, PrefixIndex};

const DOMAIN: Domain = Domain(1);
/// More than any load here needs: nothing is evicted, as on the other side.
const BUDGET_BYTES: usize = 16 << 30;

pub struct Ours {
    key: HashKey,
    index: PrefixIndex,
    ledgers: Vec<Ledger>,
    chains: Vec<Box<[ChainHash]>>,
    /// What events tell of every prompt's blocks.
    prompts: Vec<Told>,
}

struct Told {
    names: Box<[ExternalHash]>,
    locals: Box<[LocalHash]>,
}

impl Ours {
    pub fn new(load: &Load) -> Self {
        let mut ours = Self::for_events(load);
        let chain = |prompt: &Box<[Block]>| chain(&ours.key, prompt.iter().map(|block| block.local));
        ours.chains = load.prompts.iter().map(chain).collect();
        ours
    }

    /// Without what requests compute for themselves: looks nothing up.
    pub fn for_events(load: &Load) -> Self {
        let key = HashKey::derive(&[7; 32]);
        let told = |prompt: &Box<[Block]>| Told {
            names: prompt.iter().map(|block| ExternalHash(block.name)).collect(),
            locals: prompt.iter().map(|block| LocalHash(block.local)).collect(),
        };
        Self {
            prompts: load.prompts.iter().map(told).collect(),
            chains: Vec::new(),
            ledgers: (0..load.workers).map(|slot| Ledger::new(WorkerId::new(slot, 0))).collect(),
            index: PrefixIndex::with_budget(BUDGET_BYTES),
            key,
        }
    }
}

fn chain(key: &HashKey, locals: impl Iterator<Item = u64>) -> Box<[ChainHash]> {
    let mut last = None;
    locals
        .map(|local| {
            let hash = block::link(key, last, LocalHash(local));
            last = Some(hash);
            hash
        })
        .collect()
}

impl Side for Ours {
    type Hand<'a> = OurHand<'a>;

    fn hands<'a>(&'a mut self, _: &'a Load, threads: usize, readers: usize) -> Vec<OurHand<'a>> {
        let Self { key, index, ledgers, chains, prompts } = self;
        let hand = |_| OurHand { key, index, chains, prompts, threads, ledgers: Vec::new(), hits: Hits::default() };
        let mut hands: Vec<OurHand<'a>> = (0..threads + readers).map(hand).collect();
        for (worker, ledger) in ledgers.iter_mut().enumerate() {
            hands[worker % threads].ledgers.push(ledger);
        }
        hands
    }
}

impl OurHand<'_> {
    /// Blocks credited for a request, by worker.
    pub fn hits(&mut self, request: u32) -> &Hits {
        self.index.lookup(&self.chains[request as usize], 0, false, &mut self.hits);
        &self.hits
    }
}

pub struct OurHand<'a> {
    key: &'a HashKey,
    index: &'a PrefixIndex,
    chains: &'a [Box<[ChainHash]>],
    prompts: &'a [Told],
    threads: usize,
    ledgers: Vec<&'a mut Ledger>,
    hits: Hits,
}

impl Hand for OurHand<'_> {
    fn prepare(&mut self, _: &Op) {}

    fn look_up(&mut self, request: u32) -> (usize, u32) {
        self.index.lookup(&self.chains[request as usize], 0, false, &mut self.hits);
        let longest = self.hits.blocks.iter().map(|(_, blocks)| *blocks).max();
        (self.hits.blocks.len(), longest.unwrap_or_default())
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Lookup { .. } => {}
            Op::Store { worker, request, from, to } => {
                let Told { names, locals } = &self.prompts[*request as usize];
                let parent = from.checked_sub(1).map(|parent| names[parent as usize]);
                let blocks = *from as usize..*to as usize;
                let ledger = &mut self.ledgers[*worker as usize / self.threads];
                let (names, locals) = (&names[blocks.clone()], &locals[blocks]);
                ledger.stored_hashed(self.index, self.key, DOMAIN, parent, names, locals);
            }
            Op::Remove { worker, names } => {
                let ledger = &mut self.ledgers[*worker as usize / self.threads];
                let names: Vec<ExternalHash> = names.iter().map(|name| ExternalHash(*name)).collect();
                ledger.removed_all(self.index, Place::DEVICE, &names);
            }
        }
    }

    fn wait(&self) {}
}
