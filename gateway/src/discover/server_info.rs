//! What SGLang says of itself at `/server_info` (`/get_server_info` before): pages, capacity, event sockets, instance.
//! TensorRT-LLM has a route of that name too, which tells how it hashes blocks.
//!
//! vLLM has no such route outside its development mode and names its event sources at `/kv_event_sources`; so this is asked
//! of engines that lack the latter.

use super::probe::EventSource;
use crate::fleet::EngineKind;
use crate::signal::http::Peer;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Routes under which releases have it, the present one first.
const PATHS: [&str; 2] = ["/server_info", "/get_server_info"];

/// Data-parallel ranks whose sockets are believed; more is a broken answer.
const MAX_RANKS: u16 = 256;

/// Bytes of an instance's name.
const MAX_INSTANCE_BYTES: usize = 128;

/// As far as it was there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ServerInfo {
    /// Whose answer it is.
    pub(super) kind: EngineKind,
    /// Tokens per page, the unit in which the cache works.
    pub(super) page_size: Option<u32>,
    /// KV capacity in pages.
    pub(super) capacity_blocks: Option<u32>,
    /// Names the process: another one is another process.
    pub(super) instance: Option<String>,
    /// Event sockets by data-parallel rank.
    pub(super) sources: BTreeMap<u16, EventSource>,
}

/// Asks for it; `None` where there is no such route, or no answer that is understood.
pub(super) async fn ask(peer: &Peer) -> Option<ServerInfo> {
    for path in PATHS {
        let answer = peer.get(path).await.ok()?;
        if answer.status.is_success() {
            return read(&answer.body).ok();
        }
    }
    None
}

#[derive(Deserialize)]
struct Card {
    #[serde(default)]
    served_model_name: Option<String>,
    #[serde(default)]
    kv_cache_hash_algo: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    disaggregated_params: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    page_size: Option<u32>,
    #[serde(default)]
    max_total_num_tokens: Option<u64>,
    #[serde(default)]
    instance_id: Option<String>,
    #[serde(default)]
    kv_events: Option<Events>,
    #[serde(default)]
    internal_states: Vec<State>,
}

impl Card {
    fn kind(&self) -> EngineKind {
        if self.page_size.is_some() || self.served_model_name.is_some() {
            EngineKind::SgLang
        } else if self.kv_cache_hash_algo.is_some() || self.disaggregated_params.is_some() {
            EngineKind::TensorRtLlm
        } else {
            EngineKind::Unknown
        }
    }
}

#[derive(Deserialize)]
struct State {
    #[serde(default)]
    max_total_num_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Events {
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint_host: Option<String>,
    endpoint_port_base: u16,
    #[serde(default)]
    block_size: Option<u32>,
    #[serde(default)]
    dp_size: Option<u16>,
    #[serde(default)]
    replay_endpoint_host: Option<String>,
    #[serde(default)]
    replay_endpoint_port_base: Option<u16>,
}

fn read(body: &[u8]) -> Result<ServerInfo, serde_json::Error> {
    let card: Card = serde_json::from_slice(body)?;
    let kind = card.kind();
    let Card { page_size, max_total_num_tokens, instance_id, kv_events, internal_states, .. } = card;
    let page_size = kv_events.as_ref().and_then(|events| events.block_size).or(page_size).filter(|size| *size > 0);
    let tokens = max_total_num_tokens.or_else(|| internal_states.first()?.max_total_num_tokens);
    let pages = tokens.zip(page_size).map(|(tokens, size)| tokens / u64::from(size));
    Ok(ServerInfo {
        kind,
        page_size,
        capacity_blocks: pages.and_then(|pages| u32::try_from(pages).ok()).filter(|pages| *pages > 0),
        instance: instance_id.filter(|name| !name.is_empty() && name.len() <= MAX_INSTANCE_BYTES),
        sources: kv_events.map(|events| sources(&events)).unwrap_or_default(),
    })
}

/// Rank `r` is at the base port + `r`, as in vLLM.
fn sources(events: &Events) -> BTreeMap<u16, EventSource> {
    if events.publisher.as_deref().unwrap_or("zmq") != "zmq" {
        return BTreeMap::new();
    }
    let host = events.endpoint_host.as_deref().unwrap_or("*");
    let replay_host = events.replay_endpoint_host.as_deref().unwrap_or(host);
    let at = |host: &str, base: u16, rank: u16| Some(format!("tcp://{host}:{}", base.checked_add(rank)?));
    let source = |rank: u16| {
        let endpoint = at(host, events.endpoint_port_base, rank)?;
        let replay = events.replay_endpoint_port_base.and_then(|base| at(replay_host, base, rank));
        Some((rank, EventSource { endpoint, replay }))
    };
    (0..events.dp_size.unwrap_or(1).clamp(1, MAX_RANKS)).filter_map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(endpoint: &str, replay: Option<&str>) -> EventSource {
        EventSource { endpoint: endpoint.to_owned(), replay: replay.map(str::to_owned) }
    }

    #[test]
    fn reads_pages_capacity_instance_and_one_socket_a_rank() {
        let info = read(
            br#"{"served_model_name":"m","page_size":16,"max_total_num_tokens":64010,"instance_id":"i-1",
                "speculative_algorithm":"EAGLE","kv_events":{"publisher":"zmq","endpoint_host":"*",
                "endpoint_port_base":5557,"topic":"","block_size":64,"dp_size":2,"replay_endpoint_port_base":6000}}"#,
        )
        .expect("valid");
        let sources =
            [(0, source("tcp://*:5557", Some("tcp://*:6000"))), (1, source("tcp://*:5558", Some("tcp://*:6001")))];
        let want = ServerInfo {
            kind: EngineKind::SgLang,
            page_size: Some(64),
            capacity_blocks: Some(1_000),
            instance: Some("i-1".into()),
            sources: sources.into(),
        };
        assert_eq!(info, want);
    }

    #[test]
    fn what_is_absent_or_off_is_unknown() {
        let read = |text: &str| read(text.as_bytes());
        assert_eq!(read("{}").expect("valid"), ServerInfo::default());
        let old = read(r#"{"page_size":1,"internal_states":[{"max_total_num_tokens":7}],"kv_events":null}"#);
        assert_eq!(old.expect("valid").capacity_blocks, Some(7));
        let off = read(r#"{"kv_events":{"publisher":"null","endpoint_port_base":5557}}"#).expect("valid");
        assert!(off.sources.is_empty());
        let edge = read(r#"{"kv_events":{"endpoint_host":"10.0.0.1","endpoint_port_base":65535,"dp_size":3}}"#);
        assert_eq!(edge.expect("valid").sources, BTreeMap::from([(0, source("tcp://10.0.0.1:65535", None))]));
        let other = read(r#"{"disaggregated_params":null,"kv_cache_hash_algo":"v1"}"#).expect("valid");
        assert_eq!(other, ServerInfo { kind: EngineKind::TensorRtLlm, ..ServerInfo::default() });
        assert!(read("<html>").is_err() && read(r#"{"kv_events":{"endpoint_port_base":70000}}"#).is_err());
    }
}
