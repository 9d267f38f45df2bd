//! A plain streaming client for chat and completions: one request in, one [`Outcome`] out, every way to end told apart.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of one event that may wait for its end; engines send far less.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// A request that has not ended by then counts as hung.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(180);

/// Sends requests to one base URL.
#[derive(Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    base: String,
}

/// How a streamed request ended, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Finish reason and `[DONE]`.
    Complete,
    /// Nothing of the answer came: an HTTP error, a refused or a closed connection. A caller that retries loses nothing,
    /// a caller that does not has lost the request.
    BeforeCommit(String),
    /// Part of the answer, then an error event and an orderly end.
    ErrorEvent(String),
    /// Part of the answer, then nothing: the one way that a gateway must never end.
    Silent(String),
}

/// What one request gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// `x-request-id` of the answer.
    pub request_id: String,
    /// The answer's text.
    pub text: String,
    /// Prompt tokens by the engine's count.
    pub prompt_tokens: u32,
    /// Of which served from its cache.
    pub cached_tokens: Option<u32>,
    /// Generated tokens by its count.
    pub completion_tokens: u32,
    /// Time to the first piece of the answer, ms.
    pub ttft_ms: Option<f64>,
    /// Gaps between pieces, ms.
    pub gaps_ms: Vec<f64>,
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Its media type.
    pub content_type: String,
    /// Its body.
    pub text: String,
}

impl Client {
    /// A client of `base`, `http://host:port`.
    pub fn new(base: impl Into<String>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { pool: Pool::builder(TokioExecutor::new()).build(connector), base: base.into() }
    }

    /// Base URL.
    pub fn base(&self) -> String {
        self.base.clone()
    }

    /// GET `path` as JSON; the error says what went wrong.
    pub async fn read_json(&self, path: &str) -> Result<Value, String> {
        let request = Request::get(format!("{}{path}", self.base)).body(Full::default()).map_err(|e| e.to_string())?;
        self.exchange_json(request).await
    }

    /// POST `body` to `path` and read the answer as JSON.
    pub async fn post_json(&self, path: &str, body: &Value) -> Result<Value, String> {
        let request = Request::post(format!("{}{path}", self.base))
            .header("content-type", "application/json")
            .body(Full::from(body.to_string()))
            .map_err(|e| e.to_string())?;
        self.exchange_json(request).await
    }

    /// DELETE `path` and read the answer as JSON.
    pub async fn delete_json(&self, path: &str) -> Result<Value, String> {
        let request =
            Request::delete(format!("{}{path}", self.base)).body(Full::default()).map_err(|e| e.to_string())?;
        self.exchange_json(request).await
    }

    async fn exchange_json(&self, request: Request<Full<Bytes>>) -> Result<Value, String> {
        let target = request.uri().to_string();
        let exchange = async {
            let response = self.pool.request(request).await.map_err(|e| format!("{target}: {}", chain(&e)))?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|e| format!("{target}: {}", chain(&e)))?.to_bytes();
            let text = String::from_utf8_lossy(&body);
            if !status.is_success() {
                return Err(format!("{target}: {status}: {text}"));
            }
            serde_json::from_str(if text.is_empty() { "null" } else { &text })
                .map_err(|e| format!("{target}: {e}: {text}"))
        };
        tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(|_| Err("timed out".to_owned()))
    }

    /// POST `body` to `path` under a request id of its own; whatever comes back.
    pub async fn post_text(&self, path: &str, request_id: &str, body: String) -> Result<Reply, String> {
        let request = Request::post(format!("{}{path}", self.base))
            .header("content-type", "application/json")
            .header("x-request-id", request_id)
            .body(Full::from(body))
            .map_err(|e| e.to_string())?;
        let exchange = async {
            let response = self.pool.request(request).await.map_err(|e| chain(&e))?;
            let status = response.status().as_u16();
            let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
            let content_type = content_type.unwrap_or_default().to_owned();
            let body = response.into_body().collect().await.map_err(|e| chain(&e))?.to_bytes();
            Ok(Reply { status, content_type, text: String::from_utf8_lossy(&body).into_owned() })
        };
        tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(|_| Err("timed out".to_owned()))
    }

    /// GET `path` as text.
    pub async fn read_text(&self, path: &str) -> Result<String, String> {
        let request = Request::get(format!("{}{path}", self.base)).body(Full::default()).map_err(|e| e.to_string())?;
        let response = self.pool.request(request).await.map_err(|e| chain(&e))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|e| chain(&e))?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() { Ok(text) } else { Err(format!("{status}: {text}")) }
    }

    /// Streams a chat completion; `body` must say `"stream": true`.
    pub async fn stream_chat(&self, body: &Value) -> Outcome {
        self.stream("/v1/chat/completions", body).await
    }

    /// Streams a completion; `body` must say `"stream": true`.
    pub async fn stream_completion(&self, body: &Value) -> Outcome {
        self.stream("/v1/completions", body).await
    }

    async fn stream(&self, path: &str, body: &Value) -> Outcome {
        let mut reading = Reading::new();
        let end = match tokio::time::timeout(REQUEST_TIMEOUT, self.read_stream(path, body, &mut reading)).await {
            Ok(end) => end,
            Err(_) => reading.broken("no end within the time limit".to_owned()),
        };
        reading.outcome.end = end;
        reading.outcome
    }

    async fn read_stream(&self, path: &str, body: &Value, reading: &mut Reading) -> End {
        let request = Request::post(format!("{}{path}", self.base))
            .header("content-type", "application/json")
            .body(Full::from(body.to_string()));
        let response = match request {
            Ok(request) => self.pool.request(request).await,
            Err(error) => return End::BeforeCommit(error.to_string()),
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => return End::BeforeCommit(chain(&error)),
        };
        if let Some(id) = response.headers().get("x-request-id").and_then(|id| id.to_str().ok()) {
            id.clone_into(&mut reading.outcome.request_id);
        }
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let text = body.collect().await.map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned());
            return End::BeforeCommit(format!("{status}: {}", text.unwrap_or_default()));
        }
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => {
                    if let Some(data) = frame.data_ref()
                        && let Err(problem) = reading.take(data)
                    {
                        return reading.broken(problem);
                    }
                }
                Err(error) => return reading.broken(chain(&error)),
            }
        }
        reading.end()
    }
}

/// A stream being read.
struct Reading {
    outcome: Outcome,
    started: Instant,
    last_piece: Option<Instant>,
    pending: Vec<u8>,
    finished: bool,
    done: bool,
    error: Option<String>,
}

impl Reading {
    fn new() -> Self {
        let outcome = Outcome {
            end: End::BeforeCommit(String::new()),
            request_id: String::new(),
            text: String::new(),
            prompt_tokens: 0,
            cached_tokens: None,
            completion_tokens: 0,
            ttft_ms: None,
            gaps_ms: Vec::new(),
        };
        Self {
            outcome,
            started: Instant::now(),
            last_piece: None,
            pending: Vec::new(),
            finished: false,
            done: false,
            error: None,
        }
    }

    fn take(&mut self, data: &[u8]) -> Result<(), String> {
        self.pending.extend_from_slice(data);
        while let Some(end) = memchr::memmem::find(&self.pending, b"\n\n") {
            let event: Vec<u8> = self.pending.drain(..end + 2).collect();
            let event = std::str::from_utf8(&event).map_err(|_| "an event is not UTF-8".to_owned())?.trim();
            if let Some(data) = event.strip_prefix("data:") {
                self.event(data.trim())?;
            }
        }
        if self.pending.len() > MAX_EVENT_BYTES { Err("an event never ended".to_owned()) } else { Ok(()) }
    }

    fn event(&mut self, data: &str) -> Result<(), String> {
        if data == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Value = serde_json::from_str(data).map_err(|e| format!("an event is not JSON ({e}): {data}"))?;
        if let Some(error) = event.get("error") {
            self.error = Some(error.to_string());
            return Ok(());
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            let count = |value: &Value| value.as_u64().map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
            self.outcome.prompt_tokens = count(&usage["prompt_tokens"]);
            self.outcome.completion_tokens = count(&usage["completion_tokens"]);
            let cached = &usage["prompt_tokens_details"]["cached_tokens"];
            self.outcome.cached_tokens = cached.is_u64().then(|| count(cached));
        }
        let choice = &event["choices"][0];
        let piece = choice["delta"]["content"].as_str().or_else(|| choice["text"].as_str());
        if let Some(piece) = piece.filter(|piece| !piece.is_empty()) {
            self.piece(piece);
        }
        self.finished |= choice["finish_reason"].is_string();
        Ok(())
    }

    fn piece(&mut self, text: &str) {
        let now = Instant::now();
        let ms = |since: Instant| now.duration_since(since).as_secs_f64() * 1e3;
        match self.last_piece {
            Some(last) => self.outcome.gaps_ms.push(ms(last)),
            None => self.outcome.ttft_ms = Some(ms(self.started)),
        }
        self.last_piece = Some(now);
        self.outcome.text.push_str(text);
    }

    /// The transport ended in order.
    fn end(&self) -> End {
        match &self.error {
            Some(error) if self.last_piece.is_some() => End::ErrorEvent(error.clone()),
            Some(error) => End::BeforeCommit(error.clone()),
            None if self.finished && self.done => End::Complete,
            None => self.broken("the stream ended without a finish reason and [DONE]".to_owned()),
        }
    }

    /// The transport or the format broke.
    fn broken(&self, problem: String) -> End {
        if self.last_piece.is_some() { End::Silent(problem) } else { End::BeforeCommit(problem) }
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
