//! Sessions drawn at random: turns, shared heads, documents, sub-agents.

use super::{Request, mix};
use serde::Deserialize;

/// Sessions drawn to learn how many requests one has.
const SAMPLES: usize = 2_000;
/// Time that a turn takes, as far as the pause before the next one is concerned: first token and each further one.
const NOMINAL_TTFT_US: f64 = 300_000.0;
const NOMINAL_ITL_US: f64 = 12_000.0;
/// Longest prompt and answer together, tokens: sessions end before they grow beyond.
const MAX_CONTEXT: u32 = 120_000;

/// One kind of session.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Class {
    name: String,
    /// Share of sessions; 0 for classes that only children are of.
    weight: f64,
    turns: Turns,
    user: Size,
    output: Size,
    think_s: f64,
    prefix: Option<Pool>,
    documents: Option<Documents>,
    children: Option<Children>,
}

/// Turns: `least`, and beyond it a geometric number.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turns {
    least: u32,
    mean: f64,
    most: u32,
}

/// Log-normal number of tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    median: f64,
    sigma: f64,
    most: u32,
}

/// Texts that sessions share, chosen by Zipf.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pool {
    count: u32,
    zipf: f64,
    tokens: Size,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Documents {
    count: u32,
    zipf: f64,
    per_turn: u32,
    tokens: Size,
}

/// Sub-agents: with this chance a turn starts a session of another class.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Children {
    class: String,
    chance: f64,
}

/// Waves of arrivals; the mean rate stays.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Burst {
    every_s: f64,
    lasts_s: f64,
    factor: f64,
}

impl Burst {
    /// Rate at `at_us` relative to the mean.
    fn rate(&self, at_us: f64) -> f64 {
        let share = self.lasts_s / self.every_s;
        let rest = (1.0 - share * self.factor) / (1.0 - share);
        if (at_us / 1e6).rem_euclid(self.every_s) < self.lasts_s { self.factor } else { rest }
    }
}

/// Whether the classes hang together.
pub(super) fn check(classes: &[Class]) -> Result<(), String> {
    for class in classes {
        let children = class.children.as_ref();
        if let Some(children) = children.filter(|children| classes.iter().all(|other| other.name != children.class)) {
            return Err(format!("class {}: no class `{}`", class.name, children.class));
        }
        if children.is_some_and(|children| children.class == class.name) {
            return Err(format!("class {} may not be its own child", class.name));
        }
    }
    if classes.iter().all(|class| class.weight <= 0.0) { Err("no class has a weight".to_owned()) } else { Ok(()) }
}

/// Sessions at such a rate that about `per_second` requests arrive, from before the start on, so that at the start
/// conversations of every age go on.
pub(super) fn draw(
    classes: &[Class],
    burst: Option<&Burst>,
    block_tokens: u32,
    per_second: f64,
    horizon_us: u64,
    rng: &mut fastrand::Rng,
) -> Vec<Request> {
    let world = rng.u64(..);
    let (requests, lasts_us) = usual(classes, world);
    let gap_us = 1e6 * requests / per_second;
    let most = burst.map_or(1.0, |burst| burst.factor.max(1.0));
    let mut drawn = Vec::new();
    let mut at_us = -3.0 * lasts_us;
    loop {
        at_us += exponential(gap_us / most, rng);
        if at_us >= horizon_us as f64 {
            break;
        }
        let rate = burst.map_or(1.0, |burst| burst.rate(at_us));
        if rng.f64() * most < rate {
            let mut session = Session { classes, block_tokens, world, out: &mut drawn, horizon_us };
            session.run(pick(classes, rng), at_us, rng);
        }
    }
    drawn
}

/// Mean requests and duration of a session.
fn usual(classes: &[Class], world: u64) -> (f64, f64) {
    let mut rng = fastrand::Rng::with_seed(4);
    let (mut drawn, mut lasts_us) = (Vec::new(), 0.0);
    for _ in 0..SAMPLES {
        let mut session = Session { classes, block_tokens: u32::MAX, world, out: &mut drawn, horizon_us: u64::MAX };
        lasts_us += session.run(pick(classes, &mut rng), 0.0, &mut rng);
    }
    (drawn.len() as f64 / SAMPLES as f64, lasts_us / SAMPLES as f64)
}

fn pick<'a>(classes: &'a [Class], rng: &mut fastrand::Rng) -> &'a Class {
    let all: f64 = classes.iter().map(|class| class.weight).sum();
    let mut left = rng.f64() * all;
    for class in classes {
        left -= class.weight;
        if left < 0.0 {
            return class;
        }
    }
    &classes[0]
}

struct Session<'a> {
    classes: &'a [Class],
    block_tokens: u32,
    /// Seed of what is shared.
    world: u64,
    out: &'a mut Vec<Request>,
    horizon_us: u64,
}

impl Session<'_> {
    /// Draws one session, its children included; returns how long it lasts.
    fn run(&mut self, class: &Class, start_us: f64, rng: &mut fastrand::Rng) -> f64 {
        let session = rng.u64(..);
        let mut text = Text::default();
        if let Some(pool) = &class.prefix {
            let kind = mix(self.world, class.name.len() as u64 ^ u64::from(class.name.as_bytes()[0]) << 8);
            text.add_shared(pool.count, pool.zipf, &pool.tokens, kind, rng);
        }
        let mut at_us = start_us;
        for turn in 0..class.turns.draw(rng) {
            if let Some(documents) = &class.documents {
                for _ in 0..documents.per_turn {
                    text.add_shared(documents.count, documents.zipf, &documents.tokens, mix(self.world, 77), rng);
                }
            }
            text.add(mix(session, u64::from(turn) * 2), class.user.draw(rng));
            let prompt_tokens = text.tokens();
            let output_tokens = class.output.draw(rng);
            if prompt_tokens + output_tokens > MAX_CONTEXT {
                break;
            }
            text.add(mix(session, u64::from(turn) * 2 + 1), output_tokens);
            if at_us >= 0.0 && at_us < self.horizon_us as f64 {
                let blocks = text.blocks(self.block_tokens);
                self.out.push(Request { at_us: at_us as u64, prompt_tokens, output_tokens, blocks, session });
            }
            at_us += NOMINAL_TTFT_US + NOMINAL_ITL_US * f64::from(output_tokens);
            if let Some(children) = class.children.as_ref().filter(|children| rng.f64() < children.chance)
                && let Some(child) = self.classes.iter().find(|class| class.name == children.class)
            {
                at_us += self.run(child, at_us, rng);
            }
            at_us += exponential(class.think_s * 1e6, rng);
        }
        at_us - start_us
    }
}

/// A growing text as pieces: (what it is, tokens).
#[derive(Default)]
struct Text(Vec<(u64, u32)>);

impl Text {
    fn add(&mut self, what: u64, tokens: u32) {
        self.0.push((what, tokens));
    }

    /// One of `count` shared texts. Each has a length of its own, the same in every session.
    fn add_shared(&mut self, count: u32, zipf: f64, size: &Size, kind: u64, rng: &mut fastrand::Rng) {
        let what = mix(kind, u64::from(draw_zipf(count, zipf, rng)) + 1);
        let tokens = size.draw(&mut fastrand::Rng::with_seed(what));
        self.add(what, tokens);
    }

    fn tokens(&self) -> u32 {
        self.0.iter().map(|(_, tokens)| tokens).sum()
    }

    /// Ids of complete blocks: equal for equal pieces at equal places.
    fn blocks(&self, block_tokens: u32) -> Vec<u64> {
        let mut blocks = Vec::with_capacity((self.tokens() / block_tokens) as usize);
        let (mut id, mut filled) = (0, 0);
        for &(what, tokens) in &self.0 {
            let mut from = 0;
            while from < tokens {
                let take = (tokens - from).min(block_tokens - filled);
                id = mix(mix(id, what), u64::from(from) << 32 | u64::from(take));
                from += take;
                filled += take;
                if filled == block_tokens {
                    blocks.push(id);
                    (id, filled) = (0, 0);
                }
            }
        }
        blocks
    }
}

impl Turns {
    fn draw(&self, rng: &mut fastrand::Rng) -> u32 {
        let more = (self.mean - f64::from(self.least)).max(0.0);
        let goes_on = more / (more + 1.0);
        let mut turns = self.least;
        while turns < self.most && rng.f64() < goes_on {
            turns += 1;
        }
        turns
    }
}

impl Size {
    fn draw(&self, rng: &mut fastrand::Rng) -> u32 {
        let tokens = self.median * (self.sigma * normal(rng)).exp();
        (tokens as u32).clamp(1, self.most)
    }
}

/// 0 … count−1, the first most often.
fn draw_zipf(count: u32, exponent: f64, rng: &mut fastrand::Rng) -> u32 {
    let weight = |rank: u32| f64::from(rank + 1).powf(-exponent);
    let all: f64 = (0..count).map(weight).sum();
    let mut left = rng.f64() * all;
    for rank in 0..count {
        left -= weight(rank);
        if left < 0.0 {
            return rank;
        }
    }
    0
}

fn exponential(mean: f64, rng: &mut fastrand::Rng) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

/// Box and Muller's.
fn normal(rng: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
