//! observe: what a finished exchange teaches.

use super::{Considered, Gateway, count_limit, ms, note};
use crate::accept::Request;
use crate::dispatch::Exchange;
use crate::fleet::Feedback;
use crate::observe::{Outcome, Record};
use crate::parse::Parsed;
use crate::stream::{End, Next, Usage};
use forebay_routing::LocalLoad;
use forebay_routing::index::CacheReport;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Expected output before any answer was seen.
pub(super) const FIRST_OUTPUT_TOKENS: u32 = 256;
/// Weight of the past in the moving mean, as a shift: 31/32.
const MEMORY: u32 = 5;

impl Gateway {
    /// Expected output: what was lately usual, never more than was asked for.
    pub(super) fn expected_output(&self, max_tokens: Option<u32>) -> u32 {
        let usual = self.output_tokens.load(Ordering::Relaxed).max(1);
        max_tokens.map_or(usual, |max| usual.min(max))
    }

    /// Two answers that end together may lose one of the two lessons; the mean does not mind.
    fn learn_output(&self, tokens: u32) {
        let usual = self.output_tokens.load(Ordering::Relaxed);
        let next = i64::from(usual) + ((i64::from(tokens) - i64::from(usual)) >> MEMORY);
        self.output_tokens.store(u32::try_from(next).unwrap_or(usual), Ordering::Relaxed);
    }
}

/// What of a request is needed once its answer has begun. Its text and its token ids are not: they would be held for as long as
/// the answer streams.
pub(super) struct Lesson {
    completions: u32,
    prompt_tokens: Option<u32>,
    sample: Option<(Parsed, Arc<[u32]>)>,
}

impl Lesson {
    /// Lets go of everything else.
    pub(super) fn keep(gateway: &Gateway, parsed: Parsed, considered: &mut Considered) -> Self {
        let ids = match considered.tokens.take() {
            Some(crate::tokenize::Outcome::Tokens(ids)) => Some(ids),
            _ => None,
        };
        let prompt_tokens = ids.as_ref().map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX));
        Self { completions: parsed.n.max(1), prompt_tokens, sample: gateway.sample(parsed, ids.as_ref()) }
    }
}

/// Feeds rates, index and token parity from an answer that came through.
pub(super) fn learn(gateway: &Gateway, lesson: Lesson, considered: &Considered, exchange: &Exchange, end: &End) {
    let served = end.outcome == Outcome::Ok && exchange.head.status < 300;
    let (true, Some(usage)) = (served, exchange.progress.usage()) else { return };
    gateway.learn_output(exchange.progress.output_tokens() / lesson.completions);
    if let Some(ours) = lesson.prompt_tokens {
        gateway.tokenizers.observe_prompt_tokens(&considered.tokenizer, ours, usage.prompt_tokens);
    }
    if let Some(sample) = lesson.sample {
        gateway.compare(&considered.tokenizer, sample, &exchange.endpoint.url);
    }
    confirm(gateway, considered, exchange, usage);
}

/// `cached_tokens` confirms or shortens the prefix that was credited to the worker.
fn confirm(gateway: &Gateway, considered: &Considered, exchange: &Exchange, usage: Usage) {
    let Some(cached_tokens) = usage.cached_tokens else { return };
    let view = gateway.fleet.view();
    let worker = exchange.decision.worker;
    let Some(block_size) = view.worker(worker).and_then(|worker| worker.block_size) else { return };
    let Some(chain) = considered.chain(block_size) else { return };
    let now_ms = gateway.clock.now_ms();
    let report = CacheReport {
        predicted_blocks: exchange.decision.cached_tokens / block_size,
        cached_blocks: cached_tokens / block_size,
        placed_at_ms: sent_ms(gateway, exchange),
        now_ms,
    };
    gateway.fleet.index().confirm(worker, &chain.hashes, report);
}

/// Reports the exchange to the fleet, gives its connection back and fills the record.
pub(super) fn finish(
    gateway: &Gateway,
    request: &Request,
    exchange: Exchange,
    end: End,
    load: LocalLoad,
    record: &mut Record,
) -> Next {
    let progress = &exchange.progress;
    let usage = progress.usage();
    record.status = exchange.head.status;
    record.outcome = end.outcome;
    record.worker = Some((exchange.decision.worker, exchange.endpoint.url.as_str().into()));
    record.reason = Some(exchange.decision.reason);
    let sent_ms = ms(exchange.sent.duration_since(request.arrived));
    record.queue_ms = Some((sent_ms - record.received_ms - record.overhead_ms).max(0.0));
    record.retries = exchange.retries;
    record.predicted_cached = exchange.decision.cached_tokens;
    record.cached_tokens = usage.and_then(|usage| usage.cached_tokens);
    record.prompt_tokens = usage.map_or(record.prompt_tokens, |usage| usage.prompt_tokens);
    record.output_tokens = progress.output_tokens();
    record.ttft_ms = progress.first_output.map(|at| ms(at.duration_since(request.arrived)));
    record.itl_ms = progress.itl_ms();
    if let Some(fault) = &end.fault {
        let outcome = record.outcome;
        count_limit(gateway, fault);
        note(record, fault);
        record.status = exchange.head.status;
        record.outcome = outcome;
    }
    report(gateway, &exchange, &end, load);
    gateway.dispatcher.finish(exchange);
    end.next
}

fn report(gateway: &Gateway, exchange: &Exchange, end: &End, load: LocalLoad) {
    let status = exchange.head.status;
    let feedback = match end.outcome {
        Outcome::Cut if is_workers(end) => Feedback::Broken,
        // An answer below 500 says that the engine lives, whatever it thinks of the request. Busy was reported before.
        Outcome::Ok | Outcome::UpstreamError if status < 500 && status != 429 => {
            let progress = &exchange.progress;
            let usage = progress.usage();
            Feedback::Served {
                prompt_tokens: usage.map_or(0, |usage| usage.prompt_tokens),
                cached_tokens: usage.and_then(|usage| usage.cached_tokens),
                predicted_tokens: exchange.decision.cached_tokens,
                sent_ms: sent_ms(gateway, exchange),
                // Only a stream shows when its first token came; a time of 0 teaches nothing.
                ttft_ms: progress.first_output.map_or(0.0, |at| ms(at.duration_since(exchange.sent))),
                itl_ms: progress.itl_ms(),
                load,
            }
        }
        _ => return,
    };
    gateway.fleet.feedback(exchange.decision.worker, feedback);
}

/// When the engine was sent the request, on the gateway's clock.
fn sent_ms(gateway: &Gateway, exchange: &Exchange) -> u64 {
    gateway.clock.now_ms().saturating_sub(exchange.sent.elapsed().as_millis() as u64)
}

fn is_workers(end: &End) -> bool {
    end.fault.as_ref().is_some_and(|fault| fault.blame == crate::error::Blame::Worker)
}
