//! Idle connections to engines, kept per address.

use super::connection::{Connection, Place};
use crate::clock::Clock;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Locks, so that threads returning connections of different engines rarely meet.
const SHARDS: usize = 16;
/// An idle connection older than this is not used again. Engines close theirs earlier (uvicorn after 5 s), which is
/// seen when it is taken out.
const MAX_IDLE_MS: u64 = 60_000;

/// Bounded pools of idle connections.
pub(super) struct Pool {
    shards: [Mutex<HashMap<Place, VecDeque<Idle>>>; SHARDS],
    per_worker: usize,
    clock: Clock,
}

struct Idle {
    connection: Connection,
    since_ms: u64,
}

impl Pool {
    pub(super) fn new(per_worker: usize, clock: Clock) -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), per_worker, clock }
    }

    fn shard(&self, address: &SocketAddr) -> &Mutex<HashMap<Place, VecDeque<Idle>>> {
        let host = match address.ip() {
            IpAddr::V4(ip) => ip.to_bits() as usize,
            IpAddr::V6(ip) => ip.to_bits() as usize,
        };
        &self.shards[(host ^ usize::from(address.port())) % SHARDS]
    }

    /// The most recently used idle connection that is still open.
    pub(super) fn take(&self, place: &Place) -> Option<Connection> {
        let now_ms = self.clock.now_ms();
        loop {
            let idle = self.shard(&place.address).lock().get_mut(place)?.pop_back()?;
            let mut connection = idle.connection;
            if now_ms.saturating_sub(idle.since_ms) < MAX_IDLE_MS && connection.is_open() {
                connection.reused = true;
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer was read to its end; beyond the bound the oldest goes.
    pub(super) fn put(&self, connection: Connection) {
        let place = connection.place.clone();
        let idle = Idle { connection, since_ms: self.clock.now_ms() };
        let mut shard = self.shard(&place.address).lock();
        let queue = shard.entry(place).or_default();
        queue.push_back(idle);
        let surplus = (queue.len() > self.per_worker).then(|| queue.pop_front());
        drop(shard);
        drop(surplus);
    }

    /// Drops what was closed by its engine or has idled for too long, and forgets engines without connections.
    pub(super) fn sweep(&self) {
        let now_ms = self.clock.now_ms();
        for shard in &self.shards {
            let mut closed = Vec::new();
            shard.lock().retain(|_, queue| {
                for _ in 0..queue.len() {
                    let Some(mut idle) = queue.pop_front() else { break };
                    let fresh = now_ms.saturating_sub(idle.since_ms) < MAX_IDLE_MS;
                    if fresh && idle.connection.is_open() { queue.push_back(idle) } else { closed.push(idle) }
                }
                !queue.is_empty()
            });
            drop(closed);
        }
    }
}
