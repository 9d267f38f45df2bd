//! Replays the sessions against a gateway: arrivals on their own clock, whatever the answers do.
//!
//! A session starts when its time has come, never because another ended, so that a slow gateway is not spared. Within a
//! session the next question follows the answer it refers to, as a person's would.

use super::workload::{Session, system_text, user_text};
use crate::client::{Client, End, Outcome};
use crate::cluster::MODEL;
use crate::console::Progress;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Finished requests that may wait to be counted.
const MAX_FINISHED: usize = 1_024;

/// One conversation as the client keeps it.
pub struct Conversation {
    messages: Vec<Value>,
}

impl Conversation {
    /// Opens with the session's system prompt.
    pub fn open(session: &Session) -> Self {
        Self { messages: vec![json!({"role": "system", "content": system_text(session.system)})] }
    }

    /// The request of turn `turn`.
    pub fn ask(&mut self, session: &Session, turn: usize) -> Value {
        self.messages.push(json!({"role": "user", "content": user_text(session, turn)}));
        json!({
            "model": MODEL,
            "messages": self.messages,
            "max_tokens": session.turns[turn].answer_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
    }

    /// Keeps the answer, or takes the question back when there was none.
    pub fn hear(&mut self, outcome: &Outcome) {
        if outcome.text.is_empty() {
            self.messages.pop();
        } else {
            self.messages.push(json!({"role": "assistant", "content": outcome.text}));
        }
    }
}

/// Replays all `sessions`, their times multiplied by `pace`; `finished` sees each outcome as it comes.
pub async fn replay(
    client: &Client,
    sessions: &[Session],
    pace: f64,
    title: &str,
    mut finished: impl FnMut(&Outcome),
) -> Vec<Outcome> {
    let total: usize = sessions.iter().map(|session| session.turns.len()).sum();
    let mut progress = Progress::start(title, total as u64);
    let (sender, mut receiver) = mpsc::channel(MAX_FINISHED);
    let start = Instant::now();
    let mut running = JoinSet::new();
    for session in sessions {
        let (client, session, sender) = (client.clone(), Arc::new(session.clone()), sender.clone());
        running.spawn(async move { converse(&client, &session, start, pace, &sender).await });
    }
    drop(sender);
    let mut outcomes = Vec::with_capacity(total);
    while let Some(outcome) = receiver.recv().await {
        progress.step();
        finished(&outcome);
        outcomes.push(outcome);
    }
    progress.finish();
    outcomes
}

async fn converse(client: &Client, session: &Session, start: Instant, pace: f64, sender: &mpsc::Sender<Outcome>) {
    tokio::time::sleep_until(start + Duration::from_secs_f64(session.arrival_s * pace)).await;
    let mut conversation = Conversation::open(session);
    for turn in 0..session.turns.len() {
        tokio::time::sleep(Duration::from_secs_f64(session.turns[turn].think_s * pace)).await;
        let outcome = client.stream_chat(&conversation.ask(session, turn)).await;
        conversation.hear(&outcome);
        if sender.send(outcome).await.is_err() {
            return;
        }
    }
}

/// How the outcomes of a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings {
    /// Served to the end.
    pub complete: usize,
    /// Nothing of the answer came.
    pub lost: usize,
    /// Cut after commit, told by an error event.
    pub told: usize,
    /// Cut after commit in silence.
    pub silent: usize,
}

impl Endings {
    /// Counts `outcomes`.
    pub fn of(outcomes: &[Outcome]) -> Self {
        let mut endings = Self::default();
        for outcome in outcomes {
            match outcome.end {
                End::Complete => endings.complete += 1,
                End::BeforeCommit(_) => endings.lost += 1,
                End::ErrorEvent(_) => endings.told += 1,
                End::Silent(_) => endings.silent += 1,
            }
        }
        endings
    }
}

/// One example of each way to fail, for the person who wonders.
pub fn failure_examples(outcomes: &[Outcome]) -> Vec<String> {
    let mut seen = std::collections::BTreeMap::new();
    for outcome in outcomes {
        let (kind, text) = match &outcome.end {
            End::Complete => continue,
            End::BeforeCommit(text) => ("before commit", text),
            End::ErrorEvent(text) => ("error event", text),
            End::Silent(text) => ("silent", text),
        };
        seen.entry(kind).or_insert_with(|| format!("{kind}: {} {text}", outcome.request_id));
    }
    seen.into_values().collect()
}
