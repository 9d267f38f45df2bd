//! Ids of text seen before, so that turn n+1 of a chat encodes only what is new.
//!
//! Keyed by a 128-bit hash of a piece's text under a random secret, and by its length: ids of one piece never depend on
//! what stands around it (see [`super::cuts`]), so a piece is found again wherever it recurs. The text itself is not
//! kept. A collision would need two pieces of equal length with equal 128-bit hashes under a secret that nobody knows.
//!
//! Bounded: each shard holds two generations of at most half its budget; when the young one is full the old one is
//! dropped and the young one becomes old. A hit in the old one moves the entry to the young one.

use hashbrown::HashMap;
use parking_lot::Mutex;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicI64, Ordering};
use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Independently locked parts, so that cores do not queue for one lock.
const SHARDS: usize = 16;

/// Map slot and allocation header, charged per entry besides its ids.
const ENTRY_BYTES: usize = 64;

/// Bytes of a hash secret (the longest that xxh3 mixes in).
pub(crate) const SECRET_BYTES: usize = 192;

/// Passes on hashes that are already uniform.
#[derive(Default)]
struct Uniform(u64);

impl Hasher for Uniform {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u128(&mut self, hash: u128) {
        #[expect(clippy::cast_possible_truncation, reason = "any 64 of the 128 bits will do")]
        let low = hash as u64;
        self.0 = low;
    }
}

#[derive(Debug)]
struct Entry {
    length: usize,
    ids: Box<[u32]>,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.ids.len() * 4
    }
}

type Map = HashMap<u128, Entry, BuildHasherDefault<Uniform>>;

#[derive(Default)]
struct Shard {
    young: Map,
    old: Map,
    young_bytes: usize,
    old_bytes: usize,
}

impl Shard {
    /// Adds an entry to the young generation; returns the bytes that the shard grew by.
    fn insert(&mut self, key: u128, entry: Entry, half: usize) -> i64 {
        let bytes = entry.bytes();
        let mut grown = bytes as i64;
        if self.young_bytes + bytes > half {
            grown -= self.old_bytes as i64;
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
        self.young_bytes += bytes;
        if let Some(replaced) = self.young.insert(key, entry) {
            self.young_bytes -= replaced.bytes();
            grown -= replaced.bytes() as i64;
        }
        grown
    }
}

/// The shared memo of all models.
pub(crate) struct Memo {
    shards: Vec<Mutex<Shard>>,
    /// Bytes of one generation of one shard.
    half: usize,
    bytes: AtomicI64,
}

/// Name of a piece in the memo.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    hash: u128,
    length: usize,
}

impl Key {
    /// Names `piece` under a model's secret.
    pub(crate) fn new(piece: &str, secret: &[u8; SECRET_BYTES]) -> Self {
        Self { hash: xxh3_128_with_secret(piece.as_bytes(), secret), length: piece.len() }
    }
}

impl Memo {
    /// A memo of at most `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect();
        Self { shards, half: max_bytes / SHARDS / 2, bytes: AtomicI64::new(0) }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        // The maps use the low half of the hash.
        &self.shards[(key.hash >> 124) as usize % SHARDS]
    }

    /// Appends the ids of a piece to `out`; `false` when it is not here.
    pub(crate) fn append(&self, key: Key, out: &mut Vec<u32>) -> bool {
        let mut shard = self.shard(key).lock();
        if let Some(entry) = shard.young.get(&key.hash) {
            let same = entry.length == key.length;
            if same {
                out.extend_from_slice(&entry.ids);
            }
            return same;
        }
        let Some(entry) = shard.old.remove(&key.hash) else { return false };
        let moved = entry.bytes();
        shard.old_bytes -= moved;
        let same = entry.length == key.length;
        if same {
            out.extend_from_slice(&entry.ids);
        }
        let grown = shard.insert(key.hash, entry, self.half) - moved as i64;
        self.bytes.fetch_add(grown, Ordering::Relaxed);
        same
    }

    /// Remembers the ids of a piece.
    pub(crate) fn insert(&self, key: Key, ids: &[u32]) {
        let entry = Entry { length: key.length, ids: ids.into() };
        if entry.bytes() <= self.half {
            let grown = self.shard(key).lock().insert(key.hash, entry, self.half);
            self.bytes.fetch_add(grown, Ordering::Relaxed);
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
