//! One client: a kept-alive connection, or a share of an HTTP/2 one, and the timing of one exchange on it.
//!
//! An exchange fails on anything but a whole 200 answer (and, for a stream, at least one event with text). A failed
//! exchange yields no timing and drops the connection; the next one opens another.

use crate::connect::{Dialer, Socket};
use crate::events::{EventScanner, has_text, stamp_ns};
use crate::http2::Session;
use crate::wire::{BodyReader, Head, WireError, parse_head};
use rustix::time::{ClockId, clock_gettime};
use std::rc::Rc;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Duration, Instant, timeout};

/// An exchange that takes longer has failed; the slowest router needs about a second for 400 KB.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Room for one read; a burst of chunks fills it.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of an error answer that are shown.
const SHOWN_BYTES: usize = 300;

/// Why an exchange failed.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// No connection.
    #[error("connect: {0}")]
    Connect(std::io::Error),
    /// The connection broke.
    #[error("connection: {0}")]
    Broken(#[from] std::io::Error),
    /// The answer is no HTTP/1.1.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The HTTP/2 connection or stream broke.
    #[error("HTTP/2: {0}")]
    Http2(#[from] h2::Error),
    /// Closed before the head was whole.
    #[error("connection closed before the response head")]
    NoHead,
    /// Another status than 200.
    #[error("status {status}: {body}")]
    Status {
        /// What was answered.
        status: u16,
        /// The beginning of its body.
        body: String,
    },
    /// A stream without text.
    #[error("no event with text in the stream")]
    NoText,
    /// Nothing whole within `EXCHANGE_TIMEOUT`.
    #[error("no whole answer within 60 s")]
    Timeout,
}

/// How to read.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Whether answers are streams of events.
    pub stream: bool,
    /// Whether the client acknowledges every segment at once, so that a sender's Nagle delay does not show.
    pub quickack: bool,
}

/// What one exchange took.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// From the first byte sent to the last received.
    pub latency: Duration,
    /// From the first byte sent to the first event with text.
    pub ttft: Option<Duration>,
    /// Between two reads that brought text, in µs.
    pub gaps_us: Vec<u32>,
    /// From the engine's stamp to the read, in µs.
    pub oneway_us: Vec<u32>,
    /// Events with text.
    pub chunks: u64,
}

/// One client; its connection is opened when it is first needed.
#[derive(Debug)]
pub struct Client {
    link: Link,
    received: Vec<u8>,
    payload: Vec<u8>,
}

/// What a client sends on.
#[derive(Debug)]
enum Link {
    /// An HTTP/1.1 connection of its own.
    Own(Rc<Dialer>, Option<Box<Socket>>),
    /// An HTTP/2 connection with others on it.
    Shared(Rc<Session>),
}

impl Client {
    /// A client with a connection of its own.
    pub fn alone(dialer: Rc<Dialer>) -> Self {
        Self { link: Link::Own(dialer, None), received: Vec::new(), payload: Vec::new() }
    }

    /// A client that sends on `session`, beside others.
    pub fn sharing(session: Rc<Session>) -> Self {
        Self { link: Link::Shared(session), received: Vec::new(), payload: Vec::new() }
    }

    /// Sends `request` (as HTTP/1.1) and reads the answer.
    ///
    /// # Errors
    /// See [`ExchangeError`]; the connection is dropped.
    pub async fn exchange(&mut self, target: Target, request: &[u8]) -> Result<Timing, ExchangeError> {
        let outcome = match &mut self.link {
            Link::Shared(session) => {
                self.payload.clear();
                timeout(EXCHANGE_TIMEOUT, session.exchange(target, request, &mut self.payload)).await
            }
            Link::Own(dialer, socket) => {
                let mut open = match socket.take() {
                    Some(open) => open,
                    None => Box::new(dialer.dial().await.map_err(ExchangeError::Connect)?),
                };
                let exchange = timeout(EXCHANGE_TIMEOUT, self.exchange_on(&mut open, target, request)).await;
                exchange.map(|ended| {
                    ended.map(|(timing, close)| {
                        if let Link::Own(_, socket) = &mut self.link {
                            *socket = (!close).then_some(open);
                        }
                        timing
                    })
                })
            }
        };
        outcome.map_err(|_| ExchangeError::Timeout)?
    }

    async fn exchange_on(
        &mut self,
        socket: &mut Socket,
        target: Target,
        request: &[u8],
    ) -> Result<(Timing, bool), ExchangeError> {
        let started = Instant::now();
        socket.write_all(request).await?;
        socket.flush().await?;
        self.received.clear();
        self.payload.clear();
        let head = self.read_head(socket, target).await?;
        let mut body = BodyReader::new(head.framing);
        let mut text = TextTimes::new(started);
        let mut fresh = self.received.split_off(head.length);
        loop {
            body.feed(&fresh, &mut self.payload)?;
            if target.stream && head.status == 200 {
                text.observe(&mut self.payload);
            }
            if body.is_done() {
                break;
            }
            fresh.clear();
            if read_some(socket, target, &mut fresh).await? == 0 {
                body.close()?;
            }
        }
        Ok((text.end(target, head.status, &self.payload)?, head.close))
    }

    async fn read_head(&mut self, socket: &mut Socket, target: Target) -> Result<Head, ExchangeError> {
        loop {
            if read_some(socket, target, &mut self.received).await? == 0 {
                return Err(ExchangeError::NoHead);
            }
            if let Some(head) = parse_head(&self.received)? {
                return Ok(head);
            }
        }
    }
}

async fn read_some(socket: &mut Socket, target: Target, into: &mut Vec<u8>) -> std::io::Result<usize> {
    if target.quickack {
        // The kernel forgets the option after a while, so it is set before every read.
        socket.tcp().set_quickack(true)?;
    }
    into.reserve(READ_BYTES);
    socket.read_buf(into).await
}

/// Times the events of one stream as they are read.
pub(crate) struct TextTimes {
    started: Instant,
    last: Option<Instant>,
    scanner: EventScanner,
    timing: Timing,
}

impl TextTimes {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, last: None, scanner: EventScanner::default(), timing: Timing::default() }
    }

    pub(crate) fn observe(&mut self, payload: &mut Vec<u8>) {
        let (now, now_ns) = (Instant::now(), monotonic_ns());
        let Self { started, last, scanner, timing } = self;
        let mut brought_text = false;
        scanner.scan(payload, |event| {
            if has_text(event) {
                timing.chunks += 1;
                brought_text = true;
            }
            if let Some(stamp) = stamp_ns(event) {
                timing.oneway_us.push(micros(Duration::from_nanos(now_ns.saturating_sub(stamp))));
            }
        });
        if brought_text {
            match *last {
                Some(last) => timing.gaps_us.push(micros(now - last)),
                None => timing.ttft = Some(now - *started),
            }
            *last = Some(now);
        }
    }

    /// The answer is whole: what it took, if it is one that counts.
    pub(crate) fn end(mut self, target: Target, status: u16, payload: &[u8]) -> Result<Timing, ExchangeError> {
        if status != 200 {
            let shown = &payload[..payload.len().min(SHOWN_BYTES)];
            return Err(ExchangeError::Status { status, body: String::from_utf8_lossy(shown).into() });
        }
        if target.stream && self.timing.chunks == 0 {
            return Err(ExchangeError::NoText);
        }
        self.timing.latency = self.started.elapsed();
        Ok(self.timing)
    }
}

/// Whole µs, at most what a `u32` holds (71 minutes).
pub(crate) fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

/// The machine's monotonic clock, which the engine's stamps use too.
fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
