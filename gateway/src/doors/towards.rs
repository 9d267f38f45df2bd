//! TLS towards one engine.

use super::Doors;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Speaks TLS with whoever proves to be one name, by what the doors' files say at that moment.
#[derive(Clone)]
pub struct Towards {
    doors: Arc<Doors>,
    name: Arc<str>,
}

impl std::fmt::Debug for Towards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TLS({})", self.name)
    }
}

impl Towards {
    /// Towards `name`, a host name or an address.
    pub fn new(doors: Arc<Doors>, name: Arc<str>) -> Self {
        Self { doors, name }
    }

    /// Shakes hands over `stream`.
    ///
    /// # Errors
    /// Whatever the handshake meets: a certificate for another name, an authority that is not trusted, a broken stream.
    pub async fn wrap<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let config = self
            .doors
            .built
            .load()
            .client
            .clone()
            .ok_or_else(|| io::Error::other("no authorities are known; set upstream.ca_file"))?;
        let name = ServerName::try_from(self.name.to_string()).map_err(io::Error::other)?;
        TlsConnector::from(config).connect(name, stream).await
    }
}
