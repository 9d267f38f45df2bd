//! One worker's cache as its events tell it, kept in the index.

use super::batch::{self, Event, Lora, Removed, Scratch, Stored};
use super::report::{Alarm, FeedReport};
use super::sequence::Sink;
use super::{FeedSpec, MAX_MESSAGE_BYTES};
use crate::clock::{Clock, unix_seconds};
use crate::fleet::{Fleet, Handle};
use forebay_routing::WorkerId;
use forebay_routing::index::ledger::Ledger;
use parking_lot::Mutex;
use std::sync::Arc;

/// Applies batches to one worker's ledger.
pub(super) struct Book {
    fleet: Fleet,
    clock: Clock,
    handle: Arc<Handle>,
    /// Identity under which entries are written; follows the handle's.
    worker: WorkerId,
    ledger: Ledger,
    capacity_blocks: Option<u32>,
    /// KV cache groups, by bit, whose blocks do not stand for their prefix: their removals are not ours.
    other_groups: u64,
    block_size: Option<u32>,
    report: Arc<Mutex<FeedReport>>,
}

impl Book {
    pub(super) fn new(fleet: Fleet, clock: Clock, spec: &FeedSpec, report: Arc<Mutex<FeedReport>>) -> Self {
        let handle = spec.handle.clone();
        let worker = handle.id();
        Self {
            fleet,
            clock,
            handle,
            worker,
            ledger: ledger(worker, spec.capacity_blocks),
            capacity_blocks: spec.capacity_blocks,
            other_groups: 0,
            block_size: None,
            report,
        }
    }

    pub(super) fn worker(&self) -> WorkerId {
        self.worker
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether somebody else proved a restart: what was written under the old identity is gone.
    pub(super) fn is_outdated(&self) -> bool {
        self.handle.id() != self.worker
    }

    /// Begins anew under the worker's present identity.
    pub(super) fn begin_anew(&mut self) {
        self.worker = self.handle.id();
        self.ledger = ledger(self.worker, self.capacity_blocks);
        self.other_groups = 0;
        self.block_size = None;
        self.report.lock().blocks = 0;
    }

    /// Lends what [`Sink`] needs for one turn.
    pub(super) fn open<'a>(&'a mut self, scratch: &'a mut Scratch, is_live: bool) -> OpenBook<'a> {
        OpenBook { book: self, scratch, is_live, asked: None }
    }

    fn stored(&mut self, stored: &Stored<'_>, report: &mut FeedReport) {
        let blocks = stored.hashes.len();
        if !stored.place.is_device() {
            return ignore(report, "other_tier", blocks);
        }
        if !stored.place.is_whole_prefix() {
            if let Some(bit) = stored.place.group.and_then(|group| 1_u64.checked_shl(group)) {
                self.other_groups |= bit;
            }
            return ignore(report, "other_group", blocks);
        }
        let lora = match stored.lora {
            Lora::Base => None,
            Lora::Named(name) => Some(name),
            Lora::Unnamed => return ignore(report, "unnamed_adapter", blocks),
        };
        let Some(tokens) = stored.tokens else { return ignore(report, "no_tokens", blocks) };
        // From the first block with keys of its own on, no text request has this prefix.
        let ours = stored.extra.foreign_from.unwrap_or(blocks).min(blocks);
        if ours < blocks {
            ignore(report, "extra_keys", blocks - ours);
        }
        if !self.accept_block_size(stored.block_size, blocks, report) {
            return ignore(report, "short_tail", blocks);
        }
        let domain = self.fleet.block_domain(&self.handle.model, stored.block_size, lora, stored.extra.salt);
        let applied = self.ledger.stored(
            self.fleet.index(),
            self.fleet.hash_key(),
            domain,
            stored.parent,
            &stored.hashes[..ours],
            &tokens[..ours * stored.block_size as usize],
            stored.block_size,
        );
        for (reason, count) in [("orphan", applied.orphans), ("refused", applied.refused)] {
            if count > 0 {
                ignore(report, reason, count as usize);
            }
        }
        report.stored += u64::from(applied.blocks);
    }

    fn removed(&mut self, removed: &Removed<'_>, report: &mut FeedReport) {
        let other_group = removed
            .place
            .group
            .and_then(|group| 1_u64.checked_shl(group))
            .is_some_and(|bit| self.other_groups & bit != 0);
        if !removed.place.is_device() || other_group {
            return;
        }
        for hash in removed.hashes {
            let applied = self.ledger.removed(self.fleet.index(), *hash);
            report.removed += u64::from(applied.blocks);
        }
    }

    /// Whether blocks of `size` tokens, `count` of them in one event, are what this worker has. The first event says; a
    /// single shorter block is the tail of a prompt, which no other prompt continues; anything else contradicts.
    fn accept_block_size(&mut self, size: u32, count: usize, report: &mut FeedReport) -> bool {
        let Some(known) = self.block_size.filter(|known| *known != size) else {
            if self.block_size.is_none() {
                self.learn_block_size(size);
            }
            return true;
        };
        if size < known && count == 1 {
            return false;
        }
        tracing::warn!(worker = %report.worker, known, size, "its KV events contradict themselves in the size of a block");
        report.raise(Alarm::BlockSize);
        self.learn_block_size(size);
        true
    }

    fn learn_block_size(&mut self, size: u32) {
        self.block_size = Some(size);
        self.fleet.report_block_size(self.worker, size);
    }

    fn clear(&mut self, report: &mut FeedReport) {
        self.ledger.cleared(self.fleet.index());
        report.blocks = 0;
    }
}

fn ignore(report: &mut FeedReport, reason: &'static str, blocks: usize) {
    *report.ignored.entry(reason).or_default() += blocks as u64;
}

fn ledger(worker: WorkerId, capacity_blocks: Option<u32>) -> Ledger {
    let mut ledger = Ledger::new(worker);
    if let Some(capacity_blocks) = capacity_blocks {
        ledger.set_capacity(capacity_blocks);
    }
    ledger
}

/// A book for one turn of its feed.
pub(super) struct OpenBook<'a> {
    book: &'a mut Book,
    scratch: &'a mut Scratch,
    /// Whether batches come as they are published, so that their age is a lag.
    is_live: bool,
    /// The replay that the sequence wants.
    pub(super) asked: Option<u64>,
}

impl Sink for OpenBook<'_> {
    fn apply(&mut self, seq: u64, payload: &[u8]) {
        let book = &mut *self.book;
        let report = book.report.clone();
        let mut report = report.lock();
        let small_enough = payload.len() <= MAX_MESSAGE_BYTES;
        let payload = if small_enough { payload } else { &[] };
        let header = batch::decode(payload, self.scratch, |event| match event {
            Event::Stored(stored) => book.stored(&stored, &mut report),
            Event::Removed(removed) => book.removed(&removed, &mut report),
            Event::Cleared => {
                book.clear(&mut report);
                report.cleared += 1;
            }
            Event::Unknown => *report.errors.entry("unknown_event").or_default() += 1,
            Event::Malformed(kind) => *report.errors.entry(kind.label()).or_default() += 1,
        });
        report.blocks = book.ledger.len() as u64;
        report.batches += 1;
        report.last_seq = Some(seq);
        report.last_event_ms = Some(book.clock.now_ms());
        match header {
            Ok(header) => {
                if let Some(published) = header.published_seconds.filter(|_| self.is_live) {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "saturates; clocks may differ"
                    )]
                    let lag_ms = ((unix_seconds() - published) * 1_000.0).max(0.0) as u64;
                    report.lag_ms = Some(lag_ms);
                }
            }
            Err(kind) => {
                let kind = if small_enough { kind.label() } else { "oversized" };
                *report.errors.entry(kind).or_default() += 1;
            }
        }
    }

    fn skip(&mut self) {
        self.book.report.lock().duplicates += 1;
    }

    fn ask(&mut self, from: u64) {
        self.asked = Some(from);
    }

    fn lose(&mut self) {
        let report = self.book.report.clone();
        let mut report = report.lock();
        report.cold_starts += 1;
        self.book.clear(&mut report);
    }

    fn restart(&mut self) {
        self.book.report.lock().restarts += 1;
        self.book.fleet.restart_blocking(self.book.worker);
        self.book.begin_anew();
    }

    fn note_gap(&mut self) {
        self.book.report.lock().gaps += 1;
    }

    fn published(&self, payload: &[u8]) -> Option<f64> {
        batch::published_seconds(payload)
    }
}
