//! A yardstick: the same cost in time, from what is really so.
//!
//! It sees each engine's cache at this instant, the rest of the step under way, what is still to compute for requests there,
//! and the true curve. It does not see the future, so that it is an upper bound of knowledge and not of choice.

use super::{Ask, Router, least, seats};
use crate::gateway::Prompt;
use crate::hardware::Hardware;
use crate::scenario::Scenario;
use forebay_engine::model::{Model, StepOutcome};
use forebay_routing::Decision;

/// How much a ms of delay for each request there counts.
pub(super) const HARM: f64 = 1.0;

/// How things stand at one worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Truth {
    /// Prompt tokens that its cache has.
    pub cached_tokens: u32,
    /// Until the step under way ends, ms.
    pub step_ms: f64,
    /// Prefill still to do there, without steps' constants, ms.
    pub queued_ms: f64,
    /// Requests whose tokens this prefill would delay.
    pub requests: u32,
    /// Share of the cache that running requests hold.
    pub usage: f64,
}

impl Truth {
    /// Looks into an engine.
    pub fn of(model: &Model, step: &Option<StepOutcome>, prompt: &Prompt, now_us: u64, scenario: &Scenario) -> Self {
        let load = model.load();
        let curve = &scenario.hardware.curve;
        Self {
            cached_tokens: model.findable_tokens(&prompt.hashes, prompt.tokens as usize) as u32,
            step_ms: step.as_ref().map_or(0.0, |step| step.ends_at_us.saturating_sub(now_us) as f64 / 1e3),
            queued_ms: model.pending_prefill().map(|(from, tokens)| curve.prefill_part_ms(from, tokens)).sum(),
            requests: (load.running + load.waiting) as u32,
            usage: load.used_blocks as f64 / model.limits().blocks as f64,
        }
    }
}

pub(super) struct Oracle {
    hardware: Hardware,
    harm: f64,
}

impl Oracle {
    pub(super) fn new(hardware: Hardware, harm: f64) -> Self {
        Self { hardware, harm }
    }

    fn cost_ms(&self, truth: &Truth, prompt_tokens: u32, output_tokens: u32) -> f64 {
        let cached = truth.cached_tokens as usize;
        let prefill_ms = self.hardware.prefill_ms(cached, prompt_tokens as usize - cached);
        let added = f64::from(prompt_tokens + output_tokens) / self.hardware.kv_tokens as f64;
        let decode = |usage: f64| self.hardware.curve.decode_ms(usage);
        // Every token of this answer, and every token of the others as long as it lasts, takes longer.
        let slower_ms = decode(truth.usage + added) - decode(truth.usage);
        let tokens = f64::from(output_tokens);
        let decode_ms = tokens * (decode(truth.usage + added) + slower_ms * f64::from(truth.requests));
        truth.step_ms + truth.queued_ms + prefill_ms + self.harm * prefill_ms * f64::from(truth.requests) + decode_ms
    }
}

impl Router for Oracle {
    fn choose(&mut self, ask: &Ask<'_>, rng: &mut fastrand::Rng) -> Option<Decision> {
        let truth = ask.truth?;
        let facts = ask.input.facts;
        let seats = seats(ask);
        let best = least(&seats, rng, |seat| {
            let truth = truth.get(seat.worker.id.slot as usize).copied().unwrap_or_default();
            self.cost_ms(&truth, facts.prompt_tokens, facts.output_tokens)
        });
        best.map(|seat| seat.decision(ask))
    }

    fn own_placements(&self) -> bool {
        true
    }

    fn wants_truth(&self) -> bool {
        true
    }
}
