//! The thread that owns the sockets of one rank.
//!
//! It sends batches as they come and looks for replay requests between two batches, at the latest after
//! [`REPLAY_POLL`]. Dropping the [`Publisher`] closes the sockets before it returns, so that a restarted engine can
//! bind the same ports again.

use super::{EventBatch, EventConfig, Wire, encode_batch};
use crate::fault::{FaultBoard, FaultKind};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time that a replay request waits while nothing is published. vLLM's is up to 100 ms.
const REPLAY_POLL: Duration = Duration::from_millis(20);
/// Batches that may wait for the thread, as vLLM's `max_queue_size`.
const QUEUE_BATCHES: usize = 100_000;
/// Messages that a slow subscriber may have waiting, as vLLM's `hwm`.
const HIGH_WATER_MARK: i32 = 100_000;
/// A port freed by a restart may take this long to be free.
const BIND_PATIENCE: Duration = Duration::from_secs(5);
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// Sequence number of the end-of-replay marker.
const REPLAY_END: [u8; 8] = [0xff; 8];

/// Hands batches to the thread.
#[derive(Debug)]
pub(crate) struct Publisher {
    sender: Option<SyncSender<EventBatch>>,
    /// Batches that found the queue full; the thread leaves a gap in the sequence for each.
    lost: Arc<AtomicU64>,
    /// The PUB endpoint as bound.
    pub(crate) endpoint: String,
    /// The replay endpoint as bound.
    pub(crate) replay_endpoint: Option<String>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    /// Opens the sockets. `config` holds endpoints for this rank (see [`resolve_endpoint`]).
    pub(crate) fn start(config: EventConfig, faults: Arc<FaultBoard>) -> Result<Self, String> {
        let context = zmq::Context::new();
        let (publish, endpoint) = open(&context, zmq::PUB, &config.endpoint)?;
        let replay = config.replay_endpoint.as_deref().map(|at| open(&context, zmq::ROUTER, at)).transpose()?;
        let (replay, replay_endpoint) = replay.map_or((None, None), |(socket, at)| (Some(socket), Some(at)));
        let (sender, receiver) = sync_channel(QUEUE_BATCHES);
        let lost = Arc::new(AtomicU64::new(0));
        let sockets = Sockets {
            publish,
            replay,
            kept: VecDeque::new(),
            next: 0,
            faults,
            lost: lost.clone(),
            config,
            _context: context,
        };
        let thread = std::thread::Builder::new()
            .name("kv-events".to_owned())
            .spawn(move || sockets.run(&receiver))
            .map_err(|e| format!("no thread for KV events: {e}"))?;
        Ok(Self { sender: Some(sender), lost, endpoint, replay_endpoint, thread: Some(thread) })
    }

    /// Queues a batch. Never blocks: with the queue full the batch is lost, and subscribers see a gap.
    pub(crate) fn publish(&self, batch: EventBatch) {
        let Some(sender) = &self.sender else { return };
        if let Err(TrySendError::Full(_)) = sender.try_send(batch) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the KV event thread panicked");
        }
    }
}

/// The endpoint of one rank of one engine: `*` host → `host`, a given port counted up by `offset`.
pub(crate) fn resolve_endpoint(endpoint: &str, host: &str, offset: u16) -> Result<String, String> {
    let Some(address) = endpoint.strip_prefix("tcp://") else { return Ok(endpoint.to_owned()) };
    let (given_host, port) = address.rsplit_once(':').ok_or_else(|| format!("{endpoint}: no port"))?;
    let host = if given_host == "*" { host } else { given_host };
    if port == "*" || port == "0" {
        return Ok(format!("tcp://{host}:*"));
    }
    let port: u16 = port.parse().map_err(|_| format!("{endpoint}: bad port"))?;
    let port = port.checked_add(offset).ok_or_else(|| format!("{endpoint}: port out of range for offset {offset}"))?;
    // A star anywhere in what was written means: bind.
    let bind = if given_host == "*" { "@" } else { "" };
    Ok(format!("{bind}tcp://{host}:{port}"))
}

fn open(context: &zmq::Context, kind: zmq::SocketType, endpoint: &str) -> Result<(zmq::Socket, String), String> {
    let failed = |e: zmq::Error| format!("{endpoint}: {e}");
    let socket = context.socket(kind).map_err(failed)?;
    socket.set_linger(0).map_err(failed)?;
    socket.set_sndhwm(HIGH_WATER_MARK).map_err(failed)?;
    let (bind, address) = match endpoint.strip_prefix('@') {
        Some(address) => (true, address),
        None => (endpoint.contains('*') || endpoint.contains("::") || !endpoint.starts_with("tcp://"), endpoint),
    };
    if !bind {
        socket.connect(address).map_err(failed)?;
        return Ok((socket, address.to_owned()));
    }
    let mut waited = Duration::ZERO;
    while let Err(e) = socket.bind(address) {
        if e != zmq::Error::EADDRINUSE || waited >= BIND_PATIENCE {
            return Err(failed(e));
        }
        std::thread::sleep(BIND_PAUSE);
        waited += BIND_PAUSE;
    }
    let bound = socket.get_last_endpoint().map_err(failed)?.map_err(|_| format!("{endpoint}: endpoint is not text"))?;
    Ok((socket, bound))
}

struct Sockets {
    publish: zmq::Socket,
    replay: Option<zmq::Socket>,
    kept: VecDeque<(u64, Vec<u8>)>,
    next: u64,
    faults: Arc<FaultBoard>,
    lost: Arc<AtomicU64>,
    config: EventConfig,
    /// Dropped last: closing it waits for the sockets.
    _context: zmq::Context,
}

impl Sockets {
    fn run(mut self, batches: &Receiver<EventBatch>) {
        loop {
            match batches.recv_timeout(REPLAY_POLL) {
                Ok(batch) => self.send(&batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Err(e) = self.answer_replays() {
                tracing::warn!(error = %e, "KV event replay");
            }
        }
    }

    fn send(&mut self, batch: &EventBatch) {
        self.next += self.lost.swap(0, Ordering::Relaxed);
        let fault = self.faults.strike_events();
        if fault == Some(FaultKind::EventSilence) {
            return;
        }
        let seq = self.next;
        self.next += 1;
        if fault == Some(FaultKind::EventGap) {
            return;
        }
        let mut payload = encode_batch(batch, self.config.wire, self.config.hash);
        if fault == Some(FaultKind::EventGarbage) {
            // 0xc1 is the one byte that msgpack never uses.
            payload = vec![0xc1; 32];
        }
        if fault != Some(FaultKind::EventDrop) {
            let frames: [&[u8]; 3] = [self.config.topic.as_bytes(), &seq.to_be_bytes(), &payload];
            if let Err(e) = self.publish.send_multipart(frames, 0) {
                tracing::warn!(error = %e, seq, "KV events not sent");
            }
        }
        self.kept.push_back((seq, payload));
        if self.kept.len() > self.config.buffer_batches {
            self.kept.pop_front();
        }
    }

    /// Answers `[identity, "", start]` with every kept batch from `start` on, then the end marker.
    fn answer_replays(&self) -> Result<(), zmq::Error> {
        let Some(replay) = &self.replay else { return Ok(()) };
        while replay.poll(zmq::POLLIN, 0)? > 0 {
            let request = replay.recv_multipart(0)?;
            let [identity, .., start] = request.as_slice() else { continue };
            let Ok(start) = <[u8; 8]>::try_from(start.as_slice()).map(u64::from_be_bytes) else {
                tracing::warn!("a replay request without an 8-byte start was ignored");
                continue;
            };
            for (seq, payload) in self.kept.iter().filter(|(seq, _)| *seq >= start) {
                self.reply(replay, identity, self.config.topic.as_bytes(), &seq.to_be_bytes(), payload)?;
            }
            self.reply(replay, identity, b"", &REPLAY_END, b"")?;
        }
        Ok(())
    }

    fn reply(
        &self,
        to: &zmq::Socket,
        identity: &[u8],
        topic: &[u8],
        seq: &[u8],
        payload: &[u8],
    ) -> Result<(), zmq::Error> {
        match self.config.wire {
            // Releases of that time sent no topic here.
            Wire::Array | Wire::Sglang => to.send_multipart([identity, b"", seq, payload], 0),
            Wire::Map | Wire::MapOuter => to.send_multipart([identity, b"", topic, seq, payload], 0),
        }
    }
}
