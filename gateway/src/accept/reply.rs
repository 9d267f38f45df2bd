//! Answers that the gateway gives by itself.

use crate::error::{Fault, Shape};
use crate::http1::Framing;
use crate::http1::response::Downstream;
use crate::stream::{Client, Interrupt};

/// An answer without an engine.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    content_type: &'static str,
    code: Option<&'static str>,
    retry_after_s: Option<u64>,
    allow: Option<&'static str>,
    body: String,
}

impl Reply {
    /// A JSON answer.
    pub fn json(status: u16, body: String) -> Self {
        Self { status, content_type: "application/json", code: None, retry_after_s: None, allow: None, body }
    }

    /// A fault in OpenAI's shape, its code also in `x-forebay-error`.
    pub fn fault(fault: &Fault) -> Self {
        Self::fault_in(fault, Shape::OpenAi)
    }

    /// A fault in `shape`.
    pub fn fault_in(fault: &Fault, shape: Shape) -> Self {
        Self {
            code: Some(fault.code),
            // A started second counts: a client that comes back early is refused again.
            retry_after_s: fault.retry_after.map(|after| after.as_millis().div_ceil(1000).max(1) as u64),
            ..Self::json(fault.status, fault.body_in(shape))
        }
    }

    /// Names the methods that would be served (405).
    #[must_use]
    pub fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// The bytes of head and, unless `bodiless`, body.
    pub fn encode(&self, to: &Downstream<'_>, bodiless: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + self.body.len());
        out.extend_from_slice(format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status)).as_bytes());
        out.extend_from_slice(format!("content-type: {}\r\n", self.content_type).as_bytes());
        if self.status == 401 {
            out.extend_from_slice(b"www-authenticate: Bearer realm=\"forebay\"\r\n");
        }
        if let Some(code) = self.code.filter(|_| to.diagnostics) {
            out.extend_from_slice(format!("x-forebay-error: {code}\r\n").as_bytes());
        }
        if let Some(seconds) = self.retry_after_s {
            out.extend_from_slice(format!("retry-after: {seconds}\r\n").as_bytes());
        }
        if let Some(methods) = self.allow {
            out.extend_from_slice(format!("allow: {methods}\r\n").as_bytes());
        }
        let to = Downstream { framing: Framing::Length(self.body.len() as u64), ..*to };
        to.write_end(&mut out);
        if !bodiless {
            out.extend_from_slice(self.body.as_bytes());
        }
        out
    }

    /// Sends it.
    pub async fn send(&self, client: &mut Client, to: &Downstream<'_>, bodiless: bool) -> Result<(), Interrupt> {
        client.write(&self.encode(to, bodiless), b"").await
    }
}

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Error")
}
