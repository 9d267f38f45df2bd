//! One worker's sockets, sequence and book.

use super::batch::Scratch;
use super::book::Book;
use super::report::{Alarm, FeedReport, FeedState};
use super::sequence::Sequence;
use super::vigil::Vigil;
use super::{Attach, FeedSpec};
use crate::clock::Clock;
use crate::fleet::Fleet;
use forebay_routing::view::CacheKnowledge;
use parking_lot::Mutex;
use std::sync::Arc;

/// Pause before a replay that follows one in vain; doubles.
const FIRST_PAUSE_MS: u64 = 200;

/// A replay that is silent for so long has broken off. vLLM answers between two waits of 100 ms.
const REPLAY_SILENCE_MS: u64 = 5_000;

/// After the first replay, ask once more: batches published while the connection was being made were sent to nobody.
const CONFIRM_AFTER_MS: u64 = 1_000;

/// Messages taken from one socket before others get their turn.
const MESSAGES_PER_TURN: usize = 64;

/// Frames of one message that are looked at; [topic, seq, payload] and a delimiter.
const MAX_FRAMES: usize = 8;

/// Messages that libzmq holds for us: ten seconds of a busy engine. Beyond, the engine drops and a gap shows.
const EVENTS_HIGH_WATER: i32 = 1_000;

/// A whole replay: vLLM keeps 10,000 batches and its ROUTER drops what a slow reader leaves.
const REPLAY_HIGH_WATER: i32 = 10_000;

/// Bytes at which libzmq closes the connection rather than take more. Between the two limits a message is counted and
/// dropped, and the feed goes on.
const CUT_OFF_BYTES: i64 = 2 * super::MAX_MESSAGE_BYTES as i64;

/// What ends a replay.
const END_OF_REPLAY: u64 = u64::MAX;

struct Replay {
    socket: zmq::Socket,
    heard_ms: u64,
}

pub(super) struct Feed {
    replay_from: Option<Attach>,
    context: zmq::Context,
    pub(super) events: zmq::Socket,
    replay: Option<Replay>,
    book: Book,
    sequence: Sequence,
    /// A replay that waits for its time or for its turn.
    asked: Option<(u64, u64)>,
    /// Replays begun.
    replays: u64,
    confirm_at_ms: Option<u64>,
    pause_ms: u64,
    vigil: Vigil,
    /// Whether the fleet was told that this worker's cache is known by events.
    is_known: bool,
    fleet: Fleet,
    report: Arc<Mutex<FeedReport>>,
}

/// Why a feed cannot listen.
pub(super) type OpenError = zmq::Error;

impl Feed {
    pub(super) fn open(
        spec: &FeedSpec,
        context: &zmq::Context,
        fleet: Fleet,
        clock: Clock,
        report: Arc<Mutex<FeedReport>>,
    ) -> Result<Self, OpenError> {
        let events = context.socket(zmq::SUB)?;
        configure(&events, EVENTS_HIGH_WATER)?;
        events.set_subscribe(b"")?;
        attach(&events, &spec.events)?;
        let book = Book::new(fleet.clone(), clock, spec, report.clone());
        Ok(Self {
            replay_from: spec.replay.clone(),
            context: context.clone(),
            events,
            replay: None,
            book,
            sequence: Sequence::new(spec.replay.is_some()),
            asked: None,
            replays: 0,
            confirm_at_ms: None,
            pause_ms: FIRST_PAUSE_MS,
            vigil: Vigil::default(),
            is_known: false,
            fleet,
            report,
        })
    }

    /// Begins: learns what an engine that is warm already holds.
    pub(super) fn start(&mut self, scratch: &mut Scratch, now_ms: u64) {
        self.replay = None;
        self.confirm_at_ms = self.replay_from.as_ref().map(|_| now_ms + CONFIRM_AFTER_MS);
        let mut book = self.book.open(scratch, false);
        self.sequence.start(&mut book);
        let asked = book.asked;
        self.begun(asked, now_ms);
    }

    /// Begins where a snapshot of the same process ended; false when it was of another one, or is not whole.
    pub(super) fn resume(&mut self, part: &[u8], scratch: &mut Scratch, now_ms: u64) -> bool {
        let Some((next, published)) = self.book.restore(part) else { return false };
        self.confirm_at_ms = self.replay_from.as_ref().map(|_| now_ms + CONFIRM_AFTER_MS);
        let mut book = self.book.open(scratch, false);
        self.sequence.resume(next, published, &mut book);
        let asked = book.asked;
        self.begun(asked, now_ms);
        true
    }

    fn begun(&mut self, asked: Option<u64>, now_ms: u64) {
        self.asked = asked.map(|from| (from, now_ms));
        if self.replay_from.is_some() {
            // Whoever offers replays answers, even with nothing.
            self.vigil.expect(now_ms);
        }
        self.show_state();
    }

    /// What is known and where the feed stands, for [`Feed::resume`]; `None` while either is in doubt.
    pub(super) fn save(&self) -> Option<Vec<u8>> {
        if self.sequence.is_replaying() || self.book.is_outdated() {
            return None;
        }
        let (next, published) = self.sequence.position()?;
        self.book.save(next, published)
    }

    /// The engine's process is this one from now on.
    pub(super) fn set_process(&mut self, process: Option<String>, scratch: &mut Scratch, now_ms: u64) {
        self.renew(scratch, now_ms);
        self.book.set_process(process);
    }

    /// Begins anew where another process was proven elsewhere.
    fn renew(&mut self, scratch: &mut Scratch, now_ms: u64) {
        if self.book.is_outdated() {
            self.book.begin_anew();
            self.start(scratch, now_ms);
        }
    }

    pub(super) fn replay_socket(&self) -> Option<&zmq::Socket> {
        self.replay.as_ref().map(|replay| &replay.socket)
    }

    /// Replays begun so far: another number means another socket.
    pub(super) fn replays(&self) -> u64 {
        self.replays
    }

    /// Takes what was published; true when there may be more.
    pub(super) fn take_events(&mut self, scratch: &mut Scratch, now_ms: u64) -> bool {
        let mut more = true;
        for _ in 0..MESSAGES_PER_TURN {
            match receive(&self.events) {
                Received::Nothing => {
                    more = false;
                    break;
                }
                Received::Broken => self.count_error("frames"),
                Received::Batch(seq, payload) => {
                    self.hear(now_ms);
                    let mut book = self.book.open(scratch, true);
                    self.sequence.live(seq, &payload, &mut book);
                    let asked = book.asked;
                    self.note_asked(asked, now_ms);
                }
            }
        }
        self.show_state();
        more
    }

    /// Takes what the engine replays; true when there may be more.
    pub(super) fn take_replay(&mut self, scratch: &mut Scratch, now_ms: u64) -> bool {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(replay) = &mut self.replay else { return false };
            match receive(&replay.socket) {
                Received::Nothing => return false,
                Received::Broken => self.count_error("frames"),
                Received::Batch(END_OF_REPLAY, _) => {
                    self.end_replay(true, scratch, now_ms);
                    self.show_state();
                    return false;
                }
                Received::Batch(seq, payload) => {
                    replay.heard_ms = now_ms;
                    let mut book = self.book.open(scratch, false);
                    self.sequence.replayed(seq, &payload, &mut book);
                }
            }
        }
        self.show_state();
        true
    }

    /// Whether [`Feed::tick`] has something to wait for.
    pub(super) fn is_waiting(&self) -> bool {
        self.asked.is_some() || self.replay.is_some() || self.confirm_at_ms.is_some() || self.vigil.is_waiting()
    }

    /// Time passed. `may_replay`: whether another replay may run now.
    pub(super) fn tick(&mut self, scratch: &mut Scratch, may_replay: bool, now_ms: u64) {
        self.renew(scratch, now_ms);
        self.book.tick(now_ms);
        if self.replay.as_ref().is_some_and(|replay| now_ms.saturating_sub(replay.heard_ms) > REPLAY_SILENCE_MS) {
            self.end_replay(false, scratch, now_ms);
        }
        if self.confirm_at_ms.is_some_and(|at_ms| at_ms <= now_ms) && !self.sequence.is_replaying() {
            self.confirm_at_ms = None;
            let mut book = self.book.open(scratch, false);
            self.sequence.confirm(&mut book);
            let asked = book.asked;
            self.note_asked(asked, now_ms);
        }
        if let Some((from, at_ms)) = self.asked
            && may_replay
            && at_ms <= now_ms
        {
            self.asked = None;
            self.begin_replay(from, scratch, now_ms);
        }
        self.watch(now_ms);
    }

    /// A worker that owes events and does not send them goes by its own placements, alone.
    fn watch(&mut self, now_ms: u64) {
        if self.book.handle().owes_events() {
            self.vigil.expect(now_ms);
        }
        if self.vigil.is_overdue(now_ms) {
            let mut report = self.report.lock();
            report.raise(Alarm::Silent);
            let worker = report.worker.clone();
            drop(report);
            tracing::warn!(%worker, "claims to publish KV events and sends none: its cache is guessed until it does");
            self.is_known = false;
            self.fleet.report_cache(self.book.worker(), CacheKnowledge::Approximate);
            self.show_state();
        }
    }

    /// A sign of life.
    fn hear(&mut self, now_ms: u64) {
        self.book.handle().hear_events(now_ms);
        if self.vigil.hear() {
            let mut report = self.report.lock();
            report.alarms.remove(&Alarm::Silent);
            tracing::info!(worker = %report.worker, "publishes KV events again");
        }
    }

    fn note_asked(&mut self, asked: Option<u64>, at_ms: u64) {
        if let Some(from) = asked {
            self.replay = None;
            self.asked = Some((from, at_ms));
        }
    }

    fn begin_replay(&mut self, from: u64, scratch: &mut Scratch, now_ms: u64) {
        self.replays += 1;
        self.report.lock().replays = self.replays;
        match self.ask_engine(from) {
            Ok(Some(socket)) => self.replay = Some(Replay { socket, heard_ms: now_ms }),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(worker = %self.report.lock().worker, %error, "replay could not be asked for");
                self.count_error("replay_socket");
                self.end_replay(false, scratch, now_ms);
            }
        }
        self.show_state();
    }

    fn ask_engine(&self, from: u64) -> Result<Option<zmq::Socket>, zmq::Error> {
        let Some(endpoint) = &self.replay_from else { return Ok(None) };
        // DEALER: a REQ socket takes one reply, and there are many.
        let socket = self.context.socket(zmq::DEALER)?;
        configure(&socket, REPLAY_HIGH_WATER)?;
        attach(&socket, endpoint)?;
        socket.send_multipart([&b""[..], &from.to_be_bytes()], zmq::DONTWAIT)?;
        Ok(Some(socket))
    }

    fn end_replay(&mut self, complete: bool, scratch: &mut Scratch, now_ms: u64) {
        self.replay = None;
        let mut book = self.book.open(scratch, false);
        let in_vain = self.sequence.replay_ended(complete, &mut book);
        let asked = book.asked;
        if complete {
            // Answers to replays clear what was due to them, not what live traffic proved to be missing.
            if !self.book.handle().owes_events() && self.vigil.hear() {
                self.report.lock().alarms.remove(&Alarm::Silent);
            }
            self.know();
        }
        let pause_ms = if in_vain { self.pause_ms } else { 0 };
        self.pause_ms = if in_vain { self.pause_ms * 2 } else { FIRST_PAUSE_MS };
        if asked.is_none() {
            self.pause_ms = FIRST_PAUSE_MS;
        }
        self.note_asked(asked, now_ms + pause_ms);
    }

    /// From now on the worker's cache is known by its events.
    fn know(&mut self) {
        if !self.is_known && !self.vigil.is_alarmed() {
            self.is_known = true;
            self.fleet.report_cache(self.book.worker(), CacheKnowledge::Events);
        }
    }

    fn show_state(&mut self) {
        let state = if self.vigil.is_alarmed() {
            FeedState::Silent
        } else if self.sequence.is_replaying() {
            FeedState::Replaying
        } else if self.sequence.last().is_some() || self.is_known {
            self.know();
            FeedState::Live
        } else {
            FeedState::Connecting
        };
        self.report.lock().state = state;
    }

    fn count_error(&self, kind: &'static str) {
        *self.report.lock().errors.entry(kind).or_default() += 1;
    }
}

enum Received {
    Nothing,
    /// Not a sequence and a payload.
    Broken,
    Batch(u64, zmq::Message),
}

/// One message: whatever comes first, its last two frames are sequence and payload.
fn receive(socket: &zmq::Socket) -> Received {
    let mut last = loop {
        match socket.recv_msg(zmq::DONTWAIT) {
            Ok(frame) => break frame,
            Err(zmq::Error::EINTR) => {}
            Err(_) => return Received::Nothing,
        }
    };
    let mut before = None;
    let mut frames = 1;
    while socket.get_rcvmore().unwrap_or(false) {
        // Frames of one message arrive together: this does not wait.
        let Ok(next) = socket.recv_msg(zmq::DONTWAIT) else { return Received::Broken };
        before = Some(std::mem::replace(&mut last, next));
        frames += 1;
    }
    let sequence = before.and_then(|frame| <[u8; 8]>::try_from(&*frame).ok()).map(u64::from_be_bytes);
    match sequence {
        Some(seq) if frames <= MAX_FRAMES => Received::Batch(seq, last),
        _ => Received::Broken,
    }
}

fn configure(socket: &zmq::Socket, high_water: i32) -> Result<(), zmq::Error> {
    socket.set_linger(0)?;
    socket.set_rcvhwm(high_water)?;
    socket.set_maxmsgsize(CUT_OFF_BYTES)?;
    socket.set_ipv6(true)?;
    socket.set_reconnect_ivl(100)?;
    socket.set_reconnect_ivl_max(5_000)?;
    socket.set_heartbeat_ivl(5_000)?;
    socket.set_heartbeat_timeout(15_000)?;
    socket.set_tcp_keepalive(1)
}

fn attach(socket: &zmq::Socket, attach: &Attach) -> Result<(), zmq::Error> {
    match attach {
        Attach::Connect(endpoint) => socket.connect(endpoint),
        Attach::Bind(endpoint) => socket.bind(endpoint),
        // Discovery lets no replay be polled, and what is polled has no socket.
        Attach::Poll(_) => Err(zmq::Error::EPROTONOSUPPORT),
    }
}
