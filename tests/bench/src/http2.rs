//! One HTTP/2 connection that several clients send on, and one exchange on one of its streams.

use crate::client::{ExchangeError, Target, TextTimes, Timing};
use crate::connect::Dialer;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::{Method, Request};
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Window of each stream and of a connection: as large as a client that wants no delay has it.
const WINDOW: u32 = 1 << 20;

/// A connection, opened when it is first needed and again after it broke.
pub struct Session {
    dialer: Rc<Dialer>,
    open: RefCell<Option<SendRequest<Bytes>>>,
    /// Held by the one who opens it.
    opening: Mutex<()>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("dialer", &self.dialer).finish_non_exhaustive()
    }
}

impl Session {
    /// Not connected yet.
    pub fn new(dialer: Rc<Dialer>) -> Self {
        Self { dialer, open: RefCell::new(None), opening: Mutex::new(()) }
    }

    /// Must run inside a `LocalSet`, in which the connection then lives.
    async fn sender(&self) -> Result<SendRequest<Bytes>, ExchangeError> {
        let _turn = self.opening.lock().await;
        if let Some(open) = &*self.open.borrow() {
            return Ok(open.clone());
        }
        let socket = self.dialer.dial().await.map_err(ExchangeError::Connect)?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).enable_push(false);
        let (sender, connection) = builder.handshake(socket).await?;
        tokio::task::spawn_local(async move {
            // Its end shows in the streams.
            let _ = connection.await;
        });
        *self.open.borrow_mut() = Some(sender.clone());
        Ok(sender)
    }

    /// Sends the body of `request`, which is written as HTTP/1.1, to its path, and reads the answer into `payload`.
    pub(crate) async fn exchange(
        &self,
        target: Target,
        request: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<Timing, ExchangeError> {
        let sender = self.sender().await?;
        let outcome = self.exchange_on(sender, target, request, payload).await;
        if matches!(outcome, Err(ExchangeError::Http2(_))) {
            *self.open.borrow_mut() = None;
        }
        outcome
    }

    async fn exchange_on(
        &self,
        sender: SendRequest<Bytes>,
        target: Target,
        request: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<Timing, ExchangeError> {
        let (path, body) = split(request);
        let head = Request::builder()
            .method(Method::POST)
            .uri(format!("{}://{}{path}", self.dialer.scheme(), self.dialer.authority()))
            .header("content-type", "application/json")
            .header("accept", "*/*")
            .header("user-agent", "lg")
            .header("content-length", body.len())
            .body(())
            .expect("a fixed path and fixed fields");
        let started = Instant::now();
        let mut sender = sender.ready().await?;
        let (answer, stream) = sender.send_request(head, false)?;
        send(stream, Bytes::copy_from_slice(body)).await?;
        let answer = answer.await?;
        let status = answer.status().as_u16();
        let mut text = TextTimes::new(started);
        let mut body = answer.into_body();
        while let Some(data) = body.data().await {
            let data = data?;
            payload.extend_from_slice(&data);
            body.flow_control().release_capacity(data.len())?;
            if target.stream && status == 200 {
                text.observe(payload);
            }
        }
        text.end(target, status, payload)
    }
}

/// Sends all of `body` as flow control lets it go.
async fn send(mut stream: SendStream<Bytes>, mut body: Bytes) -> Result<(), h2::Error> {
    loop {
        stream.reserve_capacity(body.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap_or_else(|| Err(Reason::CANCEL.into()))?;
        let part = body.split_to(room.min(body.len()));
        let last = body.is_empty();
        stream.send_data(part, last)?;
        if last {
            return Ok(());
        }
    }
}

/// Path and body of a request as [`crate::workload`] writes it.
fn split(request: &[u8]) -> (&str, &[u8]) {
    let end = memchr::memmem::find(request, b"\r\n\r\n").map_or(request.len(), |at| at + 4);
    let head = std::str::from_utf8(&request[..end]).unwrap_or_default();
    (head.split(' ').nth(1).unwrap_or("/"), &request[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_split_into_path_and_body() {
        assert_eq!(split(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n\r\n{}\r\n\r\n"), ("/v1/x", &b"{}\r\n\r\n"[..]));
        assert_eq!(split(b""), ("/", &b""[..]));
    }
}
