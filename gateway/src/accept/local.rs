//! Paths that the gateway answers from what it knows: health and the list of models.

use super::Reply;
use crate::clock;
use crate::error::Fault;
use crate::fleet::Fleet;
use crate::http1::RequestHead;
use crate::parse::Dialect;
use forebay_routing::view::{FleetView, ModelView, WorkerState};
use serde_json::{Value, json};

/// What is done with a request, by method and path.
#[derive(Debug)]
pub(super) enum Route {
    /// Answered here, whoever asks: load balancers have no key.
    Open(Reply),
    /// Answered here.
    Local(Reply),
    /// Routed by what it asks.
    Inference(Dialect),
    /// Any other path an engine may know (`/v1/audio/…`, `/classify`, …): sent unread to the healthy worker with the
    /// least in flight, since a gateway that took such paths away would be no drop-in.
    Through,
}

/// `aliases` are the configured ones, each with its model.
pub(super) fn route(
    head: &RequestHead,
    fleet: &Fleet,
    draining: bool,
    aliases: impl FnOnce() -> Vec<(String, String)>,
) -> Route {
    let reads = matches!(head.method(), "GET" | "HEAD");
    let path = head.path();
    match path {
        // The last is what other routers call it.
        "/health" | "/healthz" | "/ping" | "/readiness" if reads => {
            return Route::Open(health(&fleet.view(), draining));
        }
        "/liveness" if reads => return Route::Open(Reply::json(200, json!({"status": "ok"}).to_string())),
        "/v1/models" if reads => return Route::Local(models(&fleet.view(), aliases())),
        _ if reads && path.starts_with("/v1/models/") => {
            return Route::Local(model(&fleet.view(), aliases(), &path["/v1/models/".len()..]));
        }
        _ => {}
    }
    let Some(dialect) = Dialect::of_path(path) else { return Route::Through };
    match head.method() {
        "POST" => return Route::Inference(dialect),
        // SGLang takes both.
        "PUT" if dialect == Dialect::Generate => return Route::Inference(dialect),
        // Browsers ask first (CORS); the engine knows whom it allows.
        "OPTIONS" => return Route::Through,
        _ => {}
    }
    let message = format!("{} {path} is not served; use POST", head.method());
    let fault = Fault::client(405, "method_not_allowed", message);
    Route::Local(Reply::fault_in(&fault, dialect.shape()).allow("POST"))
}

/// 200 while any worker takes traffic and no drain has begun: what a load balancer in front wants to know.
fn health(view: &FleetView, draining: bool) -> Reply {
    if draining {
        return Reply::fault(&Fault::gateway(503, "draining", "this gateway is about to stop"));
    }
    let ready = view.workers.iter().filter(|worker| worker.state == WorkerState::Ready).count();
    if ready > 0 {
        return Reply::json(200, json!({"status": "ok", "ready_workers": ready}).to_string());
    }
    Reply::fault(&Fault::gateway(503, "no_workers", "no engine is ready"))
}

/// As engines list it: an alias has the model behind it as `root`, an adapter as `parent`.
fn card(name: &str, root: &str, parent: Option<&str>) -> Value {
    json!({
        "id": name, "object": "model", "created": clock::unix_seconds() as u64, "owned_by": "forebay", "root": root,
        "parent": parent,
    })
}

fn entry(model: &ModelView) -> Value {
    let base = model.base.as_deref();
    card(&model.name, base.filter(|_| !model.lora).unwrap_or(&model.name), base.filter(|_| model.lora))
}

/// Every model that an engine serves, then the aliases of those.
fn entries(view: &FleetView, aliases: Vec<(String, String)>) -> Vec<Value> {
    let configured = aliases
        .into_iter()
        .filter(|(alias, model)| view.model(alias).is_none() && view.models.iter().any(|served| served.name == *model));
    let configured = configured.map(|(alias, model)| card(&alias, &model, None));
    view.models.iter().map(entry).chain(configured).collect()
}

fn models(view: &FleetView, aliases: Vec<(String, String)>) -> Reply {
    Reply::json(200, json!({"object": "list", "data": entries(view, aliases)}).to_string())
}

/// Model names contain slashes (`Qwen/Qwen3-8B`), so the rest of the path is the name, escaped or not.
fn model(view: &FleetView, aliases: Vec<(String, String)>, name: &str) -> Reply {
    let plain = name.replace("%2F", "/").replace("%2f", "/");
    match entries(view, aliases).into_iter().find(|entry| entry["id"] == plain) {
        Some(entry) => Reply::json(200, entry.to_string()),
        None => Reply::fault(&unknown_model(&plain)),
    }
}

/// 404 in OpenAI's shape.
pub(crate) fn unknown_model(name: &str) -> Fault {
    // A name is echoed so far that a person recognises it, and no further.
    let shown: String = name.chars().take(200).collect();
    Fault::client(404, "model_not_found", format!("the model `{shown}` does not exist")).with_param("model")
}
