//! TensorRT-LLM's KV events, as `POST /kv_cache_events` answers: a JSON list of what happened since the last question.
//!
//! ```text
//! [{"event_id": 7, "data": {"type": "stored", "parent_hash": 5, "blocks": [{"block_hash": 9, "tokens": [{"token_id": 1,
//!   "token_extra_id": 0}, …], "lora_id": null, "cache_level": 0}]}, "window_size": 4096, …}, …]
//! ```
//!
//! The question empties the engine's buffer: what one reader gets no other will. Numbers tell: events are numbered from 0,
//! so one that is missing went to somebody else, or was pushed out of a buffer that was too small. Of the two, a buffer that
//! overflowed is full; a gap before a *short* answer proves another reader.

use super::msgpack::Malformed;
use forebay_routing::index::ledger::ExternalHash;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An answer of so many events may come from a buffer that overflowed; engines are given room for a thousand.
const SHORT_ANSWER: usize = 256;

/// One event.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    pub(super) event_id: u64,
    pub(super) data: Data,
    /// Tokens that the attention layers of this pool see; pools of other windows number their blocks for themselves.
    #[serde(default)]
    pub(super) window_size: Option<u32>,
}

/// What happened.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Data {
    /// The cache came into being.
    Created { num_blocks_per_cache_level: Vec<u32> },
    Stored {
        #[serde(default, deserialize_with = "optional_hash")]
        parent_hash: Option<ExternalHash>,
        blocks: Vec<Block>,
    },
    Removed {
        #[serde(deserialize_with = "hashes")]
        block_hashes: Vec<ExternalHash>,
    },
    Updated {
        #[serde(deserialize_with = "hash")]
        block_hash: ExternalHash,
        #[serde(default)]
        cache_level: Option<Change>,
    },
    /// A type of a later release.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
pub(super) struct Block {
    #[serde(deserialize_with = "hash")]
    pub(super) block_hash: ExternalHash,
    pub(super) tokens: Vec<Token>,
    #[serde(default)]
    pub(super) lora_id: Option<i64>,
    /// 0 is the device's memory, 1 the host's.
    #[serde(default)]
    pub(super) cache_level: u32,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Token {
    pub(super) token_id: u32,
    /// Not 0 where the token stands for something else (an image).
    #[serde(default)]
    pub(super) token_extra_id: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Change {
    pub(super) new_value: u32,
    pub(super) old_value: u32,
}

/// Reads an answer and hands every event, or why it cannot be read, to `each`; returns how many there were.
pub(super) fn decode(body: &[u8], mut each: impl FnMut(Result<Event, Malformed>)) -> Result<usize, Malformed> {
    let events: Option<Vec<&RawValue>> = serde_json::from_slice(body).map_err(|_| Malformed::Json)?;
    let events = events.unwrap_or_default();
    for event in &events {
        each(serde_json::from_str(event.get()).map_err(|_| Malformed::Json));
    }
    Ok(events.len())
}

/// A whole number of either sign, or a digest in hexadecimal, of which the last eight bytes count.
#[derive(Deserialize)]
#[serde(untagged)]
enum Name<'a> {
    Unsigned(u64),
    Signed(i64),
    #[serde(borrow)]
    Digest(std::borrow::Cow<'a, str>),
}

impl Name<'_> {
    fn fold<E: serde::de::Error>(self) -> Result<ExternalHash, E> {
        match self {
            Self::Unsigned(value) => Ok(ExternalHash(value)),
            Self::Signed(value) => Ok(ExternalHash(value.cast_unsigned())),
            Self::Digest(text) => {
                let tail = text.len().checked_sub(16).and_then(|from| text.get(from..)).unwrap_or(&text);
                u64::from_str_radix(tail, 16).map(ExternalHash).map_err(|_| E::custom("not a digest"))
            }
        }
    }
}

fn hash<'de, D: Deserializer<'de>>(from: D) -> Result<ExternalHash, D::Error> {
    Name::deserialize(from)?.fold()
}

fn optional_hash<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ExternalHash>, D::Error> {
    Option::<Name<'_>>::deserialize(from)?.map(Name::fold).transpose()
}

fn hashes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ExternalHash>, D::Error> {
    Vec::<Name<'_>>::deserialize(from)?.into_iter().map(Name::fold).collect()
}

/// What an event's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The next one.
    Next,
    /// Something before it is missing.
    Gap,
    /// Numbers began anew: another process.
    Restart,
}

/// Where the numbers of one engine stand.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    next: Option<u64>,
}

impl Numbers {
    /// An engine that is asked for the first time must begin at 0, else its past is missing.
    pub(super) fn take(&mut self, number: u64) -> Turn {
        let expected = self.next.unwrap_or(0);
        let turn = match number.cmp(&expected) {
            std::cmp::Ordering::Equal => Turn::Next,
            std::cmp::Ordering::Greater => Turn::Gap,
            std::cmp::Ordering::Less => Turn::Restart,
        };
        self.next = Some(number.saturating_add(1));
        turn
    }

    /// Whether any event was taken.
    pub(super) fn has_begun(&self) -> bool {
        self.next.is_some()
    }
}

/// Whether a gap before an answer of `events` proves another reader.
pub(super) fn is_stolen(events: usize) -> bool {
    events < SHORT_ANSWER
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> (Result<usize, Malformed>, Vec<Option<Event>>) {
        let mut events = Vec::new();
        let count = decode(body.as_bytes(), |event| events.push(event.ok()));
        (count, events)
    }

    #[test]
    fn reads_every_kind_and_keeps_siblings_of_what_is_broken() {
        let (count, events) = read(
            r#"[{"event_id":0,"data":{"type":"created","num_blocks_per_cache_level":[100,20]},"window_size":4096},
                {"event_id":1,"data":{"type":"stored","parent_hash":null,"blocks":[{"type":"stored_block","block_hash":
                  18446744073709551615,"tokens":[{"type":"unique_token","token_id":5,"token_extra_id":0}],"cache_level":0,
                  "priority":35}]},"window_size":4096,"attention_dp_rank":0},
                {"event_id":2,"data":{"type":"stored","blocks":5}},
                {"event_id":3,"data":{"type":"removed","block_hashes":[-1,
                  "00000000000000000000000000000000000000000000000000000000000000ff"]}},
                {"event_id":4,"data":{"type":"updated","block_hash":7,"cache_level":{"type":"event_diff","new_value":1,
                  "old_value":0},"priority":null}},
                {"event_id":5,"data":{"type":"moved"}}]"#,
        );
        assert_eq!(count, Ok(6));
        let mut events = events.into_iter();
        let mut next = || events.next().expect("six");
        assert!(
            matches!(next(), Some(Event { data: Data::Created { num_blocks_per_cache_level }, window_size: Some(4_096), .. })
            if num_blocks_per_cache_level == [100, 20])
        );
        let Some(Event { event_id: 1, data: Data::Stored { parent_hash: None, blocks }, .. }) = next() else {
            panic!("stored")
        };
        assert_eq!((blocks[0].block_hash.0, blocks[0].tokens[0].token_id, blocks[0].lora_id), (u64::MAX, 5, None));
        assert!(next().is_none(), "broken");
        assert!(matches!(next(), Some(Event { data: Data::Removed { block_hashes }, .. })
            if block_hashes == [ExternalHash(u64::MAX), ExternalHash(0xff)]));
        assert!(matches!(
            next(),
            Some(Event { data: Data::Updated { cache_level: Some(Change { new_value: 1, .. }), .. }, .. })
        ));
        assert!(matches!(next(), Some(Event { data: Data::Unknown, .. })));
    }

    #[test]
    fn an_answer_that_is_no_list_is_an_error() {
        assert_eq!(read("null").0, Ok(0));
        assert_eq!(read("[]").0, Ok(0));
        for broken in ["", "{}", "[", "[1", "\u{1}"] {
            assert_eq!(read(broken).0, Err(Malformed::Json), "{broken:?}");
        }
    }

    #[test]
    fn numbers_tell_gaps_and_restarts() {
        let mut numbers = Numbers::default();
        let turns: Vec<_> = [0, 1, 5, 6, 0, 1, 9].into_iter().map(|number| numbers.take(number)).collect();
        assert_eq!(turns, [Turn::Next, Turn::Next, Turn::Gap, Turn::Next, Turn::Restart, Turn::Next, Turn::Gap]);
        assert_eq!(Numbers::default().take(3), Turn::Gap, "its past is missing");
        assert_eq!(Numbers::default().take(u64::MAX), Turn::Gap);
    }
}
