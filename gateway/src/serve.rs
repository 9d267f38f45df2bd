//! The life of a request in eight steps.
//!
//! ```text
//! accept → parse → tokenize → hash → score → dispatch → stream → observe
//! ```
//!
//! [`serve`] is those steps in order; what a step needs lives in the folder of its name. The steps in the middle, which
//! only think, are also [`consider`]: the admin listener's `/explain` runs them without sending anything.
//!
//! Policies without prefix knowledge pay for none: they skip tokenize and hash, so `round-robin` is a thin proxy.

mod consider;
mod forward;
mod learn;
mod models;
mod parity;
mod session;

pub use consider::{Considered, consider};
pub use session::Session;

use crate::accept::{Reply, Request};
use crate::clock::Clock;
use crate::config::{Config, resolved};
use crate::dispatch::{Dispatcher, Outbound, overdue};
use crate::doors::Doors;
use crate::error::{Blame, Fault, Halt};
use crate::fleet::Fleet;
use crate::http1::Framing;
use crate::http1::request::Origin;
use crate::limits::{FAULTS, Limits, Share};
use crate::observe::{Observer, Outcome, Record};
use crate::parse::{self, Dialect};
use crate::stream::{Client, Grammar, Interrupt, Next, Reading, relay, stopping};
use crate::tokenize::Tokenizers;
use arc_swap::{ArcSwap, Guard};
use forebay_routing::LocalLoad;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tokio::time::Instant;

/// Everything that requests share. Soft state only: any number of gateways run side by side.
pub struct Gateway {
    /// As resolved at start.
    pub config: Arc<Config>,
    /// Workers, index, reservations.
    pub fleet: Fleet,
    /// Token sources.
    pub tokenizers: Arc<Tokenizers>,
    /// Metrics and access log.
    pub observer: Observer,
    /// Time.
    pub clock: Clock,
    /// Who may come in.
    pub doors: Arc<Doors>,
    /// The way to engines.
    pub dispatcher: Arc<Dispatcher>,
    /// Connections and buffered bytes.
    pub limits: Limits,
    /// Whether this process is about to stop.
    pub draining: AtomicBool,
    /// One per request: round-robin position, and with `seed` the request's rng.
    cursor: AtomicU64,
    seed: u64,
    models: ArcSwap<models::Models>,
    requests: ArcSwap<resolved::Policy>,
    samples: parity::Samples,
    /// Tokens that an answer has lately had, a moving mean over all models.
    output_tokens: AtomicU32,
}

impl Gateway {
    /// Ready to serve; [`crate::accept::Ingress::start`] lets clients in.
    pub fn new(
        config: Arc<Config>,
        fleet: Fleet,
        tokenizers: Arc<Tokenizers>,
        observer: Observer,
        doors: Arc<Doors>,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            dispatcher: Arc::new(Dispatcher::new(&config, fleet.clone(), doors.clone(), clock)),
            fleet,
            tokenizers,
            observer,
            doors,
            clock,
            limits: Limits::new(&config.listen),
            draining: AtomicBool::new(false),
            cursor: AtomicU64::new(0),
            seed: config.routing.seed.unwrap_or_else(|| fastrand::u64(..)),
            samples: parity::Samples::new(),
            models: ArcSwap::from_pointee(models::Models::of(&config)),
            requests: ArcSwap::from_pointee(config.requests.clone()),
            output_tokens: AtomicU32::new(learn::FIRST_OUTPUT_TOKENS),
            config,
        })
    }

    /// What requests may ask of engines.
    pub fn request_policy(&self) -> Guard<Arc<resolved::Policy>> {
        self.requests.load()
    }

    /// Takes over what may change while the gateway runs: the policies, the names of models. Everything else of `config`
    /// waits for a restart.
    pub fn reload(&self, config: &Config) {
        self.requests.store(Arc::new(config.requests.clone()));
        self.models.store(Arc::new(models::Models::of(config)));
    }

    /// Position and rng of one more request.
    fn turn(&self) -> (u64, fastrand::Rng) {
        let cursor = self.cursor.fetch_add(1, Ordering::Relaxed);
        (cursor, fastrand::Rng::with_seed(self.seed ^ cursor.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// Serves one request and says what becomes of its connection.
pub async fn serve(gateway: &Gateway, client: &mut Client, request: &Request, dialect: Option<Dialect>) -> Next {
    let _serving = gateway.limits.serve();
    let tenant = request.caller.tenant.clone();
    let mut record = Record { id: request.id.clone(), tenant, dialect: name(dialect), ..Record::default() };
    let mut unread = request.head.framing != Framing::Empty;
    let next = match steps(gateway, client, request, dialect, &mut unread, &mut record).await {
        Ok(next) => next,
        Err(Halt::Gone) => {
            record.outcome = Outcome::ClientGone;
            Next::Abort
        }
        Err(Halt::Fault(fault)) => {
            note(&mut record, &fault);
            count_limit(gateway, &fault);
            let close = unread || !request.head.keep_alive || client.is_draining();
            answer(client, request, &fault, close).await
        }
    };
    record.total_ms = ms(request.arrived.elapsed());
    gateway.observer.finish(record);
    next
}

async fn steps(
    gateway: &Gateway,
    client: &mut Client,
    request: &Request,
    dialect: Option<Dialect>,
    unread: &mut bool,
    record: &mut Record,
) -> Result<Next, Halt> {
    let config = &gateway.config;
    // accept
    let mut share = gateway.limits.share();
    let body = client.read_body(&request.head, &config.listen, &mut share).await?;
    *unread = false;
    record.received_ms = ms(request.arrived.elapsed());
    let received = Instant::now();
    // parse
    let Some(dialect) = dialect else {
        return through(gateway, client, request, body, share, record).await;
    };
    let mut parsed = parse::parse(dialect, body)?;
    parsed.enforce(&gateway.request_policy())?;
    gateway.complete(&mut parsed)?;
    record.model = parsed.model.as_str().into();
    // tokenize, hash, score
    client.deadline.set(received + config.upstream.total_timeout);
    let session = Session::of(&request.head, &parsed);
    let mut considered = client.race(consider(gateway, &parsed, &session)).await.map_err(interrupted)??;
    considered.describe(record);
    record.overhead_ms = ms(received.elapsed());
    // dispatch
    let strip_usage = parsed.wants_usage_stripped();
    let mut outbound = Outbound {
        head: &request.head,
        keep_key: gateway.doors.ask_for_keys(),
        origin: origin(gateway, client),
        request_id: &request.id,
        body: parsed.upstream_body(),
        ids: gateway.forwarded(&parsed, &considered),
        share,
        reading: if parsed.stream { Reading::Events { strip_usage } } else { Reading::Whole },
        grammar: Grammar::of(dialect),
        prompt_tokens: considered.prompt_tokens,
        completions: parsed.n,
        repeatable: true,
    };
    let mut chooser = considered.chooser(gateway);
    let mut exchange = gateway.dispatcher.dispatch(client, &mut outbound, &mut chooser).await?;
    drop(outbound);
    if exchange.lacks_route() {
        gateway.dispatcher.finish(exchange);
        return Err(unserved(request.head.path(), &parsed.model).into());
    }
    let lesson = learn::Lesson::keep(gateway, parsed, &mut considered);
    // stream
    let end = relay(client, &mut exchange, &request.head, &request.id).await;
    // observe
    learn::learn(gateway, lesson, &considered, &exchange, &end);
    Ok(learn::finish(gateway, request, exchange, end, considered.load, record))
}

/// A path that no step understands: to the healthy worker with the least in flight, and back.
async fn through(
    gateway: &Gateway,
    client: &mut Client,
    request: &Request,
    body: bytes::Bytes,
    share: Share,
    record: &mut Record,
) -> Result<Next, Halt> {
    let mut outbound = Outbound {
        head: &request.head,
        keep_key: gateway.doors.ask_for_keys(),
        origin: origin(gateway, client),
        request_id: &request.id,
        body: if body.is_empty() { Vec::new() } else { vec![body] },
        ids: None,
        share,
        reading: Reading::Through,
        grammar: Grammar::default(),
        prompt_tokens: 0,
        completions: 1,
        repeatable: matches!(request.head.method(), "GET" | "HEAD" | "OPTIONS"),
    };
    let mut exchange =
        gateway.dispatcher.dispatch(client, &mut outbound, &mut consider::LeastInFlight(gateway)).await?;
    drop(outbound);
    let end = relay(client, &mut exchange, &request.head, &request.id).await;
    Ok(learn::finish(gateway, request, exchange, end, LocalLoad::default(), record))
}

/// Where a request came from, and whether its sender is believed when it names somebody else.
fn origin(gateway: &Gateway, client: &Client) -> Origin {
    let address = client.peer.address.map(|address| address.ip());
    let trusted = address.is_some_and(|address| gateway.config.listen.trusted_proxies.has_address(address));
    Origin { address, secure: client.peer.secure, trusted }
}

/// Answers a fault.
async fn answer(client: &mut Client, request: &Request, fault: &Fault, close: bool) -> Next {
    let bodiless = request.head.method() == "HEAD";
    match Reply::fault_in(fault, request.shape()).send(client, &request.downstream(close), bodiless).await {
        Ok(()) if close => Next::Close,
        Ok(()) => Next::Keep,
        Err(_) => Next::Abort,
    }
}

/// Records a request whose head could not be read.
pub(crate) fn reject_unread(gateway: &Gateway, id: String, fault: &Fault) {
    let mut record = Record { id, dialect: name(None), ..Record::default() };
    note(&mut record, fault);
    count_limit(gateway, fault);
    gateway.observer.finish(record);
}

/// Counts the limit that `fault` says was hit, by its configuration key.
pub(crate) fn count_limit(gateway: &Gateway, fault: &Fault) {
    if let Some((_, key)) = FAULTS.iter().find(|(code, _)| *code == fault.code) {
        gateway.observer.limit_hit(key);
    }
}

fn note(record: &mut Record, fault: &Fault) {
    record.status = fault.status;
    record.fault = Some(fault.code);
    record.blame = Some(fault.blame);
    record.outcome = match fault.blame {
        Blame::Worker => Outcome::UpstreamError,
        _ => Outcome::Rejected,
    };
}

fn interrupted(interrupt: Interrupt) -> Halt {
    match interrupt {
        Interrupt::Gone => Halt::Gone,
        Interrupt::Late => overdue().into(),
        Interrupt::Stopped => stopping().into(),
    }
}

/// The engine's 404 for a path that it does not know, in the client's dialect.
fn unserved(path: &str, model: &str) -> Fault {
    let message = format!("the engine of model `{model}` does not serve {path}");
    Fault::client(404, "route_not_served", message)
}

fn name(dialect: Option<Dialect>) -> &'static str {
    dialect.map_or("other", Dialect::name)
}

fn ms(duration: tokio::time::Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
