//! Ethernet frames as tests build them.

use std::net::{Ipv4Addr, Ipv6Addr};

/// SYN.
pub const SYN: u8 = 0x02;
/// ACK.
pub const ACK: u8 = 0x10;
/// RST.
pub const RST: u8 = 0x04;
/// FIN.
pub const FIN: u8 = 0x01;
/// PSH.
pub const PSH: u8 = 0x08;

/// A TCP header, from port 40,000.
pub fn tcp(port: u16, flags: u8) -> Vec<u8> {
    let mut header = vec![0x9c, 0x40];
    header.extend(port.to_be_bytes());
    header.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    header
}

/// An IPv4 packet with `options` (a multiple of 4 bytes) and a fragment offset in units of 8 bytes.
pub fn v4(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    options: &[u8],
    fragment: u16,
    payload: &[u8],
) -> Vec<u8> {
    let words = 5 + options.len() / 4;
    let mut packet = vec![0x40 | words as u8, 0];
    packet.extend(((words * 4 + payload.len()) as u16).to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(options);
    packet.extend(payload);
    packet
}

/// An IPv6 packet; `extensions` are (type, bytes with their own next-header byte unset).
pub fn v6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    extensions: &[(u8, Vec<u8>)],
    protocol: u8,
    payload: &[u8],
) -> Vec<u8> {
    let length: usize = extensions.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() + payload.len();
    let first = extensions.first().map_or(protocol, |(kind, _)| *kind);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((length as u16).to_be_bytes());
    packet.extend([first, 64]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    for (at, (_, bytes)) in extensions.iter().enumerate() {
        let next = extensions.get(at + 1).map_or(protocol, |(kind, _)| *kind);
        packet.push(next);
        packet.extend(&bytes[1..]);
    }
    packet.extend(payload);
    packet
}

/// A frame around an IP packet, with VLAN tags outermost first.
pub fn ethernet(tags: &[u16], ip: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 7]);
    }
    frame.extend(if ip[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(ip);
    frame
}

/// A plain IPv4 segment.
pub fn segment_v4(source: [u8; 4], destination: [u8; 4], port: u16, flags: u8) -> Vec<u8> {
    ethernet(&[], &v4(source.into(), destination.into(), 6, &[], 0, &tcp(port, flags)))
}
