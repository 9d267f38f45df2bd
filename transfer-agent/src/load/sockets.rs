//! TCP sockets of the calling thread's network namespace, from the kernel's socket diagnosis (INET_DIAG over netlink). Needs no privilege.
//!
//! A dump walks the whole table of established connections, so it is asked for a few times a second and not more. It is
//! no snapshot: connections that come or go meanwhile may be in it or not.

use forebay_common::kernel::address;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::io;
use std::time::Duration;

/// Sockets of one dump; what is beyond is counted and left out.
pub const MAX_SOCKETS: usize = 262_144;
/// One netlink message batch: the kernel uses at most 32 KiB.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest wait for the next part of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const IPPROTO_TCP: u8 = 6;
const INET_DIAG_INFO: u16 = 2;
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 72;

/// TCP states by their numbers.
pub mod state {
    /// Data flows.
    pub const ESTABLISHED: u8 = 1;
    /// A SYN was sent.
    pub const SYN_SENT: u8 = 2;
    /// A SYN was received.
    pub const SYN_RECV: u8 = 3;
    /// Remembered, and no connection any more.
    pub const TIME_WAIT: u8 = 6;
    /// No connection.
    pub const CLOSE: u8 = 7;
    /// A listener.
    pub const LISTEN: u8 = 10;
    /// A SYN was received and no socket made yet.
    pub const NEW_SYN_RECV: u8 = 12;
}

/// One socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Socket {
    /// See [`state`].
    pub state: u8,
    /// Identifies it for its life.
    pub cookie: u64,
    /// Own address, 16 bytes.
    pub local: [u8; 16],
    /// Own port.
    pub local_port: u16,
    /// The peer's address.
    pub remote: [u8; 16],
    /// The peer's port.
    pub remote_port: u16,
    /// Bytes that wait to be read; of a listener, connections that wait to be accepted.
    pub receive_queue: u32,
    /// Bytes that wait to be sent; of a listener, how many connections may wait.
    pub send_queue: u32,
    /// Whether only its remains are kept, in whatever state it says it is.
    pub is_remains: bool,
    /// What TCP knows of it.
    pub info: Option<Info>,
}

/// The part of `tcp_info` that is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Time since data was sent, ms.
    pub since_sent_ms: u32,
    /// Time since data was received, ms.
    pub since_received_ms: u32,
    /// Bytes of data received.
    pub bytes_in: u64,
    /// Bytes of data that the peer acknowledged.
    pub bytes_out: u64,
    /// Segments with data sent.
    pub data_segments_out: u32,
    /// Segments sent again.
    pub retransmits: u32,
}

impl Socket {
    /// Whether it is a connection: established, and not over yet.
    pub fn is_connection(&self) -> bool {
        use state::{CLOSE, LISTEN, NEW_SYN_RECV, SYN_RECV, SYN_SENT, TIME_WAIT};
        !self.is_remains && ![SYN_SENT, SYN_RECV, TIME_WAIT, CLOSE, LISTEN, NEW_SYN_RECV].contains(&self.state)
    }

    /// Whether it waits for connections.
    pub fn is_listener(&self) -> bool {
        self.state == state::LISTEN
    }
}

/// Every TCP socket of both families.
pub fn dump() -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for family in [address::FAMILY_V4, address::FAMILY_V6] {
        dump_family(family as u8, &mut sockets)?;
    }
    Ok(sockets)
}

fn dump_family(family: u8, into: &mut Vec<Socket>) -> io::Result<()> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    sendto(&socket, &request(family), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::TRUNC)?;
        let Some(bytes) = buffer.get(..length) else {
            return Err(io::Error::other("an answer of the kernel was longer than its limit"));
        };
        if read_batch(bytes, into)? {
            return Ok(());
        }
    }
}

fn request(family: u8) -> [u8; HEADER_BYTES + 56] {
    let mut bytes = [0; HEADER_BYTES + 56];
    bytes[..4].copy_from_slice(&((HEADER_BYTES + 56) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    bytes[16] = family;
    bytes[17] = IPPROTO_TCP;
    bytes[18] = 1 << (INET_DIAG_INFO - 1);
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes
}

/// Reads one batch of messages; true when it was the last.
fn read_batch(mut bytes: &[u8], into: &mut Vec<Socket>) -> io::Result<bool> {
    while let Some(length) = number::<4>(bytes, 0).map(|b| u32::from_ne_bytes(b) as usize) {
        let (Some(message), true) = (bytes.get(..length), length >= HEADER_BYTES) else {
            return Err(io::Error::other("an answer of the kernel was cut short"));
        };
        match number::<2>(message, 4).map(u16::from_ne_bytes) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => {
                let code = number::<4>(message, HEADER_BYTES).map_or(0, i32::from_ne_bytes);
                return Err(io::Error::from_raw_os_error(-code));
            }
            Some(SOCK_DIAG_BY_FAMILY) if into.len() < MAX_SOCKETS => into.extend(read_socket(&message[HEADER_BYTES..])),
            _ => {}
        }
        // Messages are padded to four bytes.
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Reads one `inet_diag_msg` and its attributes.
fn read_socket(message: &[u8]) -> Option<Socket> {
    let family = u32::from(*message.first()?);
    let to_address = |at: usize| -> Option<[u8; 16]> {
        let raw: [u8; 16] = number(message, at)?;
        Some(if family == address::FAMILY_V4 { address::from_v4([raw[0], raw[1], raw[2], raw[3]]) } else { raw })
    };
    let word = |at: usize| number::<4>(message, at).map(u32::from_ne_bytes);
    Some(Socket {
        state: *message.get(1)?,
        local_port: u16::from_be_bytes(number(message, 4)?),
        remote_port: u16::from_be_bytes(number(message, 6)?),
        local: to_address(8)?,
        remote: to_address(24)?,
        cookie: u64::from(word(44)?) | u64::from(word(48)?) << 32,
        receive_queue: word(56)?,
        send_queue: word(60)?,
        // Timer 3 belongs to what is left of a connection, which may still say FIN_WAIT2.
        is_remains: *message.get(2)? == 3,
        info: attribute(message.get(MESSAGE_BYTES..)?, INET_DIAG_INFO).and_then(read_info),
    })
}

fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(number(bytes, 0)?));
        let kind = u16::from_ne_bytes(number(bytes, 2)?);
        let value = bytes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

/// Offsets of `struct tcp_info`, which only ever grows at its end; a shorter one has none of the later fields.
fn read_info(info: &[u8]) -> Option<Info> {
    let word = |at: usize| number::<4>(info, at).map(u32::from_ne_bytes);
    let long = |at: usize| number::<8>(info, at).map(u64::from_ne_bytes);
    Some(Info {
        since_sent_ms: word(44)?,
        since_received_ms: word(52)?,
        retransmits: word(100)?,
        bytes_out: long(120)?,
        bytes_in: long(128)?,
        data_segments_out: word(156)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    /// Against this kernel: a listener, both ends of its connection, and data that nobody reads.
    #[test]
    fn the_kernel_tells_of_our_own_sockets() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let found = dump().unwrap();
        let ours = found.iter().find(|socket| socket.is_listener() && socket.local_port == port).unwrap();
        assert_eq!(ours.receive_queue, 1, "one connection waits to be accepted");
        assert_eq!(ours.send_queue, 128, "of 128");
        let (_server, _) = listener.accept().unwrap();
        client.write_all(b"hello").unwrap();
        let find = |local_port| {
            let all = dump().unwrap();
            all.into_iter().find(|socket| socket.is_connection() && socket.local_port == local_port)
        };
        let server = find(port).unwrap();
        assert_eq!(server.local, address::from_v4([127, 0, 0, 1]));
        assert_eq!(server.receive_queue, 5, "bytes that nobody read");
        let info = server.info.unwrap();
        assert_eq!((info.bytes_in, info.data_segments_out), (5, 0));
        assert!(find(client.local_addr().unwrap().port()).is_some(), "the client's end is a socket too");
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = read_batch(&bytes, &mut Vec::new());
            let _ = read_socket(&bytes);
        }
    }
}
