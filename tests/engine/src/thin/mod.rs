//! The thin mode: answers at once with no model behind it, for measuring what stands in front.
//!
//! One thread serves several ports, each playing one engine. A small request costs some 15 µs, so that the proxy and
//! not the engine is what a benchmark sees. Each streamed chunk carries `~T` and twenty digits, the machine's monotonic clock
//! in nanoseconds just before the write, from which a client on the same machine computes one-way delays.
//!
//! Request bodies are scanned for the few keys that matter, not parsed. With KV events on, bodies are handed to a
//! second thread that tokenises them and publishes what a real engine would have stored (see [`events`]).

mod events;
mod knobs;
mod reply;

#[cfg(test)]
mod tests;

use crate::config::EngineError;
use crate::events::EventConfig;
use crate::http::{Connection, ReadEnd};
use crate::model::Limits;
use crate::text::Codec;
use events::Feed;
use knobs::Knobs;
pub use knobs::Usage;
use reply::Thin;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Pause after a failed accept (file descriptors used up, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What the thin engines of one process are.
#[derive(Clone)]
pub struct ThinConfig {
    /// Address to listen on.
    pub host: String,
    /// One engine for each; 0 takes a free port.
    pub ports: Vec<u16>,
    /// Served model name.
    pub model: String,
    /// `root` in `/v1/models`, `model_path` elsewhere.
    pub model_root: String,
    /// Used for `/tokenize`, `/render`, exact usage and events.
    pub codec: Arc<Codec>,
    /// Block size and blocks of the cache that events tell of.
    pub limits: Limits,
    /// KV events; none: not published.
    pub events: Option<EventConfig>,
    /// Tokens of an answer whose request names no number.
    pub tokens: u64,
    /// Time to the first token, µs.
    pub ttft_us: u64,
    /// Time between tokens, µs.
    pub itl_us: u64,
    /// What `usage` is made of.
    pub usage: Usage,
}

impl ThinConfig {
    /// One engine on a free loopback port, as fast as it goes.
    pub fn new(model: &str) -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            ports: vec![0],
            model: model.to_owned(),
            model_root: model.to_owned(),
            codec: Arc::new(Codec::bytes()),
            limits: Limits::default(),
            events: None,
            tokens: 16,
            ttft_us: 0,
            itl_us: 0,
            usage: Usage::Bytes,
        }
    }
}

/// Thin engines that run. Dropping it stops them without waiting.
pub struct ThinHandle {
    addresses: Vec<SocketAddr>,
    endpoints: Vec<String>,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl ThinHandle {
    /// Where each listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// PUB endpoint of each, where events are on.
    pub fn event_endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Stops listening and breaks every connection.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tracker.wait().await;
    }
}

impl Drop for ThinHandle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Starts them; they listen when this returns.
pub async fn start(config: ThinConfig) -> Result<ThinHandle, EngineError> {
    let knobs = Arc::new(Knobs::new(&config));
    let feed = match &config.events {
        Some(events) => Some(Feed::start(&config, events).map_err(EngineError::Events)?),
        None => None,
    };
    let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
    let endpoints = feed.iter().flat_map(|feed| feed.endpoints().map(|(endpoint, _)| endpoint.clone())).collect();
    let feed = feed.map(Arc::new);
    let mut addresses = Vec::new();
    for (index, port) in config.ports.iter().enumerate() {
        let at = format!("{}:{port}", config.host);
        let failed = |source| EngineError::Listen { address: at.clone(), source };
        let listener = TcpListener::bind(&at).await.map_err(failed)?;
        addresses.push(listener.local_addr().map_err(failed)?);
        let engine = Arc::new(Thin::new(index, config.clone(), knobs.clone(), feed.clone()));
        tracker.spawn(accept_all(engine, listener, stop.clone(), tracker.clone()));
    }
    tracker.close();
    Ok(ThinHandle { addresses, endpoints, stop, tracker })
}

async fn accept_all(engine: Arc<Thin>, listener: TcpListener, stop: CancellationToken, tracker: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (stop, serving) = (stop.clone(), serve_connection(engine.clone(), stream));
                tracker.spawn(async move { stop.run_until_cancelled(serving).await });
            }
            Err(error) => {
                tracing::warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(engine: Arc<Thin>, stream: TcpStream) {
    // Without it a chunk would wait for the client's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let mut connection = Connection::new(stream);
    let mut out = Vec::with_capacity(4 << 10);
    loop {
        let request = match connection.read_request().await {
            Ok(request) => request,
            Err(ReadEnd::Gone) => return,
            Err(ReadEnd::Refused(status)) => {
                let refusal = crate::http::Response::empty(status);
                // The client may be gone already, then there is nobody to tell.
                let _ = refusal.write(&mut connection.stream).await;
                return;
            }
        };
        let close = request.close;
        if engine.answer(&mut connection.stream, &request, &mut out).await.is_err() || close {
            let _ = connection.stream.shutdown().await;
            return;
        }
    }
}
