//! Engines as the simulator builds them: cost curve, cache, scheduler.

use forebay_engine::model::{Curve, Limits, Model, Refusal};
use serde::Deserialize;

/// The committed files: name, text.
const FILES: &[(&str, &str)] =
    &[("standard", include_str!("../engines/standard.toml")), ("large", include_str!("../engines/large.toml"))];

/// One kind of engine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Not looked at until every parameter is frozen.
    pub held_out: bool,
    /// Tokens that the KV cache holds.
    pub kv_tokens: usize,
    /// Tokens that one step may compute.
    pub max_batched_tokens: usize,
    /// Requests that may run at once.
    pub max_sequences: usize,
    /// What steps cost.
    #[serde(default)]
    pub curve: Curve,
}

/// Names of the committed kinds.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

impl Hardware {
    /// A committed kind.
    pub fn committed(name: &str) -> Result<Self, String> {
        let known = || names().collect::<Vec<_>>().join(", ");
        let (_, text) =
            FILES.iter().find(|(file, _)| *file == name).ok_or_else(|| format!("no engine `{name}`: {}", known()))?;
        toml::from_str(text).map_err(|error| format!("engine {name}: {error}"))
    }

    /// Bounds of one engine with blocks of `block_tokens`.
    pub fn limits(&self, block_tokens: u32) -> Limits {
        let block_tokens = block_tokens as usize;
        let blocks = self.kv_tokens / block_tokens;
        Limits {
            block_tokens,
            blocks,
            max_batched_tokens: self.max_batched_tokens,
            max_sequences: self.max_sequences,
            max_model_tokens: blocks * block_tokens,
        }
    }

    /// An idle engine whose every step takes `slowness` times as long as the curve says.
    pub fn model(&self, block_tokens: u32, slowness: f64) -> Result<Model, Refusal> {
        Model::new(self.limits(block_tokens), self.curve.clone(), 1.0 / slowness)
    }

    /// Time to first token of a prompt on an idle engine with an empty cache, ms.
    pub fn idle_ttft_ms(&self, prompt_tokens: u32) -> f64 {
        self.prefill_ms(0, prompt_tokens as usize)
    }

    /// Time to compute `new` tokens after `cached`, in steps of the engine's size, ms.
    pub fn prefill_ms(&self, cached: usize, new: usize) -> f64 {
        let steps = new.div_ceil(self.max_batched_tokens).max(1);
        self.curve.prefill_part_ms(cached, new) + self.curve.prefill_constant_ms * steps as f64
    }

    /// Mean time between tokens of a request that is alone, ms.
    pub fn idle_itl_ms(&self, prompt_tokens: u32, output_tokens: u32) -> f64 {
        let middle = f64::from(prompt_tokens) + f64::from(output_tokens) / 2.0;
        self.curve.decode_ms(middle / self.kv_tokens as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_engines_are_read() {
        let standard = Hardware::committed("standard").unwrap();
        assert_eq!((standard.curve.clone(), standard.held_out), (Curve::default(), false));
        assert!(Hardware::committed("large").unwrap().held_out);
        assert!(Hardware::committed("x").unwrap_err().contains("standard, large"));
        assert_eq!(standard.limits(512).blocks, 2_048);
        // 8,192 tokens are one step of 169.1 ms, one more token begins another.
        assert!((standard.idle_ttft_ms(8_192) - 169.1).abs() < 0.1);
        assert!(standard.idle_ttft_ms(8_193) > 185.0);
        assert!((standard.idle_itl_ms(0, 2) - 5.74).abs() < 0.01);
    }
}
