//! Which source each model's ids come from, and how it changes.

use super::metrics::Metrics;
use super::model::Local;
use super::parity::Drift;
use super::{MAX_MODELS, TextReason};
use crate::config::resolved;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Where ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Our template and tokenizer.
    Local,
    /// The engine's `/tokenize`.
    Engine,
    /// Nowhere: requests are routed by text.
    Text,
}

impl Source {
    const ALL: [Self; 3] = [Self::Local, Self::Engine, Self::Text];

    /// Metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Engine => "engine",
            Self::Text => "text",
        }
    }
}

/// A model as `/status` and the start-up summary show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStatus {
    /// Name clients use.
    pub model: String,
    /// Where its ids come from now.
    pub source: Source,
    /// Encoder in use, where local.
    pub encoder: Option<&'static str>,
    /// Why the fast encoder is not in use, where it is not.
    pub slow_because: Option<String>,
    /// Whether pieces of prompts are remembered.
    pub remembers: bool,
    /// Whether plain chats are rendered without running the template.
    pub learned_template: bool,
    /// What is wrong: a tokenizer that would not load, ids that drifted.
    pub problem: Option<String>,
    /// Identity of `tokenizer.json`.
    pub digest: Option<[u8; 16]>,
    /// Requests whose ids or counts differed from the engine's.
    pub differences: u64,
}

/// What is proven of one engine's ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A text with the tokenizer's special tokens around it.
    Prompt,
    /// A plain chat.
    Chat,
}

/// Engines of which something is proven; one bit for each [`Shape`].
type Proven = HashMap<String, u8>;

/// One model's source.
pub(crate) struct Entry {
    model: resolved::Model,
    local: Option<Arc<Local>>,
    source: AtomicU8,
    engines: ArcSwap<Vec<String>>,
    drift: Drift,
    differences: AtomicU64,
    problem: Mutex<Option<String>>,
    proven: ArcSwap<Proven>,
}

impl Entry {
    fn load(model: &resolved::Model) -> Self {
        let loaded = model.tokenizer.as_ref().map(|directory| Local::load(directory, model));
        let (local, problem) = match loaded {
            Some(Ok(local)) => (Some(Arc::new(local)), None),
            Some(Err(problem)) => {
                tracing::error!(model = model.name, problem, "tokenizer not loaded: the model is degraded");
                (None, Some(problem))
            }
            None => (None, None),
        };
        let source = if local.is_some() { Source::Local } else { Source::Engine };
        Self {
            model: model.clone(),
            local,
            source: AtomicU8::new(source as u8),
            engines: ArcSwap::default(),
            drift: Drift::default(),
            differences: AtomicU64::new(0),
            problem: Mutex::new(problem),
            proven: ArcSwap::default(),
        }
    }

    /// Name clients use.
    pub(crate) fn name(&self) -> &str {
        &self.model.name
    }

    /// The local tokenizer, in use or not.
    pub(crate) fn local(&self) -> Option<&Arc<Local>> {
        self.local.as_ref()
    }

    /// Where ids come from now.
    pub(crate) fn source(&self) -> Source {
        Source::ALL[usize::from(self.source.load(Ordering::Relaxed)).min(2)]
    }

    /// One of the engines, at random.
    pub(crate) fn any_engine(&self) -> Option<String> {
        let engines = self.engines.load();
        (!engines.is_empty()).then(|| engines[fastrand::usize(..engines.len())].clone())
    }

    /// Why a model without a source is routed by text.
    pub(crate) fn text_reason(&self) -> TextReason {
        if self.differences.load(Ordering::Relaxed) > 0 { TextReason::Drift } else { TextReason::NoTokenizer }
    }

    /// Notes whether the engine at `base_url` makes our ids of every probe of this shape.
    pub(crate) fn prove(&self, base_url: &str, shape: Shape, equal: bool) {
        self.proven.rcu(|proven| {
            let mut proven = Proven::clone(proven);
            let bits = proven.entry(base_url.to_owned()).or_default();
            *bits = if equal { *bits | 1 << shape as u8 } else { *bits & !(1 << shape as u8) };
            proven
        });
    }

    /// Nothing is proven of the engine at `base_url` any more.
    pub(crate) fn forget_proofs(&self, base_url: &str) {
        self.proven.rcu(|proven| {
            let mut proven = Proven::clone(proven);
            proven.remove(base_url);
            proven
        });
    }

    /// Whether ids of this shape are those of the engine at `base_url`, as long as they come from here.
    pub(crate) fn is_proven(&self, base_url: &str, shape: Shape) -> bool {
        self.source() == Source::Local
            && self.proven.load().get(base_url).is_some_and(|bits| bits & 1 << shape as u8 != 0)
    }

    fn status(&self) -> ModelStatus {
        let local = self.local.as_deref();
        ModelStatus {
            model: self.model.name.clone(),
            source: self.source(),
            encoder: local.map(|local| local.encoder.name()),
            slow_because: local.and_then(|local| local.encoder.fast_refused.clone()),
            remembers: local.is_some_and(|local| local.encoder.remembers()),
            learned_template: local.is_some_and(|local| local.chat.uses_learned()),
            problem: self.problem.lock().clone(),
            digest: local.map(|local| local.digest),
            differences: self.differences.load(Ordering::Relaxed),
        }
    }
}

/// Sources of all models.
pub(crate) struct Sources {
    entries: ArcSwap<HashMap<String, Arc<Entry>>>,
    /// Held while `entries` is replaced.
    writing: Mutex<()>,
    metrics: Arc<Metrics>,
}

impl Sources {
    /// No models yet.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { entries: ArcSwap::default(), writing: Mutex::new(()), metrics }
    }

    /// The entry of `model`.
    pub(crate) fn find(&self, model: &str) -> Option<Arc<Entry>> {
        self.entries.load().get(model).cloned()
    }

    /// Loads what `models` names and was not loaded from the same files before.
    pub(crate) fn reload(&self, models: &[resolved::Model]) {
        let _writing = self.writing.lock();
        let old = self.entries.load_full();
        let mut new = HashMap::new();
        for model in models.iter().take(MAX_MODELS) {
            let kept = old.get(&model.name).filter(|entry| {
                entry.model.tokenizer == model.tokenizer && entry.model.chat_template == model.chat_template
            });
            let entry = kept.cloned().unwrap_or_else(|| Arc::new(Entry::load(model)));
            if let Some(old) = old.get(&model.name) {
                entry.engines.store(old.engines.load_full());
            }
            self.show(&entry);
            new.insert(model.name.clone(), entry);
        }
        // Models that only the engines told of stay known.
        for (name, entry) in old.iter().filter(|(_, entry)| entry.model.tokenizer.is_none()) {
            if new.len() < MAX_MODELS {
                new.entry(name.clone()).or_insert_with(|| Arc::clone(entry));
            }
        }
        self.entries.store(Arc::new(new));
    }

    /// Sets the engines of a model, which becomes known by that.
    pub(crate) fn set_engines(&self, model: &str, base_urls: Vec<String>) {
        let _writing = self.writing.lock();
        let entries = self.entries.load_full();
        if let Some(entry) = entries.get(model) {
            entry.engines.store(Arc::new(base_urls));
            return;
        }
        if entries.len() >= MAX_MODELS {
            return;
        }
        let nothing = resolved::Model { name: model.to_owned(), ..resolved::Model::default() };
        let entry = Arc::new(Entry::load(&nothing));
        entry.engines.store(Arc::new(base_urls));
        self.show(&entry);
        let mut entries = HashMap::clone(&entries);
        entries.insert(model.to_owned(), entry);
        self.entries.store(Arc::new(entries));
    }

    /// Every model, by name.
    pub(crate) fn status(&self) -> Vec<ModelStatus> {
        let mut all: Vec<_> = self.entries.load().values().map(|entry| entry.status()).collect();
        all.sort_by(|a, b| a.model.cmp(&b.model));
        all
    }

    /// Takes one comparison with the engine; `true` when it establishes drift.
    pub(crate) fn observe(&self, entry: &Entry, equal: bool) -> bool {
        if !equal {
            entry.differences.fetch_add(1, Ordering::Relaxed);
            self.metrics.drift.with_label_values(&[entry.name()]).inc();
        }
        entry.drift.observe(equal)
    }

    /// Gives up the current source of a model for the next: `local`, `engine`, `text`.
    pub(crate) fn step_down(&self, entry: &Entry, why: &str) {
        let from = entry.source();
        let to = if from == Source::Local { Source::Engine } else { Source::Text };
        entry.source.store(to as u8, Ordering::Relaxed);
        entry.proven.store(Arc::default());
        entry.drift.reset();
        entry.differences.fetch_add(1, Ordering::Relaxed);
        *entry.problem.lock() = Some(format!("{why}: ids come from `{}` now", to.label()));
        self.metrics.drift.with_label_values(&[entry.name()]).inc();
        tracing::error!(model = entry.name(), from = from.label(), to = to.label(), why, "token ids drifted");
        self.show(entry);
    }

    /// Trusts the local tokenizer of a model again.
    pub(crate) fn restore(&self, entry: &Entry) {
        entry.source.store(Source::Local as u8, Ordering::Relaxed);
        entry.drift.reset();
        *entry.problem.lock() = None;
        self.show(entry);
    }

    fn show(&self, entry: &Entry) {
        for source in Source::ALL {
            let shown = i64::from(entry.source() == source);
            self.metrics.source.with_label_values(&[entry.name(), source.label()]).set(shown);
        }
    }
}
