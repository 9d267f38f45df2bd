//! tokenize: a parsed request → the token ids that the engine will see.

use crate::error::Fault;
use crate::parse::Parsed;
use std::sync::Arc;
use tokio::time::Instant;

/// Token sources of every configured model.
pub struct Tokenizers {}

/// What came out.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Equal to the engine's ids as far as parity has been proven.
    Tokens(Arc<[u32]>),
    /// No ids: route by text. The reason is a metric label.
    Text(TextReason),
}

/// Why a request is routed by text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextReason {
    /// No tokenizer configured and none at the engine.
    NoTokenizer,
    /// The pool was too busy or the deadline passed.
    Late,
    /// A shape whose rendering is not proven (images, custom template, …).
    Unsupported,
    /// Template or encoder failed.
    Failed,
    /// Parity with the engine was lost.
    Drift,
}

impl Tokenizers {
    /// Ids of `parsed` before `deadline`, else text.
    pub async fn encode(&self, _parsed: &Parsed, _deadline: Instant) -> Result<Outcome, Fault> {
        unimplemented!()
    }
}
