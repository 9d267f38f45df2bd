//! Answers of the admin listener.

use crate::error::Fault;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

pub(super) type Answer = Response<Full<Bytes>>;

/// `value` as JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(mut body) => {
            body.push(b'\n');
            with_type(status, "application/json", body)
        }
        Err(error) => fault(&Fault::gateway(500, "not_json", format!("the answer cannot be written as JSON: {error}"))),
    }
}

/// A fault in OpenAI's shape.
pub(super) fn fault(fault: &Fault) -> Answer {
    let status = StatusCode::from_u16(fault.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    with_type(status, "application/json", fault.body().into_bytes())
}

pub(super) fn with_type(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
