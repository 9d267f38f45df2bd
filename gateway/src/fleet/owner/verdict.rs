//! What exchanges teach of a worker: its rates, and whether it is to be taken out.
//!
//! Failures in a row, a share of failures, first tokens much later than its peers', and an accept queue that stays full eject a worker; ejections are
//! bounded by a share of its model's workers, but for those that cannot be reached at all.

use super::super::Feedback;
use super::super::ejection::{Pace, Verdict};
use super::super::member::Member;
use super::{Need, Owner};
use forebay_routing::WorkerId;
use forebay_routing::event::FleetEvent;
use forebay_routing::rates::Observation;
use forebay_routing::view::WorkerState;

/// Until the probe of an ejected worker whose model has nobody left: requests wait for it.
const LONELY_PROBE_MS: u64 = 1_000;

impl Owner {
    pub(super) fn feed_back(&mut self, worker: WorkerId, feedback: Feedback) -> Need {
        let now_ms = self.shared.clock.now_ms();
        let shared = self.shared.clone();
        let Some(member) = self.member(worker) else { return Need::Nothing };
        let label = member.handle.label.clone();
        let kind = match feedback {
            Feedback::Served { prompt_tokens, cached_tokens, predicted_tokens, ttft_ms, itl_ms, load, .. } => {
                member.breaker.succeed();
                if ttft_ms > 0.0 {
                    let cached = cached_tokens.unwrap_or(predicted_tokens);
                    member.pace.observe(ttft_ms, prompt_tokens.saturating_sub(cached));
                }
                let cached = cached_tokens.unwrap_or(0).min(prompt_tokens);
                let observation = Observation {
                    cached_tokens: cached,
                    uncached_tokens: prompt_tokens - cached,
                    // Without the engine's count the split is a guess, and nothing is learned from a guess.
                    ttft_ms: cached_tokens.map(|_| ttft_ms),
                    itl_ms,
                    load,
                };
                let slow = if ttft_ms > 0.0 { self.judge_pace(worker) } else { Need::Nothing };
                return self.reduce(FleetEvent::Observed { worker, observation }, Need::Soon).max(slow);
            }
            Feedback::BackPressure | Feedback::Status(429 | 503) => {
                shared.metrics.back_pressure(&label);
                return Need::Nothing;
            }
            Feedback::Status(status) if status < 500 => return Need::Nothing,
            Feedback::Status(_) => "status",
            Feedback::ConnectFailed => "connect",
            Feedback::Broken => "broken",
        };
        shared.metrics.failure(&label, kind);
        // A failure under an earlier identity is the predecessor's.
        if member.handle.id() == worker && member.breaker.fail(now_ms) == Verdict::Eject {
            // Who cannot be reached is out whatever happens; to keep sending there would help nobody.
            self.ejected(worker, kind, kind != "connect");
        }
        self.show_state(worker)
    }

    /// A model without a ready worker has its ejected ones looked at soon.
    pub(super) fn hasten(&mut self, model: &str) {
        let of_model = |member: &&mut Member| &*member.handle.model == model;
        if self
            .members
            .iter()
            .flatten()
            .any(|member| &*member.handle.model == model && member.state() == WorkerState::Ready)
        {
            return;
        }
        let at_ms = self.shared.clock.now_ms() + LONELY_PROBE_MS;
        self.members.iter_mut().flatten().filter(of_model).for_each(|member| member.breaker.hasten(at_ms));
    }

    /// Takes out a worker whose first tokens take many times as long as those of its model's other workers.
    fn judge_pace(&mut self, worker: WorkerId) -> Need {
        let factor = self.health.eject_ttft_factor;
        let Some(member) = self.member(worker) else { return Need::Nothing };
        if !member.pace.is_slow() {
            return Need::Nothing;
        }
        let (pace, model, slot) = (member.pace, member.handle.model.clone(), worker.slot);
        let peers =
            self.members.iter().flatten().filter(|other| other.handle.model == model && other.handle.slot != slot);
        let mut others: Vec<f64> = peers.filter_map(|other| other.pace.mean_ms()).collect();
        if !pace.is_outlier(factor, &mut others) {
            return Need::Nothing;
        }
        let now_ms = self.shared.clock.now_ms();
        let Some(member) = self.member(worker) else { return Need::Nothing };
        member.pace = Pace::default();
        if member.breaker.eject(now_ms) == Verdict::Eject {
            self.ejected(worker, "slow", true);
        }
        self.show_state(worker)
    }

    /// Counts an ejection, unless `bounded` and too many of its model's workers are out already: then it stays, because what
    /// fails everywhere is not the workers, and those left would break under what they would get.
    pub(super) fn ejected(&mut self, worker: WorkerId, kind: &'static str, bounded: bool) {
        let shared = self.shared.clone();
        let Some(model) = self.member(worker).map(|member| member.handle.model.clone()) else { return };
        let of_model = || self.members.iter().flatten().filter(|other| other.handle.model == model);
        let (all, out) = (of_model().count(), of_model().filter(|other| other.breaker.is_ejected()).count());
        let most = (all as f64 * self.health.max_ejected).max(1.0);
        let Some(member) = self.member(worker) else { return };
        let label = member.handle.label.clone();
        if bounded && out as f64 > most {
            member.breaker.pardon();
            shared.metrics.pardoned(&label);
            tracing::warn!(worker = %label, kind, out, "not ejected: too many of the model's workers are out");
            return;
        }
        shared.metrics.ejected(&label);
        tracing::warn!(worker = %label, kind, "ejected by live requests");
    }
}
