//! Every map, and how counters in them grow.

use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, SkStorage};
use aya_ebpf::macros::btf_map;
use core::arch::asm;
use forebay_common::kernel::account::{
    self, Conn, Counter, LoadRecord, MAX_PEERS, MAX_WATCHED, PeerKey, PeerRecord, WatchKey, WatchSlot,
};
use forebay_common::kernel::guard::{
    self, Bucket, MAX_PREFIXES, MAX_RULES, MAX_SOURCES, MAX_TARGETS, Settings, Target,
};

/// Watched listeners; written by the agent.
#[btf_map]
pub static WORKERS: HashMap<WatchKey, WatchSlot, { MAX_WATCHED as usize }> = HashMap::new();
/// Counters of watched listeners; the agent writes a record before it publishes its position in `WORKERS`.
#[btf_map]
pub static LOAD: Array<LoadRecord, { MAX_WATCHED as usize }> = Array::new();
/// What is known of one socket.
#[btf_map]
pub static CONN: SkStorage<Conn> = SkStorage::new();
/// Transfer ports whose connections are counted for each peer; written by the agent.
#[btf_map]
pub static PORTS: HashMap<u32, u32, 64> = HashMap::new();
/// Counters of peers.
#[btf_map]
pub static PEERS: HashMap<PeerKey, PeerRecord, { MAX_PEERS as usize }> = HashMap::new();
/// Counters of `conn_load` and `busy` themselves.
#[btf_map]
pub static HEALTH: Array<u64, { account::COUNTERS as usize }> = Array::new();

/// One value, `forebay_common::kernel::LAYOUT_HASH` of who made the maps: pinned maps are adopted only by their own layout.
#[btf_map]
pub static LAYOUT: Array<u64, 1> = Array::new();

/// Sources that are never refused.
#[btf_map]
pub static ALLOW: LpmTrie<[u8; 16], u32, { MAX_PREFIXES as usize }> = LpmTrie::new();
/// Sources that are refused; the value is the rule's position in `RULE_HITS`.
#[btf_map]
pub static DENY: LpmTrie<[u8; 16], u32, { MAX_PREFIXES as usize }> = LpmTrie::new();
/// Guarded addresses and ports.
#[btf_map]
pub static TARGETS: HashMap<Target, u32, { MAX_TARGETS as usize }> = HashMap::new();
/// One value: what the guard may do.
#[btf_map]
pub static SETTINGS: Array<Settings, 1> = Array::new();
/// Token buckets.
#[btf_map]
pub static SOURCES: LruHashMap<[u8; 16], Bucket, { MAX_SOURCES as usize }> = LruHashMap::new();
/// Opening segments that a rule of the deny list met.
#[btf_map]
pub static RULE_HITS: PerCpuArray<u64, { MAX_RULES as usize }> = PerCpuArray::new();
/// What became of packets.
#[btf_map]
pub static VERDICTS: PerCpuArray<u64, { guard::COUNTERS as usize }> = PerCpuArray::new();

/// Adds to a counter that several processors share.
///
/// # Safety
///
/// `field` points into a map value, which the verifier checks.
#[inline(always)]
pub unsafe fn add(field: *mut u64, by: u64) {
    // SAFETY: one atomic addition to the named word; the target has no other way to say it than this instruction, since
    // Rust offers atomic arithmetic only where compare-and-swap exists on every processor of a target.
    unsafe { asm!("lock *(u64 *)({field} + 0) += {by}", field = in(reg) field, by = in(reg) by, options(nostack)) }
}

/// Puts `value` into a word that several processors share; what was there. Needs a kernel of 5.12 or newer.
///
/// # Safety
///
/// As [`add`].
#[inline(always)]
pub unsafe fn swap(field: *mut u64, value: u64) -> u64 {
    let before: u64;
    // SAFETY: one atomic exchange of the named word.
    unsafe {
        asm!(
            "{value} = xchg_64({field} + 0, {value})",
            field = in(reg) field,
            value = inout(reg) value => before,
            options(nostack)
        );
    }
    before
}

/// Counts something about the programs themselves.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(field) = HEALTH.get_ptr_mut(counter as u32) {
        // SAFETY: a map value.
        unsafe { add(field, 1) }
    }
}

/// Adds one to this processor's own counter.
///
/// # Safety
///
/// `field` is a value of a per-processor map.
#[inline(always)]
pub unsafe fn bump(field: *mut u64) {
    // SAFETY: nobody else writes this processor's value while an XDP program runs on it; reading may see it late.
    unsafe { *field = (*field).wrapping_add(1) }
}
