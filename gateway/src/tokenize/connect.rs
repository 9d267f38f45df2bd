//! Connections for questions to engines: TCP, or TLS where an engine's URL says so.

use crate::doors::Towards;
use hashbrown::HashMap;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use parking_lot::RwLock;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Connects to engines.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    /// By authority (`host:port`); as many as engines with TLS were ever there.
    secured: Arc<RwLock<HashMap<String, Towards>>>,
}

impl Connector {
    pub(super) fn new() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        Self { tcp, secured: Arc::default() }
    }

    /// How TLS is spoken with the engine at `base_url`.
    pub(super) fn secure(&self, base_url: &str, towards: Towards) {
        if let Some(authority) = base_url.strip_prefix("https://") {
            self.secured.write().insert(authority.trim_end_matches('/').to_owned(), towards);
        }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// One connection.
pub(super) struct Wire(TokioIo<Box<dyn Duplex>>);

impl Service<Uri> for Connector {
    type Response = Wire;
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Wire, Problem>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let secure = uri.scheme_str() == Some("https");
        let towards = uri.authority().and_then(|authority| self.secured.read().get(authority.as_str()).cloned());
        let connecting = self.tcp.call(uri);
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            let wire: Box<dyn Duplex> = match (secure, towards) {
                (false, _) => Box::new(stream),
                (true, Some(towards)) => Box::new(towards.wrap(stream).await?),
                (true, None) => return Err("this engine has not introduced itself over TLS".into()),
            };
            Ok(Wire(TokioIo::new(wire)))
        })
    }
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
