//! One worker's cache as its events tell it, kept in the index.

use super::FeedSpec;
use super::batch::{self, Event, Lora, Removed, Scratch, Stored};
use super::report::FeedReport;
use super::sequence::Sink;
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
    reported_block_size: Option<u32>,
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
            reported_block_size: None,
            report,
        }
    }

    pub(super) fn worker(&self) -> WorkerId {
        self.worker
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
        self.reported_block_size = None;
        self.report.lock().blocks = 0;
    }

    /// Lends what [`Sink`] needs for one turn.
    pub(super) fn open<'a>(&'a mut self, scratch: &'a mut Scratch, is_live: bool) -> OpenBook<'a> {
        OpenBook { book: self, scratch, is_live, asked: None }
    }

    fn stored(&mut self, stored: &Stored<'_>, report: &mut FeedReport) {
        let mut ignore = |reason, blocks: usize| *report.ignored.entry(reason).or_default() += blocks as u64;
        let blocks = stored.hashes.len();
        if !stored.place.is_device() {
            return ignore("other_tier", blocks);
        }
        if !stored.place.is_whole_prefix() {
            if let Some(bit) = stored.place.group.and_then(|group| 1_u64.checked_shl(group)) {
                self.other_groups |= bit;
            }
            return ignore("other_group", blocks);
        }
        let lora = match stored.lora {
            Lora::Base => None,
            Lora::Named(name) => Some(name),
            Lora::Unnamed => return ignore("unnamed_adapter", blocks),
        };
        let Some(tokens) = stored.tokens else { return ignore("no_tokens", blocks) };
        // From the first block with keys of its own on, no text request has this prefix.
        let ours = stored.extra.foreign_from.unwrap_or(blocks).min(blocks);
        if ours < blocks {
            ignore("extra_keys", blocks - ours);
        }
        self.learn_block_size(stored.block_size);
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
                ignore(reason, count as usize);
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

    fn learn_block_size(&mut self, block_size: u32) {
        if self.reported_block_size != Some(block_size) {
            self.reported_block_size = Some(block_size);
            self.fleet.report_block_size(self.worker, block_size);
        }
    }

    fn clear(&mut self, report: &mut FeedReport) {
        self.ledger.cleared(self.fleet.index());
        report.blocks = 0;
    }
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
            Err(kind) => *report.errors.entry(kind.label()).or_default() += 1,
        }
    }

    fn skip(&mut self) {
        self.book.report.lock().duplicates += 1;
    }

    fn ask(&mut self, from: u64) {
        self.asked = Some(from);
    }

    fn start_cold(&mut self) {
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
