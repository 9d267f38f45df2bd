//! Engines inside a test's own process.

use crate::config::{EngineConfig, EngineError, Flavor};
use crate::engine::{EngineHandle, start};
use crate::events::{EventConfig, Wire};
use crate::fault::Fault;
use crate::model::{Curve, Limits};
use crate::text::Codec;
use std::sync::Arc;

/// Sets up an engine step by step; what is not set is vLLM's default, text in bytes, a free port.
///
/// ```no_run
/// # async fn example() -> Result<(), forebay_engine::config::EngineError> {
/// let engine = forebay_engine::EngineBuilder::new().model("m").blocks(64).speedup(100.0).start().await?;
/// println!("{}/v1/chat/completions", engine.url());
/// engine.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EngineBuilder {
    config: EngineConfig,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl EngineBuilder {
    /// An engine that serves the model `mock`.
    pub fn new() -> Self {
        Self { config: EngineConfig::new("mock") }
    }

    /// Served model name.
    pub fn model(mut self, name: &str) -> Self {
        (self.config.model, self.config.model_root) = (name.to_owned(), name.to_owned());
        self
    }

    /// Whose server is played; SGLang publishes its own kind of events.
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.config.flavor = flavor;
        if let (Flavor::Sglang, Some(events)) = (flavor, &mut self.config.events) {
            events.wire = Wire::Sglang;
        }
        if flavor == Flavor::Trtllm {
            self.config.events = None;
        }
        self
    }

    /// Port on 127.0.0.1; 0 (the default) takes a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.config.port = port;
        self
    }

    /// Tokenizer, template and words. Load one [`Codec`] and share it: loading takes a while.
    pub fn codec(mut self, codec: Arc<Codec>) -> Self {
        self.config.codec = codec;
        self
    }

    /// All limits at once.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// KV blocks of each rank; the context shrinks to what they hold.
    pub fn blocks(mut self, blocks: usize) -> Self {
        self.config.limits.blocks = blocks;
        self.fit_context()
    }

    /// Tokens of one block; the context shrinks to what the blocks hold.
    pub fn block_tokens(mut self, tokens: usize) -> Self {
        self.config.limits.block_tokens = tokens;
        self.fit_context()
    }

    /// Cost of a step.
    pub fn curve(mut self, curve: Curve) -> Self {
        self.config.curve = curve;
        self
    }

    /// Divides every duration.
    pub fn speedup(mut self, speedup: f64) -> Self {
        self.config.speedup = speedup;
        self
    }

    /// Data-parallel ranks.
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.config.ranks = ranks;
        self
    }

    /// KV events; `None` publishes nothing.
    pub fn events(mut self, events: Option<EventConfig>) -> Self {
        self.config.events = events;
        self
    }

    /// A LoRA adapter.
    pub fn adapter(mut self, name: &str) -> Self {
        self.config.adapters.push(name.into());
        self
    }

    /// Refuse with 503 what would make more requests wait or run.
    pub fn max_queued_requests(mut self, most: usize) -> Self {
        self.config.max_queued_requests = Some(most);
        self
    }

    /// A fault in force from the start.
    pub fn fault(mut self, fault: Fault) -> Self {
        self.config.faults.push(fault);
        self
    }

    /// The configuration as it stands, for what has no method here.
    pub fn config_mut(&mut self) -> &mut EngineConfig {
        &mut self.config
    }

    /// Starts it; it listens when this returns.
    pub async fn start(self) -> Result<EngineHandle, EngineError> {
        start(self.config).await
    }

    fn fit_context(mut self) -> Self {
        let limits = &mut self.config.limits;
        limits.max_model_tokens = limits.max_model_tokens.min(limits.blocks * limits.block_tokens);
        self
    }
}
