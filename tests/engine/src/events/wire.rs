//! The payload: three generations of vLLM's, and SGLang's.

use crate::model::{BlockHash, CacheEvent, StoredBlocks};
use rmp::encode;

/// Which generation of whose payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Wire {
    /// `[ts, [["BlockStored", …], …], rank]`: events are arrays. Replay answers carry no topic.
    Array,
    /// `[ts, [{"type": "BlockStored", …}, …], rank]`: events are maps (vLLM 0.32).
    #[default]
    Map,
    /// `{"ts": …, "events": [maps], "data_parallel_rank": …}`.
    MapOuter,
    /// SGLang's: as `array`, with fewer fields and signed hashes. Replay answers carry no topic.
    Sglang,
}

/// How a block hash is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HashForm {
    /// The low 64 bits, an unsigned integer.
    #[default]
    Int,
    /// All 32 bytes.
    Bytes,
}

/// What one step did to the cache of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct EventBatch {
    /// Unix time, s.
    pub ts: f64,
    /// In the order they happened.
    pub events: Vec<CacheEvent>,
    /// Data-parallel rank.
    pub rank: u32,
    /// Block size, tokens.
    pub block_tokens: u32,
}

/// Where the cache is; vLLM says GPU on every backend.
const MEDIUM: &str = "GPU";

/// The msgpack payload of `batch`.
pub fn encode_batch(batch: &EventBatch, wire: Wire, hash: HashForm) -> Vec<u8> {
    let mut out = Payload { out: Vec::with_capacity(256), hash, signed: wire == Wire::Sglang };
    match wire {
        Wire::Array | Wire::Map | Wire::Sglang => {
            out.array(3);
            out.float(batch.ts);
            out.events(batch, wire);
            out.uint(batch.rank.into());
        }
        Wire::MapOuter => {
            out.map(3);
            out.text("ts");
            out.float(batch.ts);
            out.text("events");
            out.events(batch, wire);
            out.text("data_parallel_rank");
            out.uint(batch.rank.into());
        }
    }
    out.out
}

/// Writes msgpack into memory, which cannot fail: the writers' results are dropped for that reason.
struct Payload {
    out: Vec<u8>,
    hash: HashForm,
    /// SGLang's integers.
    signed: bool,
}

impl Payload {
    fn events(&mut self, batch: &EventBatch, wire: Wire) {
        if wire == Wire::Sglang {
            return self.page_events(batch);
        }
        self.array(batch.events.len());
        for event in &batch.events {
            match (event, wire) {
                (CacheEvent::Stored(stored), Wire::Array) => self.stored_array(stored, batch.block_tokens),
                (CacheEvent::Stored(stored), _) => self.stored_map(stored, batch.block_tokens),
                (CacheEvent::Removed(hash), Wire::Array) => {
                    self.array(3);
                    self.text("BlockRemoved");
                    self.hashes(std::slice::from_ref(hash));
                    self.text(MEDIUM);
                }
                (CacheEvent::Removed(hash), _) => {
                    self.map(4);
                    self.pair("type", "BlockRemoved");
                    self.text("block_hashes");
                    self.hashes(std::slice::from_ref(hash));
                    self.pair("medium", MEDIUM);
                    self.text("group_idx");
                    self.uint(0);
                }
                (CacheEvent::Cleared, Wire::Array) => {
                    self.array(1);
                    self.text("AllBlocksCleared");
                }
                (CacheEvent::Cleared, _) => {
                    self.map(1);
                    self.pair("type", "AllBlocksCleared");
                }
            }
        }
    }

    fn stored_map(&mut self, stored: &StoredBlocks, block_tokens: u32) {
        self.map(11);
        self.pair("type", "BlockStored");
        self.text("block_hashes");
        self.hashes(&stored.hashes);
        self.text("parent_block_hash");
        self.optional_hash(stored.parent.as_ref());
        self.text("token_ids");
        self.tokens(&stored.tokens);
        self.text("block_size");
        self.uint(block_tokens.into());
        self.text("lora_id");
        self.lora_id(stored);
        self.pair("medium", MEDIUM);
        self.text("lora_name");
        self.lora_name(stored);
        self.text("extra_keys");
        self.extra_keys(stored);
        self.text("group_idx");
        self.uint(0);
        self.pair("kv_cache_spec_kind", "full_attention");
    }

    fn stored_array(&mut self, stored: &StoredBlocks, block_tokens: u32) {
        self.array(9);
        self.text("BlockStored");
        self.hashes(&stored.hashes);
        self.optional_hash(stored.parent.as_ref());
        self.tokens(&stored.tokens);
        self.uint(block_tokens.into());
        self.lora_id(stored);
        self.text(MEDIUM);
        self.lora_name(stored);
        self.extra_keys(stored);
    }

    /// SGLang tells of one page at a time.
    fn page_events(&mut self, batch: &EventBatch) {
        let pages = |event: &CacheEvent| if let CacheEvent::Stored(stored) = event { stored.hashes.len() } else { 1 };
        self.array(batch.events.iter().map(pages).sum());
        for event in &batch.events {
            match event {
                CacheEvent::Stored(stored) => {
                    let mut parent = stored.parent.as_ref();
                    let tokens = stored.tokens.chunks(batch.block_tokens.max(1) as usize);
                    for (hash, tokens) in stored.hashes.iter().zip(tokens) {
                        self.array(7);
                        self.text("BlockStored");
                        self.hashes(std::slice::from_ref(hash));
                        self.optional_hash(parent);
                        self.tokens(tokens);
                        self.uint(tokens.len() as u64);
                        self.lora_id(stored);
                        self.text(MEDIUM);
                        parent = Some(hash);
                    }
                }
                CacheEvent::Removed(hash) => {
                    self.array(3);
                    self.text("BlockRemoved");
                    self.hashes(std::slice::from_ref(hash));
                    self.text(MEDIUM);
                }
                CacheEvent::Cleared => {
                    self.array(1);
                    self.text("AllBlocksCleared");
                }
            }
        }
    }

    fn lora_id(&mut self, stored: &StoredBlocks) {
        match &stored.domain.lora {
            Some((id, _)) => self.uint((*id).into()),
            None => self.nil(),
        }
    }

    fn lora_name(&mut self, stored: &StoredBlocks) {
        match &stored.domain.lora {
            Some((_, name)) => self.text(name),
            None => self.nil(),
        }
    }

    /// One entry for each block: nil, or the values without their tags.
    fn extra_keys(&mut self, stored: &StoredBlocks) {
        self.array(stored.hashes.len());
        for at in 0..stored.hashes.len() {
            let values: Vec<&str> = stored.domain.extra_keys(stored.first_index + at).map(|(_, value)| value).collect();
            if values.is_empty() {
                self.nil();
                continue;
            }
            self.array(values.len());
            values.into_iter().for_each(|value| self.text(value));
        }
    }

    fn hashes(&mut self, hashes: &[BlockHash]) {
        self.array(hashes.len());
        hashes.iter().for_each(|hash| self.one_hash(hash));
    }

    fn optional_hash(&mut self, hash: Option<&BlockHash>) {
        match hash {
            Some(hash) => self.one_hash(hash),
            None => self.nil(),
        }
    }

    fn one_hash(&mut self, hash: &BlockHash) {
        match self.hash {
            HashForm::Int if self.signed => drop(encode::write_sint(&mut self.out, hash.high64())),
            HashForm::Int => self.uint(hash.low64()),
            HashForm::Bytes => drop(encode::write_bin(&mut self.out, hash.bytes())),
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        tokens.iter().for_each(|&token| self.uint(token.into()));
    }

    fn pair(&mut self, key: &str, value: &str) {
        self.text(key);
        self.text(value);
    }

    fn array(&mut self, items: usize) {
        drop(encode::write_array_len(&mut self.out, items as u32));
    }

    fn map(&mut self, pairs: usize) {
        drop(encode::write_map_len(&mut self.out, pairs as u32));
    }

    fn text(&mut self, text: &str) {
        drop(encode::write_str(&mut self.out, text));
    }

    fn uint(&mut self, value: u64) {
        drop(encode::write_uint(&mut self.out, value));
    }

    fn float(&mut self, value: f64) {
        drop(encode::write_f64(&mut self.out, value));
    }

    fn nil(&mut self) {
        drop(encode::write_nil(&mut self.out));
    }
}
