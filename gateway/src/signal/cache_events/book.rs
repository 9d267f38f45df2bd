//! One worker's cache as its events tell it, kept in the index.

use super::batch::{self, Event, Lora, Removed, Scratch, Stored};
use super::place::ALL_TIERS;
use super::report::{Alarm, FeedReport};
use super::sequence::Sink;
use super::warm::{self, Meta};
use super::{FeedSpec, MAX_MESSAGE_BYTES};
use crate::clock::{Clock, unix_seconds};
use crate::fleet::{Fleet, Handle};
use forebay_routing::WorkerId;
use forebay_routing::index::ledger::{Applied, ExternalHash, Ledger};
use forebay_routing::index::{GroupKind, Place, Tier, snapshot};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;

/// Between two counts of unconfirmed blocks, which walk all that is known.
const COUNT_EVERY_MS: u64 = 1_000;

/// Applies batches to one worker's ledger.
pub(super) struct Book {
    fleet: Fleet,
    clock: Clock,
    handle: Arc<Handle>,
    /// Identity under which entries are written; follows the handle's.
    worker: WorkerId,
    ledger: Ledger,
    capacity_blocks: Option<u32>,
    /// Groups that were told of, each with the tokens of its blocks; the first is the one that counts for the fleet.
    groups: SmallVec<[(u32, u32); 2]>,
    /// Names the engine's process, where it is known.
    process: Option<String>,
    /// When unconfirmed blocks are to be counted again; `None` while there are none.
    count_at_ms: Option<u64>,
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
            groups: SmallVec::new(),
            process: spec.process.clone(),
            count_at_ms: None,
            report,
        }
    }

    pub(super) fn worker(&self) -> WorkerId {
        self.worker
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn set_process(&mut self, process: Option<String>) {
        self.process = process;
    }

    /// What is known, as a part of a snapshot file; `None` while the engine's process has no name.
    pub(super) fn save(&self, next: u64, published: Option<f64>) -> Option<Vec<u8>> {
        let meta = Meta {
            model: self.handle.model.to_string(),
            worker: self.handle.label.to_string(),
            process: self.process.clone()?,
            next,
            published,
            groups: self.groups.to_vec(),
        };
        let meta = serde_json::to_vec(&meta).ok()?;
        let mut writer = snapshot::Writer::new(self.fleet.hash_key());
        writer.add(&meta, &self.ledger, self.fleet.index()).then(|| writer.finish())
    }

    /// Knows what a part of a snapshot file does; returns where the feed goes on. `None`, and nothing is known, when it is
    /// of another process, or of one that cannot be told from this.
    pub(super) fn restore(&mut self, part: &[u8]) -> Option<(u64, Option<f64>)> {
        let reader = snapshot::Reader::open(part, self.fleet.hash_key()).ok()?;
        let section = reader.sections().first()?;
        let meta = warm::meta(section.meta)?;
        if self.process.as_ref() != Some(&meta.process) {
            return None;
        }
        self.ledger = section.restore(self.worker, self.fleet.index());
        if let Some(capacity_blocks) = self.capacity_blocks {
            self.ledger.set_capacity(capacity_blocks);
        }
        self.groups = meta.groups.into();
        if let Some((_, size)) = self.groups.first() {
            self.fleet.report_block_size(self.worker, *size);
        }
        self.count_unconfirmed();
        Some((meta.next, meta.published))
    }

    /// Whether somebody else proved a restart: what was written under the old identity is gone.
    pub(super) fn is_outdated(&self) -> bool {
        self.handle.id() != self.worker
    }

    /// Begins anew under the worker's present identity.
    pub(super) fn begin_anew(&mut self) {
        self.worker = self.handle.id();
        self.ledger = ledger(self.worker, self.capacity_blocks);
        self.groups.clear();
        // Whoever proved it will say which process it is now.
        self.process = None;
        self.count_at_ms = None;
        let mut report = self.report.lock();
        report.alarms.remove(&Alarm::BlockSize);
        (report.blocks, report.unconfirmed) = (0, 0);
    }

    /// Another process was proven by the feed: nothing that was known holds.
    pub(super) fn restart(&mut self) {
        self.report.lock().restarts += 1;
        self.fleet.restart_blocking(self.worker);
        self.begin_anew();
    }

    /// Events are missing for good. What was known before is kept, with less credit: engines publish nothing when they
    /// reuse a block, so dropping it would forget the most used prefixes first. Where nothing was known the past is simply
    /// unknown: a cold start.
    pub(super) fn lose(&mut self) {
        if self.ledger.is_empty() {
            self.report.lock().cold_starts += 1;
            return;
        }
        self.ledger.unconfirm(self.fleet.index());
        self.report.lock().lost += 1;
        self.count_unconfirmed();
    }

    /// Counts unconfirmed blocks now and then, while there are any.
    pub(super) fn tick(&mut self, now_ms: u64) {
        if self.count_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.count_unconfirmed();
        }
    }

    /// Shows how many blocks are known.
    pub(super) fn count_blocks(&self) {
        self.report.lock().blocks = self.ledger.len() as u64;
    }

    fn count_unconfirmed(&mut self) {
        let unconfirmed = self.ledger.unconfirmed(self.fleet.index());
        self.count_at_ms = (unconfirmed > 0).then(|| self.clock.now_ms() + COUNT_EVERY_MS);
        let mut report = self.report.lock();
        report.unconfirmed = unconfirmed;
        report.blocks = self.ledger.len() as u64;
    }

    pub(super) fn learn_capacity(&mut self, blocks: u32) {
        let blocks = self.capacity_blocks.map_or(blocks, |known| known.max(blocks));
        self.capacity_blocks = Some(blocks);
        self.ledger.set_capacity(blocks);
    }

    /// Batch or event `number` has been applied: whoever reads the report finds it in the index.
    pub(super) fn note(&self, number: u64) {
        let mut report = self.report.lock();
        report.batches += 1;
        report.last_seq = Some(number);
        report.last_event_ms = Some(self.clock.now_ms());
    }

    /// Lends what [`Sink`] needs for one turn.
    pub(super) fn open<'a>(&'a mut self, scratch: &'a mut Scratch, is_live: bool) -> OpenBook<'a> {
        OpenBook { book: self, scratch, is_live, asked: None }
    }

    pub(super) fn ignore(&self, reason: &'static str, blocks: usize) {
        *self.report.lock().ignored.entry(reason).or_default() += blocks as u64;
    }

    pub(super) fn count_error(&self, kind: &'static str) {
        *self.report.lock().errors.entry(kind).or_default() += 1;
    }

    pub(super) fn store(&mut self, stored: &Stored<'_>) {
        let blocks = stored.hashes.len();
        let Some(tier) = stored.place.tier() else { return self.ignore("unknown_tier", blocks) };
        let group = stored.place.group.unwrap_or(0);
        let place = Place { tier, group };
        let Some(tokens) = stored.tokens else {
            // Copies into lower tiers are told by hash alone.
            if tier == Tier::Device || stored.has_tokens {
                return self.ignore("no_tokens", blocks);
            }
            let applied = self.ledger.mirrored(self.fleet.index(), place, stored.hashes);
            return self.note_stored(applied);
        };
        let lora = match stored.lora {
            Lora::Base => None,
            Lora::Named(name) => Some(name),
            Lora::Unnamed => return self.ignore("unnamed_adapter", blocks),
        };
        // From the first block with keys of its own on, no text request has this prefix.
        let ours = stored.extra.foreign_from.unwrap_or(blocks).min(blocks);
        if ours < blocks {
            self.ignore("extra_keys", blocks - ours);
        }
        if let Err(reason) = self.accept(group, stored) {
            return self.ignore(reason, ours);
        }
        let domain = self.fleet.block_domain(&self.handle.model, stored.block_size, lora, stored.extra.salt);
        let applied = self.ledger.stored_in(
            self.fleet.index(),
            self.fleet.hash_key(),
            place,
            domain,
            stored.parent,
            &stored.hashes[..ours],
            &tokens[..ours * stored.block_size as usize],
            stored.block_size,
        );
        self.note_stored(applied);
    }

    fn note_stored(&self, applied: Applied) {
        for (reason, count) in [("orphan", applied.orphans), ("refused", applied.refused)] {
            if count > 0 {
                self.ignore(reason, count as usize);
            }
        }
        self.report.lock().stored += u64::from(applied.blocks);
    }

    pub(super) fn remove(&mut self, removed: &Removed<'_>) {
        let Some(tier) = removed.place.tier() else { return self.ignore("unknown_tier", removed.hashes.len()) };
        let group = removed.place.group.unwrap_or(0);
        // Without a memory's name the block is gone from all of them.
        let tiers = if removed.place.medium.is_some() { &[tier][..] } else { &ALL_TIERS };
        let mut blocks = 0;
        for &tier in tiers {
            let applied = self.ledger.removed_all(self.fleet.index(), Place { tier, group }, removed.hashes);
            blocks += u64::from(applied.blocks);
        }
        self.report.lock().removed += blocks;
    }

    /// A block went from one memory to another.
    pub(super) fn transfer(&mut self, hash: ExternalHash, from: &batch::Place<'_>, to: &batch::Place<'_>) {
        let group = from.group.unwrap_or(0);
        if let Some(tier) = to.tier() {
            let applied = self.ledger.mirrored(self.fleet.index(), Place { tier, group }, &[hash]);
            self.note_stored(applied);
        }
        if let Some(tier) = from.tier() {
            let applied = self.ledger.removed_from(self.fleet.index(), Place { tier, group }, hash);
            self.report.lock().removed += u64::from(applied.blocks);
        }
    }

    /// Whether blocks like these are what `group` of this worker has. Its first event says so; a single shorter block is the
    /// tail of a prompt, which no other prompt continues; anything else contradicts. Groups beside the first whose blocks
    /// have another size cannot be laid over its blocks: what they need is then unknown.
    fn accept(&mut self, group: u32, stored: &Stored<'_>) -> Result<(), &'static str> {
        let (size, count) = (stored.block_size, stored.hashes.len());
        let main = self.groups.first().map(|(_, size)| *size);
        let Some(known) = self.groups.iter().position(|(known, _)| *known == group) else {
            let fits = main.is_none_or(|main| main == size);
            let kind = if fits { stored.place.group_kind(size) } else { GroupKind::Unknown };
            if stored.place.group.is_some() || stored.place.kind.is_some() {
                self.ledger.learn_group(self.fleet.index(), group, kind);
            }
            if main.is_none() {
                self.fleet.report_block_size(self.worker, size);
            }
            self.groups.push((group, size));
            return if fits { Ok(()) } else { Err("other_size") };
        };
        let before = self.groups[known].1;
        if before == size {
            return if known == 0 || main == Some(size) { Ok(()) } else { Err("other_size") };
        }
        if size < before && count == 1 {
            return Err("short_tail");
        }
        let mut report = self.report.lock();
        tracing::warn!(
            worker = %report.worker, group, before, size,
            "its KV events contradict themselves in the size of a block"
        );
        report.raise(Alarm::BlockSize);
        drop(report);
        self.groups[known].1 = size;
        if known == 0 {
            self.fleet.report_block_size(self.worker, size);
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.ledger.cleared(self.fleet.index());
        self.count_at_ms = None;
        let mut report = self.report.lock();
        report.cleared += 1;
        report.unconfirmed = 0;
    }

    /// One batch as vLLM and SGLang publish it.
    fn apply(&mut self, payload: &[u8], scratch: &mut Scratch, is_live: bool) {
        let small_enough = payload.len() <= MAX_MESSAGE_BYTES;
        let payload = if small_enough { payload } else { &[] };
        let mut may_lack_removals = false;
        let header = batch::decode(payload, scratch, |event| match event {
            Event::Stored(stored) => self.store(&stored),
            Event::Removed(removed) => self.remove(&removed),
            Event::Cleared => self.clear(),
            Event::Unknown => self.count_error("unknown_event"),
            Event::Malformed(kind) => {
                may_lack_removals = true;
                self.count_error(kind.label());
            }
        });
        self.count_blocks();
        match header {
            Ok(header) => self.note_lag(header.published_seconds.filter(|_| is_live)),
            Err(kind) => {
                may_lack_removals = true;
                self.count_error(if small_enough { kind.label() } else { "oversized" });
            }
        }
        // What could not be read may have said that blocks are gone.
        if may_lack_removals && !self.ledger.is_empty() {
            self.lose();
        }
    }

    fn note_lag(&self, published_seconds: Option<f64>) {
        let Some(published) = published_seconds else { return };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; clocks may differ")]
        let lag_ms = ((unix_seconds() - published) * 1_000.0).max(0.0) as u64;
        self.report.lock().lag_ms = Some(lag_ms);
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
        self.book.apply(payload, self.scratch, self.is_live);
        self.book.note(seq);
    }

    fn skip(&mut self) {
        self.book.report.lock().duplicates += 1;
    }

    fn ask(&mut self, from: u64) {
        self.asked = Some(from);
    }

    fn lose(&mut self) {
        self.book.lose();
    }

    fn restart(&mut self) {
        self.book.restart();
    }

    fn note_gap(&mut self) {
        self.book.report.lock().gaps += 1;
    }

    fn published(&self, payload: &[u8]) -> Option<f64> {
        batch::published_seconds(payload)
    }
}
