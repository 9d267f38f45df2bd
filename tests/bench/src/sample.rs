//! What one run yields: a line of JSON between the load client and the report.

use crate::stats::Distribution;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One run of one test through one router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Test, as the suite names it.
    pub test: String,
    /// Router, as the suite names it.
    pub peer: String,
    /// Repetition, from 1.
    pub rep: u64,
    /// The machine's 1-minute load average when the run began, where the kernel says.
    pub load: Option<f64>,
    /// Connections.
    pub connections: usize,
    /// Requests answered whole in the measured phase.
    pub requests: usize,
    /// Length of the measured phase in s, to the last answer.
    pub seconds: f64,
    /// Streamed events that carried text.
    pub chunks: u64,
    /// Requests that failed, of both phases; they are in no other figure.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// From the first byte sent to the last received.
    pub latency_us: Option<Distribution>,
    /// From the first byte sent to the first event with text.
    pub ttft_us: Option<Distribution>,
    /// Between two reads that brought text.
    pub gap_us: Option<Distribution>,
    /// From the engine's stamp to the client's read.
    pub oneway_us: Option<Distribution>,
    /// Watched processes by name, the client itself as `client`.
    pub processes: BTreeMap<String, ProcessUse>,
}

/// What a watched process used in the measured phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// CPU time per answered request.
    pub cpu_us_per_request: f64,
    /// CPU time per streamed event, where any was streamed.
    pub cpu_us_per_chunk: Option<f64>,
    /// CPU time per time.
    pub cores: f64,
    /// Resident memory in MB when the measured phase began.
    pub rss_mb_start: u64,
    /// Resident memory in MB when it ended.
    pub rss_mb: u64,
    /// Threads.
    pub threads: u64,
}

impl Sample {
    /// What the router under test used.
    pub fn router(&self) -> Option<&ProcessUse> {
        self.processes.get("router")
    }

    /// Answered requests per second.
    pub fn requests_per_s(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}
