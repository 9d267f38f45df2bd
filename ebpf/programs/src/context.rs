//! The one place that reads `bpf_sock_ops`, in the shape that the rest understands.
//!
//! Each read is one instruction written out: the verifier allows context reads only at constant offsets from an unmodified
//! pointer, and the compiler would otherwise merge reads of two branches into one at a computed place.

use aya_ebpf::bindings::{bpf_sock, bpf_sock_ops};
use aya_ebpf::helpers::generated::{bpf_get_netns_cookie, bpf_sock_ops_cb_flags_set};
use aya_ebpf::programs::SockOpsContext;
use core::arch::asm;
use core::mem::{offset_of, transmute};
use forebay_common::kernel::account::Figures;
use forebay_common::kernel::address;

/// A callback's arguments.
pub struct Socket {
    ops: *mut bpf_sock_ops,
}

/// Reads one field; `u64` names the width.
macro_rules! field {
    ($self:ident, $offset:expr) => {
        field!($self, $offset, "u32") as u32
    };
    ($self:ident, $offset:expr, $width:literal) => {{
        let value: u64;
        // SAFETY: the pointer is the context that the kernel passed; the verifier checks offset and width.
        unsafe {
            asm!(
                concat!("{value} = *(", $width, " *)({context} + {offset})"),
                value = out(reg) value,
                context = in(reg) $self.ops,
                offset = const $offset,
                options(nostack, readonly, pure)
            );
        }
        value
    }};
}

impl Socket {
    pub fn new(context: &SockOpsContext) -> Self {
        Self { ops: context.ops }
    }

    /// Which callback this is.
    #[inline(always)]
    pub fn op(&self) -> u32 {
        field!(self, offset_of!(bpf_sock_ops, op))
    }

    /// The new state, in a state callback.
    #[inline(always)]
    pub fn new_state(&self) -> u32 {
        // The second word of the union, which is an array of words in every callback that this is read in.
        field!(self, offset_of!(bpf_sock_ops, __bindgen_anon_1) + 4)
    }

    /// Segments sent again, in a retransmission callback. The same word as [`Self::new_state`].
    #[inline(always)]
    pub fn segments(&self) -> u32 {
        self.new_state()
    }

    /// The socket itself; null while it is less than a full one.
    #[inline(always)]
    pub fn sk(&self) -> *mut bpf_sock {
        field!(self, offset_of!(bpf_sock_ops, __bindgen_anon_2), "u64") as *mut bpf_sock
    }

    #[inline(always)]
    pub fn local_port(&self) -> u16 {
        field!(self, offset_of!(bpf_sock_ops, local_port)) as u16
    }

    #[inline(always)]
    pub fn remote_port(&self) -> u16 {
        address::port_from_word(field!(self, offset_of!(bpf_sock_ops, remote_port)))
    }

    #[inline(always)]
    pub fn local_address(&self) -> Option<[u8; 16]> {
        let words = match field!(self, offset_of!(bpf_sock_ops, family)) {
            address::FAMILY_V4 => address::v4_words(field!(self, offset_of!(bpf_sock_ops, local_ip4))),
            address::FAMILY_V6 => [
                field!(self, offset_of!(bpf_sock_ops, local_ip6)),
                field!(self, offset_of!(bpf_sock_ops, local_ip6) + 4),
                field!(self, offset_of!(bpf_sock_ops, local_ip6) + 8),
                field!(self, offset_of!(bpf_sock_ops, local_ip6) + 12),
            ],
            _ => return None,
        };
        // SAFETY: four words are sixteen bytes.
        Some(unsafe { transmute::<[u32; 4], [u8; 16]>(words) })
    }

    #[inline(always)]
    pub fn remote_address(&self) -> Option<[u8; 16]> {
        let words = match field!(self, offset_of!(bpf_sock_ops, family)) {
            address::FAMILY_V4 => address::v4_words(field!(self, offset_of!(bpf_sock_ops, remote_ip4))),
            address::FAMILY_V6 => [
                field!(self, offset_of!(bpf_sock_ops, remote_ip6)),
                field!(self, offset_of!(bpf_sock_ops, remote_ip6) + 4),
                field!(self, offset_of!(bpf_sock_ops, remote_ip6) + 8),
                field!(self, offset_of!(bpf_sock_ops, remote_ip6) + 12),
            ],
            _ => return None,
        };
        // SAFETY: four words are sixteen bytes.
        Some(unsafe { transmute::<[u32; 4], [u8; 16]>(words) })
    }

    /// Network namespace of the socket.
    #[inline(always)]
    pub fn netns_cookie(&self) -> u64 {
        // SAFETY: the helper takes the context.
        unsafe { bpf_get_netns_cookie(self.ops.cast()) }
    }

    /// Zero where the socket is less than a full one.
    #[inline(always)]
    pub fn figures(&self) -> Figures {
        Figures {
            bytes_in: field!(self, offset_of!(bpf_sock_ops, bytes_received), "u64"),
            bytes_out: field!(self, offset_of!(bpf_sock_ops, bytes_acked), "u64"),
            retransmits: field!(self, offset_of!(bpf_sock_ops, total_retrans)),
        }
    }

    /// Smoothed round-trip time, µs. The kernel keeps eight times that.
    #[inline(always)]
    pub fn srtt_us(&self) -> u32 {
        field!(self, offset_of!(bpf_sock_ops, srtt_us)) >> 3
    }

    /// Asks for further callbacks beside those that other programs have asked for.
    #[inline(always)]
    pub fn ask_for(&self, flags: u32) -> bool {
        let wanted = field!(self, offset_of!(bpf_sock_ops, bpf_sock_ops_cb_flags)) | flags;
        // SAFETY: the helper takes the context.
        unsafe { bpf_sock_ops_cb_flags_set(self.ops, wanted as i32) == 0 }
    }
}
