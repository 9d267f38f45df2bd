//! The one error type that crosses the gateway's steps: who is to blame, may it be retried, what the client reads.

use std::time::Duration;

/// Whose fault it was; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The request.
    Client,
    /// This process.
    Gateway,
    /// An engine.
    Worker,
}

/// In which shape a client reads errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// `{"error":{"message","type","param","code"}}`, as OpenAI and the engines write it.
    #[default]
    OpenAi,
    /// `{"type":"error","error":{"type","message"}}`.
    Anthropic,
}

impl Shape {
    /// The shape that clients of `path` understand.
    pub fn of_path(path: &str) -> Self {
        let below = path.strip_prefix("/v1/messages");
        if below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) { Self::Anthropic } else { Self::OpenAi }
    }
}

/// A request that cannot be served.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{status} {code}: {message}")]
pub struct Fault {
    /// HTTP status.
    pub status: u16,
    /// Stable machine-readable code, also the `x-forebay-error` header and a metric label.
    pub code: &'static str,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// Request field at fault.
    pub param: Option<String>,
    /// For people: what, where, what to do.
    pub message: String,
    /// Whose fault.
    pub blame: Blame,
    /// Whether another worker may be tried (only before commit).
    pub retryable: bool,
    /// Sent as `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl Fault {
    /// A client error without a retry.
    pub fn client(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            kind: "invalid_request_error",
            param: None,
            message: message.into(),
            blame: Blame::Client,
            retryable: false,
            retry_after: None,
        }
    }

    /// Names the field at fault.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// An engine that failed before commit.
    pub fn worker(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: "upstream_error", blame: Blame::Worker, retryable: true, ..Self::client(status, code, message) }
    }

    /// A failure of this process.
    pub fn gateway(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: "server_error", blame: Blame::Gateway, retryable: false, ..Self::client(status, code, message) }
    }

    /// The body in `shape`.
    pub fn body_in(&self, shape: Shape) -> String {
        match shape {
            Shape::OpenAi => self.body(),
            Shape::Anthropic => {
                let kind =
                    if self.kind == "upstream_error" || self.kind == "server_error" { "api_error" } else { self.kind };
                serde_json::json!({"type": "error", "error": {"type": kind, "message": self.message}}).to_string()
            }
        }
    }

    /// `{"error":{"message","type","param","code"}}`, as OpenAI and vLLM write it; `code` is the HTTP status.
    pub fn body(&self) -> String {
        serde_json::json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status,
        }})
        .to_string()
    }
}

/// Why a request ended before its answer was complete.
#[derive(Debug)]
pub enum Halt {
    /// The client left: nobody is there to answer.
    Gone,
    /// Answered with an error.
    Fault(Fault),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}
