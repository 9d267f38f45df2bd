//! Clients that stream one chat after the other, and what became of all of them.

use crate::client::{Client, Outcome};
use crate::cluster::MODEL;
use crate::demo::replay::{Endings, failure_examples};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Between two looks at how far the load has come.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A load that is under way.
pub struct Load {
    finished: Arc<AtomicUsize>,
    tasks: JoinSet<Vec<Outcome>>,
    started: Instant,
    total: usize,
}

/// What a load came to.
pub struct Row {
    /// Name in the table.
    pub name: &'static str,
    /// What was done to whom.
    pub what: String,
    /// How its requests ended.
    pub endings: Endings,
    /// From its first request to its last answer, s.
    pub seconds: f64,
    /// Longest wait for a first token, ms.
    pub worst_ttft_ms: f64,
    /// One example of each way to fail.
    pub examples: Vec<String>,
}

/// One streamed chat: a prompt of about 200 tokens and so many tokens of answer.
pub fn chat(number: usize, tokens: u32) -> Value {
    let text = format!("Question {number}: {}", "tell me why the river runs where it runs. ".repeat(18));
    json!({
        "model": MODEL, "stream": true, "stream_options": {"include_usage": true}, "max_tokens": tokens, "temperature": 0,
        "messages": [{"role": "user", "content": text}],
    })
}

impl Load {
    /// `clients` clients, each with `streams` chats in a row.
    pub fn start(client: &Client, clients: usize, streams: usize, tokens: u32) -> Self {
        let finished = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..clients {
            let (client, finished) = (client.clone(), finished.clone());
            tasks.spawn(async move {
                let mut outcomes = Vec::with_capacity(streams);
                for stream in 0..streams {
                    outcomes.push(client.stream_chat(&chat(number * streams + stream, tokens)).await);
                    finished.fetch_add(1, Ordering::Relaxed);
                }
                outcomes
            });
        }
        Self { finished, tasks, started: Instant::now(), total: clients * streams }
    }

    /// Waits until `share` of the requests have ended.
    pub async fn reach(&self, share: f64) {
        while (self.finished.load(Ordering::Relaxed) as f64) < share * self.total as f64 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether all have.
    pub fn is_over(&self) -> bool {
        self.finished.load(Ordering::Relaxed) >= self.total
    }

    /// Waits for the rest.
    pub async fn end(self, name: &'static str, what: impl Into<String>) -> Row {
        let started = self.started;
        let outcomes: Vec<Outcome> = self.tasks.join_all().await.into_iter().flatten().collect();
        Row::of(name, what, &outcomes, started)
    }
}

impl Row {
    /// What `outcomes` came to.
    pub fn of(name: &'static str, what: impl Into<String>, outcomes: &[Outcome], started: Instant) -> Self {
        let first_tokens = outcomes.iter().filter_map(|outcome| outcome.ttft_ms);
        Self {
            name,
            what: what.into(),
            endings: Endings::of(outcomes),
            seconds: started.elapsed().as_secs_f64(),
            worst_ttft_ms: first_tokens.fold(0.0, f64::max),
            examples: failure_examples(outcomes),
        }
    }
}
