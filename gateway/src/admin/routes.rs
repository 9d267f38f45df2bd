//! Which handler answers; what every request is checked for first.

use super::reply::{self, Answer};
use super::server::Entrance;
use super::{Console, explain, rivals, status, workers};
use crate::doors::Role;
use crate::doors::keys::presented;
use crate::error::Fault;
use crate::observe::SCRAPE_TYPE;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::json;
use std::sync::Arc;
use tokio::time::{Duration, timeout};

/// Bytes of a body that changes workers.
const MAX_WORKER_BODY: usize = 64 << 10;

/// Bytes of a body to explain: a million tokens of text.
const MAX_EXPLAIN_BODY: usize = 8 << 20;

/// For a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Paths and the methods they take.
const PATHS: [(&str, &[Method], &str); 13] = [
    ("/metrics", &[Method::GET], "GET"),
    ("/workers", &[Method::GET, Method::POST, Method::DELETE], "GET, POST, DELETE"),
    ("/status", &[Method::GET], "GET"),
    ("/explain", &[Method::POST], "POST"),
    ("/healthz", &[Method::GET], "GET"),
    ("/readyz", &[Method::GET], "GET"),
    // As other routers call them, see `rivals`.
    ("/add_worker", &[Method::POST], "POST"),
    ("/remove_worker", &[Method::POST], "POST"),
    ("/list_workers", &[Method::GET], "GET"),
    ("/get_loads", &[Method::GET], "GET"),
    ("/flush_cache", &[Method::POST], "POST"),
    ("/liveness", &[Method::GET], "GET"),
    ("/readiness", &[Method::GET], "GET"),
];

pub(super) async fn answer(console: &Arc<Console>, entrance: Entrance, request: Request<Incoming>) -> Answer {
    if let Err(fault) = admit(console, entrance, &request) {
        return reply::fault(&fault);
    }
    let path = request.uri().path().to_owned();
    if let (&Method::DELETE, Some(name)) = (request.method(), path.strip_prefix("/workers/")) {
        return rivals::remove_named(console, name).unwrap_or_else(|fault| reply::fault(&fault));
    }
    let Some((_, methods, allow)) = PATHS.iter().find(|(known, ..)| *known == path) else {
        let known: Vec<&str> = PATHS.iter().map(|(known, ..)| *known).collect();
        let message = format!("{path} is not here; there are {}", known.join(", "));
        return reply::fault(&Fault::client(404, "not_found", message));
    };
    if !methods.contains(request.method()) {
        let message = format!("{} {path} is not served; use {allow}", request.method());
        let mut answer = reply::fault(&Fault::client(405, "method_not_allowed", message));
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
        return answer;
    }
    match dispatch(console, &path, request).await {
        Ok(answer) => answer,
        Err(fault) => reply::fault(&fault),
    }
}

async fn dispatch(console: &Arc<Console>, path: &str, request: Request<Incoming>) -> Result<Answer, Fault> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    match (path, parts.method) {
        ("/metrics", _) => metrics(console),
        ("/status", _) => Ok(reply::json(StatusCode::OK, &status::read(console).await)),
        ("/add_worker", _) => rivals::add(console, &query).await,
        ("/remove_worker", _) => rivals::remove(console, &query),
        ("/list_workers", _) => Ok(rivals::list(console).await),
        ("/get_loads", _) => Ok(rivals::loads(console).await),
        ("/flush_cache", _) => Ok(rivals::flush(console).await),
        ("/healthz" | "/liveness", _) => Ok(reply::json(StatusCode::OK, &json!({"status": "ok"}))),
        ("/readyz" | "/readiness", _) => Ok(ready(console)),
        ("/explain", _) => explain::answer(console, &query, read(body, MAX_EXPLAIN_BODY).await?).await,
        (_, Method::POST) => workers::add(console, &query, &read(body, MAX_WORKER_BODY).await?).await,
        (_, Method::DELETE) => workers::remove(console, &query, &read(body, MAX_WORKER_BODY).await?),
        _ => Ok(reply::json(StatusCode::OK, &workers::list(console).await)),
    }
}

fn metrics(console: &Console) -> Result<Answer, Fault> {
    match console.gateway.observer.scrape() {
        Ok(page) => Ok(reply::with_type(StatusCode::OK, SCRAPE_TYPE, page)),
        Err(error) => Err(Fault::gateway(500, "scrape_failed", format!("the metrics cannot be written: {error}"))),
    }
}

fn ready(console: &Console) -> Answer {
    let (status, why) = match (console.is_draining(), console.has_ready_worker()) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "no worker takes traffic"),
        (false, true) => (StatusCode::OK, "ready"),
    };
    reply::json(status, &json!({"ready": status == StatusCode::OK, "why": why}))
}

/// Whether this request may be made at all.
fn admit<B>(console: &Console, entrance: Entrance, request: &Request<B>) -> Result<(), Fault> {
    let path = request.uri().path();
    let is_probe = matches!(path, "/healthz" | "/readyz" | "/liveness" | "/readiness");
    let needs_key = match entrance {
        Entrance::Socket => false,
        Entrance::Loopback => path == "/explain",
        Entrance::Network => !is_probe,
    };
    if entrance == Entrance::Loopback {
        refuse_browsers(request)?;
    }
    if needs_key {
        let field = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
        console.gateway.doors.admit(presented(field("authorization"), field("x-api-key")), Role::Operate)?;
    }
    Ok(())
}

/// A page of any origin may send simple requests to a loopback port, and a name that its owner points at 127.0.0.1 makes
/// that port its own origin. Browsers add `Origin` or `Sec-Fetch-Site` to the first and the name as `Host` to the second.
fn refuse_browsers<B>(request: &Request<B>) -> Result<(), Fault> {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        return Err(Fault::client(403, "browser_refused", "this listener is not for web pages; use curl or a scraper"));
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_local = name.eq_ignore_ascii_case("localhost") || bare.parse::<std::net::IpAddr>().is_ok();
    if is_local || name.is_empty() {
        return Ok(());
    }
    Err(Fault::client(421, "wrong_host", "this listener answers to localhost and to addresses, not to names"))
}

async fn read(body: Incoming, limit: usize) -> Result<Bytes, Fault> {
    match timeout(BODY_TIMEOUT, Limited::new(body, limit).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("the body has more than {limit} bytes");
            Err(Fault::client(413, "body_too_large", message))
        }
        Ok(Err(error)) => Err(Fault::client(400, "body_broken", format!("the body cannot be read: {error}"))),
        Err(_) => {
            let message = format!("the body did not come within {} s", BODY_TIMEOUT.as_secs());
            Err(Fault::client(408, "body_timeout", message))
        }
    }
}

/// The value of `name` in a query, unescaped.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| unescape(value))
}

/// `%3A` → `:`; what is no escape stays.
pub(super) fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = (*first == b'%').then(|| tail.get(..2)).flatten();
        let byte = escape.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
