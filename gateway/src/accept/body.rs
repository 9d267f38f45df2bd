//! Request heads and bodies, read whole, within limits and deadlines.

use crate::config::resolved::Listen;
use crate::error::{Fault, Halt};
use crate::http1::chunked::Decoder;
use crate::http1::{Framing, Malformed, RequestHead, request};
use crate::limits::Share;
use crate::stream::{Client, Interrupt, stopping};
use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

/// A chunked body grows its buffer by so much at a time, since its length is not announced.
const GROWTH: usize = 64 * 1024;

impl Client {
    /// The next request head; `None` when the connection ended between requests.
    pub(super) async fn read_head(&mut self, listen: &Listen) -> Result<Option<RequestHead>, Halt> {
        if self.input.is_empty() {
            self.deadline.set(Instant::now() + listen.keepalive_timeout);
        }
        if !self.wait_for_request().await {
            return Ok(None);
        }
        let mut progress = request::Progress::default();
        let mut due = None;
        loop {
            if let Some(head) =
                request::take(&mut self.input, &mut progress, listen.max_header_bytes).map_err(refuse)?
            {
                return Ok(Some(head));
            }
            self.deadline.set(*due.get_or_insert_with(|| Instant::now() + listen.header_timeout));
            self.read_input().await.map_err(|interrupt| {
                halt(interrupt, "header_timeout", || {
                    format!(
                        "the request head was not complete within {:?} (listen.header_timeout)",
                        listen.header_timeout
                    )
                })
            })?;
        }
    }

    /// The whole body. Over a limit, the answer is given without reading on.
    pub(crate) async fn read_body(
        &mut self,
        head: &RequestHead,
        listen: &Listen,
        share: &mut Share,
    ) -> Result<Bytes, Halt> {
        let due = Instant::now() + listen.body_timeout;
        match head.framing {
            Framing::Length(length) => {
                let length = usize::try_from(length).ok().filter(|n| *n <= listen.max_body_bytes);
                let length = length.ok_or_else(|| too_large(listen))?;
                self.read_length(length, head.expect_continue, listen, share, due).await
            }
            Framing::Chunked => self.read_chunked(head.expect_continue, listen, share, due).await,
            Framing::Empty | Framing::UntilClose => Ok(Bytes::new()),
        }
    }

    /// Bytes are counted as they come, not as they are announced: a client that announces much and sends nothing holds
    /// address space, which costs nothing, and no share of the limit.
    async fn read_length(
        &mut self,
        length: usize,
        expect: bool,
        listen: &Listen,
        share: &mut Share,
        due: Instant,
    ) -> Result<Bytes, Halt> {
        if self.input.len() >= length {
            share.grow(length)?;
            return Ok(self.input.split_to(length).freeze());
        }
        self.invite(expect).await?;
        // Allocated at once and read into without copies.
        let mut body = BytesMut::with_capacity(length);
        body.extend_from_slice(&self.input.split());
        share.grow(body.len())?;
        while body.len() < length {
            self.deadline.set(due);
            let read = self.read_into(&mut body).await.map_err(|interrupt| late_body(interrupt, listen))?;
            share.grow(read)?;
        }
        // Where the allocator gave more room than asked for, the start of a next request may have come along.
        self.input.extend_from_slice(&body.split_off(length));
        Ok(body.freeze())
    }

    async fn read_chunked(
        &mut self,
        expect: bool,
        listen: &Listen,
        share: &mut Share,
        due: Instant,
    ) -> Result<Bytes, Halt> {
        let mut decoder = Decoder::default();
        let mut body = BytesMut::new();
        let mut counted = 0;
        self.invite(expect && self.input.is_empty()).await?;
        loop {
            let used = decoder.decode(&self.input, |payload| body.extend_from_slice(payload)).map_err(refuse)?;
            bytes::Buf::advance(&mut self.input, used);
            if body.len() > listen.max_body_bytes {
                return Err(too_large(listen));
            }
            if body.len() > counted {
                let grown = (body.len() - counted).next_multiple_of(GROWTH);
                share.grow(grown)?;
                counted += grown;
            }
            if decoder.is_done() {
                return Ok(body.freeze());
            }
            self.deadline.set(due);
            self.read_input().await.map_err(|interrupt| late_body(interrupt, listen))?;
        }
    }

    /// Answers `Expect: 100-continue`, once nothing speaks against the body.
    async fn invite(&mut self, expect: bool) -> Result<(), Halt> {
        if expect {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n", b"").await.map_err(|_| Halt::Gone)?;
        }
        Ok(())
    }
}

fn refuse(malformed: Malformed) -> Halt {
    let code = match malformed.status {
        431 => "header_too_large",
        501 => "not_implemented",
        505 => "http_version",
        _ => "bad_request",
    };
    Halt::Fault(Fault::client(malformed.status, code, format!("{} (HTTP/1.1 framing)", malformed.what)))
}

fn too_large(listen: &Listen) -> Halt {
    let message = format!("the body is larger than {} bytes (listen.max_body_bytes)", listen.max_body_bytes);
    Halt::Fault(Fault::client(413, "body_too_large", message))
}

fn late_body(interrupt: Interrupt, listen: &Listen) -> Halt {
    halt(interrupt, "body_timeout", || {
        format!("the body was not complete within {:?} (listen.body_timeout)", listen.body_timeout)
    })
}

fn halt(interrupt: Interrupt, code: &'static str, message: impl FnOnce() -> String) -> Halt {
    match interrupt {
        Interrupt::Gone => Halt::Gone,
        Interrupt::Late => Halt::Fault(Fault::client(408, code, message())),
        Interrupt::Stopped => Halt::Fault(stopping()),
    }
}
