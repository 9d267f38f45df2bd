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
    /// `{"error":{"message"}}`, as SGLang's own routes write it.
    SgLang,
}

impl Shape {
    /// The shape that clients of `path` understand.
    pub fn of_path(path: &str) -> Self {
        let below = path.strip_prefix("/v1/messages");
        match below {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Anthropic,
            _ if path == "/generate" => Self::SgLang,
            _ => Self::OpenAi,
        }
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
                let error = serde_json::json!({"type": self.anthropic_kind(), "message": self.message});
                serde_json::json!({"type": "error", "error": error}).to_string()
            }
            Shape::SgLang => serde_json::json!({"error": {"message": self.message}}).to_string(),
        }
    }

    /// Anthropic's name for this kind of error, by which its clients choose what to do.
    fn anthropic_kind(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            504 => "timeout_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
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
