//! Routes under the names that sglang-router and vllm-router give them, so that scripts which steer those go on working.
//!
//! | Path | As |
//! |---|---|
//! | `POST /add_worker?url=…` | `POST /workers` |
//! | `POST /remove_worker?url=…`, `DELETE /workers/URL` | `DELETE /workers?url=…` |
//! | `GET /list_workers` | the URLs of `GET /workers` |
//! | `GET /get_loads` | the requests in flight of `GET /workers` |
//! | `POST /flush_cache` | every engine's own route for it, one after the other |
//! | `GET /liveness`, `GET /readiness` | `/healthz`, `/readyz` |

use super::reply::{self, Answer};
use super::routes::{parameter, unescape};
use super::{Console, workers};
use crate::doors::Towards;
use crate::error::Fault;
use crate::fleet::{Endpoint, EngineKind};
use crate::signal::http::Peer;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Duration;

/// For one engine to drop its cache.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// `POST /add_worker?url=…`.
pub(super) async fn add(console: &Console, query: &str) -> Result<Answer, Fault> {
    let body = json!({ "url": required_url(query)? }).to_string();
    workers::add(console, query, body.as_bytes()).await
}

/// `POST /remove_worker?url=…`.
pub(super) fn remove(console: &Console, query: &str) -> Result<Answer, Fault> {
    required_url(query)?;
    workers::remove(console, query, b"")
}

/// `DELETE /workers/URL`, the URL escaped.
pub(super) fn remove_named(console: &Console, name: &str) -> Result<Answer, Fault> {
    workers::remove(console, "", json!({ "url": unescape(name) }).to_string().as_bytes())
}

fn required_url(query: &str) -> Result<String, Fault> {
    parameter(query, "url").ok_or_else(|| {
        Fault::client(400, "bad_worker", "no ?url=… names the worker; write ?url=http://host:port").with_param("url")
    })
}

/// Every URL once, with the requests in flight there.
async fn in_flight(console: &Console) -> BTreeMap<String, u32> {
    let mut urls = BTreeMap::new();
    for worker in console.gateway.fleet.describe().await {
        *urls.entry(worker.url.to_string()).or_default() += worker.local.requests;
    }
    urls
}

/// `GET /list_workers`.
pub(super) async fn list(console: &Console) -> Answer {
    let urls: Vec<String> = in_flight(console).await.into_keys().collect();
    reply::json(StatusCode::OK, &json!({ "urls": urls }))
}

/// `GET /get_loads`.
pub(super) async fn loads(console: &Console) -> Answer {
    let workers: Vec<Value> =
        in_flight(console).await.into_iter().map(|(url, load)| json!({ "worker": url, "load": load })).collect();
    reply::json(StatusCode::OK, &json!({ "workers": workers }))
}

/// `POST /flush_cache`: 200 when every engine did, else 502 with what each said.
pub(super) async fn flush(console: &Console) -> Answer {
    let mut engines: BTreeMap<String, Arc<Endpoint>> = BTreeMap::new();
    for worker in console.gateway.fleet.describe().await {
        if let Some(endpoint) = console.gateway.fleet.endpoint(worker.id) {
            engines.insert(worker.url.to_string(), endpoint);
        }
    }
    let (mut flushed, mut failed) = (Vec::new(), Vec::new());
    for (url, endpoint) in engines {
        match flush_one(console, &endpoint).await {
            Ok(()) => flushed.push(url),
            Err(why) => failed.push(json!({ "worker": url, "why": why })),
        }
    }
    let status = if failed.is_empty() { StatusCode::OK } else { StatusCode::BAD_GATEWAY };
    reply::json(status, &json!({ "flushed": flushed, "failed": failed }))
}

async fn flush_one(console: &Console, endpoint: &Endpoint) -> Result<(), String> {
    let path = match endpoint.kind {
        EngineKind::SgLang => "/flush_cache",
        // vLLM has it in its development mode alone.
        EngineKind::Vllm | EngineKind::Unknown => "/reset_prefix_cache",
        EngineKind::TensorRtLlm => return Err("TensorRT-LLM has no route for it".to_owned()),
    };
    let doors = &console.gateway.doors;
    let peer = Peer {
        address: endpoint.address,
        authority: endpoint.authority.clone(),
        deadline: FLUSH_TIMEOUT,
        key: None,
        towards: endpoint.secure.clone().map(|name| Towards::new(doors.clone(), name)),
    };
    let answer = peer.post_json(path, Bytes::from_static(b"{}")).await.map_err(|error| error.to_string())?;
    if answer.status.is_success() { Ok(()) } else { Err(format!("{path} answered {}", answer.status.as_u16())) }
}
