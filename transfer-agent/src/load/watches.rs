//! Which listeners are engines, and which connection belongs to which. Pure.

use super::sockets::Socket;
use crate::config::PortRange;
use forebay_common::kernel::account::{MAX_WATCHED, WatchKey};
use forebay_common::kernel::address;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// What the configuration asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Listeners by address and port.
    pub workers: Vec<SocketAddr>,
    /// Every listener at these ports.
    pub ports: Option<PortRange>,
    /// Namespace that they are in.
    pub netns_cookie: u64,
}

/// An address as 16 bytes.
pub fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => address::from_v4(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Wanted {
    /// Without a list of sockets: as they are configured.
    pub fn as_configured(&self) -> BTreeSet<WatchKey> {
        self.workers.iter().map(|at| self.key(address::listener(bytes(at.ip())), at.port())).collect()
    }

    /// Of the listeners that are there, those that were asked for, by the address that they listen at: a listener on every address
    /// serves those who ask for one of them.
    pub fn among(&self, sockets: &[Socket]) -> BTreeSet<WatchKey> {
        let listeners = sockets.iter().filter(|socket| socket.is_listener());
        let keys = listeners.filter_map(|socket| {
            let at = address::listener(socket.local);
            let asked = self.workers.iter().any(|worker| {
                let wanted = address::listener(bytes(worker.ip()));
                worker.port() == socket.local_port && (wanted == at || wanted == address::ANY || at == address::ANY)
            });
            let in_range = self.ports.as_ref().is_some_and(|range| range.0.contains(&socket.local_port));
            (asked || in_range).then(|| self.key(at, socket.local_port))
        });
        keys.take(MAX_WATCHED as usize).collect()
    }

    fn key(&self, address: [u8; 16], port: u16) -> WatchKey {
        WatchKey { netns_cookie: self.netns_cookie, address, port, pad: [0; 6] }
    }
}

/// The watched listener that accepted a connection: by its very address, else the one on every address.
pub fn owner<'a, T>(watched: &'a mut BTreeMap<WatchKey, T>, netns_cookie: u64, socket: &Socket) -> Option<&'a mut T> {
    let mut key = WatchKey { netns_cookie, address: socket.local, port: socket.local_port, pad: [0; 6] };
    if !watched.contains_key(&key) {
        key.address = address::ANY;
    }
    watched.get_mut(&key)
}

#[cfg(test)]
mod tests {
    use super::super::sockets::state;
    use super::*;

    fn listener(address: [u8; 16], local_port: u16) -> Socket {
        Socket { state: state::LISTEN, local: address, local_port, ..Socket::default() }
    }

    fn wanted(workers: &[&str], ports: Option<PortRange>) -> Wanted {
        Wanted { workers: workers.iter().map(|at| at.parse().unwrap()).collect(), ports, netns_cookie: 1 }
    }

    #[test]
    fn listeners_are_found_by_what_they_serve() {
        let any_v4 = address::from_v4([0; 4]);
        let one = address::from_v4([10, 0, 0, 5]);
        let sockets = [listener(any_v4, 8000), listener(one, 8001), listener(one, 9000), Socket::default()];
        let found: Vec<_> = wanted(&["10.0.0.5:8000"], None).among(&sockets).into_iter().collect();
        assert_eq!((found.len(), found[0].address), (1, address::ANY), "it listens on every address");
        assert_eq!(wanted(&["10.0.0.6:8001"], None).among(&sockets).len(), 0, "another address");
        assert_eq!(wanted(&["0.0.0.0:8001"], None).among(&sockets).len(), 1, "any address will do");
        assert_eq!(wanted(&[], Some(PortRange(8000..=8001))).among(&sockets).len(), 2);
    }

    #[test]
    fn a_connection_belongs_to_the_closest_listener() {
        let one = address::from_v4([10, 0, 0, 5]);
        let key = |address| WatchKey { netns_cookie: 1, address, port: 8000, pad: [0; 6] };
        let mut watched = BTreeMap::from([(key(address::ANY), "any"), (key(one), "one")]);
        let socket = |local| Socket { local, local_port: 8000, ..Socket::default() };
        assert_eq!(owner(&mut watched, 1, &socket(one)).map(|w| *w), Some("one"));
        assert_eq!(owner(&mut watched, 1, &socket(address::from_v4([127, 0, 0, 1]))).map(|w| *w), Some("any"));
        assert_eq!(owner(&mut watched, 2, &socket(one)), None, "another namespace");
    }
}
