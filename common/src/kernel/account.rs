//! Connections of watched listeners as counters that only grow: what each event of a socket adds.
//!
//! ```text
//! established ─► opened()  ─► Conn in the socket's storage, opened += 1
//! state CLOSE ─► closed()  ─► closed += 1, its bytes, retransmits and lifetime      (once: `Conn::counted`)
//! ```
//!
//! Invariants: a socket without a `Conn` is ignored, so nothing is closed that was not opened; a `Conn` is closed once;
//! a `Conn` that names an older generation of its slot changes nothing but [`Counter::Late`]. Connections that are open are
//! `opened − closed`. Only the passive side of a connection is counted for workers, so a client on the same host does not
//! count twice.
//!
//! A connection that is half closed is open: the engine behind it may still be answering. The one transition that ends it
//! is the one to [`CLOSE`].

use super::layout::layout;

/// Listeners and ports that are watched at once on a node; each has a record of its own.
pub const MAX_WATCHED: u32 = 1_024;
/// Peers of transfer ports that are counted; further ones are counted together under [`Counter::PeersFull`].
pub const MAX_PEERS: u32 = 4_096;

/// `TCP_CLOSE`, the state that ends a connection.
pub const CLOSE: u32 = 7;
/// States that Linux has; a state from a context is below this.
pub const STATES: u32 = 13;

layout! {
    /// Key of the map `WORKERS`: where a worker listens.
    pub struct WatchKey(32) {
        /// Network namespace, as `SO_NETNS_COOKIE` tells it: pods share addresses such as 127.0.0.1.
        netns_cookie: u64 = 0,
        /// Local address, [`address::ANY`](super::address::ANY) for a listener on all of them.
        address: [u8; 16] = 8,
        /// Local port, host order.
        port: u16 = 24,
        /// Zero.
        pad: [u8; 6] = 26,
    }
}

layout! {
    /// Value of the map `WORKERS`: which record counts it.
    pub struct WatchSlot(8) {
        /// Position in the map `LOAD`, below [`MAX_WATCHED`].
        index: u32 = 0,
        /// Use of that position; moves on when another worker gets it.
        generation: u32 = 4,
    }
}

layout! {
    /// Value of the map `LOAD`: counters of one worker that only grow. `closed` lies before `opened`: the kernel copies a value in ascending
    /// order, so a connection that opens and closes meanwhile is counted as open at worst, and the difference never wraps.
    pub struct LoadRecord(88) {
        /// Connections that ended.
        closed: u64 = 0,
        /// Connections that were established.
        opened: u64 = 8,
        /// Bytes received on connections that ended.
        bytes_in: u64 = 16,
        /// Bytes acknowledged by the peer on connections that ended.
        bytes_out: u64 = 24,
        /// Segments sent again on connections that ended.
        retransmits: u64 = 32,
        /// Sum of the lifetimes of connections that ended.
        lifetime_ns: u64 = 40,
        /// When one opened or closed last, on the kernel's monotonic clock.
        last_event_ns: u64 = 48,
        /// Program `busy`: times that request bytes came in while nothing was awaited.
        requests: u64 = 56,
        /// Program `busy`: times that an answer got going.
        answers: u64 = 64,
        /// Program `busy`: connections that ended while an answer was awaited.
        abandoned: u64 = 72,
        /// Use of this position that the counters belong to.
        generation: u32 = 80,
        /// Zero.
        pad: u32 = 84,
    }
}

impl LoadRecord {
    /// Connections that are open.
    pub fn open(&self) -> u64 {
        self.opened.saturating_sub(self.closed)
    }

    /// Requests whose answer has not got going, by the program `busy`.
    pub fn awaiting(&self) -> u64 {
        self.requests.saturating_sub(self.answers.saturating_add(self.abandoned))
    }
}

layout! {
    /// Value of the socket storage `CONN`: what is remembered of one connection.
    pub struct Conn(40) {
        /// When it was established.
        opened_ns: u64 = 0,
        /// Program `busy`: 1 while an answer is awaited. As wide as what the kernel exchanges atomically.
        awaiting: u64 = 8,
        /// Position in `LOAD`, or [`NOT_A_WORKER`].
        index: u32 = 16,
        /// Use of that position.
        generation: u32 = 20,
        /// 1 once its end is counted.
        counted: u32 = 24,
        /// Program `busy`: bytes of the answer so far.
        answered_bytes: u32 = 28,
        /// Program `busy`: segments of the answer so far.
        answered_segments: u32 = 32,
        /// Zero.
        pad: u32 = 36,
    }
}

/// [`Conn::index`] of a connection that only counts for its peer.
pub const NOT_A_WORKER: u32 = u32::MAX;

layout! {
    /// Key of the map `PEERS`: the other end of a transfer connection.
    pub struct PeerKey(24) {
        /// Its address.
        address: [u8; 16] = 0,
        /// The transfer port, host order: of the listener, on whichever side it is.
        port: u16 = 16,
        /// 1 where this node dialled, 0 where the peer did.
        dialled: u16 = 18,
        /// Zero.
        pad: u32 = 20,
    }
}

layout! {
    /// Value of the map `PEERS`: the way to one peer. Bytes and retransmits are added when a connection sends again and when it ends.
    pub struct PeerRecord(64) {
        /// Connections that ended.
        closed: u64 = 0,
        /// Connections that were established.
        opened: u64 = 8,
        /// Bytes received on connections that ended.
        bytes_in: u64 = 16,
        /// Bytes acknowledged on connections that ended.
        bytes_out: u64 = 24,
        /// Segments sent again, as it happens.
        retransmits: u64 = 32,
        /// Sum of smoothed round-trip times, µs, one for each event.
        srtt_us_sum: u64 = 40,
        /// Events in that sum.
        srtt_samples: u64 = 48,
        /// When something happened last.
        last_event_ns: u64 = 56,
    }
}

/// What a context tells of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes acknowledged by the peer.
    pub bytes_out: u64,
    /// Segments sent again.
    pub retransmits: u32,
}

/// What one event adds to a [`LoadRecord`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// To `opened`.
    pub opened: u64,
    /// To `closed`.
    pub closed: u64,
    /// To `bytes_in`.
    pub bytes_in: u64,
    /// To `bytes_out`.
    pub bytes_out: u64,
    /// To `retransmits`.
    pub retransmits: u64,
    /// To `lifetime_ns`.
    pub lifetime_ns: u64,
    /// To `abandoned`.
    pub abandoned: u64,
}

/// A connection was established on a watched listener.
#[inline(always)]
pub const fn opened(slot: WatchSlot, now_ns: u64) -> (Conn, Delta) {
    let conn = Conn {
        opened_ns: now_ns,
        index: slot.index,
        generation: slot.generation,
        counted: 0,
        awaiting: 0,
        answered_bytes: 0,
        answered_segments: 0,
        pad: 0,
    };
    let delta = Delta { opened: 1, closed: 0, bytes_in: 0, bytes_out: 0, retransmits: 0, lifetime_ns: 0, abandoned: 0 };
    (conn, delta)
}

/// Whether the transition to `new` ends a connection.
#[inline(always)]
pub const fn ends(new: u32) -> bool {
    new == CLOSE
}

/// The state of a socket became `new`; `None` when that changes nothing.
#[inline(always)]
pub const fn closed(conn: &Conn, new: u32, figures: Figures, now_ns: u64) -> Option<(Conn, Delta)> {
    if !ends(new) || conn.counted != 0 {
        return None;
    }
    let delta = Delta {
        opened: 0,
        closed: 1,
        bytes_in: figures.bytes_in,
        bytes_out: figures.bytes_out,
        retransmits: figures.retransmits as u64,
        lifetime_ns: now_ns.saturating_sub(conn.opened_ns),
        abandoned: (conn.awaiting != 0) as u64,
    };
    Some((Conn { counted: 1, awaiting: 0, ..*conn }, delta))
}

/// Answer bytes after which an answer counts as going: many servers send the head of their response, and some a first
/// event without content, before the first token.
pub const ANSWER_BYTES: u32 = 512;
/// Or so many segments.
pub const ANSWER_SEGMENTS: u32 = 2;

/// Payload that came in: whether an answer is awaited from now on, and the progress of that answer is back at nothing.
/// A connection whose end is counted awaits nothing any more.
#[inline(always)]
pub const fn awaits_after_input(conn: &Conn) -> bool {
    conn.awaiting != 0 || conn.counted == 0
}

/// Payload that goes out: bytes and segments of the answer so far.
#[inline(always)]
pub const fn answer_after_output(conn: &Conn, bytes: u32) -> (u32, u32) {
    (conn.answered_bytes.saturating_add(bytes), conn.answered_segments.saturating_add(1))
}

/// Whether an answer of so many bytes and segments is going.
#[inline(always)]
pub const fn is_going(bytes: u32, segments: u32) -> bool {
    bytes > ANSWER_BYTES || segments >= ANSWER_SEGMENTS
}

/// Counters of the programs themselves, positions in the map `HEALTH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Counter {
    /// Callbacks of `conn_load`.
    Runs = 0,
    /// Connections whose storage could not be made: they are not counted at all.
    StorageFailed = 1,
    /// Peers beyond [`MAX_PEERS`].
    PeersFull = 2,
    /// Ends of connections of a worker whose slot was given to another meanwhile.
    Late = 3,
    /// Callbacks that could not be asked for: the end of that connection would be missed, so it is not counted.
    CallbacksRefused = 4,
    /// Packets that `busy` saw.
    BusyRuns = 5,
}

/// Positions in `HEALTH`.
pub const COUNTERS: u32 = 6;

impl Counter {
    /// All, in order.
    pub const ALL: [Self; COUNTERS as usize] =
        [Self::Runs, Self::StorageFailed, Self::PeersFull, Self::Late, Self::CallbacksRefused, Self::BusyRuns];

    /// As a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::StorageFailed => "storage_failed",
            Self::PeersFull => "peers_full",
            Self::Late => "late",
            Self::CallbacksRefused => "callbacks_refused",
            Self::BusyRuns => "busy_runs",
        }
    }
}
