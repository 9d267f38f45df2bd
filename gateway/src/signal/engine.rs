//! What one engine says of its health and load, over HTTP.
//!
//! Absent is unknown, never zero: a series that `/metrics` lacks leaves that load unset, and a reading keeps the time
//! at which it was taken, so that whoever decides can see its age.

use super::exposition::samples;
use super::http::{AskError, Peer};
use forebay_routing::view::EngineLoad;
use std::collections::BTreeMap;

/// Ranks read out of one `/metrics`.
const MAX_RANKS: usize = 256;

/// What one scrape of `/metrics` holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Load by engine label, which is the data-parallel rank.
    pub loads: BTreeMap<u16, RankLoad>,
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// KV capacity in blocks.
    pub capacity_blocks: Option<u32>,
    /// Whether it drafts tokens: then it computes the last block of a hit anew. What it drafts with is not told; by n-grams it
    /// would keep that block, which is then credited as one too few.
    pub drafts: bool,
    /// When the process started, Unix seconds: a change proves a restart.
    pub process_start_seconds: Option<f64>,
}

/// The three gauges of one rank, each as far as it was there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankLoad {
    /// Requests in the running batch.
    pub running: Option<u32>,
    /// Requests queued.
    pub waiting: Option<u32>,
    /// KV cache in use, 0 to 1.
    pub kv_usage: Option<f32>,
}

impl RankLoad {
    /// As the fleet takes it; `None` unless running and waiting are both known.
    pub fn at(self, at_ms: u64) -> Option<EngineLoad> {
        Some(EngineLoad { running: self.running?, waiting: self.waiting?, kv_usage: self.kv_usage?, at_ms })
    }
}

impl Reading {
    /// Reads what is known here out of Prometheus text.
    pub fn parse(text: &str) -> Self {
        let mut reading = Self::default();
        for sample in samples(text) {
            match sample.name {
                "process_start_time_seconds" => reading.process_start_seconds = Some(sample.value),
                "vllm:cache_config_info" => {
                    let number = |label| sample.label(label).and_then(|text| text.parse().ok()).filter(|n| *n > 0);
                    reading.block_size = number("block_size").or(reading.block_size);
                    reading.capacity_blocks = number("num_gpu_blocks").or(reading.capacity_blocks);
                }
                "vllm:num_requests_running" => {
                    reading.rank(sample.label("engine"), |load| load.running = count(sample.value));
                }
                "vllm:num_requests_waiting" => {
                    reading.rank(sample.label("engine"), |load| load.waiting = count(sample.value));
                }
                "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => {
                    #[expect(clippy::cast_possible_truncation, reason = "a share between 0 and 1")]
                    reading
                        .rank(sample.label("engine"), |load| load.kv_usage = Some(sample.value.clamp(0.0, 1.0) as f32));
                }
                name => reading.drafts |= name.starts_with("vllm:spec_decode_"),
            }
        }
        reading
    }

    /// The load of `rank`; of the only one where the engine has one.
    pub fn load(&self, rank: Option<u16>) -> Option<RankLoad> {
        match rank {
            Some(rank) => self.loads.get(&rank).copied(),
            None if self.loads.len() == 1 => self.loads.values().next().copied(),
            None => None,
        }
    }

    fn rank(&mut self, engine: Option<&str>, set: impl FnOnce(&mut RankLoad)) {
        // Releases before data parallelism had no label.
        let Ok(rank) = engine.unwrap_or("0").parse() else { return };
        if self.loads.len() < MAX_RANKS || self.loads.contains_key(&rank) {
            set(self.loads.entry(rank).or_default());
        }
    }
}

fn count(value: f64) -> Option<u32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    (0.0..=f64::from(u32::MAX)).contains(&value).then_some(value as u32)
}

/// Why a check of an engine failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// No answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// An answer, but not a good one.
    #[error("{path} answered {status}")]
    Status {
        /// Path asked.
        path: &'static str,
        /// HTTP status.
        status: u16,
    },
}

/// Asks `/health`; an engine without that route is alive when it lists its models.
pub async fn check(peer: &Peer) -> Result<(), CheckError> {
    let mut path = "/health";
    let mut status = peer.get(path).await?.status;
    if status == http::StatusCode::NOT_FOUND {
        path = "/v1/models";
        status = peer.get(path).await?.status;
    }
    if status.is_success() { Ok(()) } else { Err(CheckError::Status { path, status: status.as_u16() }) }
}

/// Scrapes `/metrics`.
pub async fn scrape(peer: &Peer) -> Result<Reading, CheckError> {
    let path = "/metrics";
    let answer = peer.get(path).await?;
    if !answer.status.is_success() {
        return Err(CheckError::Status { path, status: answer.status.as_u16() });
    }
    Ok(Reading::parse(&String::from_utf8_lossy(&answer.body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_real_vllm_said() {
        let reading = Reading::parse(include_str!("../../tests/fixtures/vllm/metrics_a.prom"));
        assert_eq!((reading.block_size, reading.capacity_blocks), (Some(32), Some(4096)));
        assert_eq!(reading.process_start_seconds, Some(1_796_057_034.96));
        let load = RankLoad { running: Some(0), waiting: Some(0), kv_usage: Some(0.0) };
        assert_eq!(reading.load(None), Some(load));
        assert_eq!(reading.load(Some(0)), Some(load));
        assert_eq!(reading.load(Some(1)), None);
    }

    #[test]
    fn ranks_old_names_and_missing_series() {
        let reading = Reading::parse(
            "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\nvllm:num_requests_waiting{engine=\"0\"} 1\n\
             vllm:gpu_cache_usage_perc{engine=\"0\"} 0.5\nvllm:num_requests_running{engine=\"1\"} 9\n\
             vllm:num_requests_waiting{engine=\"1\"} -1\nvllm:num_requests_running{engine=\"x\"} 4\n",
        );
        assert_eq!(reading.load(None), None, "two ranks and none chosen");
        assert_eq!(
            reading.load(Some(0)).and_then(|load| load.at(7)),
            Some(EngineLoad { running: 3, waiting: 1, kv_usage: 0.5, at_ms: 7 })
        );
        assert_eq!(reading.load(Some(1)).and_then(|load| load.at(7)), None, "absent is unknown, not zero");
        assert_eq!((reading.block_size, reading.drafts), (None, false));
        assert!(Reading::parse("vllm:spec_decode_num_drafts_total{engine=\"0\"} 0\n").drafts);
    }
}
