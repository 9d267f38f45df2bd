//! One published batch → events, in all shapes that vLLM has given them.
//!
//! ```text
//! (a) [ts, [["BlockStored", hashes, parent, tokens, size, lora_id, medium, lora_name, …], …], rank?]
//! (b) [ts, [{"type": "BlockStored", …}, …], rank?]
//! (c) {"ts": …, "events": [{"type": …}, …], "data_parallel_rank": …}
//! ```
//!
//! Unknown keys and trailing fields are passed over, absent ones have their defaults, hashes are integers or digests. An
//! event that cannot be read is reported and its siblings are not touched; the same holds for a token list that is too
//! long: the block is then not indexed, but removals beside it count.

use super::extra::Extra;
use super::fields::Fields;
use super::msgpack::{Malformed, Reader};
use forebay_routing::index::ledger::ExternalHash;
use rmp::Marker;

/// Blocks in one event: more than any engine's cache holds.
pub(super) const MAX_BLOCKS_PER_EVENT: usize = 1 << 18;

/// Tokens in one event: twice the longest context that any model has.
pub(super) const MAX_TOKENS_PER_EVENT: usize = 1 << 21;

/// Where events of one batch are unpacked; kept between batches for its memory.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) hashes: Vec<ExternalHash>,
    pub(super) tokens: Vec<u32>,
}

/// What surrounds the events.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Header {
    /// When the engine published it, Unix seconds.
    pub(super) published_seconds: Option<f64>,
    /// Data-parallel rank, where it was said.
    pub(super) rank: Option<u32>,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event<'a> {
    Stored(Stored<'a>),
    Removed(Removed<'a>),
    Cleared,
    /// A type of a later release.
    Unknown,
    Malformed(Malformed),
}

/// Blocks came into the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stored<'a> {
    pub(super) hashes: &'a [ExternalHash],
    /// `None` at the start of a prompt.
    pub(super) parent: Option<ExternalHash>,
    /// Concatenated; `None` when absent, too many, or not plain ids.
    pub(super) tokens: Option<&'a [u32]>,
    /// Whether there was any list of tokens with something in it.
    pub(super) has_tokens: bool,
    /// Whether the engine keys each token together with the next one: it then finds a block only where the token behind it
    /// agrees as well.
    pub(super) is_bigram: bool,
    pub(super) block_size: u32,
    pub(super) place: Place<'a>,
    pub(super) lora: Lora<'a>,
    pub(super) extra: Extra<'a>,
}

/// Blocks left the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Removed<'a> {
    pub(super) hashes: &'a [ExternalHash],
    pub(super) place: Place<'a>,
}

/// Which cache an event speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Place<'a> {
    /// Tier; `None` in releases that had one only.
    pub(super) medium: Option<&'a str>,
    /// KV cache group.
    pub(super) group: Option<u32>,
    /// Kind of attention of that group.
    pub(super) kind: Option<&'a str>,
    /// Tokens that a sliding window sees.
    pub(super) window_tokens: Option<u32>,
    /// Whose memory it is: `None` or `LOCAL` is the engine's own.
    pub(super) locality: Option<&'a str>,
}

/// The adapter that blocks belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Lora<'a> {
    #[default]
    Base,
    Named(&'a str),
    /// An adapter known by number alone, as old releases told it: no request can be matched to it.
    Unnamed,
}

/// Reads `payload` and hands every event to `each`.
pub(super) fn decode(
    payload: &[u8],
    scratch: &mut Scratch,
    mut each: impl FnMut(Event<'_>),
) -> Result<Header, Malformed> {
    let mut reader = Reader::new(payload);
    let mut header = Header::default();
    match reader.peek()? {
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
            for _ in 0..reader.map()? {
                match reader.text()? {
                    "ts" => header.published_seconds = published(&mut reader)?,
                    "events" => decode_events(&mut reader, scratch, &mut each)?,
                    "data_parallel_rank" => header.rank = optional(&mut reader, Reader::u32)?,
                    _ => reader.skip()?,
                }
            }
        }
        _ => {
            let fields = reader.array()?;
            if fields < 2 {
                return Err(Malformed::Field);
            }
            header.published_seconds = published(&mut reader)?;
            decode_events(&mut reader, scratch, &mut each)?;
            if fields > 2 {
                header.rank = optional(&mut reader, Reader::u32)?;
            }
        }
    }
    Ok(header)
}

/// When `payload` was published, without reading its events.
pub(super) fn published_seconds(payload: &[u8]) -> Option<f64> {
    let mut reader = Reader::new(payload);
    if reader.array().is_ok() {
        return published(&mut reader).ok().flatten();
    }
    let mut reader = Reader::new(payload);
    for _ in 0..reader.map().ok()? {
        if reader.text().ok()? == "ts" {
            return published(&mut reader).ok().flatten();
        }
        reader.skip().ok()?;
    }
    None
}

fn published(reader: &mut Reader<'_>) -> Result<Option<f64>, Malformed> {
    optional(reader, Reader::seconds)
}

fn decode_events(
    reader: &mut Reader<'_>,
    scratch: &mut Scratch,
    each: &mut impl FnMut(Event<'_>),
) -> Result<(), Malformed> {
    for _ in 0..reader.array()? {
        // Its end is found first, so that whatever is wrong inside stays inside.
        let event = reader.value()?;
        match Fields::read(event, scratch) {
            Ok(fields) => each(fields.event(scratch)),
            Err(malformed) => each(Event::Malformed(malformed)),
        }
    }
    Ok(())
}

fn optional<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    if reader.nil()? { Ok(None) } else { read(reader).map(Some) }
}

#[cfg(test)]
mod tests;
