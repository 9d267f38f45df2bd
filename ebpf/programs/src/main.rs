//! The kernel programs, one file each, and the maps that they share with processes.
//!
//! | Program | Attached to | Read by | Runs |
//! |---|---|---|---|
//! | [`conn_load`] | a cgroup, as `sock_ops` | `forebay-agent load` | 3 to 6 times a connection |
//! | [`busy`] | the same cgroup, as `cgroup_skb`; experimental, off by default | `forebay-agent load` | once a packet |
//! | [`xdp_guard`] | an interface, as XDP | `forebay-agent guard` | once a received packet |
//!
//! What they decide is in `forebay-common`, where ordinary tests reach it; what is here fetches arguments from contexts
//! and adds to maps. Only contexts that are a promise of the kernel are read (`bpf_sock_ops`, `__sk_buff`, `xdp_md`), so one
//! object serves every kernel that has the features.
//!
//! # Safety
//!
//! The verifier refuses a program that could read or write outside of its context, packet, stack or map values, whatever
//! an `unsafe` block claims. What it does not check is said at each block.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod busy;
mod conn_load;
mod context;
mod maps;
mod xdp_guard;

/// Programs have no way to panic; a build in which one could still links, and the verifier refuses the endless loop.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Nothing here needs helpers that are for GPL programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 11] = *b"Apache-2.0\0";
