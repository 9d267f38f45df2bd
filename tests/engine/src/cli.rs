//! Flags.

use crate::config::{EngineConfig, Flavor};
use crate::events::{EventConfig, HashForm, Wire};
use crate::fault::Fault;
use crate::model::{Curve, Limits};
use crate::text::Codec;
use crate::thin::{ThinConfig, Usage};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A mock LLM engine: vLLM's HTTP API, metrics and KV events over a model of its scheduler, on a CPU.
///
/// Prints one line for each engine when it listens, and stops on SIGTERM or Ctrl-C.
#[derive(Clone, Debug, Parser)]
#[command(name = "forebay-engine", version, max_term_width = 110)]
pub struct Cli {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port of the first engine; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Engines in this process, on consecutive ports (any free ones with --port 0)
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub engines: u16,
    /// Ports of the engines, one by one, instead of --port and --engines
    #[arg(long, value_name = "P,P,…", value_delimiter = ',', conflicts_with_all = ["port", "engines"])]
    pub ports: Vec<u16>,
    /// Worker threads; 0: as many as cores
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub threads: usize,

    /// Whose server is played
    #[arg(long, value_enum, default_value_t = Flavor::Vllm)]
    pub flavor: Flavor,
    /// How SGLang's metrics begin
    #[arg(long, value_enum, default_value_t = SglangMetrics::Colon)]
    pub sglang_metrics: SglangMetrics,
    /// Play an SGLang that has no /v1/loads yet
    #[arg(long)]
    pub no_sglang_loads: bool,
    /// One frame for each token of a stream, even where several are ready
    #[arg(long)]
    pub one_token_frames: bool,
    /// Served model name
    #[arg(long, default_value = "mock", value_name = "NAME")]
    pub model: String,
    /// Folder with tokenizer.json and tokenizer_config.json; without it four bytes are one token
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// LoRA adapter served beside the model; may be repeated
    #[arg(long = "lora", value_name = "NAME")]
    pub adapters: Vec<String>,

    /// Tokens of one KV block
    #[arg(long, default_value_t = 16, value_name = "TOKENS")]
    pub block_size: usize,
    /// KV blocks of each rank
    #[arg(long, default_value_t = 16_384, value_name = "N")]
    pub num_gpu_blocks: usize,
    /// Tokens that one step may compute
    #[arg(long, default_value_t = 8_192, value_name = "TOKENS")]
    pub max_num_batched_tokens: usize,
    /// Requests that may run at once
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub max_num_seqs: usize,
    /// Longest prompt plus output; without it what the KV cache holds, at most 131,072
    #[arg(long, value_name = "TOKENS")]
    pub max_model_len: Option<usize>,
    /// Refuse with 503 what would make more requests wait or run
    #[arg(long, value_name = "N")]
    pub max_num_queued_reqs: Option<usize>,
    /// Data-parallel ranks, chosen by the header X-data-parallel-rank
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub data_parallel_size: u32,
    /// Divide every duration by this
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub speedup: f64,
    /// TOML file with other coefficients of the cost curves
    #[arg(long, value_name = "FILE")]
    pub curve: Option<PathBuf>,

    /// Publish KV events: the default, but for --thin
    #[arg(long, conflicts_with = "no_kv_events")]
    pub kv_events: bool,
    /// Publish no KV events
    #[arg(long)]
    pub no_kv_events: bool,
    /// ZMQ endpoint of KV events; bound if it has a `*`, else connected
    #[arg(long, default_value = "tcp://*:*", value_name = "ENDPOINT")]
    pub kv_events_endpoint: String,
    /// ZMQ endpoint of their replay; empty: none
    #[arg(long, default_value = "tcp://*:*", value_name = "ENDPOINT")]
    pub kv_events_replay_endpoint: String,
    /// First frame of KV event messages
    #[arg(long, default_value = "kv-events", value_name = "TEXT")]
    pub kv_events_topic: String,
    /// Generation of the payload; the flavor's own without it
    #[arg(long, value_enum)]
    pub kv_events_wire: Option<Wire>,
    /// Form of block hashes
    #[arg(long, value_enum, default_value_t = HashForm::Int)]
    pub kv_events_hash: HashForm,
    /// Batches kept for replay
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub kv_events_buffer: usize,

    /// Leave prompt_tokens_details out of usage
    #[arg(long)]
    pub no_prompt_tokens_details: bool,
    /// Let /load count requests; without it the answer is always 0
    #[arg(long)]
    pub enable_server_load_tracking: bool,
    /// A fault in force from the start, as JSON: {"kind":"stall","ms":500,"share":0.1}; may be repeated
    #[arg(long = "fault", value_name = "JSON", value_parser = Fault::from_json)]
    pub faults: Vec<Fault>,
    /// Seed of what is drawn
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Answer at once with no model behind it, all engines on one thread: for measuring proxies
    #[arg(long)]
    pub thin: bool,
    /// Tokens of a thin answer whose request names no number
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub thin_tokens: u64,
    /// Time to a thin engine's first token, µs
    #[arg(long, default_value_t = 0, value_name = "US")]
    pub thin_ttft_us: u64,
    /// Time between a thin engine's tokens, µs
    #[arg(long, default_value_t = 0, value_name = "US")]
    pub thin_itl_us: u64,
    /// What usage a thin engine reports; without it `omit` with a tokenizer and `bytes` otherwise
    #[arg(long, value_enum, value_name = "KIND")]
    pub thin_usage: Option<Usage>,
}

/// How SGLang's metrics begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SglangMetrics {
    /// `sglang:`
    Colon,
    /// `sglang_`
    Underscore,
}

impl SglangMetrics {
    fn prefix(self) -> &'static str {
        match self {
            Self::Colon => "sglang:",
            Self::Underscore => "sglang_",
        }
    }
}

/// Longest context offered without `--max-model-len`.
const DEFAULT_CONTEXT_TOKENS: usize = 131_072;

impl Cli {
    /// One configuration for each engine. Reads the files that flags name; errors say which and why.
    pub fn resolve(&self) -> Result<Vec<EngineConfig>, String> {
        let events = (!self.no_kv_events && self.flavor != Flavor::Trtllm).then(|| self.events());
        let base = EngineConfig {
            host: self.host.clone(),
            flavor: self.flavor,
            sglang_metrics: self.sglang_metrics.prefix(),
            sglang_loads: !self.no_sglang_loads,
            one_token_frames: self.one_token_frames,
            model_root: self.model_root(),
            adapters: self.adapters.iter().map(|name| name.as_str().into()).collect(),
            codec: self.codec()?,
            limits: self.limits(),
            curve: self.curve.as_deref().map_or(Ok(Curve::default()), read_curve)?,
            speedup: self.speedup,
            ranks: self.data_parallel_size,
            events,
            max_queued_requests: self.max_num_queued_reqs,
            prompt_tokens_details: !self.no_prompt_tokens_details,
            load_tracking: self.enable_server_load_tracking,
            faults: self.faults.clone(),
            ..EngineConfig::new(&self.model)
        };
        let one = |(index, port): (usize, u16)| {
            let index = index as u16;
            EngineConfig { port, index, seed: self.seed.wrapping_add(index.into()), ..base.clone() }
        };
        Ok(self.all_ports()?.into_iter().enumerate().map(one).collect())
    }

    /// The thin engines.
    pub fn resolve_thin(&self) -> Result<ThinConfig, String> {
        if !self.faults.is_empty() {
            return Err("--fault does nothing with --thin, which has no faults".to_owned());
        }
        let usage = if self.tokenizer.is_some() { Usage::Omit } else { Usage::Bytes };
        Ok(ThinConfig {
            host: self.host.clone(),
            ports: self.all_ports()?,
            model: self.model.clone(),
            model_root: self.model_root(),
            codec: self.codec()?,
            limits: self.limits(),
            events: self.kv_events.then(|| self.events()),
            tokens: self.thin_tokens,
            ttft_us: self.thin_ttft_us,
            itl_us: self.thin_itl_us,
            usage: self.thin_usage.unwrap_or(usage),
        })
    }

    fn all_ports(&self) -> Result<Vec<u16>, String> {
        if !self.ports.is_empty() {
            return Ok(self.ports.clone());
        }
        if self.engines == 0 {
            return Err("--engines must be at least 1".to_owned());
        }
        let one = |index| match self.port {
            0 => Ok(0),
            port => port.checked_add(index).ok_or_else(|| "--port plus --engines exceeds 65535".to_owned()),
        };
        (0..self.engines).map(one).collect()
    }

    fn limits(&self) -> Limits {
        let capacity = self.num_gpu_blocks.saturating_mul(self.block_size);
        Limits {
            block_tokens: self.block_size,
            blocks: self.num_gpu_blocks,
            max_batched_tokens: self.max_num_batched_tokens,
            max_sequences: self.max_num_seqs,
            max_model_tokens: self.max_model_len.unwrap_or(capacity.min(DEFAULT_CONTEXT_TOKENS)),
        }
    }

    fn events(&self) -> EventConfig {
        let wire = if self.flavor == Flavor::Sglang { Wire::Sglang } else { Wire::default() };
        EventConfig {
            endpoint: self.kv_events_endpoint.clone(),
            replay_endpoint: Some(self.kv_events_replay_endpoint.clone()).filter(|at| !at.is_empty()),
            topic: self.kv_events_topic.clone(),
            wire: self.kv_events_wire.unwrap_or(wire),
            hash: self.kv_events_hash,
            buffer_batches: self.kv_events_buffer,
        }
    }

    fn codec(&self) -> Result<Arc<Codec>, String> {
        let codec = self.tokenizer.as_deref().map_or(Ok(Codec::bytes()), Codec::load);
        codec.map(Arc::new).map_err(|e| e.to_string())
    }

    fn model_root(&self) -> String {
        self.tokenizer.as_ref().map_or(self.model.clone(), |folder| folder.display().to_string())
    }
}

fn read_curve(path: &Path) -> Result<Curve, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Curve::from_toml(&text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &str) -> Cli {
        Cli::try_parse_from(std::iter::once("forebay-engine").chain(flags.split_whitespace())).unwrap()
    }

    #[test]
    fn engines_take_consecutive_ports_or_the_listed_ones() {
        let ports = |flags: &str| -> Vec<u16> { parse(flags).resolve().unwrap().iter().map(|c| c.port).collect() };
        assert_eq!(ports("--port 9001 --engines 3"), [9001, 9002, 9003]);
        assert_eq!(ports("--port 0 --engines 2"), [0, 0]);
        assert_eq!(ports("--ports 9001,9007"), [9001, 9007]);
        assert!(parse("--port 65535 --engines 2").resolve().is_err());
        assert!(parse("--engines 0").resolve().is_err());
        assert!(Cli::try_parse_from(["forebay-engine", "--ports", "1", "--port", "2"]).is_err());
    }

    #[test]
    fn the_page_names_every_flag() {
        let page = include_str!("../README.md");
        for argument in <Cli as clap::CommandFactory>::command().get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            assert!(page.contains(&format!("`--{long}")), "--{long} is not in README.md");
        }
    }

    #[test]
    fn the_context_is_what_the_cache_holds() {
        let context = |flags: &str| parse(flags).resolve().unwrap()[0].limits.max_model_tokens;
        assert_eq!(context(""), 131_072);
        assert_eq!(context("--num-gpu-blocks 100"), 1_600);
        assert_eq!(context("--max-model-len 512"), 512);
    }

    #[test]
    fn events_are_on_but_for_thin_engines() {
        assert!(parse("").resolve().unwrap()[0].events.is_some());
        assert!(parse("--no-kv-events").resolve().unwrap()[0].events.is_none());
        assert!(parse("--thin").resolve_thin().unwrap().events.is_none());
        assert!(parse("--thin --kv-events").resolve_thin().unwrap().events.is_some());
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_name() {
        let refuse = |flags: &str| parse(flags).resolve().map(drop).unwrap_err();
        assert!(refuse("--tokenizer /nonexistent").contains("/nonexistent/tokenizer.json"));
        assert!(refuse("--curve /nonexistent.toml").contains("/nonexistent.toml"));
        assert!(parse(r#"--thin --fault {"kind":"stall"}"#).resolve_thin().is_err());
        let bad = Cli::try_parse_from(["forebay-engine", "--fault", r#"{"kind":"stall","status":500}"#]).unwrap_err();
        assert!(bad.to_string().contains("means nothing"), "{bad}");
    }
}
