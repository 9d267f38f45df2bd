//! What can be changed while thin engines run: `POST /_ctl?ttft_us=…&itl_us=…`.

use super::ThinConfig;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What `usage` is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[repr(u8)]
pub enum Usage {
    /// No usage at all: nobody can take it for a count.
    Omit,
    /// Prompt tokens are a quarter of the body's bytes.
    Bytes,
    /// Prompt tokens are counted with the tokenizer, in the request path.
    Exact,
}

/// Shared by all thin engines of a process.
#[derive(Debug)]
pub(super) struct Knobs {
    pub(super) ttft_us: AtomicU64,
    pub(super) itl_us: AtomicU64,
    pub(super) tokens: AtomicU64,
    usage: AtomicU8,
    /// Requests answered, by engine.
    pub(super) requests: Vec<AtomicU64>,
    pub(super) tokenize_calls: AtomicU64,
}

impl Knobs {
    pub(super) fn new(config: &ThinConfig) -> Self {
        Self {
            ttft_us: AtomicU64::new(config.ttft_us),
            itl_us: AtomicU64::new(config.itl_us),
            tokens: AtomicU64::new(config.tokens),
            usage: AtomicU8::new(config.usage as u8),
            requests: config.ports.iter().map(|_| AtomicU64::new(0)).collect(),
            tokenize_calls: AtomicU64::new(0),
        }
    }

    pub(super) fn usage(&self) -> Usage {
        match self.usage.load(Ordering::Relaxed) {
            0 => Usage::Omit,
            1 => Usage::Bytes,
            _ => Usage::Exact,
        }
    }

    /// Applies a query string; the error names the pair that is wrong, and those before it are applied.
    pub(super) fn apply(&self, query: &str) -> Result<(), String> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = || value.parse::<u64>().map_err(|_| format!("{name}: `{value}` is not a number"));
            match name {
                "ttft_us" => self.ttft_us.store(number()?, Ordering::Relaxed),
                "itl_us" => self.itl_us.store(number()?, Ordering::Relaxed),
                "tokens" => self.tokens.store(number()?, Ordering::Relaxed),
                "usage" => {
                    let usage = <Usage as clap::ValueEnum>::from_str(value, true);
                    let usage = usage.map_err(|_| format!("usage: `{value}` is not omit, bytes or exact"))?;
                    self.usage.store(usage as u8, Ordering::Relaxed);
                }
                "reset" => self.requests.iter().for_each(|count| count.store(0, Ordering::Relaxed)),
                // Read by the caller, which has the feed.
                "events" => drop(number()?),
                _ => return Err(format!("{name}: unknown; known are ttft_us, itl_us, tokens, usage, reset, events")),
            }
        }
        Ok(())
    }
}
