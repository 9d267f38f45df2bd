//! Routes and answers of a thin engine.

use super::ThinConfig;
use super::events::{self, Feed};
use super::knobs::{Knobs, Usage};
use crate::http::{LAST_CHUNK, Request, Response, event_stream_head};
use crate::metrics::{Metrics, Page, RankPage};
use crate::model::Load;
use bytes::Bytes;
use memchr::memmem;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant};

/// Tokens of an answer that is not streamed; its text is made in one piece.
const MOST_WHOLE_TOKENS: u64 = 4_096;
/// Options of a request fit into this.
const TAIL_BYTES: usize = 512;
/// `created` of every answer; nothing is created.
const CREATED: u64 = 1_700_000_000;

/// The shape of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Chat,
    Completion,
    /// SGLang's native route.
    Generate,
}

/// One thin engine.
pub(super) struct Thin {
    index: usize,
    config: ThinConfig,
    knobs: Arc<Knobs>,
    feed: Option<Arc<Feed>>,
}

impl Thin {
    pub(super) fn new(index: usize, config: ThinConfig, knobs: Arc<Knobs>, feed: Option<Arc<Feed>>) -> Self {
        Self { index, config, knobs, feed }
    }

    /// Answers `request`; `out` is scratch space that keeps its memory.
    pub(super) async fn answer(&self, stream: &mut TcpStream, request: &Request, out: &mut Vec<u8>) -> io::Result<()> {
        let shape = match (request.method(), request.path()) {
            ("POST", "/v1/chat/completions") => Shape::Chat,
            ("POST", "/v1/completions") => Shape::Completion,
            ("POST", "/generate") => Shape::Generate,
            _ => return self.other(request).await.write(stream).await,
        };
        self.knobs.requests[self.index].fetch_add(1, Ordering::Relaxed);
        if let Some(feed) = &self.feed {
            feed.offer(self.index, &request.body);
        }
        let body = &request.body;
        let names = ["\"max_tokens\"", "\"max_completion_tokens\"", "\"max_new_tokens\""];
        let asked = names.into_iter().find_map(|name| number_after(body, name.as_bytes()));
        let tokens = asked.unwrap_or_else(|| self.knobs.tokens.load(Ordering::Relaxed));
        if says_true(body, b"\"stream\"") {
            self.stream(stream, shape, tokens, body, out).await
        } else {
            self.whole(stream, shape, tokens, body, out).await
        }
    }

    async fn whole(
        &self,
        stream: &mut TcpStream,
        shape: Shape,
        tokens: u64,
        body: &Bytes,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let itl_us = self.knobs.itl_us.load(Ordering::Relaxed);
        let wait_us = self.knobs.ttft_us.load(Ordering::Relaxed) + itl_us * tokens.saturating_sub(1);
        if wait_us > 0 {
            tokio::time::sleep(Duration::from_micros(wait_us)).await;
        }
        let model = &self.config.model;
        let text = " tok".repeat(tokens.min(MOST_WHOLE_TOKENS) as usize);
        let usage = self.usage(body, tokens);
        let answer = match shape {
            Shape::Chat => format!(
                r#"{{"id":"chatcmpl-thin","object":"chat.completion","created":{CREATED},"model":"{model}","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"logprobs":null,"finish_reason":"stop"}}]{usage}}}"#
            ),
            Shape::Completion => format!(
                r#"{{"id":"cmpl-thin","object":"text_completion","created":{CREATED},"model":"{model}","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":"stop"}}]{usage}}}"#
            ),
            Shape::Generate => format!(
                r#"{{"text":"{text}","meta_info":{{"id":"thin","finish_reason":{{"type":"length","length":{tokens}}},"prompt_tokens":{prompt},"completion_tokens":{tokens},"cached_tokens":0,"e2e_latency":0.001}}}}"#,
                prompt = body.len() / 4
            ),
        };
        out.clear();
        write!(
            out,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        )?;
        stream.write_all(out).await
    }

    async fn stream(
        &self,
        stream: &mut TcpStream,
        shape: Shape,
        tokens: u64,
        body: &Bytes,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let (ttft_us, itl_us) = (self.knobs.ttft_us.load(Ordering::Relaxed), self.knobs.itl_us.load(Ordering::Relaxed));
        stream.write_all(&event_stream_head()).await?;
        let start = Instant::now();
        let mut event = Vec::with_capacity(256);
        for at in 0..tokens {
            let due_us = ttft_us + at * itl_us;
            if due_us > 0 {
                tokio::time::sleep_until(start + Duration::from_micros(due_us)).await;
            } else if at > 0 {
                tokio::task::yield_now().await;
            }
            event.clear();
            self.put_event(&mut event, shape, at, at + 1 == tokens)?;
            out.clear();
            write!(out, "{:x}\r\n", event.len())?;
            out.extend_from_slice(&event);
            out.extend_from_slice(b"\r\n");
            stream.write_all(out).await?;
        }
        out.clear();
        if shape != Shape::Generate && says_true(body, b"\"include_usage\"") && self.knobs.usage() != Usage::Omit {
            let (kind, model, usage) = (kind(shape), &self.config.model, self.usage(body, tokens));
            let event = format!(
                "data: {{\"id\":\"thin\",\"object\":\"{kind}\",\"created\":{CREATED},\"model\":\"{model}\",\"choices\":[]{usage}}}\n\n"
            );
            write!(out, "{:x}\r\n{event}\r\n", event.len())?;
        }
        out.extend_from_slice(b"e\r\ndata: [DONE]\n\n\r\n");
        out.extend_from_slice(LAST_CHUNK);
        stream.write_all(out).await
    }

    /// One event with its stamp, taken as late as possible.
    fn put_event(&self, event: &mut Vec<u8>, shape: Shape, at: u64, last: bool) -> io::Result<()> {
        let (model, finish) = (&self.config.model, if last { "\"stop\"" } else { "null" });
        let stamp = monotonic_ns();
        match shape {
            Shape::Chat => write!(
                event,
                "data: {{\"id\":\"chatcmpl-thin\",\"object\":\"chat.completion.chunk\",\"created\":{CREATED},\"model\":\"{model}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" ~T{stamp:020}\"}},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
            ),
            Shape::Completion => write!(
                event,
                "data: {{\"id\":\"cmpl-thin\",\"object\":\"text_completion\",\"created\":{CREATED},\"model\":\"{model}\",\"choices\":[{{\"index\":0,\"text\":\" ~T{stamp:020}\",\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
            ),
            Shape::Generate => write!(
                event,
                "data: {{\"text\":\" ~T{stamp:020}\",\"meta_info\":{{\"id\":\"thin\",\"finish_reason\":null,\"prompt_tokens\":8,\"completion_tokens\":{at},\"cached_tokens\":0}}}}\n\n"
            ),
        }
    }

    /// `,"usage":{…}` as the knob wants it, or nothing.
    fn usage(&self, body: &Bytes, tokens: u64) -> String {
        let prompt = match self.knobs.usage() {
            Usage::Omit => return String::new(),
            Usage::Bytes => body.len() / 4,
            // A body that cannot be tokenised has no exact count, and then none is told.
            Usage::Exact => match events::tokens(&self.config.codec, body) {
                Ok((ids, _)) => ids.len(),
                Err(_) => return String::new(),
            },
        };
        let total = prompt as u64 + tokens;
        format!(r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{tokens}}}"#)
    }

    async fn other(&self, request: &Request) -> Response {
        let ThinConfig { model, model_root: root, limits, .. } = &self.config;
        let page = match request.path() {
            "/health" | "/health_generate" | "/ping" | "/readiness" | "/liveness" => return Response::empty(200),
            "/v1/models" => json!({ "object": "list", "data": [{
                "id": model, "object": "model", "created": CREATED, "owned_by": "vllm", "root": root, "parent": null,
                "max_model_len": limits.max_model_tokens,
            }] }),
            "/get_model_info" | "/model_info" => json!({
                "model_path": root, "tokenizer_path": root, "is_generation": true, "preferred_sampling_params": null,
                "weight_version": "default",
            }),
            "/get_server_info" | "/server_info" => json!({
                "model_path": root, "tokenizer_path": root, "served_model_name": model, "model_id": model, "dp_size": 1,
                "tp_size": 1, "max_total_num_tokens": limits.blocks * limits.block_tokens, "version": "0.5.6",
                "internal_states": [{}],
            }),
            "/get_load" => {
                json!([{ "dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0 }])
            }
            "/load" => json!({ "server_load": 0 }),
            "/version" => json!({ "version": "0.32.0" }),
            "/kv_event_sources" => self.event_sources(),
            "/metrics" => return Response::new(200, "text/plain; version=1.0.0; charset=utf-8", self.metrics()),
            "/tokenize" | "/v1/chat/completions/render" | "/v1/completions/render" => return self.tokenize(request),
            "/_ctl" => return self.control(request),
            "/_ctl/store" => return self.store(request).await,
            _ => return Response::new(404, "application/json", r#"{"detail":"Not Found"}"#),
        };
        Response::json(page.to_string())
    }

    fn event_sources(&self) -> Value {
        let at = self.feed.as_ref().and_then(|feed| feed.endpoints().nth(self.index));
        let (Some((endpoint, replay)), Some(events)) = (at, &self.config.events) else { return json!({}) };
        json!({ "0": {
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay,
            "buffer_steps": events.buffer_batches, "hwm": 100_000, "max_queue_size": 100_000, "topic": events.topic,
        } })
    }

    /// A page that is true of an engine which is never busy.
    fn metrics(&self) -> String {
        let metrics = Metrics::default();
        let ranks = vec![RankPage { metrics: &metrics, load: Load::default(), limits: &self.config.limits }];
        Page { model: &self.config.model, started_unix_s: CREATED as f64, ranks }.render()
    }

    fn tokenize(&self, request: &Request) -> Response {
        self.knobs.tokenize_calls.fetch_add(1, Ordering::Relaxed);
        let tokens = match events::tokens(&self.config.codec, &request.body) {
            Ok((tokens, _)) => tokens,
            Err(why) => return refusal(400, &why),
        };
        let rendered = || {
            json!({
                "request_id": "thin", "model": self.config.model, "token_ids": tokens, "features": null,
                "sampling_params": { "max_tokens": 16 }, "stream": false, "stream_options": null, "cache_salt": null,
                "priority": 0, "kv_transfer_params": null,
            })
        };
        let page = match request.path() {
            "/v1/chat/completions/render" => rendered(),
            "/v1/completions/render" => json!([rendered()]),
            _ => json!({
                "count": tokens.len(), "max_model_len": self.config.limits.max_model_tokens, "tokens": tokens,
            }),
        };
        Response::json(page.to_string())
    }

    fn control(&self, request: &Request) -> Response {
        let query = request.query();
        if let Err(why) = self.knobs.apply(query) {
            return refusal(400, &why);
        }
        let switch = query.split('&').find_map(|pair| pair.strip_prefix("events="));
        if let (Some(feed), Some(on)) = (&self.feed, switch) {
            feed.switch(on != "0");
        }
        let requests: Vec<u64> = self.knobs.requests.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let tokenize = self.knobs.tokenize_calls.load(Ordering::Relaxed);
        let events = self.feed.as_ref().map(|feed| feed.state());
        Response::json(json!({ "reqs": requests, "tokenize": tokenize, "events": events }).to_string())
    }

    /// Puts a prompt into the cache that events tell of, and answers when its events are out.
    async fn store(&self, request: &Request) -> Response {
        let Some(feed) = &self.feed else { return refusal(400, "start with --kv-events to store anything") };
        match feed.store(self.index, &request.body).await {
            Ok(blocks) => Response::json(json!({ "blocks_stored": blocks }).to_string()),
            Err(why) => refusal(400, &why),
        }
    }
}

fn refusal(status: u16, why: &str) -> Response {
    let error = json!({ "message": why, "type": "BadRequestError", "param": null, "code": status });
    Response::new(status, "application/json", json!({ "error": error }).to_string())
}

fn kind(shape: Shape) -> &'static str {
    if shape == Shape::Completion { "text_completion" } else { "chat.completion.chunk" }
}

/// The unsigned number after `key` and its colon.
fn number_after(body: &[u8], key: &[u8]) -> Option<u64> {
    let after = value_after(body, key)?;
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&after[..digits]).ok()?.parse().ok()
}

/// Whether the value after `key` is `true`.
fn says_true(body: &[u8], key: &[u8]) -> bool {
    value_after(body, key).is_some_and(|after| after.starts_with(b"true"))
}

/// What follows `key`, quotes included, and its colon. A prompt cannot fake it: quotes inside a JSON string are escaped.
///
/// Options mostly stand after the messages, so the end is looked at first; searching backwards would be simpler, but
/// only the forward search is vectorised, and a long prompt would cost ten times as much.
fn value_after<'a>(body: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let search = |part: &'a [u8]| {
        let value =
            |at: usize| part[at + key.len()..].trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        memmem::find_iter(part, key).find_map(value)
    };
    let (front, tail) = body.split_at(body.len().saturating_sub(TAIL_BYTES));
    search(tail).or_else(|| if front.is_empty() { None } else { search(body) })
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
