//! Errors in the shape of the route, vLLM's byte for byte where a real one was recorded.

use super::route::Shape;
use crate::http::{Response, reason_phrase};
use crate::text::{BadMessage, TextError};

/// An error answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApiError {
    status: u16,
    kind: String,
    message: String,
    param: Option<String>,
}

impl ApiError {
    fn new(status: u16, kind: &str, message: impl Into<String>, param: Option<&str>) -> Self {
        Self { status, kind: kind.to_owned(), message: message.into(), param: param.map(str::to_owned) }
    }

    pub(super) fn bad_request(message: impl Into<String>, param: Option<&str>) -> Self {
        Self::new(400, "BadRequestError", message, param)
    }

    pub(super) fn unknown_model(model: &str, served: &[&str]) -> Self {
        let message = format!("The model `{model}` does not exist. Valid aliases: {}.", served.join(", "));
        Self::new(404, "NotFoundError", message, Some("model"))
    }

    pub(super) fn busy() -> Self {
        let message = "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                       different instance.";
        Self::new(503, "Service Unavailable", message, None)
    }

    /// More output asked for than the context has.
    pub(super) fn too_many_output_tokens(asked: usize, context: usize, param: &str) -> Self {
        let message = format!(
            "{param}={asked} cannot be greater than max_model_len={context}. Please request fewer output tokens. \
             (parameter={param}, value={asked})"
        );
        Self::bad_request(message, Some(param))
    }

    /// Prompt and output together exceed the context.
    pub(super) fn too_long(prompt: usize, output: usize, context: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, you requested {output} output tokens \
             and your prompt contains {prompt} input tokens, for a total of {} tokens. Please reduce the length of the \
             input prompt or the number of requested output tokens. (parameter=input_tokens, value={prompt})",
            prompt + output
        );
        Self::bad_request(message, Some("input_tokens"))
    }

    /// A body that is not JSON.
    pub(super) fn not_json(why: &serde_json::Error) -> Self {
        Self::new(400, "Bad Request", format!("[{{'type': 'json_invalid', 'msg': 'JSON decode error: {why}'}}]"), None)
    }

    /// What HTTP itself forbids.
    pub(super) fn http(status: u16) -> Self {
        Self::new(status, reason_phrase(status), reason_phrase(status), None)
    }

    /// A fault that was asked for.
    pub(super) fn injected(status: u16) -> Self {
        Self::new(status, reason_phrase(status), "injected fault", None)
    }

    pub(super) fn response_in(&self, shape: Shape) -> Response {
        if matches!(self.status, 404 | 405) && self.kind != "NotFoundError" && self.message != "injected fault" {
            // Routes that do not exist are answered by the web framework.
            let body = serde_json::json!({ "detail": self.message });
            return Response::new(self.status, "application/json", body.to_string());
        }
        let (message, kind) = (&self.message, &self.kind);
        let body = match shape {
            Shape::Nested => serde_json::json!({ "error": {
                "message": message, "type": kind, "param": self.param, "code": self.status,
            }}),
            Shape::Flat => serde_json::json!({
                "object": "error", "message": message, "type": kind, "param": self.param, "code": self.status,
            }),
            Shape::Anthropic => serde_json::json!({ "type": "error", "error": { "type": kind, "message": message } }),
            Shape::Bare => serde_json::json!({ "error": { "message": message } }),
        };
        Response::new(self.status, "application/json", body.to_string())
    }
}

impl From<BadMessage> for ApiError {
    fn from(bad: BadMessage) -> Self {
        Self::bad_request(bad.to_string(), Some(&bad.param))
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        match &error {
            TextError::Encoder(_) => Self::new(500, "InternalServerError", error.to_string(), None),
            _ => Self::bad_request(error.to_string(), None),
        }
    }
}
