//! Which KV event an engine published last, by its own replay socket: the mark that a gateway must have reached before its
//! picture of the engine's cache can be held against the engine's.

use crate::client::Client;
use crate::cluster::Gateway;
use crate::process::Failure;
use serde_json::Value;
use std::time::Duration;

/// An engine that does not answer on its replay socket within this time is broken.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(10);

/// A gateway has the events within milliseconds; it has stopped listening when it takes this long.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(20);

/// Between two looks at the gateway.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Frames of an end marker: this sequence number, and nothing after it.
const END: u64 = u64::MAX;

/// A connection to one engine's replay socket.
pub struct Feed {
    url: String,
    socket: zmq::Socket,
    next: u64,
}

impl Feed {
    /// Connects to the endpoint that the engine at `url` names in `/kv_event_sources`.
    pub async fn open(url: &str) -> Result<Self, Failure> {
        let sources = Client::new(url).read_json("/kv_event_sources").await?;
        let endpoint = sources["0"]["replay_endpoint"].as_str();
        let endpoint = endpoint.ok_or_else(|| Failure(format!("{url} names no replay endpoint: {sources}")))?;
        let open = || {
            let socket = zmq::Context::new().socket(zmq::DEALER)?;
            socket.set_linger(0)?;
            socket.connect(endpoint)?;
            Ok(socket)
        };
        let socket = open().map_err(|e: zmq::Error| Failure(format!("{endpoint}: {e}")))?;
        Ok(Self { url: url.to_owned(), socket, next: 0 })
    }

    /// Sequence number after the last published event; 0 before the first.
    fn ask(&mut self) -> Result<u64, Failure> {
        let broken = |e: zmq::Error| Failure(format!("replay socket of {}: {e}", self.url));
        self.socket.send_multipart([&b""[..], &self.next.to_be_bytes()], 0).map_err(broken)?;
        loop {
            let ready = self.socket.poll(zmq::POLLIN, REPLAY_TIMEOUT.as_millis() as i64).map_err(broken)?;
            if ready == 0 {
                return Err(Failure(format!("replay socket of {} does not answer", self.url)));
            }
            let frames = self.socket.recv_multipart(0).map_err(broken)?;
            let sequence = frames.len().checked_sub(2).and_then(|at| <[u8; 8]>::try_from(&*frames[at]).ok());
            match sequence.map(u64::from_be_bytes) {
                Some(END) => return Ok(self.next),
                Some(sequence) => self.next = self.next.max(sequence + 1),
                None => return Err(Failure(format!("replay socket of {}: odd frames {frames:?}", self.url))),
            }
        }
    }
}

/// Waits until `gateway` has applied everything that the engines of `feeds` have published.
pub async fn wait_caught_up(feeds: &mut Vec<Feed>, gateway: &Gateway) -> Result<(), Failure> {
    let mut taken = std::mem::take(feeds);
    let asked = tokio::task::spawn_blocking(move || {
        let marks: Result<Vec<(String, u64)>, Failure> =
            taken.iter_mut().map(|feed| Ok((feed.url.clone(), feed.ask()?))).collect();
        (taken, marks)
    });
    let (taken, marks) = asked.await.map_err(|e| Failure(e.to_string()))?;
    *feeds = taken;
    let marks = marks?;
    let deadline = tokio::time::Instant::now() + CATCH_UP_TIMEOUT;
    loop {
        let status = gateway.admin.read_json("/status").await?;
        if marks.iter().all(|(url, next)| *next == 0 || applied(&status, url).is_some_and(|last| last + 1 >= *next)) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            return Err(Failure(format!("the gateway has not caught up with {marks:?}: {status}")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Last event of the engine at `url` that the gateway has applied, by its `/status`.
fn applied(status: &Value, url: &str) -> Option<u64> {
    let feeds = status["feeds"].as_array()?;
    feeds.iter().find(|feed| feed["worker"] == url)?["last_seq"].as_u64()
}
