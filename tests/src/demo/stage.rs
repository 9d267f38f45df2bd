//! The scene that all three modes share: four engines, one gateway, sessions and the pace of their arrival.

use super::capacity::{Size, busy_s};
use super::workload::{self, Session, system_text, user_text};
use crate::cluster::{Engine, EngineOptions, Gateway, GatewayOptions};
use crate::process::Failure;
use serde_json::json;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

/// Engines in the demo.
pub const ENGINES: usize = 4;

/// Share of the working set that all caches together may hold.
const MAX_CACHE_SHARE: f64 = 0.4;

/// Offered load as a share of what the engines could do without any reuse.
pub const LOAD: f64 = 0.8;

/// Tokens in a KV block of the demo's engines.
const BLOCK_SIZE: u32 = 16;

/// What a person may choose.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Sessions replayed, in the order of the file.
    pub sessions: usize,
    /// How much of each; a run is over when the longest session is.
    pub cut: Cut,
    /// Divides every engine time.
    pub speedup: f64,
    /// Clients' port of the gateway, 0 = any free one.
    pub port: u16,
    /// Where logs and the gateway's configuration go.
    pub folder: PathBuf,
}

/// What is left of every session.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Turns, from the first.
    pub turns: usize,
    /// The longest pause before one, seconds at the file's own pace.
    pub think_s: f64,
}

impl Cut {
    /// Sessions as they stand in the file.
    pub const NONE: Self = Self { turns: usize::MAX, think_s: f64::INFINITY };

    fn apply(self, session: &mut Session) {
        session.turns.truncate(self.turns);
        session.turns.iter_mut().for_each(|turn| turn.think_s = turn.think_s.min(self.think_s));
    }
}

/// Sessions with everything known about their size.
pub struct Stage {
    /// The sessions.
    pub sessions: Vec<Session>,
    /// Requests in all of them.
    pub requests: usize,
    /// Distinct tokens of all sessions at their end.
    pub working_set: u64,
    /// KV blocks of each engine, so that all of them hold at most the allowed share of the working set.
    pub blocks: u32,
    /// Multiplies the file's times so that the offered load is [`LOAD`].
    pub pace: f64,
    /// Seconds from the first to the last arrival at that pace.
    pub span_s: f64,
    choice: Choice,
}

impl Stage {
    /// Measures the sessions with an engine's own tokenizer and sizes caches and pace by it.
    pub async fn set(choice: Choice) -> Result<Self, Failure> {
        let mut sessions = workload::load(choice.sessions)?;
        sessions.iter_mut().for_each(|session| choice.cut.apply(session));
        let probe = Engine::start("probe", &EngineOptions::default(), &choice.folder).await?;
        let counts = Counts::take(&probe, &sessions).await?;
        probe.process.stop().await;
        let sizes: Vec<Size> = sessions.iter().flat_map(|session| counts.sizes(session)).collect();
        let working_set = counts.working_set(&sessions);
        let blocks = (working_set as f64 * MAX_CACHE_SHARE / ENGINES as f64 / f64::from(BLOCK_SIZE)) as u32;
        let span_s = sessions.last().map_or(0.0, |session| session.arrival_s);
        let wanted_s = busy_s(&sizes, blocks, BLOCK_SIZE, choice.speedup)? / ENGINES as f64 / LOAD;
        let pace = wanted_s / span_s.max(f64::MIN_POSITIVE);
        Ok(Self { requests: sizes.len(), sessions, working_set, blocks, pace, span_s: wanted_s, choice })
    }

    /// Share of the working set that the caches hold together.
    pub fn cache_share(&self) -> f64 {
        (u64::from(self.blocks) * u64::from(BLOCK_SIZE) * ENGINES as u64) as f64 / self.working_set as f64
    }

    /// Four engines with empty caches.
    pub async fn start_engines(&self, speedup: f64) -> Result<Vec<Engine>, Failure> {
        let options =
            EngineOptions { block_size: BLOCK_SIZE, blocks: self.blocks, speedup, ..EngineOptions::default() };
        let mut engines = Vec::with_capacity(ENGINES);
        for number in 0..ENGINES {
            engines.push(Engine::start(&format!("engine-{number}"), &options, &self.choice.folder).await?);
        }
        Ok(engines)
    }

    /// A gateway in front of `engines`, with an empty access log.
    pub async fn start_gateway(&self, engines: &[Engine], options: GatewayOptions) -> Result<Gateway, Failure> {
        let access_log = self.choice.folder.join("access.jsonl");
        if access_log.exists() {
            std::fs::remove_file(&access_log).map_err(|e| Failure(format!("{}: {e}", access_log.display())))?;
        }
        let urls: Vec<String> = engines.iter().map(Engine::url).collect();
        Gateway::start(&GatewayOptions { port: self.choice.port, ..options }, &urls, &self.choice.folder).await
    }

    /// Engine speed as chosen.
    pub fn speedup(&self) -> f64 {
        self.choice.speedup
    }

    /// Where the logs are.
    pub fn folder(&self) -> &Path {
        &self.choice.folder
    }
}

/// Ends engines and gateway in order.
pub async fn clear(engines: Vec<Engine>, gateway: Gateway) {
    gateway.process.stop().await;
    for engine in engines {
        engine.process.stop().await;
    }
}

/// Token counts of every text of the workload.
struct Counts {
    systems: BTreeMap<u32, u32>,
    questions: BTreeMap<(u32, usize), u32>,
}

impl Counts {
    /// Tokens that a chat template adds to each message, about.
    const TEMPLATE_TOKENS: u32 = 5;

    async fn take(engine: &Engine, sessions: &[Session]) -> Result<Self, Failure> {
        let count = async |text: String| -> Result<u32, Failure> {
            let answer =
                engine.client.post_json("/tokenize", &json!({"prompt": text, "add_special_tokens": false})).await?;
            let count =
                answer["count"].as_u64().ok_or_else(|| Failure(format!("/tokenize gave no count: {answer}")))?;
            Ok(u32::try_from(count).unwrap_or(u32::MAX) + Self::TEMPLATE_TOKENS)
        };
        let (mut systems, mut questions) = (BTreeMap::new(), BTreeMap::new());
        for session in sessions {
            if let Entry::Vacant(unseen) = systems.entry(session.system) {
                unseen.insert(count(system_text(session.system)).await?);
            }
            for turn in 0..session.turns.len() {
                questions.insert((session.session, turn), count(user_text(session, turn)).await?);
            }
        }
        Ok(Self { systems, questions })
    }

    fn own_tokens(&self, session: &Session) -> impl Iterator<Item = (u32, u32)> {
        let answers = session.turns.iter().map(|turn| turn.answer_tokens);
        answers
            .enumerate()
            .map(|(turn, answer)| (self.questions.get(&(session.session, turn)).copied().unwrap_or(0), answer))
    }

    fn sizes(&self, session: &Session) -> Vec<Size> {
        let mut prompt = self.systems.get(&session.system).copied().unwrap_or(0);
        let step = |(question, answer): (u32, u32)| {
            prompt += question;
            let size = Size { prompt, answer };
            prompt += answer + Self::TEMPLATE_TOKENS;
            size
        };
        self.own_tokens(session).map(step).collect()
    }

    fn working_set(&self, sessions: &[Session]) -> u64 {
        let own = |session: &Session| self.own_tokens(session).map(|(q, a)| u64::from(q) + u64::from(a)).sum::<u64>();
        self.systems.values().map(|&tokens| u64::from(tokens)).sum::<u64>() + sessions.iter().map(own).sum::<u64>()
    }
}
