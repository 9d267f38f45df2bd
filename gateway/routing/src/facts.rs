//! What a decision may know about a request.

use crate::block::ChainHash;

/// Facts of one request; borrowed, built once per request.
#[derive(Clone, Debug)]
pub struct RequestFacts<'a> {
    /// Index of the model in [`crate::FleetView::models`].
    pub model: u32,
    /// Prompt length in tokens: exact where tokenised, estimated from bytes otherwise.
    pub prompt_tokens: u32,
    /// Whether `prompt_tokens` and `chains` come from real token ids.
    pub exact: bool,
    /// One chain per block size in use for this model; empty when routed by text.
    pub chains: &'a [BlockChain],
    /// Hash of the head of the prompt text (keyed): the affinity key of `consistent-hash` and of text routing.
    pub text_hash: u64,
    /// Hash of the session hint, where the client gave one.
    pub session: Option<u64>,
    /// Expected output in tokens (`max_tokens` bounded by what was learned).
    pub output_tokens: u32,
    /// Completions asked for (`n`).
    pub completions: u32,
}

/// Chain hashes of one prompt at one block size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockChain {
    /// Tokens per block.
    pub block_size: u32,
    /// One hash for each complete block, in order.
    pub hashes: Vec<ChainHash>,
}
