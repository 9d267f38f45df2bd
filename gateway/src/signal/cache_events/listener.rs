//! The thread that polls every feed's sockets.

use super::batch::Scratch;
use super::feed::Feed;
use super::report::{FeedReport, FeedState, Reports};
use super::{FeedSpec, MAX_FEEDS, Order};
use crate::clock::Clock;
use crate::fleet::Fleet;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use tokio::sync::mpsc;

/// Sockets of one feed: events and, at times, replay.
const SOCKETS_PER_FEED: usize = 2;

/// Feeds of one context: half of libzmq's 1,023 sockets, as each feed may have two.
const FEEDS_PER_CONTEXT: usize = 1_000 / SOCKETS_PER_FEED;

/// File descriptors of one feed: each socket has its connection and its mailbox.
const FILES_PER_FEED: usize = 2 * SOCKETS_PER_FEED;

/// File descriptors left to connections of clients and engines.
const FILES_FOR_OTHERS: usize = 512;

/// Replays at once: a gateway that starts before a large fleet asks its engines in turn.
const MAX_REPLAYS: usize = 128;

/// Between two looks at what waits for its time.
const TICK_MS: u64 = 20;

/// Longest poll while nothing waits: how soon a restart proven elsewhere is noticed.
const IDLE_MS: u64 = 100;

pub(super) struct Listener {
    fleet: Fleet,
    clock: Clock,
    reports: Reports,
    inbox: mpsc::Receiver<Order>,
    woken: UnixStream,
    /// Each with how many feeds it has.
    contexts: Vec<(zmq::Context, usize)>,
    /// With the position of its context.
    feeds: Vec<(Feed, usize)>,
    scratch: Scratch,
    max_feeds: usize,
}

/// What a poll found: positions of feeds.
#[derive(Default)]
struct Ready {
    orders: bool,
    events: Vec<usize>,
    replays: Vec<usize>,
}

impl Listener {
    pub(super) fn new(
        fleet: Fleet,
        clock: Clock,
        reports: Reports,
        inbox: mpsc::Receiver<Order>,
        woken: UnixStream,
    ) -> Self {
        Self {
            fleet,
            clock,
            reports,
            inbox,
            woken,
            contexts: Vec::new(),
            feeds: Vec::new(),
            scratch: Scratch::default(),
            max_feeds: max_feeds(),
        }
    }

    /// Listens until the other end of the wake socket is closed.
    pub(super) fn run(mut self) {
        let mut ticked_ms = 0;
        loop {
            let ready = self.poll();
            if ready.orders && !self.drain_wake() {
                return;
            }
            let now_ms = self.clock.now_ms();
            for at in ready.events {
                self.feeds[at].0.take_events(&mut self.scratch, now_ms);
            }
            for at in ready.replays {
                self.feeds[at].0.take_replay(&mut self.scratch, now_ms);
            }
            // After the sockets, whose positions orders change.
            while let Ok(order) = self.inbox.try_recv() {
                self.obey(order, now_ms);
            }
            if now_ms >= ticked_ms + TICK_MS {
                ticked_ms = now_ms;
                self.tick(now_ms);
            }
        }
    }

    fn poll(&self) -> Ready {
        let mut items = Vec::with_capacity(1 + self.feeds.len());
        items.push(zmq::PollItem::from_fd(self.woken.as_raw_fd(), zmq::POLLIN));
        let mut replaying = Vec::new();
        items.extend(self.feeds.iter().map(|(feed, _)| feed.events.as_poll_item(zmq::POLLIN)));
        for (at, (feed, _)) in self.feeds.iter().enumerate() {
            if let Some(socket) = feed.replay_socket() {
                items.push(socket.as_poll_item(zmq::POLLIN));
                replaying.push(at);
            }
        }
        let waits = self.feeds.iter().any(|(feed, _)| feed.is_waiting());
        let wait_ms = if waits { TICK_MS } else { IDLE_MS };
        // Interrupted by a signal: nothing is ready, the next turn comes at once.
        if zmq::poll(&mut items, i64::try_from(wait_ms).unwrap_or(0)).is_err() {
            return Ready::default();
        }
        let readable = |range: &[zmq::PollItem<'_>]| {
            range.iter().enumerate().filter(|(_, item)| item.is_readable()).map(|(at, _)| at).collect::<Vec<_>>()
        };
        let (events, replays) = items[1..].split_at(self.feeds.len());
        Ready {
            orders: items[0].get_revents() != zmq::PollEvents::empty(),
            events: readable(events),
            replays: readable(replays).into_iter().map(|at| replaying[at]).collect(),
        }
    }

    /// Empties the wake socket; false when it is closed.
    fn drain_wake(&mut self) -> bool {
        let mut bytes = [0; 256];
        loop {
            match self.woken.read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }

    fn obey(&mut self, order: Order, now_ms: u64) {
        match order {
            Order::Add(spec) => {
                self.close(spec.handle.slot);
                self.open(&spec, now_ms);
            }
            Order::Remove { slot } => self.close(slot),
        }
    }

    fn open(&mut self, spec: &FeedSpec, now_ms: u64) {
        let slot = spec.handle.slot;
        let endpoint = spec.events.address().to_owned();
        let report = FeedReport { worker: spec.handle.label.clone(), endpoint, ..FeedReport::default() };
        let report = self.reports.open(slot, report);
        if self.feeds.len() >= self.max_feeds {
            let problem = format!("{} feeds are open: raise the limit of open files (ulimit -n)", self.max_feeds);
            tracing::warn!(worker = %spec.handle.label, problem);
            let mut report = report.lock();
            report.state = FeedState::Failed;
            report.problem = Some(problem);
            return;
        }
        let at = self.contexts.iter().position(|(_, feeds)| *feeds < FEEDS_PER_CONTEXT).unwrap_or_else(|| {
            self.contexts.push((zmq::Context::new(), 0));
            self.contexts.len() - 1
        });
        let opened = Feed::open(spec, &self.contexts[at].0, self.fleet.clone(), self.clock, report.clone());
        match opened {
            Ok(mut feed) => {
                feed.start(&mut self.scratch, now_ms);
                self.contexts[at].1 += 1;
                self.feeds.push((feed, at));
            }
            Err(error) => {
                let problem = format!("cannot listen at {}: {error}", spec.events.address());
                tracing::warn!(worker = %spec.handle.label, problem);
                let mut report = report.lock();
                report.state = FeedState::Failed;
                report.problem = Some(problem);
            }
        }
    }

    fn close(&mut self, slot: u32) {
        self.reports.close(slot);
        if let Some(at) = self.feeds.iter().position(|(feed, _)| feed.slot == slot) {
            let (_, context) = self.feeds.swap_remove(at);
            self.contexts[context].1 -= 1;
        }
    }

    fn tick(&mut self, now_ms: u64) {
        let mut running = self.feeds.iter().filter(|(feed, _)| feed.replay_socket().is_some()).count();
        for (feed, _) in &mut self.feeds {
            let before = feed.replay_socket().is_some();
            feed.tick(&mut self.scratch, running < MAX_REPLAYS, now_ms);
            running = running + usize::from(feed.replay_socket().is_some()) - usize::from(before);
        }
    }
}

/// Feeds that this process has files for.
pub(super) fn max_feeds() -> usize {
    let by_files = |files: usize| files.saturating_sub(FILES_FOR_OTHERS) / FILES_PER_FEED;
    open_files_limit().map_or(MAX_FEEDS, |files| by_files(files).min(MAX_FEEDS))
}

/// How many files this process may open; libzmq aborts the process when it runs out of them, so feeds stop before.
fn open_files_limit() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_of_open_files_is_known() {
        assert!(super::open_files_limit().is_some_and(|files| files > 64));
    }
}
