//! What an engine is asked to be.

use crate::events::EventConfig;
use crate::fault::Fault;
use crate::model::{Curve, Limits};
pub use crate::serve::Flavor;
use crate::text::Codec;
use std::sync::Arc;

/// One engine, resolved.
#[derive(Clone)]
pub struct EngineConfig {
    /// Address to listen on.
    pub host: String,
    /// Port to listen on; 0: any free one.
    pub port: u16,
    /// Position among the engines of this process; fixed event ports count up by it.
    pub index: u16,
    /// Whose server is played.
    pub flavor: Flavor,
    /// How SGLang's metrics begin: `sglang:` up to 0.5.3, `sglang_` in some later releases.
    pub sglang_metrics: &'static str,
    /// Whether SGLang's `/v1/loads` is there; releases before it have metrics alone.
    pub sglang_loads: bool,
    /// One frame for each token of a stream, even where several are ready: streams are then always the same.
    pub one_token_frames: bool,
    /// Served model name.
    pub model: String,
    /// `root` in `/v1/models`.
    pub model_root: String,
    /// LoRA adapters served beside the model.
    pub adapters: Vec<Arc<str>>,
    /// Tokenizer, template and output words.
    pub codec: Arc<Codec>,
    /// Bounds of the scheduler and the cache, for each rank.
    pub limits: Limits,
    /// Cost of a step.
    pub curve: Curve,
    /// Divides every duration.
    pub speedup: f64,
    /// Data-parallel ranks, each with its own scheduler, cache and events.
    pub ranks: u32,
    /// KV events; none: not published.
    pub events: Option<EventConfig>,
    /// Requests waiting or running beyond which new ones are refused with 503.
    pub max_queued_requests: Option<usize>,
    /// Report `prompt_tokens_details`.
    pub prompt_tokens_details: bool,
    /// Count requests for `/load`; without it the answer is always 0, as vLLM's.
    pub load_tracking: bool,
    /// Faults in force from the start.
    pub faults: Vec<Fault>,
    /// Seed of whatever is drawn (shares of faults).
    pub seed: u64,
}

impl EngineConfig {
    /// vLLM's defaults, byte-mode text, KV events on free loopback ports.
    pub fn new(model: &str) -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            index: 0,
            flavor: Flavor::Vllm,
            sglang_metrics: "sglang:",
            sglang_loads: true,
            one_token_frames: false,
            model: model.to_owned(),
            model_root: model.to_owned(),
            adapters: Vec::new(),
            codec: Arc::new(Codec::bytes()),
            limits: Limits::default(),
            curve: Curve::default(),
            speedup: 1.0,
            ranks: 1,
            events: Some(EventConfig::default()),
            max_queued_requests: None,
            prompt_tokens_details: true,
            load_tracking: false,
            faults: Vec::new(),
            seed: 1,
        }
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The configuration contradicts itself.
    #[error("configuration: {0}")]
    Config(String),
    /// The port could not be taken.
    #[error("listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A KV event socket could not be opened.
    #[error("KV events: {0}")]
    Events(String),
}
