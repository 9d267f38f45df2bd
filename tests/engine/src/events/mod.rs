//! KV cache events on ZMQ, in vLLM's wire.
//!
//! One PUB socket for each data-parallel rank, three frames a batch: topic, sequence number (8 bytes, big-endian, from
//! 0), msgpack payload. A ROUTER socket replays the last [`EventConfig::buffer_batches`] batches on request.

mod publisher;
mod wire;

#[cfg(test)]
mod tests;

pub(crate) use publisher::{Publisher, resolve_endpoint};
pub use wire::{EventBatch, HashForm, Wire, encode_batch};

/// How events leave an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EventConfig {
    /// ZMQ endpoint of the PUB socket. Bound if it has a `*` or is `ipc://`, else connected, as vLLM does. A `*` host
    /// means the engine's own, port `*` or `0` any free one; a given port counts up by rank and engine.
    pub endpoint: String,
    /// Endpoint of the replay socket; none: no replay.
    pub replay_endpoint: Option<String>,
    /// First frame of every batch.
    pub topic: String,
    /// Shape of the payload.
    pub wire: Wire,
    /// Form of block hashes.
    pub hash: HashForm,
    /// Batches kept for replay.
    pub buffer_batches: usize,
}

impl Default for EventConfig {
    fn default() -> Self {
        Self {
            endpoint: "tcp://*:*".to_owned(),
            replay_endpoint: Some("tcp://*:*".to_owned()),
            topic: "kv-events".to_owned(),
            wire: Wire::Map,
            hash: HashForm::Int,
            buffer_batches: 10_000,
        }
    }
}
