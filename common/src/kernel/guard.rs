//! What the guard does with a packet: only a segment that opens a connection to a guarded address is ever judged.
//!
//! ```text
//! not TCP, a fragment, unparsed ──────────────► pass
//! not SYN, or SYN with ACK, RST, FIN ─────────► pass      an admitted stream is never touched
//! not to a guarded address and port ──────────► pass
//! allow list ─────────────────────────────────► pass
//! deny list ──────────────────────────────────► drop
//! token bucket of its source empty ───────────► drop
//! ```
//!
//! `drop` becomes `pass` and a counter of what would have been dropped unless [`Settings::enforce`] is 1. There is no
//! limit over all sources: a flood with forged senders would then lock everyone out, and against such the kernel's SYN
//! cookies help.

use super::layout::layout;

/// Prefixes in each of the two lists.
pub const MAX_PREFIXES: u32 = 65_536;
/// Rules that have a counter of their own.
pub const MAX_RULES: u32 = 4_096;
/// Sources with a bucket; the one unused for longest makes room.
pub const MAX_SOURCES: u32 = 65_536;
/// Guarded addresses and ports.
pub const MAX_TARGETS: u32 = 1_024;

layout! {
    /// Key of the maps `ALLOW` and `DENY`: a prefix of an address in 16 bytes, so IPv4 lengths count from 96.
    pub struct PrefixKey(20) {
        /// Bits that matter, 0 to 128.
        bits: u32 = 0,
        /// The address.
        address: [u8; 16] = 4,
    }
}

layout! {
    /// Key of the map `TARGETS`: where guarded listeners are.
    pub struct Target(20) {
        /// Address, [`address::ANY`](super::address::ANY) for every one.
        address: [u8; 16] = 0,
        /// Port, host order.
        port: u16 = 16,
        /// Zero.
        pad: u16 = 18,
    }
}

layout! {
    /// The one value of the map `SETTINGS`.
    pub struct Settings(16) {
        /// 1 drops, anything else only counts.
        enforce: u32 = 0,
        /// Connections that one source may open in a second for ever; 0 sets no limit.
        syn_per_s: u32 = 4,
        /// Connections that it may open at once after a pause.
        syn_burst: u32 = 8,
        /// Zero.
        pad: u32 = 12,
    }
}

layout! {
    /// Value of the map `SOURCES`: one source's token bucket.
    pub struct Bucket(24) {
        /// When it was last filled, ns.
        filled_ns: u64 = 0,
        /// SYNs of this source since it got a bucket.
        syns: u64 = 8,
        /// Thousandths of a token.
        millitokens: u64 = 16,
    }
}

/// No bucket fills for longer than this: multiplied by any rate it stays far below 64 bits.
const MAX_FILL_NS: u64 = 60_000_000_000;
const MILLI: u64 = 1_000;

/// Takes one token of `bucket`, which is `None` for a source that has none yet; the bucket as it is then, and whether there was a token.
///
/// Two processors that judge one source at once may both take the same token or fill it twice. A limit of connections
/// needs no better, and a lock would cost every packet.
#[inline(always)]
pub const fn take(bucket: Option<Bucket>, settings: &Settings, now_ns: u64) -> (Bucket, bool) {
    let full = settings.syn_burst as u64 * MILLI;
    let (level, syns) = match bucket {
        None => (full, 0),
        Some(bucket) => {
            let elapsed = now_ns.saturating_sub(bucket.filled_ns);
            let elapsed = if elapsed > MAX_FILL_NS { MAX_FILL_NS } else { elapsed };
            // syn_per_s ≤ 2³² and elapsed ≤ 6·10¹⁰ ns: in µs the product stays below 2⁵⁹.
            let gained = settings.syn_per_s as u64 * (elapsed / MILLI) / MILLI;
            (bucket.millitokens.saturating_add(gained), bucket.syns)
        }
    };
    let level = if level > full { full } else { level };
    let syns = syns.saturating_add(1);
    // What is lost by rounding must not keep a slow bucket empty for ever: time moves on only when something was gained.
    let filled_ns = match bucket {
        Some(before) if gained_nothing(&before, settings, now_ns) => before.filled_ns,
        _ => now_ns,
    };
    if settings.syn_per_s == 0 {
        return (Bucket { filled_ns, syns, millitokens: level }, true);
    }
    match level.checked_sub(MILLI) {
        Some(rest) => (Bucket { filled_ns, syns, millitokens: rest }, true),
        None => (Bucket { filled_ns, syns, millitokens: level }, false),
    }
}

#[inline(always)]
const fn gained_nothing(before: &Bucket, settings: &Settings, now_ns: u64) -> bool {
    let elapsed = now_ns.saturating_sub(before.filled_ns);
    elapsed <= MAX_FILL_NS && settings.syn_per_s as u64 * (elapsed / MILLI) / MILLI == 0
}

/// What became of a packet; positions in the map `VERDICTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Verdict {
    /// Not an opening segment to a guarded address.
    NotOurs = 0,
    /// Cut short, malformed or too deeply wrapped; passes.
    Unparsed = 1,
    /// Opening segment of a source on the allow list.
    Allowed = 2,
    /// Opening segment within its source's limit.
    Admitted = 3,
    /// Opening segment of a source on the deny list, dropped.
    Denied = 4,
    /// Opening segment beyond its source's limit, dropped.
    Limited = 5,
    /// As [`Self::Denied`], but only observed.
    WouldDeny = 6,
    /// As [`Self::Limited`], but only observed.
    WouldLimit = 7,
    /// Later fragment; passes.
    Fragment = 8,
    /// A bucket could not be stored; the segment passes.
    Unstored = 9,
}

/// Positions in `VERDICTS`.
pub const COUNTERS: u32 = 10;

impl Verdict {
    /// All, in order.
    pub const ALL: [Self; COUNTERS as usize] = [
        Self::NotOurs,
        Self::Unparsed,
        Self::Allowed,
        Self::Admitted,
        Self::Denied,
        Self::Limited,
        Self::WouldDeny,
        Self::WouldLimit,
        Self::Fragment,
        Self::Unstored,
    ];

    /// Whether the packet goes no further.
    #[inline(always)]
    pub const fn drops(self) -> bool {
        matches!(self, Self::Denied | Self::Limited)
    }

    /// As a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotOurs => "not_ours",
            Self::Unparsed => "unparsed",
            Self::Allowed => "allowed",
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::Limited => "limited",
            Self::WouldDeny => "would_deny",
            Self::WouldLimit => "would_limit",
            Self::Fragment => "fragment",
            Self::Unstored => "unstored",
        }
    }
}

/// What the lists and the bucket say of an opening segment to a guarded address.
#[inline(always)]
pub const fn judge(settings: &Settings, allowed: bool, denied: bool, has_token: bool) -> Verdict {
    let enforce = settings.enforce == 1;
    match (allowed, denied, has_token, enforce) {
        (true, ..) => Verdict::Allowed,
        (_, true, _, true) => Verdict::Denied,
        (_, true, _, false) => Verdict::WouldDeny,
        (_, _, true, _) => Verdict::Admitted,
        (_, _, false, true) => Verdict::Limited,
        (_, _, false, false) => Verdict::WouldLimit,
    }
}
