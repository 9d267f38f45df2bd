//! Token ids → keyed, chained block hashes.

/// Secret of one deployment, from which every routing hash is keyed.
#[derive(Clone)]
pub struct HashKey {
    secret: [u8; 192],
    id: u64,
}

impl HashKey {
    /// Derives the hashing secret from 32 random bytes.
    pub fn derive(_seed: &[u8; 32]) -> Self {
        unimplemented!()
    }
    /// Names the key without revealing it; stored beside snapshots.
    pub fn id(&self) -> u64 {
        self.id
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

/// Hashes a domain.
pub fn domain(_key: &HashKey, _spec: &DomainSpec<'_>) -> Domain {
    unimplemented!()
}

/// Hash of the block `tokens` (exactly one block) that follows `parent` (`None` at the start).
pub fn extend(_key: &HashKey, _domain: Domain, _parent: Option<ChainHash>, _tokens: &[u32]) -> ChainHash {
    unimplemented!()
}

/// Appends to `out` the chain hashes of every complete block of `tokens`; the partial tail is dropped.
pub fn chain(_key: &HashKey, _domain: Domain, _block_size: u32, _tokens: &[u32], _out: &mut Vec<ChainHash>) {
    unimplemented!()
}
