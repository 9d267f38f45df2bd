//! What is known of a request when it ends.

use crate::error::Blame;
use forebay_routing::decision::Reason;
use forebay_routing::{Policy, WorkerId};
use std::sync::Arc;

/// All that is known of a request when it ends. Times are ms since it was accepted.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Request id.
    pub id: String,
    /// Whose key sent it, where keys are configured.
    pub tenant: Option<Arc<str>>,
    /// Model as served, empty when the request never got that far.
    pub model: Arc<str>,
    /// `chat`, `completions` or `other`.
    pub dialect: &'static str,
    /// HTTP status sent.
    pub status: u16,
    /// How it ended.
    pub outcome: Outcome,
    /// `Fault::code` where there was one.
    pub fault: Option<&'static str>,
    /// `Fault::blame` where there was one.
    pub blame: Option<Blame>,
    /// Chosen worker and its URL.
    pub worker: Option<(WorkerId, Arc<str>)>,
    /// Policy that decided.
    pub policy: Option<Policy>,
    /// What decided.
    pub reason: Option<Reason>,
    /// Attempts beyond the first.
    pub retries: u32,
    /// Prompt, predicted-cached, realised-cached and generated tokens.
    pub prompt_tokens: u32,
    /// Predicted hit.
    pub predicted_cached: u32,
    /// Realised hit, where the engine said so.
    pub cached_tokens: Option<u32>,
    /// Generated tokens.
    pub output_tokens: u32,
    /// Body received.
    pub received_ms: f64,
    /// Tokenising, hashing, scoring: the gateway's own time.
    pub overhead_ms: f64,
    /// Of which tokenising.
    pub tokenize_ms: f64,
    /// From the decision until an engine had the request: connecting, and attempts that failed.
    pub queue_ms: Option<f64>,
    /// First token.
    pub ttft_ms: Option<f64>,
    /// Mean inter-token latency.
    pub itl_ms: Option<f64>,
    /// End.
    pub total_ms: f64,
    /// Why it was routed by text, where it was.
    pub text_reason: Option<&'static str>,
}

/// How a request ended; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Outcome {
    /// Served to the end.
    #[default]
    Ok,
    /// Refused by this gateway.
    Rejected,
    /// The engine answered an error.
    UpstreamError,
    /// Cut after commit: ended in an error event.
    Cut,
    /// The client left.
    ClientGone,
}

impl Outcome {
    /// Number of outcomes.
    pub(super) const COUNT: usize = 5;

    /// The label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Rejected => "rejected",
            Self::UpstreamError => "upstream_error",
            Self::Cut => "cut",
            Self::ClientGone => "client_gone",
        }
    }
}

/// The label value of what decided.
pub fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::PrefixHit => "prefix_hit",
        Reason::LeastCost => "least_cost",
        Reason::Policy => "policy",
        Reason::TextAffinity => "text_affinity",
        Reason::OnlyOne => "only_one",
    }
}

/// The label value of whose fault it was.
pub(super) fn blame_name(blame: Option<Blame>) -> &'static str {
    match blame {
        Some(Blame::Client) => "client",
        Some(Blame::Gateway) => "gateway",
        Some(Blame::Worker) => "worker",
        None => "unknown",
    }
}
