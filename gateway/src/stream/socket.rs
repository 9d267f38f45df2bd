//! The byte streams under HTTP/1.1: a TCP connection, TLS over one, or one stream of an HTTP/2 connection.

use super::http2::Pipe;
use pingora_core::protocols::{Stream, TcpKeepalive};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// Asked of the system on both sides, because a peer that vanished without a word looks like one that thinks: after a minute of
/// silence it is asked, and four questions without an answer end the connection.
pub(crate) const KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(10),
    count: 4,
    user_timeout: Duration::ZERO,
};

/// What requests are read from and answers written to.
pub enum Socket {
    /// In the clear, as the listener gives it.
    Plain(Stream),
    /// In the clear, with nothing around it.
    Bare(TcpStream),
    /// TLS, of either side.
    Secure(Box<TlsStream<Stream>>),
    /// One request of an HTTP/2 connection.
    Multiplexed(Box<Pipe>),
}

/// Who is at the other end of a client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Where it connects from, where the system knows.
    pub address: Option<SocketAddr>,
    /// It speaks TLS with us.
    pub secure: bool,
}

impl Socket {
    /// The system's view of the other end.
    pub fn peer(&self) -> Peer {
        let of = |stream: &Stream| {
            stream.get_socket_digest().and_then(|digest| digest.peer_addr().and_then(|a| a.as_inet().copied()))
        };
        match self {
            Self::Plain(stream) => Peer { address: of(stream), secure: false },
            Self::Bare(stream) => Peer { address: stream.peer_addr().ok(), secure: false },
            Self::Secure(stream) => Peer { address: of(stream.get_ref().0), secure: true },
            Self::Multiplexed(pipe) => pipe.peer(),
        }
    }

    /// Whether what was written may wait inside until it is flushed. A plain socket holds nothing back.
    pub fn holds_back(&self) -> bool {
        !matches!(self, Self::Plain(_) | Self::Bare(_))
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Bare(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Secure(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Multiplexed(pipe) => Pin::new(pipe).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Bare(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Secure(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Multiplexed(pipe) => Pin::new(pipe).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Bare(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Secure(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Multiplexed(pipe) => Pin::new(pipe).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Bare(stream) => stream.is_write_vectored(),
            Self::Secure(stream) => stream.is_write_vectored(),
            Self::Multiplexed(_) => false,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Bare(stream) => Pin::new(stream).poll_flush(cx),
            Self::Secure(stream) => Pin::new(stream).poll_flush(cx),
            Self::Multiplexed(pipe) => Pin::new(pipe).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Bare(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Secure(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Multiplexed(pipe) => Pin::new(pipe).poll_shutdown(cx),
        }
    }
}

/// A stream some of whose bytes were read before it was known who should read them.
pub struct Rewound {
    early: bytes::Bytes,
    socket: Socket,
}

impl Rewound {
    /// `early` comes before what `socket` gives.
    pub fn new(early: bytes::Bytes, socket: Socket) -> Self {
        Self { early, socket }
    }
}

impl AsyncRead for Rewound {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early.is_empty() {
            return Pin::new(&mut this.socket).poll_read(cx, buf);
        }
        let part = this.early.split_to(this.early.len().min(buf.remaining()));
        buf.put_slice(&part);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
