//! Policies: ours, rivals', and the oracle.
//!
//! A rival is written from its published description and sees what ours sees: the same hits, loads and readings, read as often
//! as its own product reads them. Each exists in its published form and in a tuned one, whose parameters were chosen on the
//! workloads and engines that are not held out.

mod dynamo;
mod hash;
mod llmd;
mod lmetric;
mod oracle;
mod ours;
mod sglang;
mod simple;

pub use oracle::Truth;

use crate::hardware::Hardware;
use forebay_routing::decision::Reason;
use forebay_routing::score;
use forebay_routing::view::{LocalLoad, WorkerState, WorkerView};
use forebay_routing::{DecideInput, Decision};

/// A question to a policy.
pub struct Ask<'a> {
    /// What the gateway knows.
    pub input: &'a DecideInput<'a>,
    /// Names the request until it is over.
    pub job: u64,
    /// How things really stand, by worker of the scenario; for the oracle alone.
    pub truth: Option<&'a [Truth]>,
}

/// A way to choose, with what it remembers.
pub trait Router {
    /// Chooses; `None` when nobody may be chosen. The request is sent there at once.
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision>;

    /// The first token of a request came.
    fn first_token(&mut self, _job: u64) {}

    /// A request is over, however it ended.
    fn done(&mut self, _job: u64) {}

    /// Whether a prefix counts as held where it was just sent, before the engine's event says so.
    fn own_placements(&self) -> bool {
        false
    }

    /// Whether it is told how things really stand.
    fn wants_truth(&self) -> bool {
        false
    }

    /// How often it reads engines' loads, µs; `None`: as the scenario says.
    fn load_interval_us(&self) -> Option<u64> {
        None
    }
}

/// A worker that may be chosen.
#[derive(Clone, Copy)]
struct Seat<'a> {
    position: u32,
    worker: &'a WorkerView,
    local: LocalLoad,
    cached_tokens: u32,
    /// Blocks that it holds of the prompt.
    hit_blocks: u32,
}

impl Seat<'_> {
    fn uncached_tokens(&self, ask: &Ask<'_>) -> u32 {
        ask.input.facts.prompt_tokens - self.cached_tokens
    }

    fn decision(&self, ask: &Ask<'_>) -> Decision {
        let score = score::score(ask.input.facts, ask.input.hits, self.worker, &self.local, ask.input.now_ms);
        Decision {
            position: self.position,
            worker: self.worker.id,
            cached_tokens: self.cached_tokens,
            uncached_tokens: self.uncached_tokens(ask),
            ttft_ms: score.terms.ttft_ms(),
            reason: Reason::Policy,
        }
    }
}

/// Workers that may be chosen, in the order of the view.
fn seats<'a>(ask: &'a Ask<'_>) -> Vec<Seat<'a>> {
    let input = ask.input;
    let listed = (0_u32..).zip(&input.view.workers);
    let may = listed.filter(|(_, worker)| worker.state == WorkerState::Ready && !input.exclude.contains(&worker.id));
    may.map(|(position, worker)| Seat {
        position,
        worker,
        local: input.local.get(position as usize).copied().unwrap_or_default(),
        cached_tokens: score::cached_tokens(input.facts, input.hits, worker),
        hit_blocks: input.hits[0].of(worker.id),
    })
    .collect()
}

/// Complete blocks of the prompt.
fn prompt_blocks(ask: &Ask<'_>) -> f64 {
    ask.input.facts.chains[0].hashes.len().max(1) as f64
}

/// The seat of least cost, ties at random.
fn least<'a>(seats: &[Seat<'a>], rng: &mut fastrand::Rng, cost: impl Fn(&Seat<'a>) -> f64) -> Option<Seat<'a>> {
    let mut best: Option<(f64, Seat<'a>)> = None;
    let mut ties = 0;
    for seat in seats {
        let cost = cost(seat);
        match &best {
            Some((least, _)) if cost > *least => {}
            Some((least, _)) if cost == *least => {
                ties += 1;
                if rng.u32(..ties) == 0 {
                    best = Some((cost, *seat));
                }
            }
            _ => {
                best = Some((cost, *seat));
                ties = 1;
            }
        }
    }
    best.map(|(_, seat)| seat)
}

/// A policy by name and parameters: `dynamo`, or `dynamo:credit=4,place=1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// As the user wrote it.
    pub name: String,
    kind: &'static str,
    parameters: Vec<(String, f64)>,
}

/// Names that users write, what they mean, and where that is described.
const NAMED: &[(&str, &str, &str)] = &[
    ("kv", "kv", "ours: least predicted cost in time"),
    ("oracle", "oracle", "knows true caches, queues and costs; a yardstick, not a policy"),
    ("round-robin", "round-robin", "in turn"),
    ("random", "random", "uniformly at random"),
    ("least-requests", "least-requests", "fewest requests in flight"),
    ("power-of-two", "power-of-two", "fewer in flight of two at random"),
    ("prefix-hash", "prefix-hash", "consistent hash of 256 tokens, bounded load 1.25"),
    ("prefix-hash-tuned", "prefix-hash:tokens=1536,factor=1.25", "the same, tuned"),
    ("sglang", "sglang", "SGLang cache-aware: own radix tree, threshold 0.3, imbalance 64 and 1.5"),
    ("sglang-tuned", "sglang:threshold=0.5,abs=4,rel=1.5,events=1", "the same over KV events, tuned"),
    ("dynamo", "dynamo", "Dynamo's default cost function"),
    ("dynamo-predict", "dynamo:place=1", "the same, own placements counted before events"),
    ("dynamo-tuned", "dynamo:place=1,credit=1.0,scale=2.0", "the same, tuned"),
    ("llm-d", "llm-d", "llm-d weighted scorers: prefix 3, queue 2, kv 2, no-hit-lru 2"),
    ("llm-d-tuned", "llm-d:prefix=2,queue=1,kv=1,lru=1,active=3", "the same with active requests, tuned"),
    ("llm-d-sticky", "llm-d-sticky", "llm-d's token-aware default: sticky until saturated, 286,700 tokens"),
    ("llm-d-sticky-tuned", "llm-d-sticky:gap=12000,affinity=0.5", "the same, calibrated to this engine"),
    ("lmetric", "lmetric", "product of tokens to compute and requests there"),
    ("lmetric-tuned", "lmetric:place=1", "the same, own placements counted"),
];

/// Names and descriptions of all policies.
pub fn named() -> impl Iterator<Item = (&'static str, &'static str)> {
    NAMED.iter().map(|(name, _, about)| (*name, *about))
}

const KINDS: &[(&str, &[&str])] = &[
    ("kv", &[]),
    ("oracle", &["harm"]),
    ("round-robin", &[]),
    ("random", &[]),
    ("least-requests", &[]),
    ("power-of-two", &[]),
    ("prefix-hash", &["tokens", "factor"]),
    ("sglang", &["threshold", "abs", "rel", "events"]),
    ("dynamo", &["place", "credit", "scale", "decay", "requests"]),
    ("llm-d", &["prefix", "queue", "kv", "lru", "active"]),
    ("llm-d-sticky", &["gap", "affinity", "requests"]),
    ("lmetric", &["place"]),
];

impl Spec {
    /// Reads a name with or without parameters.
    pub fn parse(text: &str) -> Result<Self, String> {
        let meaning = NAMED.iter().find(|(name, ..)| *name == text).map_or(text, |(_, meaning, _)| *meaning);
        let (kind, rest) = meaning.split_once(':').unwrap_or((meaning, ""));
        let known = || NAMED.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
        let (kind, keys) =
            KINDS.iter().find(|(known, _)| *known == kind).ok_or_else(|| format!("no policy `{kind}`: {}", known()))?;
        let mut parameters = Vec::new();
        for pair in rest.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` in `{text}` is not key=value"))?;
            let value = value.parse::<f64>().map_err(|_| format!("`{value}` in `{text}` is no number"))?;
            if !keys.contains(&key) {
                return Err(format!("{kind} has no parameter `{key}`, but: {}", keys.join(", ")));
            }
            parameters.push((key.to_owned(), value));
        }
        Ok(Self { name: text.to_owned(), kind, parameters })
    }

    fn or(&self, key: &str, default: f64) -> f64 {
        self.parameters.iter().find(|(name, _)| name == key).map_or(default, |(_, value)| *value)
    }

    /// A policy with nothing remembered, for at most `workers`.
    pub fn build(&self, workers: usize, block_tokens: u32, hardware: &Hardware) -> Box<dyn Router> {
        match self.kind {
            "round-robin" => Box::new(simple::RoundRobin::default()),
            "random" => Box::new(simple::Random),
            "least-requests" => Box::new(simple::LeastRequests),
            "power-of-two" => Box::new(simple::PowerOfTwo),
            "prefix-hash" => {
                let blocks = (self.or("tokens", 256.0) / f64::from(block_tokens)).ceil();
                Box::new(hash::PrefixHash { blocks: blocks as usize, factor: self.or("factor", 1.25) })
            }
            "sglang" => Box::new(sglang::CacheAware::new(
                sglang::Thresholds {
                    cache: self.or("threshold", 0.3),
                    absolute: self.or("abs", 64.0),
                    relative: self.or("rel", 1.5),
                },
                self.or("events", 0.0) > 0.0,
                workers,
            )),
            "dynamo" => Box::new(dynamo::Dynamo::new(
                dynamo::Weights {
                    credit: self.or("credit", 1.0),
                    scale: self.or("scale", 1.0),
                    decay: self.or("decay", 0.0),
                    requests: self.or("requests", 0.0),
                },
                self.or("place", 0.0) > 0.0,
                workers,
            )),
            "llm-d" => Box::new(llmd::Weighted::new(
                llmd::Weights {
                    prefix: self.or("prefix", 3.0),
                    queue: self.or("queue", 2.0),
                    kv: self.or("kv", 2.0),
                    lru: self.or("lru", 2.0),
                    active: self.or("active", 0.0),
                },
                workers,
            )),
            "llm-d-sticky" => Box::new(llmd::Sticky {
                gap_tokens: self.or("gap", 286_700.0),
                affinity: self.or("affinity", 0.8),
                by_requests: self.or("requests", 0.0) > 0.0,
            }),
            "lmetric" => Box::new(lmetric::Product { own_placements: self.or("place", 0.0) > 0.0 }),
            "oracle" => Box::new(oracle::Oracle::new(hardware.clone(), self.or("harm", oracle::HARM))),
            _ => Box::new(ours::Ours),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_policy_and_bad_ones_say_what_is_wrong() {
        for (name, _) in named() {
            assert_eq!(Spec::parse(name).unwrap().name, name);
        }
        assert_eq!(Spec::parse("dynamo:credit=4").unwrap().or("credit", 1.0), 4.0);
        assert!(Spec::parse("dynamos").unwrap_err().contains("no policy `dynamos`: kv, oracle"));
        assert!(Spec::parse("dynamo:credits=4").unwrap_err().contains("credit, scale"));
        assert!(Spec::parse("dynamo:credit=x").unwrap_err().contains("`x`"));
    }
}
