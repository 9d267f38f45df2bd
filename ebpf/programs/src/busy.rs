//! Experimental, off by default: connections of watched listeners whose request is in and whose answer has not got going.
//!
//! Attach point: the cgroup of `conn_load`, ingress and egress; it finds a worker by the storage that `conn_load` made, so it
//! does nothing for sockets without. Cost: one storage look-up for every packet of every socket in that cgroup, which is why
//! it is off by default. It lets every packet pass.
//!
//! An approximation (`forebay_common::kernel::account`): one request at a time on a connection, an answer that is going
//! after [`ANSWER_BYTES`](forebay_common::kernel::account::ANSWER_BYTES) or a second segment. HTTP/2 counts as one request as long
//! as anything is awaited.

use crate::conn_load::conn_map;
use crate::maps::{LOAD, add, count, swap};
use aya_ebpf::helpers::generated::{bpf_sk_fullsock, bpf_sk_storage_get};
use aya_ebpf::macros::cgroup_skb;
use aya_ebpf::programs::SkBuffContext;
use core::ptr::{addr_of_mut, null_mut};
use forebay_common::kernel::account::{self, Conn, Counter, NOT_A_WORKER};

#[cgroup_skb]
pub fn busy_ingress(context: SkBuffContext) -> i32 {
    saw(&context, true);
    1
}

#[cgroup_skb]
pub fn busy_egress(context: SkBuffContext) -> i32 {
    saw(&context, false);
    1
}

#[inline(always)]
fn saw(context: &SkBuffContext, incoming: bool) -> Option<()> {
    let known = conn(context)?;
    let bytes = payload(context)?;
    count(Counter::BusyRuns);
    if bytes == 0 {
        return None;
    }
    // SAFETY: storage of a live socket. The two directions may run at once: `awaiting` changes by an exchange, so each change
    // is counted once; progress is written by both, and a lost update of it only moves the moment at which an answer counts as going.
    unsafe {
        let before = *known;
        if before.index == NOT_A_WORKER {
            return None;
        }
        let awaiting = addr_of_mut!((*known).awaiting);
        let changed = if incoming {
            account::awaits_after_input(&before) && swap(awaiting, 1) == 0
        } else {
            let (bytes, segments) = account::answer_after_output(&before, bytes);
            (*known).answered_bytes = bytes;
            (*known).answered_segments = segments;
            account::is_going(bytes, segments) && swap(awaiting, 0) == 1
        };
        if !changed {
            return None;
        }
        if incoming {
            (*known).answered_bytes = 0;
            (*known).answered_segments = 0;
        }
        let record = LOAD.get_ptr_mut(before.index)?;
        if (*record).generation == before.generation {
            let field = if incoming { addr_of_mut!((*record).requests) } else { addr_of_mut!((*record).answers) };
            add(field, 1);
        }
    }
    None
}

/// What `conn_load` remembers of the packet's socket.
#[inline(always)]
fn conn(context: &SkBuffContext) -> Option<*mut Conn> {
    // SAFETY: a context read and two helpers, with their results checked before use.
    unsafe {
        let sk = (*context.skb.skb).__bindgen_anon_2.sk;
        if sk.is_null() {
            return None;
        }
        let full = bpf_sk_fullsock(sk);
        if full.is_null() {
            return None;
        }
        let known = bpf_sk_storage_get(conn_map(), full.cast(), null_mut(), 0).cast::<Conn>();
        (!known.is_null()).then_some(known)
    }
}

/// Bytes of TCP payload; the packet starts at its network header.
#[inline(always)]
fn payload(context: &SkBuffContext) -> Option<u32> {
    let version: u8 = context.load(0).ok()?;
    let transport = if version >> 4 == 4 { usize::from(version & 0x0f) * 4 } else { 40 };
    let offset: u8 = context.load(transport + 12).ok()?;
    let headers = transport as u32 + u32::from(offset >> 4) * 4;
    Some(context.len().saturating_sub(headers))
}
