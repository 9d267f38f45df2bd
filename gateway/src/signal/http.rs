//! The small HTTP client with which the gateway asks engines about themselves.
//!
//! One connection per question (they come seconds apart, and a fresh connection proves that the engine still accepts),
//! one deadline over all of it, a bounded body. Requests of clients never pass here.

use crate::doors::Towards;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Duration;

/// Most bytes of an answer. vLLM's `/metrics` is 58 KB for one rank; 64 ranks fit.
pub const MAX_ANSWER_BYTES: usize = 8 << 20;

/// Whom to ask and for how long to wait.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where to connect.
    pub address: SocketAddr,
    /// Value of `Host`.
    pub authority: String,
    /// Over everything: connect, send, receive.
    pub deadline: Duration,
    /// Sent as `Authorization: Bearer`.
    pub key: Option<Secret>,
    /// How to speak TLS with it; `None` in the clear.
    pub towards: Option<Towards>,
}

/// Text that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// What was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Body, whole.
    pub body: Bytes,
}

/// Why there is no answer. None of these says anything about the engine's cache.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Refused, unreachable, reset while connecting.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The deadline passed.
    #[error("{path} gave no whole answer within {ms} ms")]
    Late {
        /// Path asked.
        path: String,
        /// The deadline.
        ms: u128,
    },
    /// More than [`MAX_ANSWER_BYTES`].
    #[error("{path} answered more than {MAX_ANSWER_BYTES} bytes")]
    TooLarge {
        /// Path asked.
        path: String,
    },
    /// Not HTTP, cut short, lied about its length.
    #[error("{path}: broken HTTP: {reason}")]
    Protocol {
        /// Path asked.
        path: String,
        /// What the parser said.
        reason: String,
    },
}

impl Peer {
    /// `GET path`.
    pub async fn get(&self, path: &str) -> Result<Answer, AskError> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// `POST path` with a JSON body.
    pub async fn post_json(&self, path: &str, body: Bytes) -> Result<Answer, AskError> {
        self.ask(Method::POST, path, body).await
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, AskError> {
        match tokio::time::timeout(self.deadline, self.exchange(method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(AskError::Late { path: path.to_owned(), ms: self.deadline.as_millis() }),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, AskError> {
        let broken = |reason: String| AskError::Protocol { path: path.to_owned(), reason };
        let connect = |source| AskError::Connect { address: self.address, source };
        let stream = TcpStream::connect(self.address).await.map_err(connect)?;
        stream.set_nodelay(true).map_err(connect)?;
        match &self.towards {
            None => self.converse(stream, method, path, body).await,
            Some(towards) => {
                let stream = towards.wrap(stream).await.map_err(|error| broken(format!("TLS: {error}")))?;
                self.converse(stream, method, path, body).await
            }
        }
    }

    async fn converse<S>(&self, stream: S, method: Method, path: &str, body: Bytes) -> Result<Answer, AskError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let broken = |reason: String| AskError::Protocol { path: path.to_owned(), reason };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(e.to_string()))?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::USER_AGENT, concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(Secret(key)) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body)).map_err(|e| broken(e.to_string()))?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(|e| broken(e.to_string()))?;
            let status = answer.status();
            let mut stream = answer.into_body();
            let mut body = BytesMut::new();
            while let Some(frame) = stream.frame().await {
                let frame = frame.map_err(|e| broken(e.to_string()))?;
                let Ok(data) = frame.into_data() else { continue };
                if body.len() + data.len() > MAX_ANSWER_BYTES {
                    return Err(AskError::TooLarge { path: path.to_owned() });
                }
                body.extend_from_slice(&data);
            }
            Ok(Answer { status, body: body.freeze() })
        };
        tokio::pin!(exchange, connection);
        // The connection is driven here rather than in a task of its own, so that it ends with the question.
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            _ = &mut connection => exchange.await,
        }
    }
}
