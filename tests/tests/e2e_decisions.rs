//! A recorded live run, decision by decision, against `decide()`: what the gateway did is what the pure core says of the same
//! facts. The simulator stands on that core, so this is the bridge between both.

use forebay_routing::block::{self, Domain, HashKey};
use forebay_routing::facts::BlockChain;
use forebay_routing::index::ledger::{ExternalHash, Ledger};
use forebay_routing::index::{Hits, PrefixIndex};
use forebay_routing::view::{CacheKnowledge, ModelView, Rates, WorkerState, WorkerView};
use forebay_routing::{DecideInput, Decision, FleetView, LocalLoad, Policy, RequestFacts, WorkerId, decide};
use forebay_sim::workload::Definition;
use forebay_tests::client::{Client, End};
use forebay_tests::cluster::{Engine, EngineOptions, Gateway, GatewayOptions, MODEL};
use forebay_tests::feed::{Feed, wait_caught_up};
use forebay_tests::process::Failure;
use forebay_tests::scene::folder;
use serde_json::{Value, json};
use std::time::Duration;

const ENGINES: usize = 4;
const BLOCK: u32 = 64;
const REQUESTS: usize = 60;
/// `routing.seed` of the gateway, and how it draws one generator for each request.
const SEED: u64 = 1;
const TURN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Costs closer than this may change places while rates are being learned.
const TIE: f64 = 0.03;

/// What is known of the engines' caches, by what was sent where: they are large enough to evict nothing.
struct Mirror {
    key: HashKey,
    index: PrefixIndex,
    ledgers: Vec<(WorkerId, Ledger)>,
    names: u64,
}

impl Mirror {
    fn new(view: &FleetView) -> Self {
        let ledgers = view.workers.iter().map(|worker| (worker.id, Ledger::new(worker.id))).collect();
        Self { key: HashKey::derive(&[1; 32]), index: PrefixIndex::with_budget(64 << 20), ledgers, names: 0 }
    }

    fn chain(&self, tokens: &[u32]) -> BlockChain {
        let mut hashes = Vec::new();
        block::chain(&self.key, Domain(1), BLOCK, tokens, &mut hashes);
        BlockChain { block_size: BLOCK, hashes }
    }

    fn sent(&mut self, worker: WorkerId, tokens: &[u32]) {
        let blocks = tokens.len() / BLOCK as usize;
        let hashes: Vec<ExternalHash> = (0..blocks as u64).map(|at| ExternalHash(self.names + at)).collect();
        self.names += blocks as u64;
        let whole = &tokens[..blocks * BLOCK as usize];
        if let Some((_, ledger)) = self.ledgers.iter_mut().find(|(id, _)| *id == worker) {
            ledger.stored(&self.index, &self.key, Domain(1), None, &hashes, whole, BLOCK);
        }
    }

    fn decide(&self, view: &FleetView, tokens: &[u32], cursor: u64) -> (Decision, Vec<f64>) {
        let chains = [self.chain(tokens)];
        let mut hits = [Hits::default()];
        self.index.lookup(&chains[0].hashes, 0, false, &mut hits[0]);
        let facts = RequestFacts {
            model: 0,
            prompt_tokens: tokens.len() as u32,
            exact: true,
            chains: &chains,
            text_hash: 0,
            session: None,
            output_tokens: 100,
            completions: 1,
        };
        let local = vec![LocalLoad::default(); view.workers.len()];
        let input = DecideInput {
            facts: &facts,
            view,
            among: None,
            local: &local,
            hits: &hits,
            exclude: &[],
            cursor,
            now_ms: 60_000,
        };
        let costs = forebay_routing::explain(Policy::Kv, &input).iter().map(|candidate| candidate.cost_ms).collect();
        let mut rng = fastrand::Rng::with_seed(SEED ^ cursor.wrapping_mul(TURN));
        (decide(Policy::Kv, &input, &mut rng).expect("all are ready"), costs)
    }
}

/// The fleet as `/workers` shows it, and the URLs in the same order; an error while anything is in flight.
async fn recorded(admin: &Client) -> Result<(FleetView, Vec<String>), String> {
    let listed = admin.read_json("/workers").await?;
    let mut workers: Vec<(WorkerView, String)> = Vec::new();
    for entry in listed["workers"].as_array().into_iter().flatten() {
        if entry["in_flight"]["requests"].as_u64() != Some(0) {
            return Err(format!("still in flight: {entry}"));
        }
        workers.push((
            worker(entry).ok_or_else(|| format!("odd entry {entry}"))?,
            entry["url"].as_str().unwrap_or_default().to_owned(),
        ));
    }
    workers.sort_by_key(|(view, _)| view.id);
    let (workers, urls): (Vec<WorkerView>, Vec<String>) = workers.into_iter().unzip();
    let model = ModelView {
        name: MODEL.to_owned(),
        base: None,
        lora: false,
        workers: (0..workers.len() as u32).collect(),
        block_sizes: vec![BLOCK],
    };
    Ok((FleetView { version: 1, workers, models: vec![model] }, urls))
}

fn worker(entry: &Value) -> Option<WorkerView> {
    let id = entry["id"].as_str()?.strip_prefix('w')?;
    let (slot, generation) = id.split_once('.')?;
    let rate = |name: &str| entry["rates"][name].as_f64();
    Some(WorkerView {
        id: WorkerId::new(slot.parse().ok()?, generation.parse().ok()?),
        affinity: 0,
        rank: None,
        state: WorkerState::Ready,
        block_size: Some(BLOCK),
        capacity_blocks: None,
        cache: CacheKnowledge::Events,
        kernel: None,
        fabric: None,
        engine: None,
        rates: Rates {
            alpha: rate("alpha")?,
            beta: rate("beta")?,
            gamma: rate("gamma")?,
            decode_ms: rate("decode_ms")?,
            context_ms: rate("context_ms")?,
        },
        typical_tokens: 512,
    })
}

/// Waits until nothing is in flight.
async fn quiet(gateway: &Gateway) -> Result<(FleetView, Vec<String>), Failure> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match recorded(&gateway.admin).await {
            Ok(found) => return Ok(found),
            Err(why) if tokio::time::Instant::now() > deadline => return Err(Failure(why)),
            Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}

#[tokio::test]
async fn what_the_gateway_did_is_what_the_core_decides() -> Result<(), Failure> {
    let folder = folder()?;
    let options = EngineOptions { block_size: BLOCK, tokenizer: false, speedup: 20.0, ..EngineOptions::default() };
    let (mut engines, mut feeds) = (Vec::new(), Vec::new());
    for number in 0..ENGINES {
        let engine = Engine::start(&format!("engine-{number}"), &options, folder.path()).await?;
        feeds.push(Feed::open(&engine.url()).await?);
        engines.push(engine);
    }
    let urls: Vec<String> = engines.iter().map(Engine::url).collect();
    // The mirror knows neither who warms up nor what a reading of an engine's load found in the middle of a request.
    let extra = "[health]\nslow_start = \"0s\"\nmetrics_interval = \"1h\"\n".to_owned();
    let options = GatewayOptions { own_placements: false, tokenizer: false, extra, ..GatewayOptions::default() };
    let gateway = Gateway::start(&options, &urls, folder.path()).await?;
    let offered = Definition::committed("rag")?.draw(5.0, REQUESTS, 3).with_unknown_answers();
    let (view, _) = quiet(&gateway).await?;
    let mut mirror = Mirror::new(&view);
    let (mut equal, mut hits) = (0, 0);
    for (cursor, request) in (0..).zip(offered.requests.iter().take(REQUESTS)) {
        let token = |place: u32| {
            let block =
                request.blocks.get((place / BLOCK) as usize).filter(|_| place < request.prompt_tokens / BLOCK * BLOCK);
            let what = block.copied().unwrap_or(cursor ^ 1 << 63);
            ((what ^ what >> 29).wrapping_mul(TURN).wrapping_add(u64::from(place)) % 30_000) as u32
        };
        let tokens: Vec<u32> = (0..request.prompt_tokens).map(token).collect();
        wait_caught_up(&mut feeds, &gateway).await?;
        let (view, urls) = quiet(&gateway).await?;
        let (wanted, costs) = mirror.decide(&view, &tokens, cursor);
        let body = json!({
            "model": MODEL, "prompt": tokens, "max_tokens": 3, "stream": true, "stream_options": {"include_usage": true},
        });
        let outcome = gateway.client.stream_completion(&body).await;
        assert_eq!(outcome.end, End::Complete, "{outcome:?}");
        let record = record_of(&gateway, &outcome.request_id).await?;
        let live = urls.iter().position(|url| record["worker"] == url.as_str()).expect("one of ours");
        let (mine, theirs) = (costs[wanted.position as usize], costs[live]);
        if live as u32 == wanted.position {
            equal += 1;
            assert_eq!(record["predicted_cached_tokens"], wanted.cached_tokens, "request {cursor}: {record}");
        } else {
            assert!(
                theirs <= mine * (1.0 + TIE),
                "request {cursor}: {live} at {theirs} ms, not {wanted:?} at {mine} ms"
            );
        }
        hits += usize::from(wanted.cached_tokens > 0);
        mirror.sent(view.workers[live].id, &tokens);
    }
    let requests = offered.requests.len().min(REQUESTS);
    assert!(equal * 10 >= requests * 9, "{equal} of {requests} decisions are the same");
    assert!(hits * 2 > requests, "{hits} of {requests} had a hit: there must be something to decide");
    Ok(())
}

/// The access log's line of one request.
async fn record_of(gateway: &Gateway, id: &str) -> Result<Value, Failure> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match gateway.records().into_iter().find(|record| record["id"] == id) {
            Some(record) => return Ok(record),
            None if tokio::time::Instant::now() > deadline => return Err(Failure(format!("no record of {id}"))),
            None => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}
