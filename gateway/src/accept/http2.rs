//! One HTTP/2 connection: its settings, its streams, its end.
//!
//! Each stream becomes a [`Pipe`], which the rest serves as it serves any connection. What floods a peer may try is bounded
//! here and in `h2`: streams at once, resets (of streams that nobody took yet, and of those that were being served), header
//! lists, small frames. A stream counts as a connection, so `listen.max_connections` bounds all of them together.

use super::connection;
use super::listener::App;
use crate::stream::{Client, Drain, Endings, Peer, Pipe, Rewound, Socket, Stage};
use bytes::Bytes;
use h2::server::{Builder, Connection};
use h2::{Reason, RecvStream};
use http::Request;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::{Instant, sleep_until, timeout};

/// Bytes of a request body that a client may send before it is read from. A prompt of 100 KB goes out in one piece.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for all streams of a connection: four bodies may be under way while none is read from.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of answers that `h2` keeps for a connection whose socket is full, for each stream.
const SEND_BUFFER: usize = 64 * 1024;
/// Bytes of a frame: larger ones only make small streams wait for large ones.
const FRAME: u32 = 16 * 1024;
/// Streams reset before they were taken: more within the queue are an attack (rapid reset).
const MAX_PENDING_RESETS: usize = 20;
/// Errors of the peer that this side may have to answer with a reset, over the life of a connection.
const MAX_LOCAL_RESETS: usize = 128;
/// Streams given up by the client while they were served, when they are also most of all: then the connection takes no
/// more. A person who cancels does not reach this; a client that starts work in order to throw it away does.
const MAX_RESETS: u32 = 100;

/// Serves a connection until it ends.
pub(super) async fn run(app: &App, early: Bytes, socket: Socket, mut drain: Drain) {
    let listen = &app.gateway.config.listen;
    let peer = socket.peer();
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(listen.max_streams)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(u32::try_from(listen.max_header_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS));
    let handshake = builder.handshake::<_, Bytes>(Rewound::new(early, socket));
    let Ok(Ok(mut connection)) = timeout(listen.header_timeout, handshake).await else { return };
    let endings = Arc::new(Endings::default());
    let mut idle = Instant::now() + listen.keepalive_timeout;
    let mut closing = false;
    loop {
        tokio::select! {
            biased;
            stage = drain.next(closing) => {
                if stage == Stage::Over {
                    return;
                }
                closing = true;
                connection.graceful_shutdown();
                // Those who send nothing more get so long to say that they have understood.
                idle = Instant::now() + listen.write_timeout;
            }
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    idle = Instant::now() + listen.keepalive_timeout;
                    serve(app, request, respond, peer, &endings);
                    closing |= calm(app, &mut connection, &endings);
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "an HTTP/2 connection ended badly");
                    return;
                }
                None => return,
            },
            () = sleep_until(idle) => {
                if connection.has_streams() {
                    idle = Instant::now() + listen.keepalive_timeout;
                } else if std::mem::replace(&mut closing, true) {
                    return;
                } else {
                    connection.graceful_shutdown();
                    idle = Instant::now() + listen.write_timeout;
                }
            }
        }
    }
}

fn serve(
    app: &App,
    request: Request<RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    peer: Peer,
    endings: &Arc<Endings>,
) {
    let Some(slot) = app.gateway.limits.connect() else {
        app.gateway.observer.limit_hit("listen.max_connections");
        // The client may send it again elsewhere: nothing of it was looked at.
        respond.send_reset(Reason::REFUSED_STREAM);
        return;
    };
    let Ok(pipe) = Pipe::new(request, respond, peer, endings.clone()) else { return };
    let app = app.clone();
    let (tasks, watch) = (app.tasks.clone(), app.stages.watch());
    tasks.spawn("stream", async move {
        let listen = &app.gateway.config.listen;
        let socket = Socket::Multiplexed(Box::new(pipe));
        let client = Client::new(socket, watch, listen.keepalive_timeout, listen.write_timeout);
        connection::run(&app.gateway, client).await;
        drop(slot);
    });
}

/// Takes no more streams of a client that keeps giving them up.
fn calm(app: &App, connection: &mut Connection<Rewound, Bytes>, endings: &Endings) -> bool {
    let reset = endings.reset.load(Ordering::Relaxed);
    if reset < MAX_RESETS || reset * 2 < endings.ended.load(Ordering::Relaxed) {
        return false;
    }
    app.gateway.observer.limit_hit("http2.resets");
    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    true
}
