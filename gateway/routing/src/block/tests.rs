use super::*;
use proptest::prelude::*;

fn key(seed: u8) -> HashKey {
    HashKey::derive(&[seed; 32])
}

fn spec<'a>() -> DomainSpec<'a> {
    DomainSpec { model: "m", tokenizer_digest: b"d", block_size: 4, lora: None, cache_salt: None }
}

fn hashes(key: &HashKey, domain: Domain, block_size: u32, tokens: &[u32]) -> Vec<ChainHash> {
    let mut out = Vec::new();
    chain(key, domain, block_size, tokens, &mut out);
    out
}

#[test]
fn keystream_equals_the_published_one() {
    // RFC 8439 appendix A.1, test vectors 1 and 2: all-zero key and nonce, counters 0 and 1.
    let first = expand::chacha20_block(&[0; 32], 0);
    assert_eq!(first[..8], [0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90]);
    assert_eq!(first[60..], [0xb2, 0xee, 0x65, 0x86]);
    let second = expand::chacha20_block(&[0; 32], 1);
    assert_eq!(second[..8], [0x9f, 0x07, 0xe7, 0xbe, 0x55, 0x51, 0x38, 0x7a]);
}

#[test]
fn hashes_are_pinned() {
    // Gateways of one deployment run different builds during an upgrade: these values may not move without a new
    // DOMAIN_VERSION.
    let key = key(7);
    let domain = domain(&key, &spec());
    let found = hashes(&key, domain, 4, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!((domain, found), (Domain(PINNED_DOMAIN), PINNED_CHAIN.map(ChainHash).to_vec()));
}

const PINNED_DOMAIN: u64 = 4_763_959_709_843_761_960;
const PINNED_CHAIN: [u64; 2] = [15_375_347_710_964_941_960, 10_006_414_587_800_777_511];

#[test]
fn every_field_of_the_domain_matters() {
    let key = key(1);
    let plain = spec();
    let others = [
        DomainSpec { model: "n", ..plain },
        DomainSpec { tokenizer_digest: b"e", ..plain },
        DomainSpec { block_size: 8, ..plain },
        DomainSpec { lora: Some("a"), ..plain },
        DomainSpec { lora: Some(""), ..plain },
        DomainSpec { cache_salt: Some("a"), ..plain },
        DomainSpec { cache_salt: Some(""), ..plain },
        // Fields that would run into each other without lengths.
        DomainSpec { model: "md", tokenizer_digest: b"", ..plain },
        DomainSpec { model: "", tokenizer_digest: b"md", ..plain },
    ];
    let mut seen: Vec<Domain> = others.iter().map(|other| domain(&key, other)).collect();
    seen.push(domain(&key, &plain));
    for (at, one) in seen.iter().enumerate() {
        assert!(!seen[at + 1..].contains(one), "domain {at} equals another");
    }
}

#[test]
fn keys_differ_and_stay_hidden() {
    let (one, two) = (key(1), key(2));
    assert_ne!(one.id(), two.id());
    assert_ne!(hashes(&one, Domain(0), 2, &[1, 2]), hashes(&two, Domain(0), 2, &[1, 2]));
    assert_ne!(one.text(b"head"), two.text(b"head"));
    assert!(!format!("{one:?}").contains("secret"));
}

#[test]
fn large_blocks_hash_like_one_piece() {
    let key = key(3);
    let tokens: Vec<u32> = (0..1_056).collect();
    let mut bytes = 9u64.to_le_bytes().to_vec();
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    assert_eq!(Encoder::new(Domain(9)).local(&key, &tokens), key.hash(&bytes));
}

#[test]
fn no_block_size_means_no_blocks() {
    assert!(hashes(&key(1), Domain(1), 0, &[1, 2, 3]).is_empty());
}

proptest! {
    #[test]
    fn chain_equals_extending_block_by_block(tokens in prop::collection::vec(any::<u32>(), 0..100), size in 1u32..20) {
        let key = key(5);
        let domain = domain(&key, &DomainSpec { block_size: size, ..spec() });
        let found = hashes(&key, domain, size, &tokens);
        prop_assert_eq!(found.len(), tokens.len() / size as usize);
        let mut parent = None;
        for (block, hash) in tokens.chunks_exact(size as usize).zip(&found) {
            parent = Some(extend(&key, domain, parent, block));
            prop_assert_eq!(parent, Some(*hash));
        }
    }

    #[test]
    fn a_changed_token_changes_its_block_and_all_after(
        tokens in prop::collection::vec(any::<u32>(), 8..64), at in any::<prop::sample::Index>(), flip in 1u32..,
    ) {
        let key = key(6);
        let at = at.index(tokens.len() / 4 * 4);
        let mut other = tokens.clone();
        other[at] ^= flip;
        let (one, two) = (hashes(&key, Domain(1), 4, &tokens), hashes(&key, Domain(1), 4, &other));
        for (block, (a, b)) in one.iter().zip(&two).enumerate() {
            prop_assert_eq!(a == b, block < at / 4, "block {}", block);
        }
    }
}
