//! What kernel programs and the processes that read them have in common.
//!
//! ```text
//! kernel programs (ebpf/programs)                     processes (ebpf, transfer-agent)
//! sock_ops ─ account::opened, closed ─► LOAD, PEERS ──► load records
//! XDP ───── packet::parse, guard::judge ─► VERDICTS ──► counters, alarms
//!                 ▲                                          │
//!                 └─── WORKERS, PORTS, ALLOW, DENY, SETTINGS ┘
//! ```
//!
//! Everything here is a plain structure or a pure function, so that the code which runs in the kernel is the code that
//! ordinary tests and fuzzers run. Maps hold structures of [`layout`]; [`LAYOUT_HASH`] names all of them together, and a
//! process adopts maps that an earlier one pinned only when their hash is its own.
//!
//! Addresses are 16 bytes, IPv4 as `::ffff:a.b.c.d`, so that a dual-stack listener's IPv4 clients and an IPv4 listener's
//! are counted alike ([`address`]).

pub mod account;
pub mod address;
pub mod guard;
pub mod layout;
pub mod packet;
#[cfg(test)]
mod tests;

/// Changes when any structure in a map, or the size of a map, does.
pub const LAYOUT_HASH: u64 = {
    let parts = [
        account::WatchKey::LAYOUT,
        account::WatchSlot::LAYOUT,
        account::LoadRecord::LAYOUT,
        account::Conn::LAYOUT,
        account::PeerKey::LAYOUT,
        account::PeerRecord::LAYOUT,
        guard::Target::LAYOUT,
        guard::Settings::LAYOUT,
        guard::Bucket::LAYOUT,
        guard::PrefixKey::LAYOUT,
        account::MAX_WATCHED as u64,
        account::MAX_PEERS as u64,
        account::COUNTERS as u64,
        guard::MAX_PREFIXES as u64,
        guard::MAX_RULES as u64,
        guard::MAX_SOURCES as u64,
        guard::MAX_TARGETS as u64,
        guard::COUNTERS as u64,
    ];
    let mut hash = layout::START;
    let mut at = 0;
    while at < parts.len() {
        hash = layout::mix(hash, &parts[at].to_le_bytes());
        at += 1;
    }
    hash
};
