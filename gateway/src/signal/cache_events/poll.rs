//! One engine whose events are fetched over HTTP (TensorRT-LLM): the task that asks, and what becomes of the answers.
//!
//! Reading empties the engine's buffer, so only one gateway may do it, and only where the configuration says so. Another
//! reader shows as holes in the numbers ([`polled`]) and is an alarm: both then know half of that cache.

use super::batch::{Lora, Place, Removed, Scratch, Stored};
use super::book::Book;
use super::extra::Extra;
use super::polled::{self, Block, Data, Event, Numbers, Turn};
use super::report::{Alarm, FeedReport, FeedState};
use super::vigil::Vigil;
use super::{FeedSpec, Order, Post};
use crate::clock::Clock;
use crate::fleet::Fleet;
use crate::signal::http::Peer;
use bytes::Bytes;
use forebay_routing::index::ledger::ExternalHash;
use forebay_routing::view::CacheKnowledge;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::time::{Duration, sleep};

/// Between two questions: how old an event may be before it counts.
const EVERY: Duration = Duration::from_millis(200);

/// An alarm about another reader stands for so long after the last hole.
const STOLEN_FOR_MS: u64 = 60_000;

/// A single block of so many tokens, if that is a power of two, is a whole one; engines take no smaller size.
const SMALLEST_BLOCK: usize = 16;

/// What an engine answered, or why it did not.
pub(super) type Answer = Result<Bytes, String>;

/// Asks `peer` at `path` for ever and hands each answer to the listener that owns worker `slot`.
pub(super) async fn ask(peer: Peer, path: String, slot: u32, post: Post) {
    loop {
        let answer = match peer.post_json(&path, Bytes::from_static(b"{}")).await {
            Ok(answer) if answer.status.is_success() => Ok(answer.body),
            Ok(answer) => Err(format!("{path} answered {}", answer.status.as_u16())),
            Err(error) => Err(error.to_string()),
        };
        post.send(Order::Polled { slot, answer }).await;
        sleep(EVERY).await;
    }
}

pub(super) struct PolledFeed {
    book: Book,
    numbers: Numbers,
    vigil: Vigil,
    /// When a hole last proved another reader.
    stolen_ms: Option<u64>,
    /// Windows of the engine's pools, in the order in which they were told; the position is the group.
    windows: Vec<u32>,
    context_tokens: Option<u32>,
    /// Tokens of a block, once it is certain.
    block_size: Option<usize>,
    is_known: bool,
    fleet: Fleet,
    report: Arc<Mutex<FeedReport>>,
}

impl PolledFeed {
    pub(super) fn open(
        spec: &FeedSpec,
        fleet: Fleet,
        clock: Clock,
        report: Arc<Mutex<FeedReport>>,
        now_ms: u64,
    ) -> Self {
        let mut vigil = Vigil::default();
        vigil.expect(now_ms);
        Self {
            book: Book::new(fleet.clone(), clock, spec, report.clone()),
            numbers: Numbers::default(),
            vigil,
            stolen_ms: None,
            windows: Vec::new(),
            context_tokens: spec.context_tokens,
            block_size: spec.block_size.map(|size| size as usize),
            is_known: false,
            fleet,
            report,
        }
    }

    /// Takes one answer.
    pub(super) fn take(&mut self, answer: Answer, scratch: &mut Scratch, now_ms: u64) {
        let body = match answer {
            Ok(body) => body,
            Err(problem) => {
                self.vigil.expect(now_ms);
                self.report.lock().problem = Some(problem);
                return;
            }
        };
        let mut events = Vec::new();
        let outcome = polled::decode(&body, |event| events.push(event));
        if let Err(kind) = outcome {
            self.book.count_error(kind.label());
            return;
        }
        if !events.is_empty() {
            self.book.handle().hear_events(now_ms);
        }
        if !self.book.handle().owes_events() && self.vigil.hear() {
            self.report.lock().alarms.remove(&Alarm::Silent);
        }
        self.report.lock().problem = None;
        let count = events.len();
        for event in events {
            match event {
                Ok(event) => self.apply(event, count, scratch, now_ms),
                Err(kind) => self.book.count_error(kind.label()),
            }
        }
        self.book.count_blocks();
        self.know();
    }

    /// Time passed.
    pub(super) fn tick(&mut self, now_ms: u64) {
        if self.book.is_outdated() {
            self.begin_anew();
        }
        self.book.tick(now_ms);
        if self.stolen_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) > STOLEN_FOR_MS) {
            self.stolen_ms = None;
            self.report.lock().alarms.remove(&Alarm::SecondReader);
        }
        if self.book.handle().owes_events() {
            self.vigil.expect(now_ms);
        }
        if self.vigil.is_overdue(now_ms) {
            let mut report = self.report.lock();
            report.raise(Alarm::Silent);
            report.state = FeedState::Silent;
            tracing::warn!(worker = %report.worker, "gives no KV events: its cache is guessed until it does");
            drop(report);
            self.is_known = false;
            self.fleet.report_cache(self.book.worker(), CacheKnowledge::Approximate);
        }
    }

    fn begin_anew(&mut self) {
        self.book.begin_anew();
        self.numbers = Numbers::default();
        self.windows.clear();
    }

    fn apply(&mut self, event: Event, answered: usize, scratch: &mut Scratch, now_ms: u64) {
        let has_begun = self.numbers.has_begun();
        match self.numbers.take(event.event_id) {
            Turn::Next => {}
            Turn::Gap => {
                self.report.lock().gaps += 1;
                self.book.lose();
                if has_begun && polled::is_stolen(answered) {
                    self.note_second_reader(now_ms);
                }
            }
            Turn::Restart => {
                self.book.restart();
                self.windows.clear();
            }
        }
        let place = event.window_size.map_or_else(Place::default, |window| self.place(window));
        match event.data {
            Data::Created { num_blocks_per_cache_level } => {
                if let (Some(blocks), true) =
                    (num_blocks_per_cache_level.first(), place.kind.is_none_or(|kind| kind == "full_attention"))
                {
                    self.book.learn_capacity(*blocks);
                }
            }
            Data::Stored { parent_hash, blocks } => self.store(parent_hash, &blocks, place, scratch),
            Data::Removed { block_hashes } => self.book.remove(&Removed { hashes: &block_hashes, place }),
            Data::Updated { block_hash, cache_level: Some(change) } => {
                let at = |level| Place { medium: Some(medium(level)), ..place };
                self.book.transfer(block_hash, &at(change.old_value), &at(change.new_value));
            }
            Data::Updated { cache_level: None, .. } => {}
            Data::Unknown => self.book.count_error("unknown_event"),
        }
        self.book.note(event.event_id);
    }

    fn note_second_reader(&mut self, now_ms: u64) {
        self.stolen_ms = Some(now_ms);
        let mut report = self.report.lock();
        if !report.alarms.contains(&Alarm::SecondReader) {
            tracing::warn!(
                worker = %report.worker,
                "another reader takes this engine's KV events: let one gateway alone poll it (kv_events = \"poll:…\")"
            );
        }
        report.raise(Alarm::SecondReader);
    }

    /// Pools of one window are a group; one that sees the whole context needs every block.
    fn place(&mut self, window: u32) -> Place<'static> {
        let known = self.windows.iter().position(|known| *known == window);
        let group = known.unwrap_or_else(|| {
            self.windows.push(window);
            self.windows.len() - 1
        });
        let context = self.context_tokens.unwrap_or_else(|| self.windows.iter().copied().max().unwrap_or(window));
        let kind = if window >= context { "full_attention" } else { "sliding_window" };
        Place { group: u32::try_from(group).ok(), kind: Some(kind), window_tokens: Some(window), ..Place::default() }
    }

    /// Whole blocks, as far as they go: what follows a shorter one, or one with tokens that stand for an image, no text
    /// request matches.
    fn store(&mut self, parent: Option<ExternalHash>, blocks: &[Block], place: Place<'static>, scratch: &mut Scratch) {
        let Some(size) = self.size_of(blocks) else { return self.book.ignore("short_tail", blocks.len()) };
        let mut parent = parent;
        let mut rest = blocks;
        while let Some(first) = rest.first() {
            let level = first.cache_level;
            let run = rest.iter().take_while(|block| block.cache_level == level).count();
            let (part, after) = rest.split_at(run);
            let plain = |block: &&Block| {
                block.tokens.len() == size && block.tokens.iter().all(|token| token.token_extra_id == 0)
            };
            let whole = part.iter().take_while(plain).count();
            scratch.hashes.clear();
            scratch.tokens.clear();
            for block in &part[..whole] {
                scratch.hashes.push(block.block_hash);
                scratch.tokens.extend(block.tokens.iter().map(|token| token.token_id));
            }
            let lora = if first.lora_id.is_some() { Lora::Unnamed } else { Lora::Base };
            let stored = Stored {
                hashes: &scratch.hashes,
                parent,
                tokens: Some(&scratch.tokens),
                is_bigram: false,
                has_tokens: true,
                block_size: u32::try_from(size).unwrap_or(u32::MAX),
                place: Place { medium: Some(medium(level)), ..place },
                lora,
                extra: Extra::default(),
            };
            if whole > 0 {
                self.book.store(&stored);
            }
            if whole < blocks.len().min(run) {
                return self.book.ignore("short_tail", rest.len() - whole);
            }
            parent = part.last().map(|block| block.block_hash);
            rest = after;
        }
    }

    /// Tokens of a whole block: as configured, else those of one that has a successor, else of a single one whose length
    /// no tail would have by chance.
    fn size_of(&mut self, blocks: &[Block]) -> Option<usize> {
        let first = blocks.first()?.tokens.len();
        let is_certain = blocks.len() > 1 || first >= SMALLEST_BLOCK && first.is_power_of_two();
        self.block_size = self.block_size.or(Some(first).filter(|size| is_certain && *size > 0));
        self.block_size
    }

    fn know(&mut self) {
        let state = if self.vigil.is_alarmed() { FeedState::Silent } else { FeedState::Live };
        self.report.lock().state = state;
        if !self.is_known && state == FeedState::Live {
            self.is_known = true;
            self.fleet.report_cache(self.book.worker(), CacheKnowledge::Events);
        }
    }
}

/// As vLLM names the memory of a cache level.
fn medium(level: u32) -> &'static str {
    if level == 0 { "GPU" } else { "CPU" }
}
