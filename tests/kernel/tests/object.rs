//! T1: the committed object, parsed and not loaded. And that it is what its source makes.

#![expect(clippy::disallowed_methods, reason = "the rebuilt object's path comes from ebpf/build.sh")]

use aya_obj::{Map, Object, ProgramSection};
use forebay_common::kernel::account::{self, Conn, LoadRecord, PeerKey, PeerRecord, WatchKey, WatchSlot};
use forebay_common::kernel::guard::{self, Bucket, PrefixKey, Settings, Target};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// Name, key bytes, value bytes, entries.
type Shape = (&'static str, u32, u32, u32);

const SHAPES: &[Shape] = &[
    ("WORKERS", WatchKey::SIZE as u32, WatchSlot::SIZE as u32, account::MAX_WATCHED),
    ("LOAD", 4, LoadRecord::SIZE as u32, account::MAX_WATCHED),
    ("CONN", 4, Conn::SIZE as u32, 0),
    ("PORTS", 4, 4, 64),
    ("PEERS", PeerKey::SIZE as u32, PeerRecord::SIZE as u32, account::MAX_PEERS),
    ("HEALTH", 4, 8, account::COUNTERS),
    ("LAYOUT", 4, 8, 1),
    ("ALLOW", PrefixKey::SIZE as u32, 4, guard::MAX_PREFIXES),
    ("DENY", PrefixKey::SIZE as u32, 4, guard::MAX_PREFIXES),
    ("TARGETS", Target::SIZE as u32, 4, guard::MAX_TARGETS),
    ("SETTINGS", 4, Settings::SIZE as u32, 1),
    ("SOURCES", 16, Bucket::SIZE as u32, guard::MAX_SOURCES),
    ("RULE_HITS", 4, 8, guard::MAX_RULES),
    ("VERDICTS", 4, 8, guard::COUNTERS),
];

fn shapes(object: &Object) -> BTreeMap<String, (u32, u32, u32)> {
    let of = |map: &Map| (map.key_size(), map.value_size(), map.max_entries());
    object.maps.iter().map(|(name, map)| (name.clone(), of(map))).collect()
}

/// Instructions of every program, by name.
fn code(object: &Object) -> BTreeMap<String, Vec<u64>> {
    let instructions = |key: (usize, u64)| {
        let function = object.functions.get(&key).expect("every program is a function");
        function
            .instructions
            .iter()
            .map(|insn| {
                u64::from(insn.code)
                    | u64::from(insn.dst_reg()) << 8
                    | u64::from(insn.src_reg()) << 12
                    | u64::from(insn.off as u16) << 16
                    | u64::from(insn.imm as u32) << 32
            })
            .collect()
    };
    object.programs.iter().map(|(name, program)| (name.clone(), instructions(program.function_key()))).collect()
}

#[test]
fn its_maps_have_the_sizes_of_the_shared_structures() {
    let object = Object::parse(forebay_ebpf::OBJECT).expect("a valid object");
    let found = shapes(&object);
    for (name, key, value, entries) in SHAPES {
        assert_eq!(found.get(*name), Some(&(*key, *value, *entries)), "map {name}");
    }
    assert_eq!(found.len(), SHAPES.len(), "maps beyond those that are listed: {found:?}");
}

#[test]
fn its_programs_are_what_they_are_attached_as() {
    let object = Object::parse(forebay_ebpf::OBJECT).expect("a valid object");
    let section = |name: &str| &object.programs.get(name).unwrap_or_else(|| panic!("no program {name}")).section;
    assert!(matches!(section("conn_load"), ProgramSection::SockOps));
    assert!(matches!(section("busy_ingress"), ProgramSection::CgroupSkb { .. }));
    assert!(matches!(section("busy_egress"), ProgramSection::CgroupSkb { .. }));
    assert!(matches!(section("xdp_guard"), ProgramSection::Xdp { .. }));
    assert_eq!(object.programs.len(), 4);
    assert_eq!(object.license.to_str(), Ok("Apache-2.0"), "no helper that is for GPL programs only");
    assert!(object.btf.is_some() && !object.has_btf_relocations(), "typed maps, and contexts that need no relocation");
}

/// As `ebpf/build.sh` takes it: an object is in step with its sources when their digest is the one that it was made of.
#[test]
fn the_committed_object_was_made_of_these_sources() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files: Vec<String> = ["Cargo.toml", "Cargo.lock"].map(|name| format!("ebpf/programs/{name}")).to_vec();
    let programs = std::fs::read_dir(root.join("ebpf/programs/src")).expect("sources").flatten();
    files.extend(programs.map(|entry| format!("ebpf/programs/src/{}", entry.file_name().to_string_lossy())));
    let shared = ["account", "address", "guard", "layout", "packet"];
    files.extend(shared.map(|name| format!("common/src/kernel/{name}.rs")));
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        digest.update(std::fs::read(root.join(file)).expect("a source"));
    }
    let found: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let made_of = include_str!("../../../ebpf/prebuilt/sources").trim();
    assert_eq!(found, made_of, "sources changed: run `make ebpf` and commit ebpf/prebuilt");
}

/// `make ebpf-verify`: maps and sections always, code where the same tools made it.
#[test]
fn a_rebuilt_object_is_the_committed_one() {
    let Ok(path) = std::env::var("FOREBAY_EBPF_REBUILT") else { return };
    let rebuilt = std::fs::read(&path).expect("the rebuilt object");
    let (ours, theirs) = (Object::parse(forebay_ebpf::OBJECT).expect("valid"), Object::parse(&rebuilt).expect("valid"));
    assert_eq!(shapes(&ours), shapes(&theirs), "maps differ: run `make ebpf` and commit ebpf/prebuilt");
    let sections = |object: &Object| -> BTreeMap<String, String> {
        object.programs.iter().map(|(name, program)| (name.clone(), format!("{:?}", program.section))).collect()
    };
    assert_eq!(sections(&ours), sections(&theirs), "programs differ: run `make ebpf` and commit ebpf/prebuilt");
    let committed = include_str!("../../../ebpf/prebuilt/producer").trim();
    let present = std::env::var("FOREBAY_EBPF_PRODUCER").unwrap_or_default();
    if committed == present {
        assert_eq!(code(&ours), code(&theirs), "code differs: run `make ebpf` and commit ebpf/prebuilt");
        println!("ebpf: maps, programs and code agree");
    } else {
        println!(
            "ebpf: maps and programs agree; code is not comparable: committed by {committed}, rebuilt by {present}"
        );
    }
}
