//! One step: who computes what, what it costs, who produced a token.

use super::pool::StoredBlocks;
use super::request::RequestId;
use super::{Admitted, Model, Produced, StepOutcome};

/// What one request computes in a step.
struct Slice {
    id: RequestId,
    /// Tokens it had before.
    from: usize,
    /// Tokens added.
    tokens: usize,
    /// Past its prefill.
    decodes: bool,
}

impl Model {
    /// Runs one step that begins at `now_us`; `None` when there is nothing to run.
    pub fn step(&mut self, now_us: u64) -> Option<StepOutcome> {
        if !self.has_work() {
            return None;
        }
        let mut outcome = StepOutcome { began_at_us: now_us, ..StepOutcome::default() };
        let mut slices = Vec::with_capacity(self.running.len() + 1);
        let mut budget = self.limits.max_batched_tokens;
        self.continue_running(now_us, &mut budget, &mut slices, &mut outcome);
        if outcome.preempted.is_empty() {
            self.admit_waiting(now_us, &mut budget, &mut slices, &mut outcome);
        }
        outcome.load = self.load();
        outcome.ends_at_us = now_us + self.duration_us(&slices, &mut outcome);
        self.apply(&slices, &mut outcome);
        outcome.events = self.pool.take_events();
        Some(outcome)
    }

    fn continue_running(
        &mut self,
        now_us: u64,
        budget: &mut usize,
        slices: &mut Vec<Slice>,
        outcome: &mut StepOutcome,
    ) {
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let id = self.running[at];
            let sequence = &self.sequences[&id];
            let tokens = (sequence.known() - sequence.computed).min(*budget);
            if !self.make_room(id, tokens, now_us, outcome) {
                break;
            }
            *budget -= tokens;
            slices.push(self.slice(id, tokens));
            at += 1;
        }
    }

    /// Finds blocks for `tokens` more tokens of the running request `id`, preempting from the end of the batch.
    /// `false` when `id` itself had to go.
    fn make_room(&mut self, id: RequestId, tokens: usize, now_us: u64, outcome: &mut StepOutcome) -> bool {
        loop {
            let sequence = &self.sequences[&id];
            let needed = (sequence.computed + tokens).div_ceil(self.limits.block_tokens) - sequence.blocks.len();
            if let Some(blocks) = self.pool.acquire(&[], needed) {
                self.extend(id, blocks, tokens);
                return true;
            }
            let Some(victim) = self.running.pop() else { return false };
            self.preempt(victim, now_us);
            outcome.preempted.push(victim);
            if victim == id {
                return false;
            }
        }
    }

    fn preempt(&mut self, id: RequestId, now_us: u64) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let blocks = std::mem::take(&mut sequence.blocks);
        (sequence.published, sequence.computed, sequence.decoding) = (0, 0, false);
        (sequence.preempted, sequence.queued_at_us) = (true, now_us);
        self.pool.release(&blocks);
        self.waiting.push_front(id);
    }

    fn admit_waiting(&mut self, now_us: u64, budget: &mut usize, slices: &mut Vec<Slice>, outcome: &mut StepOutcome) {
        while *budget > 0 && self.running.len() < self.limits.max_sequences {
            let Some(&id) = self.waiting.front() else { return };
            let sequence = &self.sequences[&id];
            let hits = self.pool.longest_prefix(sequence.request.hashes(), sequence.known());
            let cached = hits.len() * self.limits.block_tokens;
            let tokens = (sequence.known() - cached).min(*budget);
            let needed = (cached + tokens).div_ceil(self.limits.block_tokens) - hits.len();
            let Some(fresh) = self.pool.acquire(&hits, needed) else { return };
            outcome.admitted.push(Admitted {
                id,
                cached_tokens: cached,
                prompt_tokens: sequence.request.prompt_tokens(),
                waited_us: now_us.saturating_sub(sequence.queued_at_us),
                resumed: sequence.preempted,
            });
            self.waiting.pop_front();
            self.running.push(id);
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.published = hits.len();
                sequence.computed = cached;
                sequence.blocks = hits;
            }
            self.extend(id, fresh, tokens);
            *budget -= tokens;
            slices.push(self.slice(id, tokens));
        }
    }

    /// Adds `blocks` to the sequence and publishes those which `tokens` more tokens complete.
    fn extend(&mut self, id: RequestId, blocks: Vec<u32>, tokens: usize) {
        let size = self.limits.block_tokens;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.blocks.extend(blocks);
        let (first, full) = (sequence.published, (sequence.computed + tokens) / size);
        if full <= first {
            return;
        }
        let request = &sequence.request;
        let stored = StoredBlocks {
            hashes: request.hashes()[first..full].to_vec(),
            parent: first.checked_sub(1).map(|before| request.hashes()[before]),
            tokens: request.tokens(first * size, full * size),
            first_index: first,
            domain: request.domain().clone(),
        };
        sequence.published = full;
        self.pool.publish(&sequence.blocks[first..full], stored);
    }

    fn slice(&self, id: RequestId, tokens: usize) -> Slice {
        let sequence = &self.sequences[&id];
        Slice { id, from: sequence.computed, tokens, decodes: sequence.decoding }
    }

    /// The step's duration, at least 1 µs so that time moves on.
    fn duration_us(&self, slices: &[Slice], outcome: &mut StepOutcome) -> u64 {
        let mut prefill_ms = None;
        for slice in slices {
            if slice.decodes {
                outcome.decode_tokens += slice.tokens;
            } else {
                outcome.prefill_tokens += slice.tokens;
                *prefill_ms.get_or_insert(self.curve.prefill_constant_ms) +=
                    self.curve.prefill_part_ms(slice.from, slice.tokens);
            }
        }
        let usage = self.pool.used() as f64 / self.pool.capacity() as f64;
        let decode_ms = if outcome.decode_tokens > 0 { self.curve.decode_ms(usage) } else { 0.0 };
        let total_us = (prefill_ms.unwrap_or(0.0) + decode_ms) * 1_000.0 / self.speedup;
        total_us.round().max(1.0) as u64
    }

    /// Moves every request on, hands out tokens, lets finished requests go.
    fn apply(&mut self, slices: &[Slice], outcome: &mut StepOutcome) {
        for slice in slices {
            let Some(sequence) = self.sequences.get_mut(&slice.id) else { continue };
            sequence.computed += slice.tokens;
            if sequence.computed < sequence.known() {
                continue;
            }
            sequence.decoding = true;
            let position = sequence.produced;
            sequence.produced += 1;
            let ended = sequence.produced == sequence.request.output_tokens();
            let finish = ended.then(|| sequence.request.finish());
            outcome.produced.push(Produced { id: slice.id, position, finish });
        }
        for produced in outcome.produced.iter().filter(|produced| produced.finish.is_some()) {
            if let Some(sequence) = self.sequences.remove(&produced.id) {
                self.pool.release(&sequence.blocks);
            }
        }
        self.running.retain(|id| self.sequences.contains_key(id));
    }

    /// Checks blocks and queues against each other.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self) {
        self.pool.assert_consistent(self.sequences.values().map(|sequence| sequence.blocks.as_slice()));
        assert_eq!(self.sequences.len(), self.running.len() + self.waiting.len());
        for id in &self.waiting {
            assert!(self.sequences[id].blocks.is_empty(), "waiting requests hold nothing");
        }
    }
}
