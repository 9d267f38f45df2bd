//! tokenize: a parsed request → the token ids that the engine will see.
//!
//! ```text
//! messages ── normalise ──► template (or its learned concatenation) ──► text ──► pieces ──► remembered or encoded ──► ids
//! ```
//!
//! The measure is the *engine*: its message normalisation ([`messages`]), its Jinja ([`template`]), its tokenizer
//! ([`encoder`]). Each model has a source of ids: `local` (this module), `engine` (its `/tokenize`) or `text` (none).
//! Ids are compared with the engine's; when they drift apart the model steps down from `local` to `engine` to `text`,
//! counted and visible, until a parity check finds them equal again.
//!
//! Invariants:
//! - a shape whose rendering is not proven gives text, never wrong ids;
//! - shortcuts (fast encoder, cuts and memo, learned templates) are proven at start against the slow way or not taken;
//! - a caller gets its answer by its deadline: short prompts are encoded where they stand, long ones in a bounded pool;
//! - a missing or broken tokenizer degrades its model, not the gateway.

mod anthropic;
mod arguments;
mod connect;
mod content;
mod cuts;
mod encoder;
mod engine;
mod json;
mod learned;
mod memo;
mod messages;
mod metrics;
mod model;
mod parity;
mod pool;
mod python;
mod request;
mod responses;
mod sources;
mod template;
#[cfg(test)]
mod tests;

pub use parity::{Difference, ParityReport};
pub use sources::{ModelStatus, Shape, Source};

use crate::config::resolved;
use crate::doors::Towards;
use crate::error::Fault;
use crate::parse::Parsed;
use encoder::{EncodeError, Encoder, Plan};
use engine::{EngineClient, EngineError};
use memo::Memo;
use metrics::Metrics;
use model::Local;
use pool::{Pool, Refused};
use request::NoPrompt;
use sources::{Entry, Sources};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::time::Instant;

/// Models with a source of their own; requests for more are routed by text.
pub const MAX_MODELS: usize = 256;

/// Unremembered text up to here is encoded on the caller's thread: some 60 µs, about what a hop to the pool costs.
const INLINE_BYTES: usize = 8 << 10;

/// Prompts above are rendered in the pool too: some 100 µs.
const INLINE_RENDER_BYTES: usize = 128 << 10;

/// One probe chat's question to an engine.
const PARITY_TIMEOUT: Duration = Duration::from_secs(10);

/// What came out.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Equal to the engine's ids as far as parity has been proven.
    Tokens(Arc<[u32]>),
    /// No ids: route by text. The reason is a metric label.
    Text(TextReason),
}

/// Renders a chat request's body with `template` as a model's only one: first as it is done for requests, which may go by what was
/// learned of the template, then by the template itself. Both must be equal. `None` where the template does not compile, or the body
/// is no chat. For whoever looks for templates and chats that break this.
pub fn render_both_ways(template: &str, body: bytes::Bytes) -> Option<[Option<String>; 2]> {
    let sources = std::collections::BTreeMap::from([("default".to_owned(), template.to_owned())]);
    let chat = model::Chat::new(sources, Vec::new()).ok()?;
    let parsed = crate::parse::parse(crate::parse::Dialect::Chat, body).ok()?;
    let text = std::str::from_utf8(&parsed.body).ok()?;
    let quick = request::chat_text(&chat, &parsed, text).ok();
    chat.forget_learned();
    Some([quick, request::chat_text(&chat, &parsed, text).ok()])
}

/// Why a request is routed by text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextReason {
    /// No tokenizer configured and none at the engine.
    NoTokenizer,
    /// The pool was too busy or the deadline passed.
    Late,
    /// Images, audio or video: what the engine puts in their place is its own.
    Media,
    /// A shape whose rendering is not proven (a custom template, …).
    Unsupported,
    /// Template or encoder failed.
    Failed,
    /// Parity with the engine was lost.
    Drift,
}

/// Token sources of every configured model. One per gateway; shared by reference.
pub struct Tokenizers {
    sources: Sources,
    memo: Arc<Memo>,
    pool: Pool,
    client: EngineClient,
    metrics: Arc<Metrics>,
    parity_sample: f64,
}

impl Tokenizers {
    /// Loads the tokenizers of all `models` (about a second each) and starts the pool. What cannot be loaded is
    /// reported by [`Self::status`] and degrades that model only.
    ///
    /// # Errors
    /// A metric name is taken in `registry`, or the system gives no thread.
    pub fn new(
        settings: &resolved::Tokenize,
        models: &[resolved::Model],
        registry: &prometheus::Registry,
    ) -> Result<Self, Fault> {
        let failed = |error: String| Fault::gateway(500, "tokenize_start", format!("cannot start tokenizing: {error}"));
        let metrics = Arc::new(Metrics::register(registry).map_err(|e| failed(e.to_string()))?);
        let cores = available_parallelism().map_or(1, usize::from);
        let threads = settings.threads.unwrap_or(cores / 2).max(1);
        let pool = Pool::start(threads, settings.max_queue, Arc::clone(&metrics)).map_err(|e| failed(e.to_string()))?;
        let tokenizers = Self {
            sources: Sources::new(Arc::clone(&metrics)),
            memo: Arc::new(Memo::new(settings.memo_bytes)),
            pool,
            client: EngineClient::new(),
            metrics,
            parity_sample: settings.parity_sample,
        };
        tokenizers.reload(models);
        Ok(tokenizers)
    }

    /// Takes over a new configuration; tokenizers whose files are named as before are kept. Blocks while it loads.
    pub fn reload(&self, models: &[resolved::Model]) {
        self.sources.reload(models);
    }

    /// How TLS is spoken with the engine at `base_url`.
    pub fn secure_engine(&self, base_url: &str, towards: Towards) {
        self.client.secure(base_url, towards);
    }

    /// The engines that serve `model`, to be asked when it has no local tokenizer.
    pub fn set_engines(&self, model: &str, base_urls: Vec<String>) {
        self.sources.set_engines(model, base_urls);
    }

    /// Every model: source, encoder, what is wrong with it.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.sources.status()
    }

    /// Identity of a model's `tokenizer.json`, where it is local.
    pub fn digest(&self, model: &str) -> Option<[u8; 16]> {
        Some(self.sources.find(model)?.local()?.digest)
    }

    /// Whose tokenizer serves `name`, an alias or adapter of `base`: its own where it has one.
    pub fn owner<'a>(&self, name: &'a str, base: &'a str) -> &'a str {
        if name == base || self.sources.find(name).is_some() { name } else { base }
    }

    /// Ids of `parsed` by the tokenizer of `owner` ([`Self::owner`]) before `deadline`, else text.
    ///
    /// # Errors
    /// None at present: whatever goes wrong here, the request can be routed by text.
    pub async fn encode(&self, owner: &str, parsed: &Parsed, deadline: Instant) -> Result<Outcome, Fault> {
        let outcome = self.outcome(owner, parsed, deadline).await;
        self.metrics.count(&outcome);
        Ok(outcome)
    }

    async fn outcome(&self, owner: &str, parsed: &Parsed, deadline: Instant) -> Outcome {
        if let Some(ids) = request::given_ids(parsed) {
            return Outcome::Tokens(ids.into());
        }
        let Some(entry) = self.sources.find(owner) else {
            return Outcome::Text(TextReason::NoTokenizer);
        };
        let ids = match (entry.source(), entry.local()) {
            (Source::Local, Some(local)) => self.encode_local(local, parsed, deadline).await,
            (Source::Text, _) => Err(entry.text_reason()),
            _ => self.encode_at_engine(&entry, parsed, deadline).await,
        };
        match ids {
            Ok(ids) => Outcome::Tokens(ids.into()),
            Err(TextReason::Unsupported) if parsed.holds_media() => Outcome::Text(TextReason::Media),
            Err(reason) => Outcome::Text(reason),
        }
    }

    async fn encode_local(
        &self,
        local: &Arc<Local>,
        parsed: &Parsed,
        deadline: Instant,
    ) -> Result<Vec<u32>, TextReason> {
        let job = Job { local: Arc::clone(local), memo: Arc::clone(&self.memo), metrics: Arc::clone(&self.metrics) };
        if parsed.prompt.len() > INLINE_RENDER_BYTES {
            let parsed = parsed.clone();
            return self.pooled(deadline, move || job.all(&parsed)).await;
        }
        let (text, plan) = job.start(parsed)?;
        if plan.missing_bytes <= INLINE_BYTES {
            return job.finish(&text, plan);
        }
        self.pooled(deadline, move || job.finish(&text, plan)).await
    }

    async fn pooled(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<Vec<u32>, TextReason> + Send + 'static,
    ) -> Result<Vec<u32>, TextReason> {
        match self.pool.run(deadline, work).await {
            Ok(result) => result,
            Err(Refused::Full | Refused::Late) => Err(TextReason::Late),
            Err(Refused::Lost) => Err(TextReason::Failed),
        }
    }

    async fn encode_at_engine(
        &self,
        entry: &Entry,
        parsed: &Parsed,
        deadline: Instant,
    ) -> Result<Vec<u32>, TextReason> {
        let Some(base_url) = entry.any_engine() else { return Err(TextReason::NoTokenizer) };
        self.client.tokenize(&base_url, parsed, deadline).await.map_err(|error| {
            tracing::debug!(model = entry.name(), %error, "the engine gave no token ids");
            error.reason()
        })
    }

    /// Compares our ids of the committed probe chats with those of the engine at `base_url`. Equal ids make `local` the
    /// model's source again; different ones step it down.
    ///
    /// # Errors
    /// The model has no local tokenizer, or the engine did not answer.
    pub async fn check_parity(&self, model: &str, base_url: &str) -> Result<ParityReport, Fault> {
        let failed = |what: String| Fault::worker(502, "parity_unknown", format!("token parity of {model}: {what}"));
        let entry = self.sources.find(model);
        let local = entry.as_ref().and_then(|entry| entry.local());
        let (Some(entry), Some(local)) = (&entry, local) else {
            return Err(failed("the model has no local tokenizer".to_owned()));
        };
        let mut report = ParityReport { cases: 0, first_difference: None };
        // An engine that introduces itself may be another one: what was proven of its predecessor proves nothing.
        entry.forget_proofs(base_url);
        for (shape, probes) in
            [(Shape::Prompt, parity::texts(model).collect::<Vec<_>>()), (Shape::Chat, parity::probes(model).collect())]
        {
            let equal = self.compare_probes(local, probes, base_url, &mut report).await;
            entry.prove(base_url, shape, matches!(equal, Ok(true)));
            // An engine that takes no chats has still shown what it makes of texts.
            equal.map_err(|error| failed(error.to_string()))?;
            if report.first_difference.is_some() {
                break;
            }
        }
        match report.first_difference {
            None => self.sources.restore(entry),
            Some(_) => self.sources.step_down(entry, "probe chats differ from the engine's"),
        }
        Ok(report)
    }

    /// Whether the engine makes our ids of all `probes`; the first difference ends it.
    async fn compare_probes(
        &self,
        local: &Arc<Local>,
        probes: Vec<Parsed>,
        base_url: &str,
        report: &mut ParityReport,
    ) -> Result<bool, EngineError> {
        for parsed in probes {
            let deadline = Instant::now() + PARITY_TIMEOUT;
            // A template may refuse a shape (no tools, no system message): then there is nothing to compare.
            let Ok(ours) = self.encode_local(local, &parsed, deadline).await else { continue };
            let theirs = self.client.tokenize(base_url, &parsed, deadline).await?;
            report.first_difference = parity::difference(report.cases, &ours, &theirs);
            report.cases += 1;
            if report.first_difference.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether ids of this shape by the tokenizer of `owner` are those of the engine at `base_url`.
    pub fn is_proven(&self, owner: &str, base_url: &str, shape: Shape) -> bool {
        self.sources.find(owner).is_some_and(|entry| entry.is_proven(base_url, shape))
    }

    /// Counts a request whose ids were sent, or not because they were not proven.
    pub fn count_forwarded(&self, sent: bool) {
        self.metrics.forwarded.with_label_values(&[if sent { "sent" } else { "unproven" }]).inc();
    }

    /// Whether this request is one of those whose ids should be compared ([`Self::compare`]).
    pub fn samples(&self) -> bool {
        self.parity_sample > 0.0 && fastrand::f64() < self.parity_sample
    }

    /// Compares the ids that `owner`'s tokenizer made of a live request with those of the engine at `base_url`; `None` when it cannot tell. A
    /// difference steps the model down.
    pub async fn compare(&self, owner: &str, parsed: &Parsed, ours: &[u32], base_url: &str) -> Option<bool> {
        let entry = self.sources.find(owner)?;
        let deadline = Instant::now() + PARITY_TIMEOUT;
        let theirs = self.client.tokenize(base_url, parsed, deadline).await.ok()?;
        let difference = parity::difference(0, ours, &theirs);
        if let Some(difference) = &difference {
            tracing::error!(model = entry.name(), position = difference.position, "token ids differ from the engine's");
            self.sources.step_down(&entry, "ids of a live request differ from the engine's");
        }
        Some(difference.is_none())
    }

    /// Takes the engine's `prompt_tokens` for a request that had `ours` ids. Repeated differences step the model down.
    pub fn observe_prompt_tokens(&self, model: &str, ours: u32, engine: u32) {
        if let Some(entry) = self.sources.find(model)
            && self.sources.observe(&entry, ours == engine)
        {
            self.sources.step_down(&entry, "prompt_tokens of several requests differ from the engine's");
        }
    }
}

/// What encoding needs, on whichever thread it happens.
struct Job {
    local: Arc<Local>,
    memo: Arc<Memo>,
    metrics: Arc<Metrics>,
}

impl Job {
    /// Renders, and looks up what is remembered.
    fn start(&self, parsed: &Parsed) -> Result<(String, Plan), TextReason> {
        let body = std::str::from_utf8(&parsed.body).map_err(|_| TextReason::Unsupported)?;
        let prompt = request::prompt(&self.local.chat, parsed, body).map_err(|no| match no {
            NoPrompt::Unsupported(what) => {
                tracing::debug!(what, "prompt shape is not rendered here");
                TextReason::Unsupported
            }
            NoPrompt::Failed(error) => {
                // The kind only: the detail may quote the prompt.
                tracing::debug!(kind = ?error.kind(), "the chat template failed");
                TextReason::Failed
            }
        })?;
        let plan = self.local.encoder.plan(&prompt.text, prompt.special, &self.memo);
        Ok((prompt.text, plan))
    }

    /// Encodes what was not remembered.
    fn finish(&self, text: &str, plan: Plan) -> Result<Vec<u32>, TextReason> {
        let encoder: &Encoder = &self.local.encoder;
        let (ids, effort) = encoder.finish(text, plan, &self.memo).map_err(|error: EncodeError| {
            tracing::warn!(%error, "a prompt could not be encoded");
            TextReason::Failed
        })?;
        self.metrics.spend(effort);
        self.metrics.memo_bytes.set(self.memo.bytes());
        Ok(ids)
    }

    fn all(&self, parsed: &Parsed) -> Result<Vec<u32>, TextReason> {
        let (text, plan) = self.start(parsed)?;
        self.finish(&text, plan)
    }
}
