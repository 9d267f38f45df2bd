//! The clients' listener: bind, run, drain.

use super::{Reply, connection, http2};
use crate::config::resolved::Listen;
use crate::error::Fault;
use crate::http1::Framing;
use crate::http1::response::Downstream;
use crate::serve::{Gateway, count_limit};
use crate::stream::KEEPALIVE;
use crate::stream::{Client, Socket, Stages};
use crate::tasks::TaskGroup;
use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_core::apps::ServerApp;
use pingora_core::listeners::{L4BufferSettings, ListenerConfig, TcpSocketOptions};
use pingora_core::protocols::Stream;
use pingora_core::server::{Fds, ShutdownWatch};
use pingora_core::services::Service as _;
use pingora_core::services::listening::Service;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsAcceptor;

/// A running listener.
pub struct Ingress {
    address: SocketAddr,
    gateway: Arc<Gateway>,
    shutdown: watch::Sender<bool>,
    stages: Stages,
    /// The listening socket once more, for a process that takes over.
    socket: OwnedFd,
}

/// The listening address could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; is another process there, or the address not this machine's?")]
pub struct BindError {
    /// As configured.
    pub address: SocketAddr,
    /// What the system said.
    pub source: std::io::Error,
}

/// How a drain went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut because they outlived `drain_timeout`.
    pub cut: usize,
}

/// After the drain is over, streams get so long to end in their error event.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl Ingress {
    /// Binds, or takes over the socket that a process before this one has bound, and starts to serve. Must be called inside a tokio runtime; the accept loop belongs to `tasks`.
    pub fn start(gateway: Arc<Gateway>, inherited: Option<TcpListener>, tasks: &TaskGroup) -> Result<Self, BindError> {
        let wanted = gateway.config.listen.address;
        let failed = |source| BindError { address: wanted, source };
        // Bound here and handed over, so that a failure is an error with a reason instead of a retry loop inside the
        // service, and port 0 can be asked for.
        let socket = inherited.map_or_else(|| TcpListener::bind(wanted), Ok).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let kept = OwnedFd::from(socket.try_clone().map_err(failed)?);
        let mut table = Fds::new();
        table.add(address.to_string(), socket.into_raw_fd());

        let stages = Stages::default();
        let app = App { gateway: gateway.clone(), stages: stages.clone(), tasks: tasks.child() };
        let mut service = Service::new("ingress".to_owned(), app);
        let mut options = TcpSocketOptions::default();
        options.tcp_keepalive = Some(KEEPALIVE);
        // Every connection has one read buffer of its own and writes whole messages: two more would only cost memory.
        let endpoint = ListenerConfig::tcp(address.to_string())
            .tcp_socket_options(options)
            .l4_buffer(L4BufferSettings::unbuffered());
        service.endpoints().add_listener(endpoint);
        tasks.spawn("doors", gateway.doors.clone().watch());
        gateway.dispatcher.sweep_in(tasks);
        gateway.compare_in(tasks);
        let (shutdown, watch) = watch::channel(false);
        tasks.spawn("ingress", async move {
            service.start_service(Some(Arc::new(Mutex::new(table))), watch, 1).await;
        });
        Ok(Self { address, gateway, shutdown, stages, socket: kept })
    }

    /// The listening socket, to be handed over.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Where it listens (the real port where 0 was configured).
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, lets what runs run on for at most `drain_timeout`, then cuts it.
    pub async fn drain(self) -> Drained {
        let Self { gateway, shutdown, stages, socket, .. } = self;
        let listen: &Listen = &gateway.config.listen;
        shutdown.send_replace(true);
        // As long as one is open the system completes connections that nobody takes.
        drop(socket);
        stages.start();
        let idle = gateway.limits.idle();
        if tokio::time::timeout(listen.drain_timeout, idle).await.is_ok() {
            return Drained { cut: 0 };
        }
        let cut = gateway.limits.connections();
        stages.end();
        let _ = tokio::time::timeout(LAST_WORDS, gateway.limits.idle()).await;
        Drained { cut }
    }
}

/// What every connection shares.
#[derive(Clone)]
pub(super) struct App {
    pub(super) gateway: Arc<Gateway>,
    pub(super) stages: Stages,
    /// Of streams; connections have theirs from the listening service.
    pub(super) tasks: TaskGroup,
}

#[async_trait]
impl ServerApp for App {
    async fn process_new(self: &Arc<Self>, io: Stream, _shutdown: &ShutdownWatch) -> Option<Stream> {
        let listen = &self.gateway.config.listen;
        let slot = self.gateway.limits.connect();
        let (socket, http2) = self.shake_hands(io).await?;
        let http1 = socket.peer().secure && !http2;
        let mut client = Client::new(socket, self.stages.watch(), listen.keepalive_timeout, listen.write_timeout);
        if slot.is_none() {
            let fault = crowded(listen);
            count_limit(&self.gateway, &fault);
            let to = Downstream { diagnostics: !self.gateway.doors.ask_for_keys(), ..UNNAMED };
            let _ = Reply::fault(&fault).send(&mut client, &to, false).await;
            client.finish().await;
        } else if http2 || (listen.http2 && !http1 && client.speaks_http2(listen.header_timeout).await) {
            let (early, socket, drain) = client.into_parts();
            http2::run(self, early, socket, drain).await;
        } else {
            connection::run(&self.gateway, client).await;
        }
        None
    }
}

impl App {
    /// TLS, where the listener speaks it, and whether HTTP/2 was agreed upon. `None` when the handshake failed.
    async fn shake_hands(&self, io: Stream) -> Option<(Socket, bool)> {
        let Some(config) = self.gateway.doors.acceptor() else { return Some((Socket::Plain(io), false)) };
        let limit = self.gateway.config.listen.handshake_timeout;
        match timeout(limit, TlsAcceptor::from(config).accept(io)).await {
            Ok(Ok(stream)) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                Some((Socket::Secure(Box::new(stream.into())), http2))
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake failed");
                self.gateway.observer.limit_hit("tls.handshake_failed");
                None
            }
            Err(_) => {
                self.gateway.observer.limit_hit("listen.handshake_timeout");
                None
            }
        }
    }
}

const UNNAMED: Downstream<'static> = Downstream {
    framing: Framing::Empty,
    announced: None,
    request_id: "-",
    close: true,
    old_keep_alive: false,
    diagnostics: false,
};

fn crowded(listen: &Listen) -> Fault {
    let message = format!("{} connections are open (listen.max_connections)", listen.max_connections);
    let mut fault = Fault::gateway(503, "too_many_connections", message);
    fault.retry_after = Some(Duration::from_secs(1));
    fault
}
