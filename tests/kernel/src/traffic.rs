//! Connections as tests make them, and what the kernel says of them.

#![expect(clippy::panic, reason = "a test that waits in vain says for what")]

use forebay_agent::load::sockets;
use forebay_common::kernel::account::{LoadRecord, WatchKey, WatchSlot};
use forebay_common::kernel::address;
use forebay_ebpf::{Load, netns_cookie};
use rustix::net::sockopt;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// How long a condition may take to come true; a test that needs a tenth of it is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `condition` holds; what it was when it does not.
pub fn wait_for<T: std::fmt::Debug>(what: &str, mut condition: impl FnMut() -> Result<T, String>) -> T {
    let pause = Duration::from_millis(2);
    let mut last = String::new();
    for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
        match condition() {
            Ok(value) => return value,
            Err(state) => last = state,
        }
        sleep(pause);
    }
    panic!("{what}: {last}");
}

/// An address as 16 bytes.
pub fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => address::from_v4(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A watched listener, as an engine would be.
pub struct Watched {
    /// The programs.
    pub load: Load,
    /// The listener; `None` once it is closed.
    pub listener: Option<TcpListener>,
    /// Where it listens.
    pub at: SocketAddr,
    /// Its key.
    pub key: WatchKey,
    /// Its counters.
    pub slot: WatchSlot,
}

impl Watched {
    /// Attaches to `cgroup`, listens at `at` and watches that.
    pub fn start(cgroup: &Path, at: &str, busy: bool) -> Self {
        let mut load = Load::attach(cgroup, busy).unwrap_or_else(|error| panic!("{error}"));
        let listener = TcpListener::bind(at).expect("listens");
        let at = listener.local_addr().expect("bound");
        let key = WatchKey {
            netns_cookie: netns_cookie().expect("a cookie"),
            address: address::listener(bytes(at.ip())),
            port: at.port(),
            pad: [0; 6],
        };
        let slot = load.watch(key, 0).expect("watches").expect("room");
        Self { load, listener: Some(listener), at, key, slot }
    }

    /// A new connection: the client's end and the server's.
    pub fn connect(&self) -> (TcpStream, TcpStream) {
        let ip = if self.at.ip().is_unspecified() { "127.0.0.1".parse().expect("an address") } else { self.at.ip() };
        let client = TcpStream::connect((ip, self.at.port())).expect("connects");
        let (server, _) = self.listener.as_ref().expect("listens").accept().expect("accepts");
        (client, server)
    }

    /// Its counters now.
    pub fn record(&self) -> LoadRecord {
        self.load.record(self.slot).expect("reads").expect("of this generation")
    }

    /// Waits until the counters and the kernel's own list of sockets agree, as they must once all that is under way has
    /// happened; the number that they agree on.
    pub fn agree(&self, when: &str) -> u64 {
        wait_for(&format!("counters and INET_DIAG, {when}"), || {
            let (record, sockets) = (self.record(), connections(self.at.port()));
            let open = record.opened.checked_sub(record.closed).ok_or("more closed than opened")?;
            if open == sockets { Ok(open) } else { Err(format!("{record:?}, INET_DIAG {sockets}")) }
        })
    }

    /// Waits until both say `expected`.
    pub fn agree_on(&self, expected: u64, when: &str) {
        wait_for(&format!("{expected} connections {when}"), || {
            let open = self.agree(when);
            if open == expected { Ok(()) } else { Err(format!("{open} are open")) }
        });
    }
}

/// Connections that a listener at `port` accepted or will, by the kernel's list.
pub fn connections(port: u16) -> u64 {
    let all = sockets::dump().expect("a dump");
    all.iter().filter(|socket| socket.is_connection() && socket.local_port == port).count() as u64
}

/// Closes with a reset instead of an end.
pub fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("linger");
    drop(stream);
}

/// Sends `text` and waits until it has arrived.
pub fn exchange(from: &mut TcpStream, to: &mut TcpStream, text: &[u8]) {
    from.write_all(text).expect("sends");
    let mut read = vec![0; text.len()];
    to.read_exact(&mut read).expect("arrives");
    assert_eq!(read, text);
}
