//! Token ids → keyed, chained block hashes.
//!
//! ```text
//! domain   = H(model, tokenizer digest, block size, adapter, cache salt)      each field tagged and length-prefixed
//! local    = H(domain ‖ tokens, little-endian u32)
//! chain[0] = H(local[0])        chain[i] = H(chain[i−1] ‖ local[i])            H = xxh3-64 under the deployment's secret
//! ```
//!
//! Two prompts share `chain[i]` exactly when they agree in the domain and in every token up to the end of block `i`.
//! Only complete blocks have a hash: an engine caches nothing less.
//!
//! Why keyed: with a public seed a second block of valid token ids for a given xxh3 value is found in seconds, and a client
//! could make its prompts look cached wherever it wants load to go. The secret is what xxh3 takes in place of its built-in
//! one: 192 bytes that must look random. They are the ChaCha20 keystream of the 32 random bytes of the deployment, a
//! standard pseudorandom function (three cipher blocks are just 192 bytes), so nothing about a part of the secret follows
//! from another, and equal seeds give equal hashes in every gateway. A match is a routing hint only; nothing is served,
//! moved or stored on the strength of it.
//!
//! Cost: one pass over the tokens, two short hashes a block, no allocation beyond `out`.

mod expand;
#[cfg(test)]
mod tests;

use std::fmt;
use xxhash_rust::xxh3::{Xxh3, Xxh3Builder, xxh3_64_with_secret};

/// Blocks up to so many tokens are hashed from the stack in one piece; larger ones (hybrid models have 1,056) as a stream.
const STACK_TOKENS: usize = 256;
/// Bytes of the domain before the tokens.
const DOMAIN_BYTES: usize = 8;
/// Version of the domain's encoding: another one never compares equal.
const DOMAIN_VERSION: u8 = 1;

/// Secret of one deployment, from which every routing hash is keyed.
#[derive(Clone)]
pub struct HashKey {
    secret: [u8; 192],
    id: u64,
}

impl HashKey {
    /// Derives the hashing secret from 32 random bytes.
    pub fn derive(seed: &[u8; 32]) -> Self {
        let mut secret = [0; 192];
        for (counter, chunk) in (0u32..).zip(secret.chunks_exact_mut(64)) {
            chunk.copy_from_slice(&expand::chacha20_block(seed, counter));
        }
        let [a, b, c, d, e, f, g, h, ..] = expand::chacha20_block(seed, 3);
        Self { secret, id: u64::from_le_bytes([a, b, c, d, e, f, g, h]) }
    }
    /// Names the key without revealing it; stored beside snapshots.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Keyed hash of text, for what routes by text (prompt heads, session hints).
    pub fn text(&self, text: &[u8]) -> u64 {
        self.hash(text)
    }

    #[inline(always)]
    fn hash(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_secret(bytes, &self.secret)
    }

    fn stream(&self) -> Xxh3 {
        Xxh3Builder::new().with_secret(self.secret).build()
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What must agree before two blocks of equal tokens count as equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DomainSpec<'a> {
    /// Model name as the engine serves it.
    pub model: &'a str,
    /// Digest of the tokenizer files, empty where unknown.
    pub tokenizer_digest: &'a [u8],
    /// Tokens per block.
    pub block_size: u32,
    /// LoRA adapter, `None` for the base model.
    pub lora: Option<&'a str>,
    /// Cache salt of the request, `None` where none was given.
    pub cache_salt: Option<&'a str>,
}

/// Keyed hash of a [`DomainSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(pub u64);

/// Position-aware hash of a block and everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainHash(pub u64);

/// Hash of one block's tokens in a domain, wherever it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalHash(pub u64);

/// Hashes a domain.
pub fn domain(key: &HashKey, spec: &DomainSpec<'_>) -> Domain {
    let mut stream = key.stream();
    stream.update(&[DOMAIN_VERSION]);
    stream.update(&spec.block_size.to_le_bytes());
    let fields = [
        Some(spec.model.as_bytes()),
        Some(spec.tokenizer_digest),
        spec.lora.map(str::as_bytes),
        spec.cache_salt.map(str::as_bytes),
    ];
    for field in fields {
        match field {
            Some(bytes) => {
                stream.update(&[1]);
                stream.update(&(bytes.len() as u64).to_le_bytes());
                stream.update(bytes);
            }
            None => stream.update(&[0]),
        }
    }
    Domain(stream.digest())
}

/// Hash of the block `tokens` (exactly one block) that follows `parent` (`None` at the start).
pub fn extend(key: &HashKey, domain: Domain, parent: Option<ChainHash>, tokens: &[u32]) -> ChainHash {
    link(key, parent, local(key, domain, tokens))
}

/// Hash of the block `tokens` (exactly one block) by itself.
pub fn local(key: &HashKey, domain: Domain, tokens: &[u32]) -> LocalHash {
    LocalHash(Encoder::new(domain).local(key, tokens))
}

/// Hash of a block, given by itself, that follows `parent` (`None` at the start).
#[inline]
pub fn link(key: &HashKey, parent: Option<ChainHash>, LocalHash(local): LocalHash) -> ChainHash {
    let local = local.to_le_bytes();
    let Some(ChainHash(parent)) = parent else { return ChainHash(key.hash(&local)) };
    let mut pair = [0; 16];
    pair[..8].copy_from_slice(&parent.to_le_bytes());
    pair[8..].copy_from_slice(&local);
    ChainHash(key.hash(&pair))
}

/// Appends to `out` the chain hashes of every complete block of `tokens`; the partial tail is dropped. A block size of
/// zero has no blocks.
pub fn chain(key: &HashKey, domain: Domain, block_size: u32, tokens: &[u32], out: &mut Vec<ChainHash>) {
    chain_after(key, domain, None, block_size, tokens, out);
}

/// Like [`chain`], for blocks that follow `parent`.
pub fn chain_after(
    key: &HashKey,
    domain: Domain,
    parent: Option<ChainHash>,
    block_size: u32,
    tokens: &[u32],
    out: &mut Vec<ChainHash>,
) {
    let Some(blocks) = tokens.len().checked_div(block_size as usize) else { return };
    out.reserve(blocks);
    // Of the usual sizes the compiler knows the length of what is hashed, and leaves out most of the hash.
    match block_size {
        16 => link_all(key, domain, parent, tokens.as_chunks::<16>().0, out),
        32 => link_all(key, domain, parent, tokens.as_chunks::<32>().0, out),
        64 => link_all(key, domain, parent, tokens.as_chunks::<64>().0, out),
        size => link_all(key, domain, parent, tokens.chunks_exact(size as usize), out),
    }
}

#[inline(always)]
fn link_all<B: AsRef<[u32]>>(
    key: &HashKey,
    domain: Domain,
    parent: Option<ChainHash>,
    blocks: impl IntoIterator<Item = B>,
    out: &mut Vec<ChainHash>,
) {
    let mut encoder = Encoder::new(domain);
    let mut last = parent;
    out.extend(blocks.into_iter().map(|block| {
        let hash = link(key, last, LocalHash(encoder.local(key, block.as_ref())));
        last = Some(hash);
        hash
    }));
}

/// The bytes of a block as they are hashed: the domain, written once, then tokens.
struct Encoder {
    bytes: [u8; DOMAIN_BYTES + STACK_TOKENS * 4],
}

impl Encoder {
    fn new(Domain(domain): Domain) -> Self {
        let mut bytes = [0; DOMAIN_BYTES + STACK_TOKENS * 4];
        bytes[..DOMAIN_BYTES].copy_from_slice(&domain.to_le_bytes());
        Self { bytes }
    }

    #[inline(always)]
    fn local(&mut self, key: &HashKey, tokens: &[u32]) -> u64 {
        if tokens.len() <= STACK_TOKENS {
            let used = DOMAIN_BYTES + tokens.len() * 4;
            encode(tokens, &mut self.bytes[DOMAIN_BYTES..used]);
            return key.hash(&self.bytes[..used]);
        }
        let mut stream = key.stream();
        stream.update(&self.bytes[..DOMAIN_BYTES]);
        for piece in tokens.chunks(STACK_TOKENS) {
            let bytes = &mut self.bytes[DOMAIN_BYTES..DOMAIN_BYTES + piece.len() * 4];
            encode(piece, bytes);
            stream.update(bytes);
        }
        stream.digest()
    }
}

/// `bytes` is four times as long as `tokens`. Written in the pieces in which the hash reads them: it would wait for the
/// halves of what was written in smaller ones.
#[inline(always)]
fn encode(tokens: &[u32], bytes: &mut [u8]) {
    let (pairs, odd) = tokens.as_chunks::<2>();
    let (slots, rest) = bytes.as_chunks_mut::<8>();
    for ([low, high], slot) in pairs.iter().zip(slots) {
        *slot = (u64::from(*low) | u64::from(*high) << 32).to_le_bytes();
    }
    for (token, slot) in odd.iter().zip(rest.chunks_exact_mut(4)) {
        slot.copy_from_slice(&token.to_le_bytes());
    }
}
