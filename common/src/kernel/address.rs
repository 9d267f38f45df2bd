//! Addresses in their one form: 16 bytes, IPv4 as `::ffff:a.b.c.d`, ports in host order.
//!
//! The kernel shows the same address in different shapes: words in network order that a little-endian machine reads
//! reversed, an IPv4 client of a dual-stack listener as IPv6. Each shape is turned into the one form here, once.

/// `AF_INET` on Linux.
pub const FAMILY_V4: u32 = 2;
/// `AF_INET6` on Linux.
pub const FAMILY_V6: u32 = 10;
/// The address of a listener that takes every address of its host, of either family.
pub const ANY: [u8; 16] = [0; 16];

/// An IPv4 address as 16 bytes.
#[inline(always)]
pub const fn from_v4(v4: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4[0], v4[1], v4[2], v4[3]]
}

/// Whether `address` is an IPv4 address in its 16 bytes.
#[inline(always)]
pub const fn is_v4(address: &[u8; 16]) -> bool {
    let mut at = 0;
    while at < 10 {
        if address[at] != 0 {
            return false;
        }
        at += 1;
    }
    address[10] == 0xff && address[11] == 0xff
}

/// An IPv4 address from a word in network order, as `bpf_sock_ops` and packets hold it.
#[inline(always)]
pub const fn from_v4_word(word: u32) -> [u8; 16] {
    from_v4(word.to_ne_bytes())
}

/// The four words that an address's 16 bytes are, for an IPv4 address in one word, all in network order. `::ffff:a.b.c.d` of an IPv6
/// socket needs no conversion: it is the one form of IPv4 already.
#[inline(always)]
pub const fn v4_words(word: u32) -> [u32; 4] {
    [0, 0, 0x0000_ffff_u32.to_be(), word]
}

/// The key of a listener's address: `0.0.0.0` and `::` are both [`ANY`].
#[inline(always)]
pub const fn listener(address: [u8; 16]) -> [u8; 16] {
    if is_v4(&address) && address[12] == 0 && address[13] == 0 && address[14] == 0 && address[15] == 0 {
        return ANY;
    }
    address
}

/// A port from the 32-bit word in network order that `bpf_sock_ops.remote_port` is. (`local_port` is in host order.)
#[inline(always)]
pub const fn port_from_word(word: u32) -> u16 {
    u32::from_be(word) as u16
}

/// What a limit per source counts as one source: an IPv4 address, or an IPv6 network of 64 bits, which is what one host
/// may choose its addresses from.
#[inline(always)]
pub const fn source(address: [u8; 16]) -> [u8; 16] {
    if is_v4(&address) {
        return address;
    }
    let mut network = address;
    let mut at = 8;
    while at < 16 {
        network[at] = 0;
        at += 1;
    }
    network
}
