//! One thread that reads its share of the feeds.
//!
//! It waits on an edge-triggered epoll set of the sockets' own descriptors and touches only those that have something, so a
//! turn costs what arrived, not what is open. (`zmq_poll` asks every socket at every turn: at 4,800 feeds that alone took
//! a third of a core.) A libzmq descriptor signals once when its socket turns from empty to not, so a socket is read until
//! it is empty, or stays in the queue of those that may have more.

use super::batch::Scratch;
use super::feed::Feed;
use super::poll::PolledFeed;
use super::report::{FeedReport, FeedState, Reports};
use super::warm::Warm;
use super::{Attach, FeedSpec, Order, Room};
use crate::clock::Clock;
use crate::fleet::Fleet;
use hashbrown::{HashMap, HashSet};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Sockets of one feed: events and, at times, replay.
const SOCKETS_PER_FEED: usize = 2;

/// Feeds of one context: half of libzmq's 1,023 sockets, as each feed may have two.
pub(super) const FEEDS_PER_CONTEXT: usize = 1_000 / SOCKETS_PER_FEED;

/// Replays at once in one thread: a gateway that starts before a large fleet asks its engines in turn.
pub(super) const MAX_REPLAYS: usize = 32;

/// Between two looks at what waits for its time.
const TICK: Duration = Duration::from_millis(20);

/// Longest wait while nothing waits for its time: how soon a restart proven elsewhere is noticed.
const IDLE: Duration = Duration::from_millis(100);

/// Readiness taken at one turn; the rest comes at the next.
const EVENTS_PER_TURN: usize = 1_024;

/// What rings when an order came.
pub(super) const WAKE: Token = Token(usize::MAX);

pub(super) struct Listener {
    fleet: Fleet,
    clock: Clock,
    reports: Reports,
    room: Room,
    /// What a gateway before this one knew.
    warm: Warm,
    inbox: mpsc::Receiver<Order>,
    stop: Arc<AtomicBool>,
    poll: Poll,
    /// Each with how many feeds it has.
    contexts: Vec<(zmq::Context, usize)>,
    /// By slot, with the position of its context.
    feeds: HashMap<u32, (Feed, usize)>,
    /// Those that are asked over HTTP, by slot.
    polled: HashMap<u32, PolledFeed>,
    /// Sockets that may have something, in turn.
    ready: VecDeque<Place>,
    /// The same, so that none is queued twice.
    queued: HashSet<Place>,
    /// Whether a feed waits for its time.
    waits: bool,
    scratch: Scratch,
}

/// One socket of one feed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    slot: u32,
    is_replay: bool,
}

impl Place {
    fn token(self) -> Token {
        Token((self.slot as usize) << 1 | usize::from(self.is_replay))
    }

    fn of(Token(token): Token) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "made from a slot")]
        Self { slot: (token >> 1) as u32, is_replay: token & 1 == 1 }
    }
}

impl Listener {
    pub(super) fn new(
        (fleet, clock, reports, room, warm): (Fleet, Clock, Reports, Room, Warm),
        inbox: mpsc::Receiver<Order>,
        stop: Arc<AtomicBool>,
        poll: Poll,
    ) -> Self {
        Self {
            fleet,
            clock,
            reports,
            room,
            warm,
            inbox,
            stop,
            poll,
            contexts: Vec::new(),
            feeds: HashMap::new(),
            polled: HashMap::new(),
            ready: VecDeque::new(),
            queued: HashSet::new(),
            waits: false,
            scratch: Scratch::default(),
        }
    }

    /// Listens until told to stop.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        let mut ticked_ms = 0;
        while !self.stop.load(Ordering::Acquire) {
            self.wait(&mut events);
            let now_ms = self.clock.now_ms();
            for _ in 0..self.ready.len() {
                let Some(place) = self.ready.pop_front() else { break };
                self.queued.remove(&place);
                self.read(place, now_ms);
            }
            while let Ok(order) = self.inbox.try_recv() {
                self.obey(order, now_ms);
            }
            if now_ms >= ticked_ms + TICK.as_millis() as u64 {
                ticked_ms = now_ms;
                self.tick(now_ms);
            }
        }
    }

    fn wait(&mut self, events: &mut Events) {
        let longest = match (self.ready.is_empty(), self.waits) {
            (false, _) => Duration::ZERO,
            (true, true) => TICK,
            (true, false) => IDLE,
        };
        // Interrupted by a signal: nothing is ready, the next turn comes at once.
        if self.poll.poll(events, Some(longest)).is_ok() {
            for event in events.iter().filter(|event| event.token() != WAKE) {
                self.queue(Place::of(event.token()));
            }
        }
    }

    fn queue(&mut self, place: Place) {
        if self.queued.insert(place) {
            self.ready.push_back(place);
        }
    }

    /// Reads one socket for its turn; a feed that left meanwhile has nothing.
    fn read(&mut self, place: Place, now_ms: u64) {
        let Some((feed, _)) = self.feeds.get_mut(&place.slot) else { return };
        let more = match place.is_replay {
            false => feed.take_events(&mut self.scratch, now_ms),
            true => feed.take_replay(&mut self.scratch, now_ms),
        };
        self.waits |= feed.is_waiting();
        if more {
            self.queue(place);
        }
    }

    fn obey(&mut self, order: Order, now_ms: u64) {
        match order {
            Order::Add(spec) => {
                self.close(spec.handle.slot);
                self.open(&spec, now_ms);
            }
            Order::Remove { slot } => self.close(slot),
            // Of a feed that was removed since the question.
            Order::Polled { slot, answer } => {
                if let Some(polled) = self.polled.get_mut(&slot) {
                    polled.take(answer, &mut self.scratch, now_ms);
                }
            }
            Order::Process { slot, process } => {
                if let Some((feed, _)) = self.feeds.get_mut(&slot) {
                    feed.set_process(process, &mut self.scratch, now_ms);
                }
            }
            // Whoever asked may have given up.
            Order::Save { reply } => {
                drop(reply.send(self.feeds.values().filter_map(|(feed, _)| feed.save()).collect()))
            }
        }
    }

    fn open(&mut self, spec: &FeedSpec, now_ms: u64) {
        let slot = spec.handle.slot;
        let endpoint = spec.events.address().to_owned();
        let report = FeedReport { worker: spec.handle.label.clone(), endpoint, ..FeedReport::default() };
        let report = self.reports.open(spec.handle.clone(), report);
        let fail = |problem: String| {
            tracing::warn!(worker = %spec.handle.label, problem);
            let mut report = report.lock();
            report.state = FeedState::Failed;
            report.problem = Some(problem);
        };
        if let Attach::Poll(_) = spec.events {
            let feed = PolledFeed::open(spec, self.fleet.clone(), self.clock, report, now_ms);
            self.polled.insert(slot, feed);
            return;
        }
        if !self.room.take() {
            return fail(format!("{} feeds are open: raise the limit of open files (ulimit -n)", self.room.limit()));
        }
        let at = self.contexts.iter().position(|(_, feeds)| *feeds < FEEDS_PER_CONTEXT).unwrap_or_else(|| {
            self.contexts.push((zmq::Context::new(), 0));
            self.contexts.len() - 1
        });
        let opened = Feed::open(spec, &self.contexts[at].0, self.fleet.clone(), self.clock, report.clone())
            .map_err(|error| error.to_string())
            .and_then(|feed| watch(&self.poll, &feed.events, Place { slot, is_replay: false }).map(|()| feed));
        match opened {
            Ok(mut feed) => {
                let part = self.warm.take(&spec.handle.model, &spec.handle.label);
                if !part.is_some_and(|part| feed.resume(&part, &mut self.scratch, now_ms)) {
                    feed.start(&mut self.scratch, now_ms);
                }
                self.waits = true;
                self.contexts[at].1 += 1;
                self.feeds.insert(slot, (feed, at));
                // What came before the descriptor was watched signals no more.
                self.queue(Place { slot, is_replay: false });
            }
            Err(error) => {
                self.room.give_back();
                fail(format!("cannot listen at {}: {error}", spec.events.address()));
            }
        }
    }

    fn close(&mut self, slot: u32) {
        self.reports.close(slot);
        self.polled.remove(&slot);
        if let Some((_, context)) = self.feeds.remove(&slot) {
            // Its sockets are closed with it, which also takes their descriptors out of the set.
            self.contexts[context].1 -= 1;
            self.room.give_back();
        }
    }

    fn tick(&mut self, now_ms: u64) {
        let mut running = self.feeds.values().filter(|(feed, _)| feed.replay_socket().is_some()).count();
        let mut begun = Vec::new();
        self.waits = false;
        for (slot, (feed, _)) in &mut self.feeds {
            let before = feed.replays();
            feed.tick(&mut self.scratch, running < MAX_REPLAYS, now_ms);
            self.waits |= feed.is_waiting();
            if feed.replays() != before
                && let Some(socket) = feed.replay_socket()
            {
                running += 1;
                let place = Place { slot: *slot, is_replay: true };
                if let Err(error) = watch(&self.poll, socket, place) {
                    // It is not heard then, and given up as one that broke off.
                    tracing::debug!(slot, error, "replay cannot be watched");
                }
                begun.push(place);
            }
        }
        for place in begun {
            self.queue(place);
        }
        for polled in self.polled.values_mut() {
            polled.tick(now_ms);
        }
    }
}

/// Enters a socket's descriptor into the set.
fn watch(poll: &Poll, socket: &zmq::Socket, place: Place) -> Result<(), String> {
    let descriptor = socket.get_fd().map_err(|error| error.to_string())?;
    let registered = poll.registry().register(&mut SourceFd(&descriptor), place.token(), Interest::READABLE);
    registered.map_err(|error| error.to_string())
}
