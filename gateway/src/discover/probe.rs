//! Asking an engine who it is: models and adapters, version, block size, capacity, event sources.

use super::server_info::{self, ServerInfo};
use crate::fleet::{EngineKind, Facts};
use crate::signal::engine::{self, CheckError, Reading};
use crate::signal::http::Peer;
use forebay_routing::event::ServedName;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Names taken from one engine: a few base names and its adapters.
const MAX_MODELS: usize = 1_024;

/// Bytes of one model name.
const MAX_NAME_BYTES: usize = 256;

/// Everything an engine told about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Model as the engine serves it.
    pub model: String,
    /// What the fleet keeps.
    pub facts: Facts,
    /// Event source of each data-parallel rank that has one.
    pub sources: BTreeMap<u16, EventSource>,
    /// Name of the process, where it has one: another name is another process.
    pub instance: Option<String>,
    /// First scrape of its metrics.
    pub reading: Reading,
}

/// What an engine serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The model whose blocks it holds.
    pub model: String,
    /// Further names for it, and its adapters.
    pub names: Vec<ServedName>,
    /// Longest prompt and answer in tokens.
    pub max_model_len: Option<u32>,
    /// `owned_by`: engines name themselves there.
    pub owner: Option<String>,
}

/// Where one rank publishes its KV events, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    /// PUB endpoint.
    pub endpoint: String,
    /// ROUTER endpoint for what was missed.
    pub replay: Option<String>,
}

/// Why an engine cannot take traffic.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Unreachable or unwell.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// `/v1/models` was not OpenAI's list.
    #[error("/v1/models is not a list of models: {0}")]
    Models(String),
    /// It serves something else.
    #[error("serves {served}, not {wanted}: correct `model` of this worker or leave it out")]
    OtherModel {
        /// Configured name.
        wanted: String,
        /// What it has.
        served: String,
    },
}

/// Asks everything. Health and models must answer; the rest is noted as degraded when it does not.
pub async fn probe(peer: &Peer, wanted: Option<&str>) -> Result<Profile, ProbeError> {
    engine::check(peer).await?;
    let served = models(peer, wanted).await?;
    let mut degraded = Vec::new();
    let version = version(peer).await;
    let (told, info) = match sources(peer).await {
        Ok(None) => (BTreeMap::new(), server_info::ask(peer).await.unwrap_or_default()),
        Ok(Some(told)) => (told, ServerInfo::default()),
        Err(problem) => {
            degraded.push(problem);
            (BTreeMap::new(), ServerInfo::default())
        }
    };
    let kind = kind_of(served.owner.as_deref(), !told.is_empty(), &info);
    let sources = if told.is_empty() { info.sources } else { told };
    let reading = match engine::scrape(peer, kind).await {
        Ok(reading) => reading,
        Err(error) => {
            degraded.push(format!("no load readings: {error}"));
            Reading::default()
        }
    };
    let block_size = reading.block_size.or(info.page_size);
    let capacity_blocks = reading.capacity_blocks.or(info.capacity_blocks);
    let Served { model, names, max_model_len, .. } = served;
    let drafts = reading.drafts;
    let facts = Facts { kind, names, max_model_len, version, block_size, capacity_blocks, drafts, degraded };
    Ok(Profile { model, facts, sources, instance: info.instance, reading })
}

/// What it serves. With `wanted`, the model of that name, its aliases and adapters; else its first model's.
pub async fn models(peer: &Peer, wanted: Option<&str>) -> Result<Served, ProbeError> {
    let path = "/v1/models";
    let answer = peer.get(path).await.map_err(CheckError::from)?;
    if !answer.status.is_success() {
        return Err(CheckError::Status { path, status: answer.status.as_u16() }.into());
    }
    read_models(&answer.body, wanted)
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelCard>,
}

#[derive(Deserialize)]
struct ModelCard {
    id: String,
    #[serde(default)]
    root: Option<String>,
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    max_model_len: Option<u32>,
    #[serde(default)]
    owned_by: Option<String>,
}

/// Names of one root are one model; an adapter names its parent.
fn read_models(body: &[u8], wanted: Option<&str>) -> Result<Served, ProbeError> {
    let list: ModelList = serde_json::from_slice(body).map_err(|error| ProbeError::Models(error.to_string()))?;
    let usable = |card: &ModelCard| !card.id.is_empty() && card.id.len() <= MAX_NAME_BYTES;
    let cards: Vec<_> = list.data.into_iter().filter(usable).take(MAX_MODELS).collect();
    let is_base = |card: &&ModelCard| card.parent.is_none();
    let base = match wanted {
        Some(wanted) => cards.iter().find(|card| card.id == wanted),
        None => cards.iter().find(is_base).or(cards.first()),
    };
    let Some(base) = base else {
        return Err(match wanted {
            Some(wanted) if !cards.is_empty() => {
                let served = cards.iter().take(8).map(|card| card.id.as_str()).collect::<Vec<_>>().join(", ");
                ProbeError::OtherModel { wanted: wanted.to_owned(), served }
            }
            _ => ProbeError::Models("it is empty".to_owned()),
        });
    };
    let alias = |card: &&ModelCard| card.parent.is_none() && base.parent.is_none() && card.root() == base.root();
    let same: Vec<_> = cards.iter().filter(alias).map(|card| card.id.as_str()).collect();
    let name = |card: &ModelCard| {
        let lora = card.parent.as_deref().is_some_and(|parent| same.contains(&parent));
        let other = card.id != base.id && (lora || same.contains(&card.id.as_str()));
        other.then(|| ServedName { name: card.id.clone(), lora })
    };
    let names = cards.iter().filter_map(name).collect();
    Ok(Served { model: base.id.clone(), names, max_model_len: base.max_model_len, owner: base.owned_by.clone() })
}

impl ModelCard {
    fn root(&self) -> &str {
        self.root.as_deref().unwrap_or(&self.id)
    }
}

/// Whose server it is: by the name it gives its models, else by the routes it has.
fn kind_of(owner: Option<&str>, has_sources: bool, info: &ServerInfo) -> EngineKind {
    match owner {
        Some("vllm") => EngineKind::Vllm,
        Some("sglang") => EngineKind::SgLang,
        Some("tensorrt_llm" | "trtllm") => EngineKind::TensorRtLlm,
        _ if has_sources => EngineKind::Vllm,
        _ => info.kind,
    }
}

/// Its version, where it tells.
async fn version(peer: &Peer) -> Option<String> {
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    let answer = peer.get("/version").await.ok().filter(|answer| answer.status.is_success())?;
    let mut version = serde_json::from_slice::<Version>(&answer.body).ok()?.version;
    version.truncate(version.floor_char_boundary(64));
    Some(version)
}

/// Name of its process now, where it has one.
pub(super) async fn instance(peer: &Peer) -> Option<String> {
    server_info::ask(peer).await?.instance
}

/// Its event sources; `None` when it has no such route.
async fn sources(peer: &Peer) -> Result<Option<BTreeMap<u16, EventSource>>, String> {
    let path = "/kv_event_sources";
    let answer = peer.get(path).await.map_err(|error| format!("event sources unknown: {error}"))?;
    if !answer.status.is_success() {
        return Ok(None);
    }
    read_sources(&answer.body).map(Some).map_err(|error| format!("event sources unknown: {path}: {error}"))
}

#[derive(Deserialize)]
struct SourceCard {
    #[serde(default)]
    enable_kv_cache_events: Option<bool>,
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint: Option<String>,
    #[serde(default)]
    replay_endpoint: Option<String>,
}

fn read_sources(body: &[u8]) -> Result<BTreeMap<u16, EventSource>, serde_json::Error> {
    let cards: Option<BTreeMap<u16, Option<SourceCard>>> = serde_json::from_slice(body)?;
    let source = |card: SourceCard| {
        let on = card.enable_kv_cache_events != Some(false) && card.publisher.as_deref().unwrap_or("zmq") == "zmq";
        Some(EventSource { endpoint: card.endpoint.filter(|_| on)?, replay: card.replay_endpoint })
    };
    Ok(cards.unwrap_or_default().into_iter().filter_map(|(rank, card)| Some((rank, source(card?)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, wanted: Option<&str>) -> Result<(String, Vec<(String, bool)>), String> {
        let served = read_models(body.as_bytes(), wanted).map_err(|error| error.to_string())?;
        Ok((served.model, served.names.into_iter().map(|served| (served.name, served.lora)).collect()))
    }

    #[test]
    fn reads_what_a_real_vllm_said() {
        let served =
            read_models(include_bytes!("../../tests/fixtures/vllm/models.json"), Some("tiny")).expect("recorded");
        let want =
            Served { model: "tiny".into(), names: Vec::new(), max_model_len: Some(8192), owner: Some("vllm".into()) };
        assert_eq!(served, want);
        let sources =
            read_sources(include_bytes!("../../tests/fixtures/vllm/kv_event_sources_b.json")).expect("recorded");
        let want =
            EventSource { endpoint: "tcp://127.0.0.1:42321".into(), replay: Some("tcp://127.0.0.1:37947".into()) };
        assert_eq!(sources, BTreeMap::from([(0, want)]));
    }

    #[test]
    fn engines_are_known_by_their_names_and_their_routes() {
        let info = |kind| ServerInfo { kind, ..ServerInfo::default() };
        let unknown = info(EngineKind::Unknown);
        assert_eq!(kind_of(Some("sglang"), false, &unknown), EngineKind::SgLang);
        assert_eq!(kind_of(Some("me"), true, &unknown), EngineKind::Vllm);
        assert_eq!(kind_of(None, false, &info(EngineKind::TensorRtLlm)), EngineKind::TensorRtLlm);
        assert_eq!(kind_of(Some("me"), false, &unknown), EngineKind::Unknown);
    }

    #[test]
    fn aliases_share_a_base_and_adapters_name_it() {
        let body = r#"{"data":[{"id":"ad","parent":"alias","extra":[]},{"id":"main","root":"r","parent":null},
            {"id":"alias","root":"r"},{"id":"other"},{"id":"ad2","parent":"other"},{"id":""}]}"#;
        let of = |model: &str, names: &[(&str, bool)]| {
            Ok((model.to_owned(), names.iter().map(|(name, lora)| ((*name).to_owned(), *lora)).collect()))
        };
        assert_eq!(read(body, None), of("main", &[("ad", true), ("alias", false)]));
        assert_eq!(read(body, Some("alias")), of("alias", &[("ad", true), ("main", false)]));
        assert_eq!(read(body, Some("other")), of("other", &[("ad2", true)]));
        assert_eq!(read(body, Some("ad")), of("ad", &[]));
        assert!(read(body, Some("none")).is_err_and(|error| error.contains("ad, main, alias, other")));
        assert!(read(r#"{"data":[]}"#, Some("x")).is_err_and(|error| error.contains("empty")));
        assert!(read("<html>", None).is_err());
    }

    #[test]
    fn sources_that_are_off_are_none() {
        let read = |text: &str| read_sources(text.as_bytes());
        assert!(read("null").is_ok_and(|sources| sources.is_empty()));
        assert!(read(r#"{"0":null,"1":{"publisher":"null","endpoint":"tcp://x:1"}}"#).is_ok_and(|s| s.is_empty()));
        assert!(read(r#"{"2":{"endpoint":"tcp://x:1"}}"#).is_ok_and(|s| s.contains_key(&2)));
        assert!(read("[1]").is_err());
    }
}
