//! The listener: accept, bound, hand to the routes.

use super::{Console, routes};
use crate::tasks::TaskGroup;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Duration, timeout};

/// Open connections: a few scrapers, load balancers and people.
const MAX_CONNECTIONS: usize = 64;

/// Name of that limit in `forebay_limit_hits_total`.
const CONNECTIONS_LIMIT: &str = "admin.connections";

/// For a request head, and between two requests of one connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of a request head.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// A connection is closed after so long whatever it does: nobody holds a place for ever. Scrapers connect anew.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(3_600);

/// Pause after the system refused to accept (no file descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds `address` and serves until `tasks` ends; gives the real address where port 0 was asked for.
pub async fn start(address: SocketAddr, console: Arc<Console>, tasks: &TaskGroup) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    tasks.spawn("admin", accept(listener, console, tasks.child()));
    Ok(bound)
}

async fn accept(listener: TcpListener, console: Arc<Console>, tasks: TaskGroup) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            console.gateway.observer.limit_hit(CONNECTIONS_LIMIT);
            continue;
        };
        let console = console.clone();
        tasks.spawn("admin connection", async move {
            let _place = place;
            serve(stream, console).await;
        });
    }
}

async fn serve(stream: TcpStream, console: Arc<Console>) {
    let service = service_fn(move |request| {
        let console = console.clone();
        async move { Ok::<_, Infallible>(routes::answer(&console, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(MAX_CONNECTION_TIME, connection).await {
        tracing::debug!(%error, "admin connection ended badly");
    }
}
