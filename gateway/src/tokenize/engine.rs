//! An engine's `/tokenize`: the source of ids where there is no local tokenizer, and the judge of those there are.

use super::TextReason;
use super::connect::Connector;
use crate::doors::Towards;
use crate::parse::{Dialect, Parsed, Scanner};
use crate::tasks::TaskGroup;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use std::future::Future;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// Questions on their way at once: each holds a prompt, and engines tokenise on few threads.
const MAX_IN_FLIGHT: usize = 64;

/// A million ids of six digits and a comma, twice over.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Idle connections are closed before the engines' five seconds are over.
const IDLE: Duration = Duration::from_secs(4);

/// Why an engine gave no ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EngineError {
    /// Too many questions on their way, or no answer before the deadline.
    #[error("no answer in time")]
    Late,
    /// `/tokenize` takes no such request, though the chat endpoint may.
    #[error("its /tokenize does not take {0}")]
    Unsupported(&'static str),
    /// It refused, failed or answered something else.
    #[error("{0}")]
    Failed(String),
}

impl EngineError {
    /// Why the request is routed by text then.
    pub(crate) fn reason(&self) -> TextReason {
        match self {
            Self::Late => TextReason::Late,
            Self::Unsupported(_) => TextReason::Unsupported,
            Self::Failed(_) => TextReason::Failed,
        }
    }
}

/// Runs the client's connections as tasks that end with it.
#[derive(Clone)]
struct Connections(TaskGroup);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Connections {
    fn execute(&self, connection: F) {
        self.0.spawn("tokenize connection", connection);
    }
}

/// Asks engines.
pub(crate) struct EngineClient {
    client: Client<Connector, Full<Bytes>>,
    connector: Connector,
    permits: Semaphore,
    connections: TaskGroup,
}

impl Drop for EngineClient {
    fn drop(&mut self) {
        self.connections.cancel();
    }
}

impl EngineClient {
    /// A client without connections.
    pub(crate) fn new() -> Self {
        let connections = TaskGroup::new();
        let connector = Connector::new();
        let client = Client::builder(Connections(connections.clone()))
            .pool_idle_timeout(IDLE)
            .pool_timer(hyper_util::rt::TokioTimer::new())
            .pool_max_idle_per_host(4)
            .build(connector.clone());
        Self { client, connector, permits: Semaphore::new(MAX_IN_FLIGHT), connections }
    }

    /// How TLS is spoken with the engine at `base_url`.
    pub(crate) fn secure(&self, base_url: &str, towards: Towards) {
        self.connector.secure(base_url, towards);
    }

    /// The ids that the engine at `base_url` makes of `parsed`.
    pub(crate) async fn tokenize(
        &self,
        base_url: &str,
        parsed: &Parsed,
        deadline: Instant,
    ) -> Result<Vec<u32>, EngineError> {
        let question = question(parsed)?;
        let Ok(_permit) = self.permits.try_acquire() else { return Err(EngineError::Late) };
        timeout_at(deadline, self.ask(base_url, question)).await.unwrap_or(Err(EngineError::Late))
    }

    async fn ask(&self, base_url: &str, question: Bytes) -> Result<Vec<u32>, EngineError> {
        let failed = |what: String| EngineError::Failed(format!("{base_url}/tokenize: {what}"));
        let request = Request::post(format!("{}/tokenize", base_url.trim_end_matches('/')))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(question))
            .map_err(|e| failed(e.to_string()))?;
        let response = self.client.request(request).await.map_err(|e| failed(e.to_string()))?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let answer = answer.map_err(|e| failed(e.to_string()))?.to_bytes();
        if status != StatusCode::OK {
            return Err(failed(format!("status {status}")));
        }
        read_tokens(&answer).ok_or_else(|| failed("the answer holds no token ids".to_owned()))
    }
}

/// Value of `tokens` in the answer.
fn read_tokens(answer: &[u8]) -> Option<Vec<u32>> {
    let mut scanner = Scanner::new(answer, 0, 0);
    scanner.skip_space();
    scanner.expect(b'{', "").ok()?;
    scanner.skip_space();
    while scanner.peek()? != b'}' {
        let key = scanner.key().ok()?;
        let value = scanner.value().ok()?;
        if &answer[key.inner] == b"tokens" {
            return serde_json::from_slice(&answer[value]).ok();
        }
        scanner.skip_space();
        scanner.take(b',');
        scanner.skip_space();
    }
    None
}

/// The client's own JSON, as far as `/tokenize` takes it.
fn question(parsed: &Parsed) -> Result<Bytes, EngineError> {
    const UNKNOWN: [&str; 8] = [
        "reasoning_effort",
        "documents",
        "truncate_prompt_tokens",
        "prompt_embeds",
        "input_embeds",
        "input_ids",
        "image_data",
        "audio_data",
    ];
    for unknown in UNKNOWN {
        if parsed.template_span(unknown).is_some() {
            return Err(EngineError::Unsupported(unknown));
        }
    }
    let prompt = &parsed.body[parsed.prompt.clone()];
    let (name, fields): (_, &[&str]) = match parsed.dialect {
        Dialect::Completions | Dialect::Generate | Dialect::Embeddings | Dialect::Pooling => {
            if prompt.first() != Some(&b'"') {
                return Err(EngineError::Unsupported("prompt lists"));
            }
            ("prompt", &["add_special_tokens"])
        }
        // The chat endpoint renames this field, `/tokenize` ignores it.
        Dialect::Chat if memchr::memmem::find(prompt, b"\"reasoning_content\"").is_some() => {
            return Err(EngineError::Unsupported("reasoning_content"));
        }
        Dialect::Chat => (
            "messages",
            &[
                "add_special_tokens",
                "chat_template",
                "chat_template_kwargs",
                "add_generation_prompt",
                "continue_final_message",
            ],
        ),
        _ => return Err(EngineError::Unsupported("this dialect")),
    };
    let mut question = Vec::with_capacity(prompt.len() + 256);
    question.extend_from_slice(b"{\"model\":");
    question.extend_from_slice(serde_json::Value::from(parsed.model.as_str()).to_string().as_bytes());
    let mut push = |name: &str, value: &[u8]| {
        question.extend_from_slice(b",\"");
        question.extend_from_slice(name.as_bytes());
        question.extend_from_slice(b"\":");
        question.extend_from_slice(value);
    };
    push(name, prompt);
    if let Some(tools) = &parsed.tools {
        push("tools", &parsed.body[tools.clone()]);
    }
    for field in fields {
        if let Some(value) = parsed.template_field(field) {
            push(field, value);
        }
    }
    question.push(b'}');
    Ok(question.into())
}
