//! From an Ethernet frame to the few fields that the guard judges by, with every read checked.
//!
//! At most two VLAN tags, IPv4 with options, IPv6 with at most [`MAX_EXTENSIONS`] extension headers. What is cut short,
//! longer than that or something else comes back as what it is; nothing is guessed.

use super::address;

/// IPv6 extension headers that are stepped over; honest senders use one or two.
pub const MAX_EXTENSIONS: usize = 4;

const VLAN: u16 = 0x8100;
const VLAN_OUTER: u16 = 0x88a8;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Bytes of a packet, of which any may be missing.
pub trait Frame {
    /// `N` bytes from `offset`, `None` where the packet is shorter.
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;
}

impl Frame for [u8] {
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..offset.checked_add(N)?)?.try_into().ok()
    }
}

/// The fields of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Sender.
    pub source: [u8; 16],
    /// Receiver.
    pub destination: [u8; 16],
    /// Receiver's port, host order.
    pub port: u16,
    /// Flag bits.
    pub flags: u8,
}

impl Segment {
    /// Whether it asks for a new connection and does nothing else.
    #[inline(always)]
    pub const fn is_opening(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The start of a TCP segment.
    Segment(Segment),
    /// A later fragment: its ports are elsewhere.
    Fragment,
    /// Another protocol.
    Other,
    /// Cut short or malformed.
    Unparsed,
}

/// Reads a frame that starts at its Ethernet header.
#[inline(always)]
pub fn parse<F: Frame + ?Sized>(frame: &F) -> Packet {
    let Some((protocol, offset)) = network(frame) else { return Packet::Unparsed };
    let read = match protocol {
        IPV4 => v4(frame, offset),
        IPV6 => v6(frame, offset),
        _ => return Packet::Other,
    };
    read.unwrap_or(Packet::Unparsed)
}

/// The network protocol and where its header starts.
#[inline(always)]
fn network<F: Frame + ?Sized>(frame: &F) -> Option<(u16, usize)> {
    let first = u16::from_be_bytes(frame.read(12)?);
    if first != VLAN && first != VLAN_OUTER {
        return Some((first, 14));
    }
    let second = u16::from_be_bytes(frame.read(16)?);
    if second != VLAN && second != VLAN_OUTER {
        return Some((second, 18));
    }
    Some((u16::from_be_bytes(frame.read(20)?), 22))
}

#[inline(always)]
fn v4<F: Frame + ?Sized>(frame: &F, offset: usize) -> Option<Packet> {
    let head: [u8; 20] = frame.read(offset)?;
    let words = head[0] & 0x0f;
    if head[0] >> 4 != 4 || words < 5 {
        return Some(Packet::Unparsed);
    }
    if u16::from_be_bytes([head[6], head[7]]) & 0x1fff != 0 {
        return Some(Packet::Fragment);
    }
    if head[9] != TCP {
        return Some(Packet::Other);
    }
    let source = address::from_v4([head[12], head[13], head[14], head[15]]);
    let destination = address::from_v4([head[16], head[17], head[18], head[19]]);
    tcp(frame, offset + words as usize * 4, source, destination)
}

#[inline(always)]
fn v6<F: Frame + ?Sized>(frame: &F, offset: usize) -> Option<Packet> {
    let [version, _, _, _, _, _, mut next, _]: [u8; 8] = frame.read(offset)?;
    if version >> 4 != 6 {
        return Some(Packet::Unparsed);
    }
    let source = frame.read(offset + 8)?;
    let destination = frame.read(offset + 24)?;
    let mut at = offset + 40;
    for _ in 0..MAX_EXTENSIONS {
        match next {
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => {
                let [after, length]: [u8; 2] = frame.read(at)?;
                next = after;
                at += (length as usize + 1) * 8;
            }
            // Fragment.
            44 => {
                let [after, _, high, low]: [u8; 4] = frame.read(at)?;
                if u16::from_be_bytes([high, low]) & 0xfff8 != 0 {
                    return Some(Packet::Fragment);
                }
                next = after;
                at += 8;
            }
            _ => break,
        }
    }
    match next {
        TCP => tcp(frame, at, source, destination),
        0 | 43 | 44 | 60 => Some(Packet::Unparsed),
        _ => Some(Packet::Other),
    }
}

#[inline(always)]
fn tcp<F: Frame + ?Sized>(frame: &F, at: usize, source: [u8; 16], destination: [u8; 16]) -> Option<Packet> {
    let [high, low]: [u8; 2] = frame.read(at + 2)?;
    let [flags]: [u8; 1] = frame.read(at + 13)?;
    // A whole header, so that what follows the guard need not reject what it let pass.
    let [_]: [u8; 1] = frame.read(at + 19)?;
    Some(Packet::Segment(Segment { source, destination, port: u16::from_be_bytes([high, low]), flags }))
}
