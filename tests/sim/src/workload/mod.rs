//! Workloads: what is asked of the fleet, and when.
//!
//! ```text
//! workloads/NAME.toml ─► Definition ─┬─ [trace]     ─► trace::scale     interleaves disjoint copies
//!                                    └─ [[classes]] ─► sessions::draw   draws sessions
//!                                                        └─► Offered: requests in order of arrival
//! ```
//!
//! Load is scaled by more copies or more sessions, never by compressing time: pauses between the turns of a session stay as
//! they are. Arrivals do not wait for answers, so that every policy is offered the very same requests.
//!
//! A request carries one id for each complete block of prompt and answer; equal ids at equal places, after equal ids, are
//! equal prefixes. So the next turn of a conversation finds the blocks that the answer filled, as on a real engine.

mod sessions;
mod trace;

pub use trace::{Line, TraceError, read_mooncake};

use serde::Deserialize;
use sessions::{Burst, Class};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Arrival, µs from the start.
    pub at_us: u64,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Length of the answer.
    pub output_tokens: u32,
    /// One for each complete block of prompt followed by answer.
    pub blocks: Vec<u64>,
    /// Conversation it belongs to.
    pub session: u64,
}

/// What one run is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Tokens of one block, of the engines too.
    pub block_tokens: u32,
    /// In order of arrival.
    pub requests: Vec<Request>,
    /// When arrivals end, µs.
    pub horizon_us: u64,
}

impl Offered {
    /// The same, but no answer is ever asked about again: for engines whose answers are not the trace's.
    pub fn with_unknown_answers(mut self) -> Self {
        for (at, request) in (0_u64..).zip(&mut self.requests) {
            let whole = (request.prompt_tokens / self.block_tokens) as usize;
            let own = |place: usize| mix(mix(at, 5), place as u64);
            request.blocks.iter_mut().enumerate().skip(whole).for_each(|(place, block)| *block = own(place));
        }
        self
    }
}

/// A workload file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// What it stands for.
    pub about: String,
    /// Not looked at until every parameter is frozen.
    pub held_out: bool,
    /// Tokens of one block.
    pub block_tokens: u32,
    /// Requests of one run for each worker.
    pub requests_per_worker: u32,
    trace: Option<TraceName>,
    #[serde(default)]
    classes: Vec<Class>,
    burst: Option<Burst>,
    #[serde(skip)]
    lines: Vec<Line>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceName {
    name: String,
}

/// The committed files: name, definition.
const FILES: &[(&str, &str)] = &[
    ("conversation", include_str!("../../workloads/conversation.toml")),
    ("synthetic", include_str!("../../workloads/synthetic.toml")),
    ("chat", include_str!("../../workloads/chat.toml")),
    ("agent", include_str!("../../workloads/agent.toml")),
    ("rag", include_str!("../../workloads/rag.toml")),
    ("hot-prompt", include_str!("../../workloads/hot-prompt.toml")),
    ("mixed", include_str!("../../workloads/mixed.toml")),
    ("bursts", include_str!("../../workloads/bursts.toml")),
    ("no-reuse", include_str!("../../workloads/no-reuse.toml")),
];

/// Traces that definitions name.
const TRACES: &[(&str, &str)] = &[
    ("mooncake-conversation", include_str!("../../workloads/mooncake-conversation.txt")),
    ("mooncake-synthetic", include_str!("../../workloads/mooncake-synthetic.txt")),
];

/// Names of the committed workloads.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

impl Definition {
    /// A committed workload.
    pub fn committed(name: &str) -> Result<Self, String> {
        let known = || names().collect::<Vec<_>>().join(", ");
        let (_, text) =
            FILES.iter().find(|(file, _)| *file == name).ok_or_else(|| format!("no workload `{name}`: {}", known()))?;
        Self::parse(text).map_err(|error| format!("workload {name}: {error}"))
    }

    /// Reads a definition in TOML.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut definition: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if definition.block_tokens == 0 || definition.requests_per_worker == 0 {
            return Err("block_tokens and requests_per_worker must be at least 1".to_owned());
        }
        match &definition.trace {
            Some(trace) if definition.classes.is_empty() => {
                let text = TRACES.iter().find(|(name, _)| *name == trace.name);
                let (_, text) = text.ok_or_else(|| format!("no trace `{}`", trace.name))?;
                definition.lines = trace::read_short(text).map_err(|error| error.to_string())?;
            }
            None if !definition.classes.is_empty() => sessions::check(&definition.classes)?,
            _ => return Err("either [trace] or [[classes]] is needed".to_owned()),
        }
        Ok(definition)
    }

    /// A user's own trace.
    pub fn from_trace(lines: Vec<Line>, block_tokens: u32, requests_per_worker: u32) -> Self {
        Self {
            about: "a trace of your own".to_owned(),
            held_out: false,
            block_tokens,
            requests_per_worker,
            trace: None,
            classes: Vec::new(),
            burst: None,
            lines,
        }
    }

    /// About `count` requests at `per_second`. A function of its arguments.
    pub fn draw(&self, per_second: f64, count: usize, seed: u64) -> Offered {
        let mut rng = fastrand::Rng::with_seed(seed);
        let horizon_us = (count as f64 / per_second * 1e6) as u64;
        let mut requests = if self.classes.is_empty() {
            trace::scale(&self.lines, self.block_tokens, per_second, horizon_us, &mut rng)
        } else {
            sessions::draw(&self.classes, self.burst.as_ref(), self.block_tokens, per_second, horizon_us, &mut rng)
        };
        requests.sort_by_key(|request| request.at_us);
        Offered { block_tokens: self.block_tokens, requests, horizon_us }
    }
}

/// Mixes two numbers into one that looks random.
fn mix(a: u64, b: u64) -> u64 {
    let mut value = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_files_are_read_and_drawn_to_order() {
        for name in names() {
            let definition = Definition::committed(name).unwrap();
            let offered = definition.draw(8.0, 2_000, 7);
            let count = offered.requests.len() as f64;
            assert!((1_500.0..2_600.0).contains(&count), "{name}: {count} requests instead of about 2,000");
            for request in &offered.requests {
                let tokens = request.prompt_tokens + request.output_tokens;
                assert_eq!(request.blocks.len() as u32, tokens / definition.block_tokens, "{name}");
                assert!(request.prompt_tokens > 0 && request.output_tokens > 0 && request.at_us < offered.horizon_us);
            }
            assert!(offered.requests.is_sorted_by_key(|request| request.at_us));
            assert_eq!(offered, definition.draw(8.0, 2_000, 7), "{name}: one seed, one draw");
            assert_ne!(offered, definition.draw(8.0, 2_000, 8), "{name}");
        }
    }

    #[test]
    fn two_workloads_are_held_out() {
        let held: Vec<_> = names().filter(|name| Definition::committed(name).unwrap().held_out).collect();
        assert_eq!(held, ["synthetic", "agent"]);
    }

    /// Share of blocks whose prefix was asked for before.
    fn ideal_hits(offered: &Offered) -> f64 {
        let mut seen = hashbrown::HashSet::new();
        let (mut hits, mut all) = (0, 0);
        for request in &offered.requests {
            let prompt = (request.prompt_tokens / offered.block_tokens) as usize;
            let mut chain = 0;
            for (at, &block) in request.blocks.iter().enumerate() {
                chain = mix(chain, block);
                let new = seen.insert(chain);
                if at < prompt {
                    all += 1;
                    hits += u32::from(!new);
                }
            }
        }
        f64::from(hits) / f64::from(all)
    }

    #[test]
    fn what_is_shared_is_as_intended() {
        let hits = |name: &str| ideal_hits(&Definition::committed(name).unwrap().draw(8.0, 4_000, 1));
        assert!(hits("no-reuse") < 0.001);
        assert!(hits("chat") > 0.6, "{}", hits("chat"));
        assert!(hits("hot-prompt") > 0.8, "{}", hits("hot-prompt"));
        assert!((0.1..0.7).contains(&hits("rag")), "{}", hits("rag"));
        let whole = Definition::committed("conversation").unwrap();
        let once = ideal_hits(&whole.draw(12_031.0 / 3_537.0, 12_031, 1));
        assert!((0.33..0.40).contains(&once), "the trace's own rate: {once}");
    }
}
