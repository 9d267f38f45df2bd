//! The decoder against what real engines sent, every generation of the wire, and garbage.

use super::*;
use base64::Engine as _;
use forebay_routing::index::{GroupKind, Tier};
use serde_json::Value;

/// Events as plain values, to compare with the recorded decoding.
#[derive(Debug, PartialEq)]
enum Plain {
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        tokens: Option<Vec<u32>>,
        block_size: u32,
        salt: Option<String>,
        foreign: Option<usize>,
    },
    Removed {
        hashes: Vec<u64>,
        device: bool,
    },
    Cleared,
    Unknown,
    Malformed(Malformed),
}

fn plain(event: &Event<'_>) -> Plain {
    let numbers = |hashes: &[ExternalHash]| hashes.iter().map(|hash| hash.0).collect();
    match event {
        Event::Stored(stored) => Plain::Stored {
            hashes: numbers(stored.hashes),
            parent: stored.parent.map(|hash| hash.0),
            tokens: stored.tokens.map(<[u32]>::to_vec),
            block_size: stored.block_size,
            salt: stored.extra.salt.map(str::to_owned),
            foreign: stored.extra.foreign_from,
        },
        Event::Removed(removed) => {
            Plain::Removed { hashes: numbers(removed.hashes), device: removed.place.tier() == Some(Tier::Device) }
        }
        Event::Cleared => Plain::Cleared,
        Event::Unknown => Plain::Unknown,
        Event::Malformed(malformed) => Plain::Malformed(*malformed),
    }
}

fn read(payload: &[u8]) -> (Result<Header, Malformed>, Vec<Plain>) {
    let mut events = Vec::new();
    let header = decode(payload, &mut Scratch::default(), |event| events.push(plain(&event)));
    (header, events)
}

fn recorded(file: &str) -> Vec<(Vec<u8>, Value)> {
    let path = format!("{}/tests/fixtures/vllm/{file}", env!("CARGO_MANIFEST_DIR"));
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("committed")).expect("JSON");
    let lists = all.as_object().expect("object").values().filter_map(Value::as_array);
    let with_both = lists.flatten().filter(|record| record.get("decoded").is_some());
    with_both
        .map(|record| {
            let text = record["payload_b64"].as_str().expect("payload");
            (base64::engine::general_purpose::STANDARD.decode(text).expect("base64"), record["decoded"].clone())
        })
        .collect()
}

/// What the recorded decoding says, by its own reading of the same fields.
fn expected(event: &Value) -> Plain {
    let hash = |value: &Value| match value {
        Value::Object(digest) => {
            let hex = digest["hex"].as_str().expect("hex");
            u64::from_str_radix(&hex[hex.len() - 16..], 16).expect("hex")
        }
        number => number.as_u64().expect("u64"),
    };
    let hashes = || event["block_hashes"].as_array().expect("hashes").iter().map(hash).collect();
    match event["type"].as_str().expect("type") {
        "BlockStored" => Plain::Stored {
            hashes: hashes(),
            parent: Some(&event["parent_block_hash"]).filter(|parent| !parent.is_null()).map(hash),
            tokens: Some(
                event["token_ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("id") as u32).collect(),
            ),
            block_size: event["block_size"].as_u64().expect("size") as u32,
            salt: event["extra_keys"][0][0].as_str().map(str::to_owned),
            foreign: None,
        },
        "BlockRemoved" => Plain::Removed { hashes: hashes(), device: true },
        "AllBlocksCleared" => Plain::Cleared,
        other => panic!("{other}"),
    }
}

#[test]
fn decodes_what_real_engines_sent() {
    let mut count = 0;
    for file in ["kv_events_fixture.json", "kv_events_bytes_hash_fixture.json"] {
        for (payload, decoded) in recorded(file) {
            let (header, events) = read(&payload);
            let want: Vec<_> = decoded[1].as_array().expect("events").iter().map(expected).collect();
            assert_eq!(events, want);
            let header = header.expect("recorded");
            assert_eq!(header.rank, Some(0));
            // JSON numbers are read to within a rounding.
            let published = decoded[0].as_f64().expect("seconds");
            assert!(header.published_seconds.is_some_and(|seconds| (seconds - published).abs() < 1e-6));
            count += events.len();
        }
    }
    assert!(count >= 30, "only {count} events in the fixtures");
}

/// msgpack written by hand, so that tests share nothing with the decoder.
mod wire {
    pub(super) fn array(items: &[Vec<u8>]) -> Vec<u8> {
        let mut out = vec![0xdc];
        out.extend((items.len() as u16).to_be_bytes());
        out.extend(items.concat());
        out
    }
    pub(super) fn map(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut out = vec![0xde];
        out.extend((pairs.len() as u16).to_be_bytes());
        for (key, value) in pairs {
            out.extend(text(key));
            out.extend(value);
        }
        out
    }
    pub(super) fn text(text: &str) -> Vec<u8> {
        let mut out = vec![0xd9, text.len() as u8];
        out.extend(text.as_bytes());
        out
    }
    pub(super) fn int(value: i64) -> Vec<u8> {
        let mut out = vec![0xd3];
        out.extend(value.to_be_bytes());
        out
    }
    pub(super) fn ints(values: &[i64]) -> Vec<u8> {
        array(&values.iter().map(|value| int(*value)).collect::<Vec<_>>())
    }
    pub(super) const NIL: [u8; 1] = [0xc0];
    pub(super) fn nil() -> Vec<u8> {
        NIL.to_vec()
    }
}
use wire::{array, int, ints, map, nil, text};

fn stored(hashes: &[u64], tokens: &[u32], salt: Option<&str>) -> Plain {
    Plain::Stored {
        hashes: hashes.to_vec(),
        parent: None,
        tokens: Some(tokens.to_vec()),
        block_size: 2,
        salt: salt.map(str::to_owned),
        foreign: None,
    }
}

#[test]
fn all_three_generations_say_the_same() {
    let now = [vec![0xcb], 1.5_f64.to_be_bytes().to_vec()].concat();
    // (a) as first released: five fields, no medium, no rank.
    let oldest = array(&[text("BlockStored"), ints(&[-1]), nil(), ints(&[5, 6]), int(2), nil()]);
    let older = array(&[
        text("BlockStored"),
        ints(&[-1]),
        nil(),
        ints(&[5, 6]),
        int(2),
        nil(),
        text("GPU"),
        nil(),
        nil(),
        int(0),
        text("full_attention"),
        nil(),
        text("new"),
    ]);
    let fields = [
        ("new_field", map(&[("a", array(&[nil(), int(1)]))])),
        ("block_hashes", ints(&[-1])),
        ("token_ids", ints(&[5, 6])),
        ("block_size", int(2)),
        ("type", text("BlockStored")),
    ];
    let want = vec![stored(&[u64::MAX], &[5, 6], None)];
    for event in [oldest, older, map(&fields)] {
        let (header, events) = read(&array(&[now.clone(), array(std::slice::from_ref(&event))]));
        assert_eq!((header.map(|h| (h.published_seconds, h.rank)), &events), (Ok((Some(1.5), None)), &want));
        let outer = map(&[("data_parallel_rank", int(3)), ("x", nil()), ("events", array(&[event])), ("ts", int(7))]);
        let (header, events) = read(&outer);
        assert_eq!((header.map(|h| (h.published_seconds, h.rank)), &events), (Ok((Some(7.0), Some(3))), &want));
        assert_eq!(published_seconds(&outer), Some(7.0));
    }
}

fn one(event: Vec<u8>) -> Plain {
    let (header, mut events) = read(&array(&[int(0), array(&[event])]));
    assert!(header.is_ok());
    assert_eq!(events.len(), 1);
    events.remove(0)
}

fn stored_with(extra: &[(&str, Vec<u8>)]) -> Plain {
    let mut fields = vec![
        ("type", text("BlockStored")),
        ("block_hashes", ints(&[1, 2])),
        ("token_ids", ints(&[5, 6, 7, 8])),
        ("block_size", int(2)),
    ];
    for (key, value) in extra {
        fields.retain(|(known, _)| known != key);
        fields.push((key, value.clone()));
    }
    one(map(&fields))
}

#[test]
fn a_token_list_that_cannot_be_used_costs_only_itself() {
    let removed = map(&[("type", text("BlockRemoved")), ("block_hashes", ints(&[9]))]);
    let mut long = vec![0xdd];
    long.extend((MAX_TOKENS_PER_EVENT as u32 + 1).to_be_bytes());
    long.extend(vec![0; MAX_TOKENS_PER_EVENT + 1]);
    let torn = array(&[ints(&[1, 2]), ints(&[3, 4])]);
    let mixed = array(&[ints(&[1, 2]), int(2)]);
    let triples = array(&[ints(&[1, 2, 3]), ints(&[2, 3, 4])]);
    for tokens in [long, torn, mixed, triples, ints(&[-5, 1]), ints(&[1, 2, 3]), text("x")] {
        let event = map(&[
            ("type", text("BlockStored")),
            ("block_hashes", ints(&[1])),
            ("token_ids", tokens),
            ("block_size", int(2)),
        ]);
        let (header, events) = read(&array(&[int(0), array(&[event, removed.clone()])]));
        assert!(header.is_ok());
        assert!(matches!(&events[0], Plain::Stored { tokens: None, .. }), "{:?}", events[0]);
        assert_eq!(events[1], Plain::Removed { hashes: vec![9], device: true });
    }
}

#[test]
fn extra_keys_are_told_apart() {
    let extra = |plain: Plain| match plain {
        Plain::Stored { salt, foreign, .. } => (salt, foreign),
        other => panic!("{other:?}"),
    };
    let salted = |text: &str| (Some(text.to_owned()), None);
    let keys = |blocks: &[Vec<u8>]| ("extra_keys", array(blocks));
    assert_eq!(extra(stored_with(&[keys(&[array(&[text("s")]), nil()])])), salted("s"));
    assert_eq!(
        extra(stored_with(&[keys(&[array(&[array(&[text("cache_salt"), text("s")])]), nil()])])),
        (Some("s".into()), None)
    );
    let lora = ("lora_name", text("ad"));
    assert_eq!(extra(stored_with(&[keys(&[array(&[text("ad")]), array(&[text("ad")])]), lora.clone()])), (None, None));
    assert_eq!(
        extra(stored_with(&[lora.clone(), keys(&[array(&[text("ad"), text("s")]), array(&[text("ad")])])])),
        salted("s")
    );
    // An image in the second block; a salt in a block that does not begin a prompt; two unknown keys.
    assert_eq!(extra(stored_with(&[keys(&[nil(), array(&[text("img")])])])), (None, Some(1)));
    assert_eq!(
        extra(stored_with(&[("parent_block_hash", int(4)), keys(&[array(&[text("s")]), nil()])])),
        (None, Some(0))
    );
    assert_eq!(extra(stored_with(&[keys(&[array(&[array(&[text("img"), int(3)])]), nil()])])), (None, Some(0)));
    assert_eq!(extra(stored_with(&[keys(&[array(&[text("s"), text("img")]), nil()])])), (Some("s".into()), Some(0)));
}

#[test]
fn other_tiers_groups_and_adapters_are_seen() {
    let mut scratch = Scratch::default();
    let mut seen = Vec::new();
    let fields = |extra: &[(&str, Vec<u8>)]| {
        let mut all = vec![
            ("type", text("BlockStored")),
            ("block_hashes", ints(&[1])),
            ("token_ids", ints(&[5, 6])),
            ("block_size", int(2)),
        ];
        all.extend(extra.iter().map(|(key, value)| (*key, value.clone())));
        map(&all)
    };
    let events = array(&[
        fields(&[]),
        fields(&[("medium", text("CPU"))]),
        fields(&[("kv_cache_spec_kind", text("sliding_window")), ("group_idx", int(1))]),
        fields(&[("lora_id", int(4))]),
        fields(&[("lora_id", int(4)), ("lora_name", text("ad"))]),
    ]);
    let header = decode(&array(&[int(0), events]), &mut scratch, |event| {
        let Event::Stored(stored) = event else { panic!("{event:?}") };
        let lora = format!("{:?}", stored.lora);
        seen.push((stored.place.tier(), stored.place.group_kind(2), stored.place.group, lora));
    });
    assert!(header.is_ok());
    let want = [
        (Some(Tier::Device), GroupKind::Full, None, "Base".to_owned()),
        (Some(Tier::Host), GroupKind::Full, None, "Base".to_owned()),
        (Some(Tier::Device), GroupKind::Unknown, Some(1), "Base".to_owned()),
        (Some(Tier::Device), GroupKind::Full, None, "Unnamed".to_owned()),
        (Some(Tier::Device), GroupKind::Full, None, "Named(\"ad\")".to_owned()),
    ];
    assert_eq!(seen, want);
}

#[test]
fn broken_events_leave_their_siblings_alone() {
    let good = map(&[("type", text("AllBlocksCleared"))]);
    let bad = [
        map(&[("type", text("BlockStored"))]),
        map(&[("type", int(3))]),
        map(&[("block_hashes", ints(&[1]))]),
        map(&[("type", text("BlockRemoved")), ("block_hashes", text("x"))]),
        map(&[("type", text("BlockStored")), ("block_hashes", ints(&[1])), ("block_size", int(0))]),
        array(&[]),
        int(7),
        nil(),
        vec![0xa2, 0xff, 0xfe],
        array(&[vec![0xa1, 0xff]]),
    ];
    for event in bad {
        let (header, events) = read(&array(&[int(0), array(&[good.clone(), event, good.clone()])]));
        assert!(header.is_ok());
        assert!(matches!(events[..], [Plain::Cleared, Plain::Malformed(_), Plain::Cleared]), "{events:?}");
    }
    assert_eq!(one(map(&[("type", text("BlockMoved"))])), Plain::Unknown);
}

#[test]
fn broken_batches_are_errors() {
    for payload in [
        &b""[..],
        b"\xc1",
        b"\x90",
        b"\x91\x00",
        b"\x93\x00\xdd\xff\xff\xff\xff",
        b"\x92\xc0\xa1x",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\x01\x02",
    ] {
        assert!(read(payload).0.is_err(), "{payload:?}");
    }
    // Deep nesting costs neither stack nor time.
    let mut deep = b"\x92\x00\x91".to_vec();
    deep.extend(vec![0x91; 1_000_000]);
    assert!(read(&deep).0.is_err());
    deep.push(0x00);
    assert!(read(&deep).0.is_ok());
}

/// As SGLang publishes: arrays without a rank, one page an event, signed hashes, no medium in old releases, pairs of tokens
/// where it drafts with EAGLE.
#[test]
fn sglang_pages_and_bigrams() {
    let page = |tokens: Vec<u8>, parent: Vec<u8>| {
        array(&[text("BlockStored"), ints(&[-3_488_128_144_981_237_669]), parent, tokens, int(4), nil()])
    };
    let pairs = array(&[ints(&[1, 2]), ints(&[2, 3]), ints(&[3, 4]), ints(&[4, 5])]);
    for (tokens, is_bigram) in [(ints(&[1, 2, 3, 4]), false), (pairs, true)] {
        let payload = array(&[int(0), array(&[page(tokens, int(-1))])]);
        let mut seen = 0;
        let header = decode(&payload, &mut Scratch::default(), |event| {
            let Event::Stored(stored) = event else { panic!("{event:?}") };
            assert_eq!(stored.hashes, [ExternalHash((-3_488_128_144_981_237_669_i64).cast_unsigned())]);
            assert_eq!(stored.parent, Some(ExternalHash(u64::MAX)));
            assert_eq!((stored.tokens, stored.is_bigram), (Some(&[1, 2, 3, 4][..]), is_bigram));
            assert_eq!(stored.place.tier(), Some(Tier::Device));
            seen += 1;
        });
        assert_eq!((header.map(|header| header.rank), seen), (Ok(None), 1));
    }
}

#[test]
fn a_salt_may_have_a_key_of_its_own_and_a_window_its_width() {
    let Plain::Stored { salt, .. } = stored_with(&[("cache_salt", text("s"))]) else { panic!("stored") };
    assert_eq!(salt.as_deref(), Some("s"));
    let Plain::Stored { salt, .. } = stored_with(&[("cache_salt", text(""))]) else { panic!("stored") };
    assert_eq!(salt, None);
    let tail = array(&[
        text("BlockStored"),
        ints(&[1]),
        nil(),
        ints(&[5, 6]),
        int(2),
        nil(),
        text("GPU"),
        nil(),
        nil(),
        int(1),
        text("sliding_window"),
        int(4_096),
    ]);
    let payload = array(&[int(0), array(&[tail])]);
    let header = decode(&payload, &mut Scratch::default(), |event| {
        let Event::Stored(stored) = event else { panic!("{event:?}") };
        let place = stored.place;
        assert_eq!((place.group, place.kind, place.window_tokens), (Some(1), Some("sliding_window"), Some(4_096)));
    });
    assert!(header.is_ok());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let _ = read(&bytes);
    }

    /// Real batches with bytes changed, cut and repeated.
    #[test]
    fn mutated_batches_never_panic(pick: usize, cut: usize, changes in proptest::collection::vec((proptest::num::usize::ANY, proptest::num::u8::ANY), 0..6)) {
        static BATCHES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
        let batches = BATCHES.get_or_init(|| {
            let files = ["kv_events_fixture.json", "kv_events_bytes_hash_fixture.json"];
            files.iter().flat_map(|file| recorded(file)).map(|(payload, _)| payload).collect()
        });
        let mut bytes = batches[pick % batches.len()].clone();
        for (at, byte) in changes {
            // Most of the structure is at the front.
            let at = at % bytes.len().min(64 + at % bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - cut % 4 * (cut % bytes.len()) / 4);
        let _ = read(&bytes);
    }
}
