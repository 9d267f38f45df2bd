//! The reading side, three ways.

use crate::usage::{cpu, now_ns, rss_mib};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::time::Duration;
use zeromq::{Socket, SocketRecv};

/// Sockets of one libzmq context.
const SOCKETS_PER_CONTEXT: usize = 500;

/// Messages taken from one socket before others get their turn.
const MESSAGES_PER_TURN: usize = 64;

/// What was read since the measurement began.
struct Tally {
    lasts: Duration,
    begun: Option<(u64, Duration)>,
    lags_ns: Vec<u64>,
}

impl Tally {
    fn new(lasts: Duration) -> Self {
        Self { lasts, begun: None, lags_ns: Vec::with_capacity(4 << 20) }
    }

    /// A batch that was sent at `sent_ns`; false when the time is over. The first second is not counted.
    fn count(&mut self, sent: &[u8]) -> bool {
        let now_ns = now_ns();
        let sent_ns = u64::from_be_bytes(sent.try_into().expect("eight bytes"));
        let begun_ns = self.begun.get_or_insert((now_ns, Duration::ZERO)).0;
        let warm_ns = begun_ns + 1_000_000_000;
        if now_ns < warm_ns {
            return true;
        }
        if self.lags_ns.is_empty() {
            self.begun = Some((begun_ns, cpu()));
        }
        self.lags_ns.push(now_ns.saturating_sub(sent_ns));
        now_ns < warm_ns + self.lasts.as_nanos() as u64
    }

    fn print(mut self) {
        let batches = self.lags_ns.len().max(1);
        let used = cpu() - self.begun.expect("something was read").1;
        self.lags_ns.sort_unstable();
        let lag_us = |share: f64| self.lags_ns.get((batches as f64 * share) as usize).map_or(0, |lag| lag / 1_000);
        println!(
            "{:.0} | {:.2} | {} | {} | {}",
            batches as f64 / self.lasts.as_secs_f64(),
            used.as_secs_f64() * 1e6 / batches as f64,
            lag_us(0.5),
            lag_us(0.99),
            rss_mib()
        );
    }
}

/// Reads `feeds` subscriptions of `endpoint` and prints the row.
pub fn read(how: &str, endpoint: &str, feeds: usize, lasts: Duration) {
    match how {
        "libzmq-epoll" => read_by_epoll(endpoint, feeds, lasts),
        "libzmq-poll" => read_by_poll(endpoint, feeds, lasts),
        "zeromq" => read_by_tasks(endpoint, feeds, lasts),
        _ => panic!("{how} is none of {:?}", crate::READERS),
    }
}

fn open(endpoint: &str, feeds: usize) -> (Vec<zmq::Context>, Vec<zmq::Socket>) {
    let contexts: Vec<_> = (0..feeds.div_ceil(SOCKETS_PER_CONTEXT)).map(|_| zmq::Context::new()).collect();
    let socket = |at: usize| {
        let socket = contexts[at / SOCKETS_PER_CONTEXT].socket(zmq::SUB).expect("socket");
        socket.set_linger(0).expect("option");
        socket.set_rcvhwm(1_000).expect("option");
        socket.set_maxmsgsize(64 << 20).expect("option");
        socket.set_subscribe(b"").expect("option");
        socket.connect(endpoint).expect("valid");
        socket
    };
    let sockets = (0..feeds).map(socket).collect();
    (contexts, sockets)
}

/// Takes what `socket` has, for its turn; `None` when the time is over, else whether there may be more.
fn take(socket: &zmq::Socket, tally: &mut Tally) -> Option<bool> {
    for _ in 0..MESSAGES_PER_TURN {
        let Ok(topic) = socket.recv_msg(zmq::DONTWAIT) else { return Some(false) };
        while socket.get_rcvmore().expect("open") {
            socket.recv_msg(zmq::DONTWAIT).expect("frames of one message come together");
        }
        if !tally.count(&topic) {
            return None;
        }
    }
    Some(true)
}

fn read_by_epoll(endpoint: &str, feeds: usize, lasts: Duration) {
    let (_contexts, sockets) = open(endpoint, feeds);
    let mut poll = Poll::new().expect("epoll");
    for (at, socket) in sockets.iter().enumerate() {
        let descriptor = socket.get_fd().expect("open");
        poll.registry().register(&mut SourceFd(&descriptor), Token(at), Interest::READABLE).expect("registered");
    }
    let mut ready: Vec<usize> = (0..feeds).collect();
    let mut events = Events::with_capacity(1_024);
    let mut tally = Tally::new(lasts);
    loop {
        let mut more = Vec::new();
        for at in ready.drain(..) {
            match take(&sockets[at], &mut tally) {
                None => return tally.print(),
                Some(true) => more.push(at),
                Some(false) => {}
            }
        }
        let wait = if more.is_empty() { Duration::from_millis(100) } else { Duration::ZERO };
        poll.poll(&mut events, Some(wait)).expect("polls");
        ready = more;
        let queued: hashbrown::HashSet<usize> = ready.iter().copied().collect();
        ready.extend(events.iter().map(|event| event.token().0).filter(|at| !queued.contains(at)));
    }
}

fn read_by_poll(endpoint: &str, feeds: usize, lasts: Duration) {
    let (_contexts, sockets) = open(endpoint, feeds);
    let mut tally = Tally::new(lasts);
    loop {
        let mut items: Vec<_> = sockets.iter().map(|socket| socket.as_poll_item(zmq::POLLIN)).collect();
        zmq::poll(&mut items, 100).expect("polls");
        let ready: Vec<_> = items.iter().enumerate().filter(|(_, item)| item.is_readable()).map(|(at, _)| at).collect();
        for at in ready {
            if take(&sockets[at], &mut tally).is_none() {
                return tally.print();
            }
        }
    }
}

fn read_by_tasks(endpoint: &str, feeds: usize, lasts: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let mut tally = Tally::new(lasts);
        let mut turns = FuturesUnordered::new();
        let turn = |mut socket: zeromq::SubSocket| async move {
            let message = socket.recv().await;
            (socket, message)
        };
        for _ in 0..feeds {
            let mut socket = zeromq::SubSocket::new();
            socket.connect(endpoint).await.expect("connects");
            socket.subscribe("").await.expect("subscribes");
            turns.push(turn(socket));
        }
        while let Some((socket, message)) = turns.next().await {
            let message = message.expect("a message");
            if !tally.count(message.get(0).expect("a topic")) {
                return tally.print();
            }
            turns.push(turn(socket));
        }
    });
}

/// Connects and waits a second for a message, as a reader that a hostile peer answers.
pub fn try_once(how: &str, endpoint: &str) {
    let wait = Duration::from_secs(1);
    if how == "zeromq" {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async {
            let mut socket = zeromq::SubSocket::new();
            socket.connect(endpoint).await.expect("connects");
            socket.subscribe("").await.expect("subscribes");
            let _ = tokio::time::timeout(wait, socket.recv()).await;
        });
        return;
    }
    let (_contexts, sockets) = open(endpoint, 1);
    sockets[0].set_rcvtimeo(wait.as_millis() as i32).expect("option");
    let _ = sockets[0].recv_multipart(0);
}
