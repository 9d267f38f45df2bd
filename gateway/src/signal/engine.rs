//! What one engine says of its health and load, over HTTP.
//!
//! Absent is unknown, never zero: a series that `/metrics` lacks leaves that load unset, and a reading keeps the time
//! at which it was taken, so that whoever decides can see its age.

use super::exposition::{Sample, samples};
use super::http::{AskError, Peer};
use crate::fleet::EngineKind;
use forebay_routing::view::EngineLoad;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Ranks read out of one `/metrics`.
const MAX_RANKS: usize = 256;

/// What one reading holds.
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
        let (running, waiting, kv_usage) = (self.running?, self.waiting?, self.kv_usage?);
        // What of it is the gateway's own is the fleet's to say.
        Some(EngineLoad { running, waiting, kv_usage, at_ms, ..EngineLoad::default() })
    }
}

impl Reading {
    /// Reads what is known here out of Prometheus text: of vLLM, of SGLang under both its prefixes, of TensorRT-LLM.
    pub fn parse(text: &str) -> Self {
        let mut reading = Self::default();
        for sample in samples(text) {
            if let Some(name) = sample.name.strip_prefix("vllm:") {
                reading.read_vllm(name, &sample);
            } else if let Some(name) = sample.name.strip_prefix("sglang:").or(sample.name.strip_prefix("sglang_")) {
                reading.read_sglang(name, &sample);
            } else if let Some(name) = sample.name.strip_prefix("trtllm_") {
                reading.read_tensorrt(name, &sample);
            } else if sample.name == "process_start_time_seconds" {
                reading.process_start_seconds = Some(sample.value);
            }
        }
        reading
    }

    fn read_vllm(&mut self, name: &str, sample: &Sample<'_>) {
        // Releases before data parallelism had no label.
        let rank = sample.label("engine");
        match name {
            "cache_config_info" => {
                self.block_size = positive(sample.label("block_size")).or(self.block_size);
                self.capacity_blocks = positive(sample.label("num_gpu_blocks")).or(self.capacity_blocks);
            }
            "num_requests_running" => self.rank(rank, |load| load.running = count(sample.value)),
            "num_requests_waiting" => self.rank(rank, |load| load.waiting = count(sample.value)),
            "kv_cache_usage_perc" | "gpu_cache_usage_perc" => {
                self.rank(rank, |load| load.kv_usage = share(sample.value))
            }
            name => self.drafts |= name.starts_with("spec_decode_"),
        }
    }

    /// Each tensor-parallel rank may report; the first one's word is that of all.
    fn read_sglang(&mut self, name: &str, sample: &Sample<'_>) {
        if sample.label("tp_rank").is_some_and(|rank| rank != "0") {
            return;
        }
        let rank = sample.label("dp_rank");
        match name {
            "cache_config_info" => self.block_size = positive(sample.label("page_size")).or(self.block_size),
            "num_running_reqs" => self.rank(rank, |load| load.running = count(sample.value)),
            "num_queue_reqs" => self.rank(rank, |load| load.waiting = count(sample.value)),
            "token_usage" => self.rank(rank, |load| load.kv_usage = share(sample.value)),
            _ => {}
        }
    }

    fn read_tensorrt(&mut self, name: &str, sample: &Sample<'_>) {
        match name {
            "num_requests_running" => self.rank(None, |load| load.running = count(sample.value)),
            "num_requests_waiting" => self.rank(None, |load| load.waiting = count(sample.value)),
            "kv_cache_utilization" => self.rank(None, |load| load.kv_usage = share(sample.value)),
            "kv_cache_tokens_per_block" => self.block_size = count(sample.value).filter(|n| *n > 0).or(self.block_size),
            _ => {}
        }
    }

    /// Reads SGLang's `/v1/loads`, which it has whether or not metrics are switched on.
    pub fn parse_loads(body: &[u8]) -> Result<Self, serde_json::Error> {
        let Loads { loads } = serde_json::from_slice(body)?;
        let mut reading = Self::default();
        for entry in loads.into_iter().take(MAX_RANKS) {
            let kv_usage = entry.token_usage.and_then(share);
            let load = RankLoad { running: entry.num_running_reqs, waiting: entry.num_waiting_reqs, kv_usage };
            reading.loads.insert(entry.dp_rank, load);
        }
        Ok(reading)
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
        let Ok(rank) = engine.unwrap_or("0").parse() else { return };
        if self.loads.len() < MAX_RANKS || self.loads.contains_key(&rank) {
            set(self.loads.entry(rank).or_default());
        }
    }
}

#[derive(Deserialize)]
struct Loads {
    loads: Vec<LoadEntry>,
}

#[derive(Deserialize)]
struct LoadEntry {
    #[serde(default)]
    dp_rank: u16,
    #[serde(default)]
    num_running_reqs: Option<u32>,
    #[serde(default)]
    num_waiting_reqs: Option<u32>,
    #[serde(default)]
    token_usage: Option<f64>,
}

fn positive(text: Option<&str>) -> Option<u32> {
    text.and_then(|text| text.parse().ok()).filter(|n| *n > 0)
}

#[expect(clippy::unnecessary_wraps, reason = "set where absence is unknown")]
fn share(value: f64) -> Option<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "a share between 0 and 1")]
    Some(value.clamp(0.0, 1.0) as f32)
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

/// SGLang's loads; what else it could tell is left out.
const LOADS: &str = "/v1/loads?include=core";

/// Reads the load of an engine where it tells it: SGLang at `/v1/loads` (releases before: `/metrics`), TensorRT-LLM at
/// `/prometheus/metrics`, since its `/metrics` gives every statistic away once and others want them, all else at `/metrics`.
pub async fn scrape(peer: &Peer, kind: EngineKind) -> Result<Reading, CheckError> {
    if kind == EngineKind::SgLang {
        let answer = peer.get(LOADS).await?;
        if answer.status.is_success()
            && let Ok(reading) = Reading::parse_loads(&answer.body)
        {
            return Ok(reading);
        }
    }
    let path = if kind == EngineKind::TensorRtLlm { "/prometheus/metrics" } else { "/metrics" };
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
            Some(EngineLoad { running: 3, waiting: 1, kv_usage: 0.5, at_ms: 7, ..EngineLoad::default() })
        );
        assert_eq!(reading.load(Some(1)).and_then(|load| load.at(7)), None, "absent is unknown, not zero");
        assert_eq!((reading.block_size, reading.drafts), (None, false));
        assert!(Reading::parse("vllm:spec_decode_num_drafts_total{engine=\"0\"} 0\n").drafts);
    }

    #[test]
    fn reads_sglang_under_both_prefixes_and_by_rank() {
        for prefix in ["sglang:", "sglang_"] {
            let text = |rank: &str, tp: &str, running: u32| {
                let labels = format!("{{{rank}model_name=\"m\",tp_rank=\"{tp}\"}}");
                format!(
                    "{prefix}num_running_reqs{labels} {running}\n{prefix}num_queue_reqs{labels} 2\n\
                     {prefix}token_usage{labels} 0.25\n"
                )
            };
            let one = Reading::parse(&(text("", "1", 9) + &text("", "0", 3)));
            let load = RankLoad { running: Some(3), waiting: Some(2), kv_usage: Some(0.25) };
            assert_eq!(one.load(None), Some(load), "{prefix}");
            let two = Reading::parse(&(text("dp_rank=\"0\",", "0", 3) + &text("dp_rank=\"1\",", "0", 4)));
            assert_eq!(two.load(Some(1)).and_then(|load| load.running), Some(4), "{prefix}");
            let info = Reading::parse(&format!("{prefix}cache_config_info{{page_size=\"64\"}} 1\n"));
            assert_eq!(info.block_size, Some(64));
        }
    }

    #[test]
    fn reads_sglangs_loads_as_far_as_they_are_there() {
        let body = br#"{"timestamp":"x","version":"0.5.6","loads":[
            {"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":1,"num_used_tokens":9,"token_usage":0.5,"queues":{}},
            {"dp_rank":1,"num_running_reqs":3}]}"#;
        let reading = Reading::parse_loads(body).expect("valid");
        let load = EngineLoad { running: 3, waiting: 1, kv_usage: 0.5, at_ms: 7, ..EngineLoad::default() };
        assert_eq!(reading.load(Some(0)).and_then(|load| load.at(7)), Some(load));
        assert_eq!(reading.load(Some(1)).and_then(|load| load.at(7)), None, "absent is unknown, not zero");
        assert!(Reading::parse_loads(b"[]").is_err());
    }

    #[test]
    fn reads_tensorrt_llm() {
        let reading = Reading::parse(
            "trtllm_num_requests_running{model_name=\"m\"} 5\ntrtllm_num_requests_waiting{model_name=\"m\"} 3\n\
             trtllm_kv_cache_utilization{model_name=\"m\"} 0.6\ntrtllm_kv_cache_tokens_per_block 64\n",
        );
        let load = RankLoad { running: Some(5), waiting: Some(3), kv_usage: Some(0.6) };
        assert_eq!((reading.load(None), reading.block_size), (Some(load), Some(64)));
    }
}
