//! Refuses connections at the interface: deny list and a limit per source, as `forebay_common::kernel::guard` has it.
//!
//! Attach point: an ingress interface. Only a segment that opens a connection to a guarded address and port is ever
//! dropped, and only while `SETTINGS.enforce` is 1. Packets are never changed. Cost: reading the headers for every packet;
//! two prefix look-ups and a bucket for an opening segment.
//!
//! A full list refuses further entries in the agent. A full table of buckets evicts the source unused for longest; a bucket that
//! cannot be stored lets its segment pass and is counted.

use crate::maps::{ALLOW, DENY, RULE_HITS, SETTINGS, SOURCES, TARGETS, VERDICTS, bump};
use aya_ebpf::bindings::{BPF_ANY, xdp_action};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use forebay_common::kernel::address;
use forebay_common::kernel::guard::{self, Bucket, Settings, Target, Verdict};
use forebay_common::kernel::packet::{self, Frame, Packet, Segment};

#[xdp]
pub fn xdp_guard(context: XdpContext) -> u32 {
    let verdict = match packet::parse(&Received(context)) {
        Packet::Segment(segment) if segment.is_opening() && is_guarded(&segment) => judge(&segment),
        Packet::Segment(_) | Packet::Other => Verdict::NotOurs,
        Packet::Fragment => Verdict::Fragment,
        Packet::Unparsed => Verdict::Unparsed,
    };
    if let Some(field) = VERDICTS.get_ptr_mut(verdict as u32) {
        // SAFETY: a per-processor value.
        unsafe { bump(field) }
    }
    if verdict.drops() { xdp_action::XDP_DROP } else { xdp_action::XDP_PASS }
}

/// The received frame; every read is checked against its end.
struct Received(XdpContext);

impl Frame for Received {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let start = self.0.data() + offset;
        if start + N > self.0.data_end() {
            return None;
        }
        // SAFETY: the bytes lie before the end of the packet, and an array of bytes needs no alignment.
        Some(unsafe { *(start as *const [u8; N]) })
    }
}

#[inline(always)]
fn is_guarded(segment: &Segment) -> bool {
    let mut target = Target { address: segment.destination, port: segment.port, pad: 0 };
    // SAFETY: values are never looked at.
    unsafe {
        if TARGETS.get(&target).is_some() {
            return true;
        }
        target.address = address::ANY;
        TARGETS.get(&target).is_some()
    }
}

#[inline(always)]
fn judge(segment: &Segment) -> Verdict {
    let Some(settings) = SETTINGS.get(0) else { return Verdict::NotOurs };
    let key = Key::new(128, segment.source);
    if ALLOW.get(&key).is_some() {
        return guard::judge(settings, true, false, true);
    }
    if let Some(rule) = DENY.get(&key) {
        if let Some(field) = RULE_HITS.get_ptr_mut(*rule) {
            // SAFETY: a per-processor value.
            unsafe { bump(field) }
        }
        return guard::judge(settings, false, true, true);
    }
    match has_token(segment, settings) {
        Some(has_token) => guard::judge(settings, false, false, has_token),
        None => Verdict::Unstored,
    }
}

/// Takes a token of the segment's source; `None` when its bucket could not be stored.
#[inline(always)]
fn has_token(segment: &Segment, settings: &Settings) -> Option<bool> {
    let source = address::source(segment.source);
    // SAFETY: the helper returns the time.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if let Some(bucket) = SOURCES.get_ptr_mut(&source) {
        // SAFETY: a map value. Another processor may change it meanwhile, which costs or gives a token (`guard::take`).
        unsafe {
            let (after, has_token) = guard::take(Some(*bucket), settings, now_ns);
            *bucket = after;
            return Some(has_token);
        }
    }
    let (bucket, has_token): (Bucket, bool) = guard::take(None, settings, now_ns);
    SOURCES.insert(&source, bucket, u64::from(BPF_ANY)).ok()?;
    Some(has_token)
}
