//! Counts connections of watched listeners and, for each peer, of transfer ports.
//!
//! Attach point: a cgroup (v2) that holds the engines; attached as `Single`, beside whatever else is there. Reads contexts only, never
//! changes a socket, a header or a verdict. Cost: two hash look-ups for a connection's start, one storage look-up for its end.
//!
//! When a map is full, what does not fit is not counted and [`Counter`] says how often. Sockets that were open before the
//! program was attached have no storage and are ignored; the agent adds them from INET_DIAG.

use crate::context::Socket;
use crate::maps::{CONN, LOAD, PEERS, PORTS, WORKERS, add, count};
use aya_ebpf::bindings::{
    BPF_NOEXIST, BPF_SK_STORAGE_GET_F_CREATE, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB,
    BPF_SOCK_OPS_RETRANS_CB, BPF_SOCK_OPS_RETRANS_CB_FLAG, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG, bpf_sock,
};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::{bpf_sk_storage_delete, bpf_sk_storage_get};
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;
use core::ffi::c_void;
use core::ptr::{addr_of, addr_of_mut, null_mut};
use forebay_common::kernel::account::{
    self, Conn, Counter, Delta, NOT_A_WORKER, PeerKey, PeerRecord, WatchKey, WatchSlot,
};
use forebay_common::kernel::address;

#[sock_ops]
pub fn conn_load(context: SockOpsContext) -> u32 {
    let socket = Socket::new(&context);
    match socket.op() {
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => established(&socket, false),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => established(&socket, true),
        BPF_SOCK_OPS_STATE_CB => state_changed(&socket),
        BPF_SOCK_OPS_RETRANS_CB => sent_again(&socket),
        _ => return 1,
    }
    count(Counter::Runs);
    1
}

#[inline(always)]
fn established(socket: &Socket, dialled: bool) {
    let worker = if dialled { None } else { watched(socket) };
    let peer = if worker.is_none() { peer(socket, dialled) } else { None };
    let slot = match (worker, &peer) {
        (Some(slot), _) => slot,
        (None, Some(_)) => WatchSlot { index: NOT_A_WORKER, generation: 0 },
        (None, None) => return,
    };
    let sk = socket.sk();
    if sk.is_null() {
        return count(Counter::StorageFailed);
    }
    // SAFETY: the helper returns the time.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let (mut conn, delta) = account::opened(slot, now_ns);
    if storage(sk, &mut conn).is_null() {
        return count(Counter::StorageFailed);
    }
    let flags = BPF_SOCK_OPS_STATE_CB_FLAG | if peer.is_some() { BPF_SOCK_OPS_RETRANS_CB_FLAG } else { 0 };
    if !socket.ask_for(flags) {
        count(Counter::CallbacksRefused);
        // SAFETY: the socket was checked; a missing entry is no harm.
        unsafe { bpf_sk_storage_delete(conn_map(), sk.cast()) };
        return;
    }
    match peer {
        Some(key) => count_peer(&key, socket, delta, 0, now_ns),
        None => count_worker(&conn, delta, now_ns),
    }
}

#[inline(always)]
fn state_changed(socket: &Socket) {
    let new = socket.new_state();
    if !account::ends(new) {
        return;
    }
    let sk = socket.sk();
    if sk.is_null() {
        return;
    }
    let known = storage(sk, null_mut());
    if known.is_null() {
        return;
    }
    // SAFETY: the helper returns the time; the storage was checked, and belongs to a socket whose last transition runs once.
    let (conn, now_ns) = unsafe { (*known, bpf_ktime_get_ns()) };
    let Some((after, delta)) = account::closed(&conn, new, socket.figures(), now_ns) else { return };
    // SAFETY: as above.
    unsafe { *known = after };
    if conn.index == NOT_A_WORKER {
        if let Some(key) = peer(socket, false).or_else(|| peer(socket, true)) {
            count_peer(&key, socket, delta, 0, now_ns);
        }
    } else {
        count_worker(&conn, delta, now_ns);
    }
}

#[inline(always)]
fn sent_again(socket: &Socket) {
    if let Some(key) = peer(socket, false).or_else(|| peer(socket, true)) {
        // SAFETY: the helper returns the time.
        let now_ns = unsafe { bpf_ktime_get_ns() };
        count_peer(&key, socket, Delta::default(), u64::from(socket.segments()), now_ns);
    }
}

/// The record of the listener that accepted this connection: one on its very address, else one on every address.
#[inline(always)]
fn watched(socket: &Socket) -> Option<WatchSlot> {
    let mut key = WatchKey {
        netns_cookie: socket.netns_cookie(),
        address: socket.local_address()?,
        port: socket.local_port(),
        pad: [0; 6],
    };
    // SAFETY: the agent replaces values as a whole; a reference to a hash entry stays readable while the program runs.
    if let Some(slot) = unsafe { WORKERS.get(&key) } {
        return Some(*slot);
    }
    key.address = address::ANY;
    // SAFETY: as above.
    unsafe { WORKERS.get(&key) }.copied()
}

/// The peer of a connection on a transfer port.
#[inline(always)]
fn peer(socket: &Socket, dialled: bool) -> Option<PeerKey> {
    let port = if dialled { socket.remote_port() } else { socket.local_port() };
    // SAFETY: values are never looked at.
    unsafe { PORTS.get(&u32::from(port)) }?;
    Some(PeerKey { address: socket.remote_address()?, port, dialled: u16::from(dialled), pad: 0 })
}

#[inline(always)]
fn count_worker(conn: &Conn, delta: Delta, now_ns: u64) {
    let Some(record) = LOAD.get_ptr_mut(conn.index) else { return };
    // SAFETY: a map value; the agent replaces it as a whole only when its generation moves on, while nothing refers to it.
    unsafe {
        if (*record).generation != conn.generation {
            return count(Counter::Late);
        }
        add(addr_of_mut!((*record).opened), delta.opened);
        add(addr_of_mut!((*record).closed), delta.closed);
        add(addr_of_mut!((*record).bytes_in), delta.bytes_in);
        add(addr_of_mut!((*record).bytes_out), delta.bytes_out);
        add(addr_of_mut!((*record).retransmits), delta.retransmits);
        add(addr_of_mut!((*record).lifetime_ns), delta.lifetime_ns);
        add(addr_of_mut!((*record).abandoned), delta.abandoned);
        (*record).last_event_ns = now_ns;
    }
}

#[inline(always)]
fn count_peer(key: &PeerKey, socket: &Socket, delta: Delta, sent_again: u64, now_ns: u64) {
    let record = match PEERS.get_ptr_mut(key) {
        Some(record) => record,
        None => {
            // Another processor may have been quicker; then its record is found.
            let _ = PEERS.insert(key, PeerRecord::default(), u64::from(BPF_NOEXIST));
            match PEERS.get_ptr_mut(key) {
                Some(record) => record,
                None => return count(Counter::PeersFull),
            }
        }
    };
    // SAFETY: a map value; nobody removes or replaces it while a connection of that peer may be open.
    unsafe {
        add(addr_of_mut!((*record).opened), delta.opened);
        add(addr_of_mut!((*record).closed), delta.closed);
        add(addr_of_mut!((*record).bytes_in), delta.bytes_in);
        add(addr_of_mut!((*record).bytes_out), delta.bytes_out);
        add(addr_of_mut!((*record).retransmits), sent_again);
        let srtt_us = socket.srtt_us();
        if srtt_us != 0 {
            add(addr_of_mut!((*record).srtt_us_sum), u64::from(srtt_us));
            add(addr_of_mut!((*record).srtt_samples), 1);
        }
        (*record).last_event_ns = now_ns;
    }
}

/// What is stored with `sk`; made of `conn` where that is not null and nothing is there.
#[inline(always)]
fn storage(sk: *mut bpf_sock, conn: *mut Conn) -> *mut Conn {
    let flags = if conn.is_null() { 0 } else { u64::from(BPF_SK_STORAGE_GET_F_CREATE) };
    // SAFETY: `sk` was checked against null, which is all that the helper asks.
    unsafe { bpf_sk_storage_get(conn_map(), sk.cast(), conn.cast(), flags) }.cast()
}

/// The map as helpers take it: `SkStorage`'s own methods take another context.
#[inline(always)]
pub fn conn_map() -> *mut c_void {
    addr_of!(CONN).cast_mut().cast()
}
