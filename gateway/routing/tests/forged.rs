//! A forged block: under a public seed anybody finds a second block of valid token ids with the hash of a given one, and
//! with it the look of a cached prompt. Under the deployment's key the two have nothing in common.
//!
//! Why it is easy: xxh3 of 64 bytes is an invertible mix of a sum, in which each 16 bytes (four tokens) have one term of
//! their own. Four lists of terms, merged two by two on their low bits and then with each other, hit any sum (the
//! generalised birthday problem).

use forebay_routing::WorkerId;
use forebay_routing::block::{self, ChainHash, Domain, HashKey};
use forebay_routing::index::ledger::{ExternalHash, Ledger};
use forebay_routing::index::{Hits, PrefixIndex};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const BLOCK: usize = 16;
/// Seed of the block hashes of dynamo-kv-router, the same everywhere.
const PUBLIC_SEED: u64 = 1337;
/// Ids of a tokenizer of today.
const VOCABULARY: u64 = 151_936;
const LIST_BITS: u32 = 22;

/// A victim's block, and one with its public hash that the search below found.
const VICTIM: [u32; BLOCK] = [9707, 11, 1879, 0, 1096, 374, 264, 1849, 9934, 429, 1449, 10778, 13009, 448, 13, 198];
const FORGED: [u32; BLOCK] = [
    106_804, 58_886, 93_671, 24_552, 21_170, 29_898, 133_235, 4_405, 29_896, 118_303, 54_928, 84_215, 12_715, 87_035,
    42_394, 139_177,
];

fn public_hash(tokens: &[u32; BLOCK]) -> u64 {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, PUBLIC_SEED)
}

/// Undoes the final mix of xxh3: the sum of the four terms and a constant.
fn sum(tokens: &[u32; BLOCK]) -> u64 {
    /// Inverse of the mix's odd factor modulo 2⁶⁴.
    const FACTOR: u64 = 0x1656_6791_9E37_79F9;
    let inverse =
        (0..6).fold(FACTOR, |inverse, _| inverse.wrapping_mul(2_u64.wrapping_sub(FACTOR.wrapping_mul(inverse))));
    let mut hash = public_hash(tokens);
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(inverse);
    hash ^ hash >> 37
}

/// The term of quarter `quarter` with the tokens that `seed` stands for.
fn quarter(quarter: usize, seed: u64) -> [u32; BLOCK] {
    let mut tokens = [0; BLOCK];
    let mut rng = fastrand::Rng::with_seed(seed << 2 | quarter as u64);
    for token in &mut tokens[quarter * 4..][..4] {
        *token = rng.u64(1..VOCABULARY) as u32;
    }
    tokens
}

/// (sum of the terms of two quarters, which), for those whose low bits are `low`.
fn merge(one: usize, two: usize, low: u64) -> Vec<(u64, u32, u32)> {
    let mask = (1 << LIST_BITS) - 1;
    let zero = sum(&[0; BLOCK]);
    let terms = |at: usize| (0..1_u64 << LIST_BITS).map(move |seed| sum(&quarter(at, seed)).wrapping_sub(zero));
    let mut left: Vec<(u64, u32)> = terms(one).zip(0..).collect();
    left.sort_unstable_by_key(|(term, _)| term & mask);
    let mut merged = Vec::with_capacity(1 << LIST_BITS);
    for (term, seed) in terms(two).zip(0_u32..) {
        let wanted = low.wrapping_sub(term) & mask;
        let from = left.partition_point(|(other, _)| other & mask < wanted);
        let same = left[from..].iter().take_while(|(other, _)| other & mask == wanted);
        merged.extend(same.map(|(other, partner)| (other.wrapping_add(term), *partner, seed)));
    }
    merged
}

/// A block of valid ids with the public hash of `victim`.
fn forge(victim: &[u32; BLOCK]) -> Option<[u32; BLOCK]> {
    let target = sum(victim).wrapping_sub(sum(&[0; BLOCK]));
    (0..8).find_map(|low| {
        let mut left = merge(0, 1, low);
        left.sort_unstable();
        let right = merge(2, 3, target.wrapping_sub(low));
        right.into_iter().find_map(|(term, three, four)| {
            let at = left.binary_search_by_key(&target.wrapping_sub(term), |(term, _, _)| *term).ok()?;
            let (_, one, two) = left[at];
            let parts = [(0, one), (1, two), (2, three), (3, four)];
            let parts = parts.map(|(at, seed)| quarter(at, u64::from(seed)));
            Some(std::array::from_fn(|at| parts.iter().map(|part| part[at]).sum()))
        })
    })
}

#[test]
fn a_block_forged_for_a_public_seed_gains_nothing() {
    assert_ne!(FORGED, VICTIM);
    assert!(FORGED.iter().all(|token| u64::from(*token) < VOCABULARY));
    assert_eq!(public_hash(&FORGED), public_hash(&VICTIM), "under the public seed they are one block");

    let key = HashKey::derive(&[3; 32]);
    let chain = |tokens: &[u32]| {
        let mut out: Vec<ChainHash> = Vec::new();
        block::chain(&key, Domain(1), BLOCK as u32, tokens, &mut out);
        out
    };
    let index = PrefixIndex::with_budget(16 << 20);
    let mut ledger = Ledger::new(WorkerId::new(0, 0));
    ledger.stored(&index, &key, Domain(1), None, &[ExternalHash(1)], &VICTIM, BLOCK as u32);
    let mut hits = Hits::default();
    index.lookup(&chain(&VICTIM), 0, true, &mut hits);
    assert_eq!(hits.of(WorkerId::new(0, 0)), 1);
    index.lookup(&chain(&FORGED), 0, true, &mut hits);
    assert_eq!(hits.blocks, [], "the forged block looks cached nowhere");
    assert_ne!(block::local(&key, Domain(1), &FORGED), block::local(&key, Domain(1), &VICTIM));
}

#[test]
#[ignore = "takes seconds in an optimised build, `make model-index`, and minutes in another"]
fn such_a_block_is_found_in_seconds() {
    let forged = forge(&VICTIM).expect("2⁶⁶ sums hit 2⁶⁴ values");
    assert_eq!(public_hash(&forged), public_hash(&VICTIM));
    assert!(forged != VICTIM && forged.iter().all(|token| u64::from(*token) < VOCABULARY), "{forged:?}");
    assert_eq!(forged, FORGED, "the one that the other test uses");
}
