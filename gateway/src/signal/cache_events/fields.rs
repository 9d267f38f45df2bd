//! The fields of one event, named (maps) or by position (arrays).

use super::batch::{Event, Lora, MAX_BLOCKS_PER_EVENT, MAX_TOKENS_PER_EVENT, Place, Removed, Scratch, Stored};
use super::extra::{self, Extra};
use super::msgpack::{Malformed, Reader};
use forebay_routing::index::ledger::ExternalHash;
use rmp::Marker;

/// Fields of one event as far as they were there. Types share names, so one table serves all.
#[derive(Default)]
pub(super) struct Fields<'a> {
    tag: Option<&'a str>,
    has_hashes: bool,
    /// A list of tokens that can be used.
    has_tokens: bool,
    /// A list of tokens that is not empty.
    lists_tokens: bool,
    is_bigram: bool,
    parent: Option<ExternalHash>,
    block_size: Option<u32>,
    lora_id: bool,
    lora_name: Option<&'a str>,
    salt: Option<&'a str>,
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
    Salt,
    ExtraKeys,
    Group,
    Kind,
    Window,
    Locality,
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
            "cache_salt" => Self::Salt,
            "extra_keys" => Self::ExtraKeys,
            "group_idx" => Self::Group,
            "kv_cache_spec_kind" => Self::Kind,
            "kv_cache_spec_sliding_window" => Self::Window,
            "locality" => Self::Locality,
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
    pub(super) fn read(mut event: Reader<'a>, scratch: &mut Scratch) -> Result<Self, Malformed> {
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
            Field::Tokens => {
                let mut list = value;
                self.lists_tokens = list.array().is_ok_and(|count| count > 0);
                match read_tokens(&mut value, &mut scratch.tokens) {
                    Ok(is_bigram) => (self.has_tokens, self.is_bigram) = (true, is_bigram),
                    Err(_) => self.has_tokens = false,
                }
            }
            Field::BlockSize => self.block_size = Some(value.u32()?),
            Field::LoraId => self.lora_id = true,
            Field::Medium => self.place.medium = Some(value.text()?),
            Field::LoraName => self.lora_name = Some(value.text()?),
            Field::Salt => self.salt = Some(value.text()?).filter(|salt| !salt.is_empty()),
            Field::ExtraKeys => self.extra_keys = Some(value),
            Field::Group => self.place.group = Some(value.u32()?),
            Field::Kind => self.place.kind = Some(value.text()?),
            Field::Window => self.place.window_tokens = Some(value.u32()?),
            Field::Locality => self.place.locality = Some(value.text()?),
            Field::Tail => self.set_tail(value),
            Field::Other => {}
        }
        Ok(())
    }

    /// Behind the known positions stand, in an order that changed: the group (a number), its kind (a text), its window
    /// (the second number).
    fn set_tail(&mut self, mut value: Reader<'a>) {
        let mut number = value;
        match number.u32() {
            Ok(number) if self.place.group.is_none() => self.place.group = Some(number),
            Ok(number) if self.place.window_tokens.is_none() => self.place.window_tokens = Some(number),
            Ok(_) => {}
            Err(_) => {
                if let (None, Ok(kind)) = (self.place.kind, value.text()) {
                    self.place.kind = Some(kind);
                }
            }
        }
    }

    pub(super) fn event<'s>(&self, scratch: &'s Scratch) -> Event<'s>
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
        let mut extra = match self.extra_keys {
            Some(keys) => extra::read(keys, self.lora_name, self.parent.is_none())?,
            None => Extra::default(),
        };
        extra.salt = self.salt.or(extra.salt);
        let hashes = scratch.hashes.as_slice();
        let whole = |tokens: &&[u32]| Some(tokens.len()) == hashes.len().checked_mul(block_size as usize);
        let tokens = self.has_tokens.then_some(scratch.tokens.as_slice()).filter(whole);
        let (parent, place, is_bigram, has_tokens) = (self.parent, self.place, self.is_bigram, self.lists_tokens);
        Ok(Stored { hashes, parent, tokens, has_tokens, is_bigram, block_size, place, lora, extra })
    }
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

/// Token ids, or pairs of neighbours (`[[1, 2], [2, 3]]`, keys of caches that draft with EAGLE), of which the first of
/// each is kept. True for pairs.
fn read_tokens(reader: &mut Reader<'_>, out: &mut Vec<u32>) -> Result<bool, Malformed> {
    let count = reader.array()?;
    if count > MAX_TOKENS_PER_EVENT {
        return Err(Malformed::Size);
    }
    let is_pair = |marker| matches!(marker, Marker::FixArray(_) | Marker::Array16 | Marker::Array32);
    let is_bigram = count > 0 && is_pair(reader.peek()?);
    let mut second = None;
    for _ in 0..count {
        if !is_bigram {
            out.push(reader.u32()?);
            continue;
        }
        if reader.array()? != 2 {
            return Err(Malformed::Type);
        }
        let first = reader.u32()?;
        // Neighbours overlap by a token; what does not is no prompt.
        if second.replace(reader.u32()?).is_some_and(|second| second != first) {
            return Err(Malformed::Field);
        }
        out.push(first);
    }
    Ok(is_bigram)
}
