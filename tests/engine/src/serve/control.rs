//! `/_ctl`: look at and change a running engine. No real engine has it.
//!
//! `GET` tells; `POST` takes a JSON object with any of `faults` (a list that replaces all faults), `add_faults` (a
//! list that is appended) and `restart` (`{"down_ms": …}`), and tells what is in force afterwards.

use super::error::ApiError;
use super::fields;
use crate::engine::Life;
use crate::fault::Fault;
use crate::http::{Request, Response};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Duration;

/// The answer, and the down time of a restart that is to follow it.
pub(super) fn answer(life: &Arc<Life>, request: &Request) -> Result<(Response, Option<Duration>), ApiError> {
    let restart = match request.method() {
        "GET" => None,
        "POST" => change(life, &request.body)?,
        _ => return Err(ApiError::http(405)),
    };
    let aborted: u64 = life.ranks.iter().map(|rank| rank.with_metrics(|metrics| metrics.aborted)).sum();
    let state = json!({
        "faults": life.faults.list(),
        "served": life.served.load(Ordering::Relaxed),
        "aborted": aborted,
        "given_prompts": life.given_prompts.load(Ordering::Relaxed),
        "tokenize_calls": life.tokenize_calls.load(Ordering::Relaxed),
        "restarts": life.restarts,
    });
    Ok((Response::json(state.to_string()), restart))
}

fn change(life: &Arc<Life>, body: &[u8]) -> Result<Option<Duration>, ApiError> {
    let mut restart = None;
    let bad = |param: &str, why: String| ApiError::bad_request(format!("{param}: {why}"), Some(param));
    let body = fields::object(body)?;
    for (name, value) in &body {
        let list = || -> Result<Vec<Fault>, ApiError> {
            serde_json::from_value(value.clone()).map_err(|e| bad(name, e.to_string()))
        };
        match name.as_str() {
            "faults" => life.faults.replace(list()?).map_err(|why| bad(name, why))?,
            "add_faults" => {
                let mut all = life.faults.list();
                all.extend(list()?);
                life.faults.replace(all).map_err(|why| bad(name, why))?;
            }
            "restart" => {
                let down_ms = match value.get("down_ms") {
                    None => Some(0),
                    Some(ms) => ms.as_u64(),
                };
                let keys_known = value.as_object().is_some_and(|map| map.keys().all(|key| key == "down_ms"));
                let down_ms = down_ms.filter(|_| keys_known);
                let down_ms = down_ms.ok_or_else(|| bad(name, r#"wanted {"down_ms": milliseconds}"#.to_owned()))?;
                restart = Some(Duration::from_millis(down_ms));
            }
            _ => return Err(bad(name, "unknown; known are faults, add_faults and restart".to_owned())),
        }
    }
    Ok(restart)
}
