//! Scheduler and cache as text: a script of commands, and what the steps did.
//!
//! Commands: `submit NAME PROMPT OUTPUT` where PROMPT is token runs like `a8` (eight times token `a`) joined by `+`;
//! `step`, `run` (steps until idle), `reset`, `abort NAME`. A step prints
//! `admitted(cached) … preempted … produced … events`, one line each.

use super::*;
use std::collections::BTreeMap;
use std::fmt::Write;

struct Script {
    model: Model,
    names: Vec<String>,
    /// Hashes by first appearance, so that a table can name blocks #0, #1, …
    blocks: BTreeMap<BlockHash, usize>,
    now_us: u64,
    out: String,
}

impl Script {
    fn block(&mut self, hash: BlockHash) -> usize {
        let next = self.blocks.len();
        *self.blocks.entry(hash).or_insert(next)
    }

    fn submit(&mut self, name: &str, prompt: &str, output: &str) {
        let mut tokens = Vec::new();
        for run in prompt.split('+') {
            let (letter, count) = run.split_at(1);
            tokens.extend(std::iter::repeat_n(u32::from(letter.as_bytes()[0]), count.parse::<usize>().unwrap()));
        }
        let next = request(&self.model, self.names.len() as u64, tokens, output.parse().unwrap());
        self.names.push(name.to_owned());
        self.model.submit(self.now_us, next).unwrap();
    }

    fn step(&mut self) -> bool {
        let Some(step) = self.model.step(self.now_us) else {
            self.out.push_str("idle\n");
            return false;
        };
        self.model.assert_consistent();
        self.now_us = step.ends_at_us;
        let mut line = format!("step prefill={} decode={}", step.prefill_tokens, step.decode_tokens);
        for a in &step.admitted {
            write!(line, " +{}({})", self.names[a.id.0 as usize], a.cached_tokens).unwrap();
        }
        for id in &step.preempted {
            write!(line, " -{}", self.names[id.0 as usize]).unwrap();
        }
        for p in &step.produced {
            let end = if p.finish.is_some() { "!" } else { "" };
            write!(line, " {}.{}{end}", self.names[p.id.0 as usize], p.position).unwrap();
        }
        for event in step.events {
            match event {
                CacheEvent::Stored(stored) => {
                    let ids: Vec<String> = stored.hashes.iter().map(|&h| self.block(h).to_string()).collect();
                    let parent = stored.parent.map_or("root".to_owned(), |h| self.block(h).to_string());
                    write!(line, " stored[{parent}>{}]", ids.join(",")).unwrap();
                }
                CacheEvent::Removed(hash) => write!(line, " removed[{}]", self.block(hash)).unwrap(),
                CacheEvent::Cleared => line.push_str(" cleared"),
            }
        }
        writeln!(self.out, "{line}").unwrap();
        true
    }
}

fn check(mut model: Model, script: &str, expected: &str) {
    model.pool.take_events();
    let mut script_state = Script { model, names: Vec::new(), blocks: BTreeMap::new(), now_us: 0, out: String::new() };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["submit", name, prompt, output] => script_state.submit(name, prompt, output),
            ["step"] => drop(script_state.step()),
            ["run"] => while script_state.step() {},
            ["reset"] => {
                let done = script_state.model.reset_prefix_cache();
                writeln!(script_state.out, "reset {done}").unwrap();
            }
            ["abort", name] => {
                let at = script_state.names.iter().position(|n| n == name).unwrap();
                assert!(script_state.model.abort(RequestId(at as u64)));
            }
            _ => panic!("unknown command {line}"),
        }
    }
    let clean = |text: &str| text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("\n");
    assert_eq!(clean(&script_state.out), clean(expected));
}

#[test]
fn long_prompts_are_prefilled_in_chunks_beside_decodes() {
    check(
        small(4, 32, 8, 4),
        "submit a x3 4
         submit b y14 1
         run",
        "step prefill=8 decode=0 +a(0) +b(0) a.0 stored[root>0]
         step prefill=7 decode=1 a.1 stored[root>1] stored[0>2,3]
         step prefill=2 decode=1 a.2 b.0!
         step prefill=0 decode=1 a.3!
         idle",
    );
}

#[test]
fn a_hit_takes_complete_blocks_and_never_the_last_token() {
    // The 8-token prompt is wholly cached, so its second block is computed again into a copy: stored twice.
    check(
        small(4, 32, 64, 4),
        "submit a x8+y3 1
         run
         submit b x8+z5 1
         run
         submit c x8 1
         run",
        "step prefill=11 decode=0 +a(0) a.0! stored[root>0,1]
         idle
         step prefill=5 decode=0 +b(8) b.0! stored[1>2]
         idle
         step prefill=4 decode=0 +c(4) c.0! stored[0>1]
         idle",
    );
}

#[test]
fn blocks_filled_by_decoding_are_published_and_reused() {
    // Outputs are tokens 1000, 1001, …: the fourth block of a is b's too, if b quotes them. The last produced token
    // is never computed, so six outputs after six prompt tokens fill 11 of 12 places.
    check(
        small(4, 32, 64, 4),
        "submit a x6 6
         run",
        "step prefill=6 decode=0 +a(0) a.0 stored[root>0]
         step prefill=0 decode=1 a.1
         step prefill=0 decode=1 a.2 stored[0>1]
         step prefill=0 decode=1 a.3
         step prefill=0 decode=1 a.4
         step prefill=0 decode=1 a.5!
         idle",
    );
}

#[test]
fn eviction_takes_the_oldest_tail_first_and_a_duplicate_is_removed_twice() {
    check(
        small(4, 4, 64, 4),
        "submit a x8 1
         run
         submit b x8 1
         run
         submit c y15 1
         run",
        "step prefill=8 decode=0 +a(0) a.0! stored[root>0,1]
         idle
         step prefill=4 decode=0 +b(4) b.0! stored[0>1]
         idle
         step prefill=15 decode=0 +c(0) c.0! removed[1] removed[1] removed[0] stored[root>2,3,4]
         idle",
    );
}

#[test]
fn the_last_admitted_loses_its_blocks_and_starts_again_from_the_cache() {
    check(
        small(4, 4, 64, 4),
        "submit a x7 3
         submit b y7 2
         run",
        "step prefill=14 decode=0 +a(0) +b(0) a.0 b.0 stored[root>0] stored[root>1]
         step prefill=0 decode=2 a.1 b.1! stored[0>2] stored[1>3]
         step prefill=0 decode=1 a.2! removed[3]
         idle",
    );
    check(
        small(4, 4, 64, 4),
        "submit a x7 4
         submit b y7 4
         run",
        "step prefill=14 decode=0 +a(0) +b(0) a.0 b.0 stored[root>0] stored[root>1]
         step prefill=0 decode=2 a.1 b.1 stored[0>2] stored[1>3]
         step prefill=0 decode=1 -b a.2 removed[3]
         step prefill=0 decode=1 a.3!
         step prefill=5 decode=0 +b(4) b.2 removed[2] stored[1>3]
         step prefill=0 decode=1 b.3!
         idle",
    );
}

#[test]
fn a_reset_is_told_with_the_next_step_and_refused_while_blocks_are_held() {
    check(
        small(4, 8, 64, 4),
        "submit a x8 2
         step
         reset
         run
         reset
         submit b x8 1
         run",
        "step prefill=8 decode=0 +a(0) a.0 stored[root>0,1]
         reset false
         step prefill=0 decode=1 a.1!
         idle
         reset true
         step prefill=8 decode=0 +b(0) b.0! cleared stored[root>0,1]
         idle",
    );
}

#[test]
fn admission_waits_for_a_place_in_the_batch() {
    check(
        small(4, 32, 64, 1),
        "submit a x4 2
         submit b y4 1
         step
         abort a
         run",
        "step prefill=4 decode=0 +a(0) a.0 stored[root>0]
         step prefill=4 decode=0 +b(0) b.0! stored[root>1]
         idle",
    );
}
