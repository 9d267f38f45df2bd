//! `/explain`: which worker a request would get and why, from the code that decides, without sending anything.

use super::Console;
use super::reply::{self, Answer};
use super::routes::parameter;
use crate::config::policy_name;
use crate::error::Fault;
use crate::fleet::state_name;
use crate::observe::reason_name;
use crate::parse::{self, Dialect};
use crate::serve::{Considered, Session, consider};
use crate::tokenize::Outcome;
use bytes::Bytes;
use forebay_routing::decision::{self, Standing};
use forebay_routing::view::CacheKnowledge;
use forebay_routing::{DecideInput, FleetView, Policy, Refusal, WorkerId};
use http::StatusCode;
use serde::{Deserialize, Serialize};

/// The answer; also what `forebay explain` reads.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// As the request names it.
    pub model: String,
    /// What chooses.
    pub policy: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Whether those were counted; estimated from bytes otherwise.
    pub exact: bool,
    /// Why the request is routed by text, where it is.
    pub text_reason: Option<String>,
    /// Time spent on token ids, ms.
    pub tokenize_ms: f64,
    /// URL (with rank) of the worker that would be chosen.
    pub chosen: Option<String>,
    /// What decided.
    pub reason: Option<String>,
    /// Worker that would be chosen without what node agents tell, where that is another.
    #[serde(default)]
    pub without_agents: Option<String>,
    /// Why nobody can be chosen.
    pub refusal: Option<String>,
    /// Every worker of the model.
    pub candidates: Vec<Candidate>,
}

/// One worker of the model. Times in ms.
#[derive(Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// URL, with `@rank` where it is one of several.
    pub worker: String,
    /// `eligible`, or the state that keeps it out.
    pub standing: String,
    /// Predicted cached tokens.
    pub cached_tokens: u32,
    /// Tokens it would compute.
    pub uncached_tokens: u32,
    /// Own requests ahead.
    pub queue_ms: f64,
    /// Requests ahead that only the engine knows.
    pub waiting_ms: f64,
    /// This prompt.
    pub prefill_ms: f64,
    /// Requests ahead that only the kernel on its node sees.
    #[serde(default)]
    pub foreign_ms: f64,
    /// Wait for free KV blocks.
    pub room_ms: f64,
    /// Predicted time to first token: the five above.
    pub ttft_ms: f64,
    /// Delay of the requests there, weighted.
    pub harm_ms: f64,
    /// Slower decoding, of this answer and of the others there.
    pub decode_ms: f64,
    /// Prefixes that its new blocks push out, weighted.
    pub evict_ms: f64,
    /// Charged for what its engine does not tell.
    pub unknown_ms: f64,
    /// What `kv` compares.
    pub cost_ms: f64,
    /// Own requests in flight there.
    pub in_flight: u32,
    /// Age of its engine's last reading, absent = never heard.
    pub load_age_ms: Option<u64>,
    /// Age of its node agent's last report, absent = never heard.
    #[serde(default)]
    pub agent_age_ms: Option<u64>,
    /// Whether its cache is known by its `events` or `approximate`ly.
    pub cache: String,
    /// Its claim in rendezvous hashing, for the policies that use one.
    pub claim: Option<u64>,
}

/// `POST /explain?dialect=chat|completions|messages|…&session=…`.
pub(super) async fn answer(console: &Console, query: &str, body: Bytes) -> Result<Answer, Fault> {
    let name = parameter(query, "dialect");
    let Some(dialect) = name.as_deref().map_or(Some(Dialect::Chat), Dialect::named) else {
        let known = Dialect::ALL.map(Dialect::name).join(", ");
        let message = format!("the dialect {:?} is unknown; write one of {known}", name.unwrap_or_default());
        return Err(Fault::client(400, "bad_dialect", message).with_param("dialect"));
    };
    let session = parameter(query, "session");
    let mut parsed = parse::parse(dialect, body)?;
    console.gateway.complete(&mut parsed)?;
    let session = Session::new(session.as_deref().map(str::as_bytes), None, &parsed);
    let considered = consider(&console.gateway, &parsed, &session).await?;
    Ok(reply::json(StatusCode::OK, &explain(console, parsed.model, &considered)))
}

fn explain(console: &Console, model: String, considered: &Considered) -> Explanation {
    let gateway = &console.gateway;
    let view = gateway.fleet.view();
    let mut local = Vec::new();
    gateway.fleet.local_loads(&view, &mut local);
    let facts = considered.facts();
    let input = DecideInput {
        facts: &facts,
        view: &view,
        among: None,
        local: &local,
        hits: &considered.hits,
        exclude: &[],
        cursor: 0,
        now_ms: console.clock.now_ms(),
    };
    let name = |worker| worker_name(console, worker);
    let candidates = decision::explain(considered.policy, &input);
    let decided = considered.decision.as_ref();
    Explanation {
        model,
        policy: policy_name(considered.policy).to_owned(),
        prompt_tokens: considered.prompt_tokens,
        exact: considered.exact,
        text_reason: match &considered.tokens {
            Some(Outcome::Text(reason)) => Some(reason.label().to_owned()),
            _ => None,
        },
        tokenize_ms: considered.tokenize_ms,
        chosen: decided.ok().map(|decision| name(decision.worker)),
        reason: decided.ok().map(|decision| reason_name(decision.reason).to_owned()),
        without_agents: changed_by_agents(considered.policy, &input).map(name),
        refusal: decided.err().map(|refusal| refusal_text(*refusal).to_owned()),
        candidates: candidates.into_iter().map(|found| candidate(&view, name(found.worker), found)).collect(),
    }
}

/// Whom the request would go to if no agent told anything, where that is another than with them. Both decide with the same
/// randomness.
fn changed_by_agents(policy: Policy, input: &DecideInput<'_>) -> Option<WorkerId> {
    input.view.workers.iter().find(|worker| worker.kernel.is_some())?;
    let mut view = input.view.clone();
    view.workers.iter_mut().for_each(|worker| worker.kernel = None);
    let blind = DecideInput { view: &view, ..*input };
    let choose = |input: &DecideInput<'_>| decision::decide(policy, input, &mut fastrand::Rng::with_seed(0)).ok();
    let (seeing, blind) = (choose(input)?, choose(&blind)?);
    (seeing.worker != blind.worker).then_some(blind.worker)
}

fn candidate(view: &FleetView, worker: String, found: decision::Candidate) -> Candidate {
    let terms = found.terms;
    let cache = view.workers.get(found.position as usize).map(|worker| worker.cache);
    Candidate {
        worker,
        standing: match found.standing {
            Standing::Eligible => "eligible".to_owned(),
            Standing::Tried => "tried".to_owned(),
            Standing::NotReady(state) => state_name(state).to_owned(),
        },
        cached_tokens: found.cached_tokens,
        uncached_tokens: found.uncached_tokens,
        queue_ms: terms.queue_ms,
        waiting_ms: terms.waiting_ms,
        prefill_ms: terms.prefill_ms,
        foreign_ms: terms.foreign_ms,
        room_ms: terms.room_ms,
        ttft_ms: terms.ttft_ms(),
        harm_ms: terms.harm_ms + terms.waiting_harm_ms + terms.foreign_harm_ms,
        decode_ms: terms.decode_ms + terms.crowd_ms,
        evict_ms: terms.evict_ms,
        unknown_ms: found.unknown_ms,
        cost_ms: found.cost_ms,
        in_flight: found.local.requests,
        load_age_ms: found.load_age_ms,
        agent_age_ms: found.kernel_age_ms,
        cache: match cache {
            Some(CacheKnowledge::Events) => "events".to_owned(),
            Some(CacheKnowledge::Approximate) => "approximate".to_owned(),
            None => "unknown".to_owned(),
        },
        claim: found.claim,
    }
}

fn worker_name(console: &Console, worker: forebay_routing::WorkerId) -> String {
    match console.gateway.fleet.endpoint(worker) {
        Some(endpoint) => match endpoint.rank {
            Some(rank) => format!("{}@{rank}", endpoint.url),
            None => endpoint.url.clone(),
        },
        None => worker.to_string(),
    }
}

fn refusal_text(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NoWorkers => "the model has no workers",
        Refusal::NoneReady => "no worker of the model takes traffic",
        Refusal::AllTried => "every ready worker was tried",
    }
}
