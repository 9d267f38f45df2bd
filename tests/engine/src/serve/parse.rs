//! Request bodies → what is to be generated.

use super::error::ApiError;
use super::fields::{count, flag, member, text, texts};
use super::prompt;
use super::route::{Flavor, Route};
use crate::engine::Life;
use crate::model::{Domain, Rule};
use crate::text::OutputLength;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Choices for one prompt; more is a mistake.
const MOST_CHOICES: usize = 128;

/// A call, understood.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) route: Route,
    /// The model or adapter as the client named it.
    pub(super) model: String,
    pub(super) prompts: Vec<Arc<[u32]>>,
    pub(super) choices: usize,
    pub(super) length: OutputLength,
    pub(super) stops: Vec<String>,
    pub(super) domain: Domain,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) return_token_ids: bool,
}

/// Reads `body` for `route`.
pub(super) fn call(life: &Life, route: Route, body: &Map<String, Value>) -> Result<Call, ApiError> {
    let (model, lora) = served_model(life, body)?;
    let sampling = match route {
        Route::Generate | Route::TokensIn => member(body, "sampling_params")?,
        _ => body.clone(),
    };
    let prompts = prompt::of(life, route, body)?;
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    let length = output_length(life, route, &sampling, longest)?;
    let choices = count(&sampling, "n")?.unwrap_or(1);
    if !(1..=MOST_CHOICES).contains(&choices) {
        return Err(ApiError::bad_request(format!("n must be between 1 and {MOST_CHOICES}, got {choices}"), Some("n")));
    }
    let options = member(body, "stream_options")?;
    let salt = text(body, "cache_salt")?.map(Arc::from);
    let include_usage = flag(&options, "include_usage")?;
    let rule = if life.config.flavor == Flavor::Sglang { Rule::SgLang } else { Rule::VllmCbor };
    Ok(Call {
        route,
        model,
        prompts,
        choices,
        length,
        stops: texts(&sampling, if route == Route::Messages { "stop_sequences" } else { "stop" })?,
        domain: Domain { lora, salt, rule },
        stream: flag(body, "stream")?,
        include_usage,
        continuous_usage: flag(&options, "continuous_usage_stats")? && include_usage,
        return_token_ids: flag(body, "return_token_ids")?,
    })
}

/// The model called for, and the adapter if it is one.
#[expect(clippy::type_complexity, reason = "a name and an optional (number, name)")]
pub(super) fn served_model(
    life: &Life,
    body: &Map<String, Value>,
) -> Result<(String, Option<(u32, Arc<str>)>), ApiError> {
    let config = &life.config;
    let Some(name) = text(body, "model")? else { return Ok((config.model.clone(), None)) };
    if name == config.model {
        return Ok((name.to_owned(), None));
    }
    match config.adapters.iter().position(|adapter| &**adapter == name) {
        Some(at) => Ok((name.to_owned(), Some((at as u32 + 1, config.adapters[at].clone())))),
        None => {
            let mut served = vec![config.model.as_str()];
            served.extend(config.adapters.iter().map(|adapter| &**adapter));
            Err(ApiError::unknown_model(name, &served))
        }
    }
}

/// The field that bounds the answer, and what holds without it: so many tokens, or as many as the model likes.
fn limit_of(route: Route, sampling: &Map<String, Value>) -> (&'static str, Option<usize>) {
    match route {
        Route::Chat if sampling.get("max_completion_tokens").is_some_and(|limit| !limit.is_null()) => {
            ("max_completion_tokens", None)
        }
        Route::Chat | Route::Messages => ("max_tokens", None),
        Route::Responses => ("max_output_tokens", None),
        // The completions route and vLLM's own default have always stopped at 16, SGLang at 128.
        Route::Completion | Route::TokensIn => ("max_tokens", Some(16)),
        Route::Generate => ("max_new_tokens", Some(128)),
    }
}

fn output_length(
    life: &Life,
    route: Route,
    sampling: &Map<String, Value>,
    prompt: usize,
) -> Result<OutputLength, ApiError> {
    let context = life.config.limits.max_model_tokens;
    let (param, default) = limit_of(route, sampling);
    match count(sampling, param)? {
        Some(0) => Err(ApiError::bad_request(format!("{param} must be at least 1, got 0."), Some(param))),
        Some(asked) if asked > context => Err(ApiError::too_many_output_tokens(asked, context, param)),
        Some(asked) if prompt + asked > context => Err(ApiError::too_long(prompt, asked, context)),
        Some(asked) => Ok(OutputLength::Exactly(asked)),
        None if prompt >= context => Err(ApiError::too_long(prompt, 1, context)),
        None => Ok(default.map_or(OutputLength::AtMost(context - prompt), |tokens| {
            OutputLength::Exactly(tokens.min(context - prompt))
        })),
    }
}
