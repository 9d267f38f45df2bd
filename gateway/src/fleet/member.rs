//! One worker as the owner knows it: what it said of itself and whether it takes traffic.

use super::Handle;
use super::ejection::{Breaker, Pace, Verdict};
use crate::config::resolved::Health;
use forebay_routing::event::ServedName;
use forebay_routing::view::{WorkerState, WorkerView};
use forebay_routing::{FleetView, LocalLoad, WorkerId};
use std::sync::Arc;

/// Whose server a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// It did not say, or somebody else's.
    #[default]
    Unknown,
    /// vLLM.
    Vllm,
    /// SGLang.
    SgLang,
    /// TensorRT-LLM's `trtllm-serve`.
    TensorRtLlm,
}

impl EngineKind {
    /// Name in `/workers` and in messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Vllm => "vllm",
            Self::SgLang => "sglang",
            Self::TensorRtLlm => "tensorrt-llm",
        }
    }
}

/// What an engine said of itself when it was asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Whose server it is.
    pub kind: EngineKind,
    /// Names it serves beside its own model: aliases and adapters.
    pub names: Vec<ServedName>,
    /// Longest prompt and answer in tokens, where it said so.
    pub max_model_len: Option<u32>,
    /// Its version.
    pub version: Option<String>,
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// KV capacity in blocks.
    pub capacity_blocks: Option<u32>,
    /// Whether it drafts tokens, and so computes the last block of a hit anew.
    pub drafts: bool,
    /// What is missing or odd although it serves, for people.
    pub degraded: Vec<String>,
}

/// One worker in words and numbers.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// Identity.
    pub id: WorkerId,
    /// Base URL.
    pub url: Arc<str>,
    /// Model as the engine serves it.
    pub model: Arc<str>,
    /// Why it takes no traffic, or the last failed check.
    pub problem: Option<String>,
    /// What it said of itself.
    pub facts: Facts,
    /// As decisions see it.
    pub view: WorkerView,
    /// What is in flight there.
    pub local: LocalLoad,
    /// Live failures in a row.
    pub failures: u32,
    /// Passive ejections so far.
    pub ejections: u64,
    /// Failed health checks in a row.
    pub failed_checks: u32,
}

/// How far health checks have brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Starting,
    Up,
    Down,
}

/// What the owner keeps of a worker beside [`forebay_routing::FleetState`].
pub(super) struct Member {
    pub(super) handle: Arc<Handle>,
    pub(super) facts: Facts,
    /// Block size that its events carry; truer than the configuration gauge, which context parallelism multiplies.
    pub(super) event_block_size: Option<u32>,
    pub(super) breaker: Breaker,
    pub(super) pace: Pace,
    /// Reports in a row in which its accept queue was full.
    pub(super) full_queues: u32,
    pub(super) leaving: bool,
    life: Life,
    failed_checks: u32,
    checks_until_down: u32,
    problem: Option<String>,
}

impl Member {
    pub(super) fn new(handle: Arc<Handle>, health: &Health) -> Self {
        Self {
            handle,
            facts: Facts::default(),
            event_block_size: None,
            breaker: Breaker::new(health.eject_after, health.eject_for, health.eject_share),
            pace: Pace::default(),
            full_queues: 0,
            leaving: false,
            life: Life::Starting,
            failed_checks: 0,
            checks_until_down: health.failures.max(1),
            problem: None,
        }
    }

    pub(super) fn state(&self) -> WorkerState {
        match self.life {
            _ if self.leaving => WorkerState::Draining,
            Life::Starting => WorkerState::Starting,
            Life::Down => WorkerState::Down,
            Life::Up if self.breaker.is_ejected() => WorkerState::Ejected,
            Life::Up => WorkerState::Ready,
        }
    }

    /// A health check that began at `started_ms` ended. Live successes since then overrule a bad one: an engine that
    /// answers requests is not dead because its health route is slow.
    pub(super) fn check(&mut self, outcome: Result<(), String>, started_ms: u64, now_ms: u64) -> Verdict {
        match outcome {
            Ok(()) => {
                self.failed_checks = 0;
                self.problem = None;
                self.life = Life::Up;
                self.breaker.checked(true, now_ms)
            }
            Err(_) if self.life == Life::Up && self.handle.served_since(started_ms) => {
                self.failed_checks = 0;
                Verdict::Same
            }
            Err(problem) => {
                self.failed_checks += 1;
                self.problem = Some(problem);
                if self.life == Life::Up && self.failed_checks >= self.checks_until_down {
                    self.life = Life::Down;
                }
                self.breaker.checked(false, now_ms)
            }
        }
    }

    /// Another process answers there now: nothing known of the old one holds.
    pub(super) fn restart(&mut self) {
        self.event_block_size = None;
        self.breaker.reset();
        self.pace = Pace::default();
    }

    /// `None` for a worker that no view shows any more.
    pub(super) fn status(&self, view: &FleetView) -> Option<WorkerStatus> {
        let view = view.worker(self.handle.id())?.clone();
        Some(WorkerStatus {
            id: view.id,
            url: self.handle.url.clone(),
            model: self.handle.model.clone(),
            problem: self.problem.clone(),
            facts: self.facts.clone(),
            view,
            local: self.handle.counters.load(),
            failures: self.breaker.failures(),
            ejections: self.breaker.ejections,
            failed_checks: self.failed_checks,
        })
    }
}
