//! Connections to the router under test: in the clear or over TLS.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// HTTP/1.1 in the clear.
    Http1,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS, by ALPN.
    H2,
    /// HTTP/2 in the clear, by prior knowledge.
    H2c,
}

/// Opens connections to one port of 127.0.0.1.
#[derive(Clone)]
pub struct Dialer {
    port: u16,
    protocol: Protocol,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("port", &self.port).field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

impl Dialer {
    /// For `port`; over TLS the router must show the certificate in the file `ca`, or one that this has signed.
    ///
    /// # Errors
    /// The file is missing, or holds no certificate.
    pub fn new(port: u16, protocol: Protocol, ca: Option<&Path>) -> Result<Self, String> {
        let alpn: &[u8] = match protocol {
            Protocol::Http1 | Protocol::H2c => return Ok(Self { port, protocol, tls: None }),
            Protocol::Tls => b"http/1.1",
            Protocol::H2 => b"h2",
        };
        let path = ca.ok_or("--ca: TLS needs the certificate to trust")?;
        let failed = |what: String| format!("{}: {what}", path.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))? {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(Self { port, protocol, tls: Some(TlsConnector::from(Arc::new(config))) })
    }

    /// Whether its connections speak HTTP/2.
    pub fn is_http2(&self) -> bool {
        matches!(self.protocol, Protocol::H2 | Protocol::H2c)
    }

    /// The scheme of its URLs.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// `host:port` of the router.
    pub fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A new connection, handshakes done.
    ///
    /// # Errors
    /// Refused, or no TLS as wanted; the router must agree to the protocol.
    pub async fn dial(&self) -> io::Result<Socket> {
        let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        tcp.set_nodelay(true)?;
        let Some(connector) = &self.tls else { return Ok(Socket::Plain(tcp)) };
        let tls = connector.connect(ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST)), tcp).await?;
        if self.is_http2() && tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the router does not offer HTTP/2"));
        }
        Ok(Socket::Tls(tls))
    }
}

/// An open connection.
#[expect(clippy::large_enum_variant, reason = "one per connection, and boxed where it is kept")]
#[derive(Debug)]
pub enum Socket {
    /// In the clear.
    Plain(TcpStream),
    /// Over TLS.
    Tls(TlsStream<TcpStream>),
}

impl Socket {
    /// The connection below.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
