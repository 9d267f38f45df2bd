//! What one published message says, in numbers: for looking at recorded messages, and for `fuzz/`, which holds the decoder
//! that the feeds use against arbitrary bytes.

use super::batch::{self, Event, Scratch};
use super::polled::{self, Data};

/// What a message holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events, malformed ones included.
    pub events: usize,
    /// Block hashes in them.
    pub hashes: usize,
    /// Token ids in them.
    pub tokens: usize,
    /// Events that could not be read.
    pub malformed: usize,
}

/// Decodes one batch as vLLM and SGLang publish it; the error is its kind, as `forebay_feed_errors_total` names it.
pub fn summarize(payload: &[u8]) -> Result<Summary, &'static str> {
    let mut summary = Summary::default();
    let header = batch::decode(payload, &mut Scratch::default(), |event| {
        summary.events += 1;
        match event {
            Event::Stored(stored) => {
                summary.hashes += stored.hashes.len();
                summary.tokens += stored.tokens.map_or(0, <[u32]>::len);
            }
            Event::Removed(removed) => summary.hashes += removed.hashes.len(),
            Event::Malformed(_) => summary.malformed += 1,
            Event::Cleared | Event::Unknown => {}
        }
    });
    header.map(|_| summary).map_err(super::msgpack::Malformed::label)
}

/// The same for an answer of TensorRT-LLM's `/kv_cache_events`.
pub fn summarize_polled(body: &[u8]) -> Result<Summary, &'static str> {
    let mut summary = Summary::default();
    let events = polled::decode(body, |event| {
        summary.events += 1;
        match event.map(|event| event.data) {
            Ok(Data::Stored { blocks, .. }) => {
                summary.hashes += blocks.len();
                summary.tokens += blocks.iter().map(|block| block.tokens.len()).sum::<usize>();
            }
            Ok(Data::Removed { block_hashes }) => summary.hashes += block_hashes.len(),
            Ok(_) => {}
            Err(_) => summary.malformed += 1,
        }
    });
    events.map(|_| summary).map_err(super::msgpack::Malformed::label)
}
