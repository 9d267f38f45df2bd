//! Committed answer → client, to its end.

use super::client::{Client, Interrupt};
use super::drain::stopping;
use super::{Next, Reading, Usage};
use crate::dispatch::{Body, Exchange, overdue};
use crate::error::Fault;
use crate::http1::response::Downstream;
use crate::http1::{Framing, Malformed, RequestHead, chunked};
use crate::observe::Outcome;
use tokio::time::Instant;

/// Bytes at the end of a streamed document in which its token counts are looked for.
const TAIL: usize = 2 * 1024;

/// How an answer ended.
#[derive(Debug)]
pub struct End {
    /// For the record.
    pub outcome: Outcome,
    /// For the connection.
    pub next: Next,
    /// What cut it.
    pub fault: Option<Fault>,
}

/// Sends a committed answer to the client, from its head to its end.
pub async fn relay(client: &mut Client, exchange: &mut Exchange, head: &RequestHead, request_id: &str) -> End {
    let mut relay = Relay::new(client, exchange, head, request_id);
    let result = match relay.exchange.progress.reading {
        Reading::Events { .. } => relay.events().await,
        Reading::Whole | Reading::Through => relay.bytes().await,
    };
    let close = relay.close;
    match result {
        Ok(()) => End { outcome: outcome(exchange), next: if close { Next::Close } else { Next::Keep }, fault: None },
        Err(Cut::Client(fault)) => End { outcome: Outcome::ClientGone, next: Next::Abort, fault },
        Err(Cut::Engine(fault)) => End { outcome: Outcome::Cut, next: Next::Abort, fault: Some(fault) },
        Err(Cut::Told(fault)) => {
            End { outcome: Outcome::Cut, next: if close { Next::Close } else { Next::Keep }, fault: Some(fault) }
        }
    }
}

fn outcome(exchange: &Exchange) -> Outcome {
    if exchange.head.status >= 400 || exchange.progress.events.failed { Outcome::UpstreamError } else { Outcome::Ok }
}

/// Why an answer did not reach its end.
enum Cut {
    /// The client left, or took nothing for too long.
    Client(Option<Fault>),
    /// The engine broke off, and the client sees a connection that ends too early.
    Engine(Fault),
    /// The engine broke off, and the client was told in an error event.
    Told(Fault),
}

struct Relay<'a> {
    client: &'a mut Client,
    exchange: &'a mut Exchange,
    /// Towards the client.
    framing: Framing,
    /// Head, or the bytes that go out with the next write.
    out: Vec<u8>,
    close: bool,
}

impl<'a> Relay<'a> {
    fn new(client: &'a mut Client, exchange: &'a mut Exchange, head: &RequestHead, request_id: &str) -> Self {
        let framing = framing(exchange, head.old);
        let close = !head.keep_alive || client.is_draining() || framing == Framing::UntilClose;
        let mut out = Vec::with_capacity(1024 + exchange.progress.held.len());
        let to = Downstream {
            framing,
            announced: exchange.head.announced(),
            request_id,
            close,
            old_keep_alive: head.old && !close,
            diagnostics: false,
        };
        exchange.head.write_client(&to, &mut out);
        Self { client, exchange, framing, out, close }
    }

    /// A stream of events: one write per read, whole frames only.
    async fn events(&mut self) -> Result<(), Cut> {
        let at = self.open();
        let held = std::mem::take(&mut self.exchange.progress.held);
        self.out.extend_from_slice(&held);
        self.close_chunk(at);
        loop {
            if self.exchange.body.is_done() {
                return self.end_events().await;
            }
            self.flush().await?;
            if let Err(fault) = self.read().await {
                return match fault {
                    Cut::Engine(fault) => Err(self.tell(fault).await),
                    other => Err(other),
                };
            }
            let before = self.exchange.progress.events.outputs;
            let at = self.open();
            let fed = self.feed();
            self.close_chunk(at);
            if let Err(malformed) = fed {
                let fault = Fault::worker(502, "upstream_garbage", malformed.what);
                return Err(self.tell(fault).await);
            }
            self.count(before);
        }
    }

    fn feed(&mut self) -> Result<(), Malformed> {
        let (events, out) = (&mut self.exchange.progress.events, &mut self.out);
        self.exchange.body.drain(&mut self.exchange.connection.input, |payload| events.feed(payload, out))
    }

    fn count(&mut self, before: u32) {
        let new = self.exchange.progress.events.outputs - before;
        if new > 0 {
            self.exchange.progress.stamp(Instant::now());
            if before == 0 {
                self.exchange.reservation.first_token();
            }
            self.exchange.reservation.generated(new);
        }
    }

    async fn end_events(&mut self) -> Result<(), Cut> {
        if !self.exchange.progress.events.is_complete() {
            let fault = Fault::worker(502, "upstream_cut", "the engine ended its stream without finishing it");
            return Err(self.tell(fault).await);
        }
        let at = self.open();
        self.exchange.progress.events.end(&mut self.out);
        self.close_chunk(at);
        self.finish().await
    }

    /// Ends a stream of events with an error that clients understand.
    async fn tell(&mut self, fault: Fault) -> Cut {
        // Where the frame that was cut had to be passed on in parts, an empty line ends it first.
        let between = self.exchange.progress.events.is_between_frames();
        let at = self.open();
        let lead = if between { "" } else { "\n\n" };
        self.out.extend_from_slice(lead.as_bytes());
        let frames = self.exchange.progress.events.error_frames(&fault);
        self.out.extend_from_slice(frames.as_bytes());
        self.close_chunk(at);
        match self.finish().await {
            Ok(()) => Cut::Told(fault),
            Err(cut) => cut,
        }
    }

    /// Bytes as they are. A body of known length is never copied.
    async fn bytes(&mut self) -> Result<(), Cut> {
        let mut tail = Vec::new();
        let at = self.open();
        self.out.append(&mut self.exchange.progress.held);
        self.close_chunk(at);
        loop {
            if let Some(part) = self.exchange.body.split(&mut self.exchange.connection.input) {
                self.keep_tail(&mut tail, &part);
                self.client.write(&self.out, &part).await.map_err(client_cut)?;
                self.out.clear();
            } else if !self.exchange.body.is_done() {
                self.copy(&mut tail)?;
            }
            if self.exchange.body.is_done() {
                if let Some(usage) = Usage::find_last(&tail) {
                    self.exchange.progress.events.usage = Some(usage);
                }
                return self.finish().await;
            }
            self.flush().await?;
            self.read().await?;
        }
    }

    /// What was read of a body without known length, as one chunk.
    fn copy(&mut self, tail: &mut Vec<u8>) -> Result<(), Cut> {
        let at = self.open();
        let start = self.out.len();
        let out = &mut self.out;
        let drained = self.exchange.body.drain(&mut self.exchange.connection.input, |part| out.extend_from_slice(part));
        self.keep_tail(tail, &self.out[start..]);
        self.close_chunk(at);
        drained.map_err(|malformed| Cut::Engine(Fault::worker(502, "upstream_garbage", malformed.what)))
    }

    /// Keeps the end of a document that is too large to be held, for its counts.
    fn keep_tail(&self, tail: &mut Vec<u8>, part: &[u8]) {
        if self.exchange.progress.reading == Reading::Whole && self.exchange.progress.usage().is_none() {
            tail.extend_from_slice(&part[part.len().saturating_sub(TAIL)..]);
            tail.drain(..tail.len().saturating_sub(TAIL));
        }
    }

    /// Waits for more of the body.
    async fn read(&mut self) -> Result<(), Cut> {
        self.client.deadline.set(self.exchange.end.min(Instant::now() + self.exchange.idle_timeout));
        let expected = self.exchange.body.expected();
        match self.client.race(self.exchange.connection.read(expected)).await {
            Ok(Ok(n)) if n > 0 => Ok(()),
            Ok(_) if self.exchange.body.close() => Ok(()),
            Ok(_) => Err(Cut::Engine(Fault::worker(502, "upstream_cut", "the engine broke off its answer"))),
            Err(Interrupt::Gone) => Err(Cut::Client(None)),
            Err(Interrupt::Stopped) => Err(Cut::Engine(stopping())),
            Err(Interrupt::Late) if Instant::now() >= self.exchange.end => Err(Cut::Engine(overdue())),
            Err(Interrupt::Late) => Err(Cut::Engine(Fault::worker(
                504,
                "upstream_idle",
                "the engine sent nothing for as long as upstream.idle_timeout allows",
            ))),
        }
    }

    async fn flush(&mut self) -> Result<(), Cut> {
        if !self.out.is_empty() {
            self.client.write(&self.out, b"").await.map_err(client_cut)?;
            self.out.clear();
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), Cut> {
        if self.framing == Framing::Chunked {
            self.out.extend_from_slice(chunked::LAST);
        }
        self.flush().await
    }

    fn open(&mut self) -> Option<usize> {
        (self.framing == Framing::Chunked).then(|| chunked::open(&mut self.out))
    }

    fn close_chunk(&mut self, at: Option<usize>) {
        if let Some(at) = at {
            chunked::close(&mut self.out, at);
        }
    }
}

/// Framing towards the client. Events have no length, since frames may be taken out or added.
fn framing(exchange: &Exchange, old: bool) -> Framing {
    let events = matches!(exchange.progress.reading, Reading::Events { .. });
    match exchange.body {
        Body::Done if exchange.head.framing == Framing::Empty => Framing::Empty,
        Body::Done if !events => Framing::Length(exchange.progress.held.len() as u64),
        Body::Left(left) if !events => Framing::Length(left),
        _ if old => Framing::UntilClose,
        _ => Framing::Chunked,
    }
}

fn client_cut(interrupt: Interrupt) -> Cut {
    match interrupt {
        Interrupt::Gone => Cut::Client(None),
        Interrupt::Late => Cut::Client(Some(Fault::client(
            408,
            "client_stalled",
            "the client took nothing for as long as listen.write_timeout allows",
        ))),
        Interrupt::Stopped => Cut::Client(Some(stopping())),
    }
}
