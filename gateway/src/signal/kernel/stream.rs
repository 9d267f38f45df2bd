//! One stream from one agent: greeting, frames, and what a frame means for a worker.

use super::fabric::Fabric;
use crate::fleet::KernelReport;
use forebay_common::kernel::address;
use forebay_common::wire::{self, Hello, Kind, Load, Refused, Welcome, WorkerLoad};
use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};

/// For dialling and greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);
/// An agent that says nothing for so many of its periods is dialled again.
const SILENT_PERIODS: u64 = 25;
/// Reports of sockets are used when they were made for this very frame: what is this gateway's own of it is counted now.
const SAME_FRAME_MS: u32 = 50;
/// Reports mean something for so many periods.
const GOOD_PERIODS: u64 = 3;

/// An agent that has bid welcome.
pub(super) struct Stream {
    stream: TcpStream,
    pub(super) welcome: Welcome,
    sequence: u64,
    fabric: Fabric,
    /// Between two reports of sockets, as seen.
    reported_ms: Option<u64>,
    between_ms: u64,
    frame: Vec<u8>,
}

/// A frame, with what it takes to make reports of it.
pub(super) struct Heard {
    load: Load,
    fabric: Option<forebay_routing::view::FabricLoad>,
    at_ms: u64,
    good_for_ms: u64,
}

impl Stream {
    /// Dials and greets; the error is for the log.
    pub(super) async fn open(agent: &str, token: Option<&str>) -> io::Result<Self> {
        timeout(GREETING_TIMEOUT, async {
            let mut stream = TcpStream::connect(agent).await?;
            stream.set_nodelay(true)?;
            let hello = Hello { version: wire::VERSION, token: token.map(str::to_owned) };
            stream.write_all(&wire::encode(Kind::Hello, &hello).map_err(io::Error::other)?).await?;
            let mut frame = Vec::new();
            let (kind, body) = read_frame(&mut stream, &mut frame).await?;
            match Kind::of(kind) {
                Some(Kind::Welcome) => {
                    let welcome: Welcome = wire::decode(body).map_err(io::Error::other)?;
                    let between_ms = u64::from(welcome.period_ms);
                    Ok(Self {
                        stream,
                        welcome,
                        sequence: 0,
                        fabric: Fabric::default(),
                        reported_ms: None,
                        between_ms,
                        frame,
                    })
                }
                Some(Kind::Refused) => {
                    let refused: Refused = wire::decode(body).map_err(io::Error::other)?;
                    Err(io::Error::other(format!("refused: {}", refused.why)))
                }
                _ => Err(io::Error::other(format!("a frame of kind {kind} where a welcome belongs"))),
            }
        })
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no welcome in time"))?
    }

    /// The next load record, and how many frames of unknown kinds came before it.
    pub(super) async fn next(&mut self, now_ms: impl Fn() -> u64) -> io::Result<(Heard, u64)> {
        let patience = Duration::from_millis(u64::from(self.welcome.period_ms.max(50)) * SILENT_PERIODS);
        let mut unknown = 0;
        loop {
            let read = timeout(patience, read_frame(&mut self.stream, &mut self.frame));
            let (kind, body) = read.await.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it fell silent"))??;
            if Kind::of(kind) != Some(Kind::Load) {
                unknown += 1;
                continue;
            }
            let load: Load = wire::decode(body).map_err(io::Error::other)?;
            if load.sequence <= self.sequence {
                continue;
            }
            self.sequence = load.sequence;
            let at_ms = now_ms();
            let fabric = self.fabric.judge(&load.rdma, at_ms);
            if load.workers.iter().any(is_of_this_frame)
                && let Some(before) = self.reported_ms.replace(at_ms)
            {
                self.between_ms = at_ms.saturating_sub(before).max(1);
            }
            return Ok((
                Heard { load, fabric, at_ms, good_for_ms: self.between_ms.saturating_mul(GOOD_PERIODS) },
                unknown,
            ));
        }
    }
}

fn is_of_this_frame(worker: &WorkerLoad) -> bool {
    worker.sockets_age_ms.is_some_and(|age_ms| age_ms <= SAME_FRAME_MS)
}

impl Heard {
    /// What it says of the worker at `at`; `None` when it knows nothing of it.
    pub(super) fn about(&self, at: SocketAddr) -> Option<KernelReport> {
        let worker = find(&self.load.workers, at)?;
        let of_this_frame = is_of_this_frame(worker);
        Some(KernelReport {
            at_work: worker.awaiting.zip(worker.streaming).filter(|_| of_this_frame),
            unread_bytes: worker.unread_bytes.unwrap_or(0),
            queue_is_full: of_this_frame
                && matches!((worker.backlog, worker.backlog_limit), (Some(now), Some(most)) if most > 0 && now >= most),
            fabric: self.fabric,
            at_ms: self.at_ms.saturating_sub(u64::from(self.load.age_ms)),
            good_for_ms: self.good_for_ms,
        })
    }
}

/// The worker at an address: by it, else the listener on every address, else the only one at that port, since addresses may be translated
/// on the way.
fn find(workers: &[WorkerLoad], at: SocketAddr) -> Option<&WorkerLoad> {
    let wanted = match at.ip() {
        IpAddr::V4(v4) => address::from_v4(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    };
    let mut here = workers.iter().filter(|worker| worker.port == at.port());
    let exact = here.clone().find(|worker| worker.address == wanted);
    let any = || here.clone().find(|worker| worker.address == address::ANY);
    exact.or_else(any).or_else(|| match (here.next(), here.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    })
}

/// Reads one frame into `buffer`; its kind and body.
async fn read_frame<'a>(stream: &mut TcpStream, buffer: &'a mut Vec<u8>) -> io::Result<(u16, &'a [u8])> {
    let length = stream.read_u32().await?;
    wire::check_length(length).map_err(io::Error::other)?;
    buffer.resize(length as usize, 0);
    stream.read_exact(buffer).await?;
    wire::split(buffer).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(address: [u8; 16], port: u16) -> WorkerLoad {
        WorkerLoad { address, port, ..WorkerLoad::default() }
    }

    #[test]
    fn a_worker_is_found_by_address_then_by_port() {
        let one = address::from_v4([10, 0, 0, 5]);
        let workers = [worker(one, 8000), worker(address::ANY, 8000), worker(one, 8001)];
        let found = |at: &str| find(&workers, at.parse().expect("an address")).map(|w| (w.address, w.port));
        assert_eq!(found("10.0.0.5:8000"), Some((one, 8000)));
        assert_eq!(found("10.0.0.9:8000"), Some((address::ANY, 8000)));
        assert_eq!(found("192.168.0.1:8001"), Some((one, 8001)), "translated on the way, and no other is meant");
        assert_eq!(found("10.0.0.5:9"), None);
    }

    #[test]
    fn reports_of_sockets_count_once_and_never_old() {
        let mut load = Load { workers: vec![worker(address::ANY, 8000)], ..Load::default() };
        load.workers[0].awaiting = Some(3);
        load.workers[0].streaming = Some(2);
        load.workers[0].backlog = Some(129);
        load.workers[0].backlog_limit = Some(128);
        load.workers[0].sockets_age_ms = Some(0);
        let mut heard = Heard { load, fabric: None, at_ms: 500, good_for_ms: 600 };
        let at = "10.0.0.9:8000".parse().expect("an address");
        let report = heard.about(at).expect("known");
        assert_eq!((report.at_work, report.queue_is_full, report.at_ms), (Some((3, 2)), true, 500));
        heard.load.workers[0].sockets_age_ms = Some(200);
        let report = heard.about(at).expect("known");
        assert_eq!((report.at_work, report.queue_is_full), (None, false), "made for an earlier frame");
    }
}
