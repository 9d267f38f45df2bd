//! Whole engines over real sockets.

mod cache;
mod dialects;
mod faults;
mod surface;

use crate::testing::{Client, body_of};
use crate::{EngineBuilder, EngineHandle};
use serde_json::Value;
use tokio::time::{Duration, Instant};

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine so fast that nothing is waited for, in blocks of 32 as the recorded one had.
fn fast() -> EngineBuilder {
    EngineBuilder::new().model("tiny").block_tokens(32).speedup(10_000.0)
}

/// An engine that takes seconds for a token: what it works on stays under way.
fn slow() -> EngineBuilder {
    EngineBuilder::new().model("tiny").block_tokens(32).speedup(0.001)
}

async fn client(engine: &EngineHandle) -> Client {
    Client::connect(engine.address()).await
}

fn json_of(response: &str) -> Value {
    serde_json::from_str(body_of(response)).unwrap_or_else(|e| panic!("{e}: {response}"))
}

/// Data of each server-sent event but `[DONE]`, which must be the last.
fn events_of(stream: &str) -> Vec<Value> {
    let mut data: Vec<&str> = stream.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{stream}");
    data.into_iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

/// Waits until `ready` holds.
async fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
