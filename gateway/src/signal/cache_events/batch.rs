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

use super::extra::{self, Extra};
use super::msgpack::{Malformed, Reader};
use forebay_routing::index::ledger::ExternalHash;
use rmp::Marker;

/// Blocks in one event: more than any engine's cache holds.
const MAX_BLOCKS_PER_EVENT: usize = 1 << 18;

/// Tokens in one event: twice the longest context that any model has.
const MAX_TOKENS_PER_EVENT: usize = 1 << 21;

/// Kinds of attention in which a block stands for its whole prefix. A sliding window's or a state's block does not.
const WHOLE_PREFIX_KINDS: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Where events of one batch are unpacked; kept between batches for its memory.
#[derive(Default)]
pub(super) struct Scratch {
    hashes: Vec<ExternalHash>,
    tokens: Vec<u32>,
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
    kind: Option<&'a str>,
}

impl Place<'_> {
    /// Whether blocks are in the memory that prefill reads.
    pub(super) fn is_device(&self) -> bool {
        self.medium.is_none_or(|medium| medium.eq_ignore_ascii_case("gpu") || medium.eq_ignore_ascii_case("device"))
    }

    /// Whether a block stands for its whole prefix.
    pub(super) fn is_whole_prefix(&self) -> bool {
        self.kind.is_none_or(|kind| WHOLE_PREFIX_KINDS.contains(&kind))
    }
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

/// Fields of one event as far as they were there. Types share names, so one table serves all.
#[derive(Default)]
struct Fields<'a> {
    tag: Option<&'a str>,
    has_hashes: bool,
    has_tokens: bool,
    parent: Option<ExternalHash>,
    block_size: Option<u32>,
    lora_id: bool,
    lora_name: Option<&'a str>,
    extra_keys: Option<Reader<'a>>,
    place: Place<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Tag,
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    /// Positions behind `extra_keys`, whose order differed between releases: told apart by type.
    Tail,
    Other,
}

impl Field {
    fn named(key: &str) -> Self {
        match key {
            "type" => Self::Tag,
            "block_hashes" => Self::Hashes,
            "parent_block_hash" => Self::Parent,
            "token_ids" => Self::Tokens,
            "block_size" => Self::BlockSize,
            "lora_id" => Self::LoraId,
            "medium" => Self::Medium,
            "lora_name" => Self::LoraName,
            "extra_keys" => Self::ExtraKeys,
            "group_idx" => Self::Group,
            "kv_cache_spec_kind" => Self::Kind,
            _ => Self::Other,
        }
    }

    fn positioned(tag: &str, position: usize) -> Self {
        const STORED: [Field; 8] = [
            Field::Hashes,
            Field::Parent,
            Field::Tokens,
            Field::BlockSize,
            Field::LoraId,
            Field::Medium,
            Field::LoraName,
            Field::ExtraKeys,
        ];
        const REMOVED: [Field; 2] = [Field::Hashes, Field::Medium];
        let known: &[Self] = match tag {
            "BlockStored" => &STORED,
            "BlockRemoved" => &REMOVED,
            _ => return Self::Other,
        };
        known.get(position).copied().unwrap_or(Self::Tail)
    }
}

impl<'a> Fields<'a> {
    fn read(mut event: Reader<'a>, scratch: &mut Scratch) -> Result<Self, Malformed> {
        let mut fields = Self::default();
        scratch.hashes.clear();
        scratch.tokens.clear();
        match event.peek()? {
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                for _ in 0..event.map()? {
                    let field = Field::named(event.text()?);
                    fields.set(field, event.value()?, scratch)?;
                }
            }
            _ => {
                let count = event.array()?;
                let tag = event.text()?;
                fields.tag = Some(tag);
                for position in 0..count - 1 {
                    fields.set(Field::positioned(tag, position), event.value()?, scratch)?;
                }
            }
        }
        Ok(fields)
    }

    fn set(&mut self, field: Field, mut value: Reader<'a>, scratch: &mut Scratch) -> Result<(), Malformed> {
        if field == Field::Other || value.nil()? {
            return Ok(());
        }
        match field {
            Field::Tag => self.tag = Some(value.text()?),
            Field::Hashes => {
                self.has_hashes = true;
                read_hashes(&mut value, &mut scratch.hashes)?;
            }
            Field::Parent => self.parent = Some(read_hash(&mut value)?),
            // A list that cannot be used costs these blocks, not the removals beside them.
            Field::Tokens => self.has_tokens = read_tokens(&mut value, &mut scratch.tokens).is_ok(),
            Field::BlockSize => self.block_size = Some(value.u32()?),
            Field::LoraId => self.lora_id = true,
            Field::Medium => self.place.medium = Some(value.text()?),
            Field::LoraName => self.lora_name = Some(value.text()?),
            Field::ExtraKeys => self.extra_keys = Some(value),
            Field::Group => self.place.group = Some(value.u32()?),
            Field::Kind => self.place.kind = Some(value.text()?),
            Field::Tail => self.set_tail(value),
            Field::Other => {}
        }
        Ok(())
    }

    fn set_tail(&mut self, mut value: Reader<'a>) {
        let mut number = value;
        if let (None, Ok(group)) = (self.place.group, number.u32()) {
            self.place.group = Some(group);
        } else if let (None, Ok(kind)) = (self.place.kind, value.text()) {
            self.place.kind = Some(kind);
        }
    }

    fn event<'s>(&self, scratch: &'s Scratch) -> Event<'s>
    where
        'a: 's,
    {
        let hashes = scratch.hashes.as_slice();
        match self.tag {
            Some("BlockStored") => match self.stored(scratch) {
                Ok(stored) => Event::Stored(stored),
                Err(malformed) => Event::Malformed(malformed),
            },
            Some("BlockRemoved") if self.has_hashes => Event::Removed(Removed { hashes, place: self.place }),
            Some("AllBlocksCleared") => Event::Cleared,
            Some("BlockRemoved") | None => Event::Malformed(Malformed::Field),
            Some(_) => Event::Unknown,
        }
    }

    fn stored<'s>(&self, scratch: &'s Scratch) -> Result<Stored<'s>, Malformed>
    where
        'a: 's,
    {
        let block_size = self.block_size.filter(|size| *size > 0).ok_or(Malformed::Field)?;
        if !self.has_hashes {
            return Err(Malformed::Field);
        }
        let lora = match (self.lora_name, self.lora_id) {
            (Some(name), _) => Lora::Named(name),
            (None, true) => Lora::Unnamed,
            (None, false) => Lora::Base,
        };
        let extra = match self.extra_keys {
            Some(keys) => extra::read(keys, self.lora_name, self.parent.is_none())?,
            None => Extra::default(),
        };
        let hashes = scratch.hashes.as_slice();
        let whole = |tokens: &&[u32]| Some(tokens.len()) == hashes.len().checked_mul(block_size as usize);
        let tokens = self.has_tokens.then_some(scratch.tokens.as_slice()).filter(whole);
        Ok(Stored { hashes, parent: self.parent, tokens, block_size, place: self.place, lora, extra })
    }
}

fn optional<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    if reader.nil()? { Ok(None) } else { read(reader).map(Some) }
}

fn read_hash(reader: &mut Reader<'_>) -> Result<ExternalHash, Malformed> {
    match reader.peek()? {
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Ok(ExternalHash::from_bytes(reader.binary()?)),
        _ => Ok(ExternalHash(reader.bits()?)),
    }
}

fn read_hashes(reader: &mut Reader<'_>, out: &mut Vec<ExternalHash>) -> Result<(), Malformed> {
    let count = reader.array()?;
    if count > MAX_BLOCKS_PER_EVENT {
        return Err(Malformed::Size);
    }
    for _ in 0..count {
        out.push(read_hash(reader)?);
    }
    Ok(())
}

fn read_tokens(reader: &mut Reader<'_>, out: &mut Vec<u32>) -> Result<(), Malformed> {
    let count = reader.array()?;
    if count > MAX_TOKENS_PER_EVENT {
        return Err(Malformed::Size);
    }
    for _ in 0..count {
        out.push(reader.u32()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
