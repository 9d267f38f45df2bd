//! The listeners: accept, bound, hand to the routes.

use super::{Console, routes};
use crate::tasks::TaskGroup;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsAcceptor;

/// Open connections: a few scrapers, load balancers and people.
const MAX_CONNECTIONS: usize = 64;

/// Name of that limit in `forebay_limit_hits_total`.
const CONNECTIONS_LIMIT: &str = "admin.connections";

/// For a request head, and between two requests of one connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// For a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request head.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// A connection is closed after so long whatever it does: nobody holds a place for ever. Scrapers connect anew.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(3_600);

/// Pause after the system refused to accept (no file descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Through which door a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entrance {
    /// A Unix socket that only its owner may open.
    Socket,
    /// TCP on this machine.
    Loopback,
    /// TCP that other machines reach.
    Network,
}

/// Binds `address` and serves until `tasks` ends; gives the real address where port 0 was asked for.
pub async fn start(address: SocketAddr, console: Arc<Console>, tasks: &TaskGroup) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let entrance = if bound.ip().is_loopback() { Entrance::Loopback } else { Entrance::Network };
    let listening = Listening { socket: Socket::Tcp(listener), console, entrance, tasks: tasks.child() };
    tasks.spawn("admin", listening.accept());
    Ok(bound)
}

/// Binds the Unix socket `path`, which only this user may open, and serves until `tasks` ends.
pub fn start_socket(path: &Path, console: Arc<Console>, tasks: &TaskGroup) -> io::Result<()> {
    let socket = Socket::Unix(bind_private(path)?);
    let listening = Listening { socket, console, entrance: Entrance::Socket, tasks: tasks.child() };
    tasks.spawn("admin socket", listening.accept());
    Ok(())
}

/// The mode is narrowed before the socket is where others look for it: it is bound under another name and moved.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(".new");
    let hidden = Path::new(&hidden);
    for leftover in [hidden, path] {
        match std::fs::symlink_metadata(leftover) {
            // What an earlier process left behind; anything else that stands there is somebody's.
            Ok(found) if found.file_type().is_socket() => std::fs::remove_file(leftover)?,
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => {}
        }
    }
    let listener = UnixListener::bind(hidden)?;
    std::fs::set_permissions(hidden, Permissions::from_mode(0o600))?;
    std::fs::rename(hidden, path)?;
    Ok(listener)
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// What is spoken over, whichever way it came.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

impl Socket {
    async fn accept(&self) -> io::Result<Box<dyn Duplex>> {
        match self {
            Self::Tcp(listener) => Ok(Box::new(listener.accept().await?.0)),
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

struct Listening {
    socket: Socket,
    console: Arc<Console>,
    entrance: Entrance,
    tasks: TaskGroup,
}

impl Listening {
    async fn accept(self) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let stream = match self.socket.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "the admin listener cannot accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                self.console.gateway.observer.limit_hit(CONNECTIONS_LIMIT);
                continue;
            };
            let (console, entrance) = (self.console.clone(), self.entrance);
            self.tasks.spawn("admin connection", async move {
                let _place = place;
                if let Some(stream) = secure(stream, entrance, &console).await {
                    serve(stream, entrance, console).await;
                }
            });
        }
    }
}

/// Beyond this machine operators' keys travel as protected as clients' do.
async fn secure(stream: Box<dyn Duplex>, entrance: Entrance, console: &Console) -> Option<Box<dyn Duplex>> {
    let acceptor = console.gateway.doors.acceptor().filter(|_| entrance == Entrance::Network);
    let Some(config) = acceptor else { return Some(stream) };
    let mut config = (*config).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let accepted = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(Arc::new(config)).accept(stream)).await;
    accepted.ok()?.ok().map(|stream| Box::new(stream) as Box<dyn Duplex>)
}

async fn serve(stream: Box<dyn Duplex>, entrance: Entrance, console: Arc<Console>) {
    let service = service_fn(move |request| {
        let console = console.clone();
        async move { Ok::<_, Infallible>(routes::answer(&console, entrance, request).await) }
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
