//! Block identity: vLLM's `sha256_cbor` chain, bit for bit, or SGLang's.
//!
//! `hash[i] = sha256(cbor([hash[i−1], [tokens of block i], extra]))` with `hash[−1] = sha256(cbor("vllm-none-hash"))`.
//! `extra` is null, or the list of what else tells two equal token blocks apart: the LoRA adapter on every block and
//! the cache salt on the first.
//!
//! SGLang's page digest is `sha256(parent's digest, if any ‖ each token as 4 bytes, little-endian)`.

use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// Digest of a block and of everything before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// A digest from elsewhere, an event say.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The low 64 bits, as events carry them by default.
    pub fn low64(&self) -> u64 {
        let mut low = [0u8; 8];
        low.copy_from_slice(&self.0[24..]);
        u64::from_be_bytes(low)
    }

    /// The high 64 bits with a sign, as SGLang's events carry them.
    pub fn high64(&self) -> i64 {
        let mut high = [0u8; 8];
        high.copy_from_slice(&self.0[..8]);
        i64::from_be_bytes(high)
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.low64())
    }
}

/// How blocks are hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rule {
    /// vLLM's `sha256_cbor`.
    #[default]
    VllmCbor,
    /// SGLang's. What salt and adapter do to it was not seen: they stand before the first page here.
    SgLang,
}

/// What separates caches besides the tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Domain {
    /// LoRA adapter: number (from 1) and name.
    pub lora: Option<(u32, Arc<str>)>,
    /// `cache_salt` of the request.
    pub salt: Option<Arc<str>>,
    /// How its blocks are hashed.
    pub rule: Rule,
}

impl Domain {
    /// What enters the hash of block `index`, as (tag, value).
    pub fn extra_keys(&self, index: usize) -> impl Iterator<Item = (&'static str, &str)> {
        let lora = self.lora.as_ref().map(|(_, name)| ("lora_name", &**name));
        let salt = self.salt.as_ref().filter(|_| index == 0).map(|salt| ("cache_salt", &**salt));
        lora.into_iter().chain(salt)
    }
}

/// Hashes of every complete block of `tokens`.
pub fn chain(domain: &Domain, tokens: impl Iterator<Item = u32>, block_tokens: usize) -> Vec<BlockHash> {
    let mut hashes = Vec::with_capacity(tokens.size_hint().0 / block_tokens);
    let mut parent = None;
    let mut block = Vec::with_capacity(block_tokens);
    for token in tokens {
        block.push(token);
        if block.len() == block_tokens {
            let hash = match domain.rule {
                Rule::VllmCbor => link(&parent.unwrap_or_else(root), &block, domain.extra_keys(hashes.len())),
                Rule::SgLang => link_pages(parent.as_ref(), &block, domain),
            };
            parent = Some(hash);
            hashes.push(hash);
            block.clear();
        }
    }
    hashes
}

/// The parent of first blocks.
fn root() -> BlockHash {
    let mut cbor = Vec::with_capacity(16);
    put_text(&mut cbor, "vllm-none-hash");
    BlockHash(Sha256::digest(&cbor).into())
}

/// SGLang's digest of one page.
fn link_pages(parent: Option<&BlockHash>, tokens: &[u32], domain: &Domain) -> BlockHash {
    let mut digest = Sha256::new();
    match parent {
        Some(parent) => digest.update(parent.0),
        None => domain.extra_keys(0).for_each(|(_, value)| digest.update(value)),
    }
    tokens.iter().for_each(|token| digest.update(token.to_le_bytes()));
    BlockHash(digest.finalize().into())
}

fn link<'a>(parent: &BlockHash, tokens: &[u32], extra: impl Iterator<Item = (&'static str, &'a str)>) -> BlockHash {
    let mut cbor = Vec::with_capacity(64 + tokens.len() * 5);
    put_head(&mut cbor, 4, 3);
    put_head(&mut cbor, 2, 32);
    cbor.extend_from_slice(&parent.0);
    put_head(&mut cbor, 4, tokens.len() as u64);
    for &token in tokens {
        put_head(&mut cbor, 0, u64::from(token));
    }
    let extra: Vec<_> = extra.collect();
    if extra.is_empty() {
        cbor.push(0xf6);
    } else {
        put_head(&mut cbor, 4, extra.len() as u64);
        for (tag, value) in extra {
            put_head(&mut cbor, 4, 2);
            put_text(&mut cbor, tag);
            put_text(&mut cbor, value);
        }
    }
    BlockHash(Sha256::digest(&cbor).into())
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_head(out, 3, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// A CBOR item head: major type and the shortest form of `value`.
fn put_head(out: &mut Vec<u8>, major: u8, value: u64) {
    let major = major << 5;
    match value {
        0..=23 => out.push(major | value as u8),
        24..=0xff => out.extend_from_slice(&[major | 24, value as u8]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}
