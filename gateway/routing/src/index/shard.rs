//! One shard of the index: a table of segments that any number of readers search while one writer changes it.
//!
//! ```text
//! table ─► slot: head hash, a glance ─► segment ─► hashes …        written behind those that readers may see
//!                                              └─► holders ─► records: (worker, plane), bits      bits change in place
//! ```
//!
//! A reader loads the table, the segment and its holders, each of them whole, and never waits. The writer has the lock of
//! the shard; it replaces tables, segments and lists of holders where they cannot be changed in place. A reader sees a change
//! as soon as it is made, and of two changes of one segment never the later one alone.

mod room;

use super::Spot;
use super::claim::{Bounds, Claim, From, Held};
use super::publish::{Loaded, Ordering, Published};
use super::segment::{Holders, IS_GONE, Parent, RUN, Record, Segment, View};
use super::table::{MIN_SLOTS, Slot, Table, slots_for};
use crate::WorkerId;
use crate::block::ChainHash;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Deref;
use std::sync::Arc;

/// Segments with more records than this are tidied by sweeps alone, not at every release.
const FEW_RECORDS: usize = 4;

/// A segment that grows gets room for a part of its length more: a block at a time comes while an engine decodes.
const SPARE: usize = 4;

/// A segment that a reader found.
pub(super) struct Found(Loaded<Segment>);

impl Deref for Found {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        self.0.as_deref().expect("made of loaded segments alone")
    }
}

/// Counters of a shard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) segments: usize,
    pub(super) blocks: usize,
    pub(super) memberships: usize,
    pub(super) bytes: usize,
}

#[derive(Debug, Default)]
struct Writer {
    size: Size,
    /// Slots that are not free.
    used: usize,
    serial: u64,
    seed: u64,
    evicted: u64,
}

/// One lock's share of the index.
#[derive(Debug)]
pub(super) struct Shard {
    number: usize,
    table: Published<Table>,
    writer: Mutex<Writer>,
}

impl Shard {
    /// An empty one, with its table.
    pub(super) fn new(number: usize) -> (Self, Arc<Table>) {
        let table = Arc::new(Table::new(MIN_SLOTS));
        let size = Size { bytes: table.bytes(), ..Size::default() };
        let shard = Self {
            number,
            table: Published::new(Some(table.clone())),
            writer: Mutex::new(Writer { size, seed: number as u64 + 1, ..Writer::default() }),
        };
        (shard, table)
    }

    /// The segment that begins with `head`. Never waits.
    pub(super) fn find(&self, head: ChainHash) -> Option<Found> {
        let table = self.table.load();
        let segment = table.as_ref()?.slot_of(head)?.segment.load();
        // The slot may have been given to another segment in between.
        let is_it = segment.as_ref().is_some_and(|segment| segment.head() == head);
        is_it.then_some(Found(segment))
    }

    /// The segment that begins with `head`, as its slot tells.
    #[cfg(loom)]
    pub(super) fn glance(&self, head: ChainHash) -> Option<super::table::Glance> {
        self.table.load().as_ref()?.glance(head)
    }

    /// The segment of `spot`, unless it went.
    pub(super) fn at(&self, spot: Spot) -> Option<Found> {
        self.find(spot.head).filter(|segment| segment.serial == spot.serial)
    }

    /// Counters and evictions so far.
    pub(super) fn size(&self) -> (Size, u64) {
        let writer = self.writer.lock();
        (writer.size, writer.evicted)
    }

    /// Enters the front of `chain` in the segment of its `parent`; `None` when it goes on in another. Blocks whose bit in
    /// `mask` is not set come in without the claim.
    pub(super) fn hold_inside(
        &self,
        claim: Claim,
        parent: Spot,
        chain: &[ChainHash],
        mask: u64,
        bounds: &Bounds<'_>,
    ) -> Option<Held> {
        if usize::from(parent.offset) + 1 >= RUN {
            return None;
        }
        let mut writer = self.writer.lock();
        let segment = self.at(parent)?;
        self.hold(&mut writer, claim, segment, parent.after(1), chain, mask, bounds)
    }

    /// Enters the front of `chain` in the segment that begins with it.
    pub(super) fn hold_ahead(
        &self,
        claim: Claim,
        from: From,
        chain: &[ChainHash],
        mask: u64,
        bounds: &Bounds<'_>,
    ) -> Option<Held> {
        let mut writer = self.writer.lock();
        let head = *chain.first()?;
        let Some(segment) = self.find(head) else {
            return self.create(&mut writer, claim, from, chain, mask, bounds);
        };
        let spot = Spot { head, serial: segment.serial, offset: 0 };
        self.hold(&mut writer, claim, segment, spot, chain, mask, bounds)
    }

    /// Changes what `worker` has of the segment of `spot`.
    pub(super) fn amend(&self, spot: Spot, worker: WorkerId, bounds: &Bounds<'_>, change: impl FnOnce(&mut View)) {
        let mut writer = self.writer.lock();
        // A block that everybody let go is not there, although a ledger may still have a name for it.
        let Some(segment) = self.at(spot).filter(|segment| usize::from(spot.offset) < segment.len()) else { return };
        let mut view = segment.view(worker);
        change(&mut view);
        Self::set_view(&mut writer, &segment, worker, view);
        self.settle(&mut writer, &segment, bounds);
        self.show(spot.head);
    }

    /// Drops records that `keeps` refuses, memory that is not needed, and what is too much; returns how many records went.
    pub(super) fn sweep(&self, keeps: impl Fn(&Holders, &Record) -> bool, bounds: &Bounds<'_>) -> usize {
        let mut writer = self.writer.lock();
        let table = self.table.load();
        let Some(table) = table.as_ref() else { return 0 };
        let mut freed = 0;
        for slot in &table.slots {
            let loaded = slot.segment.load();
            let Some(segment) = loaded.as_ref() else { continue };
            if let Some(holders) = segment.holders().as_ref() {
                let gone = holders.records.iter().filter(|record| !keeps(holders, record)).count();
                if gone > 0 {
                    freed += gone;
                    let left = holders.filtered(|record| keeps(holders, record));
                    writer.size.bytes = writer.size.bytes + left.heap_bytes() - holders.heap_bytes();
                    writer.size.memberships = writer.size.memberships + left.memberships() - holders.memberships();
                    segment.set_holders(left);
                }
            }
            self.tidy(&mut writer, segment, bounds);
            let (len, capacity) = (segment.len(), segment.capacity());
            if len > 0 && len + len / 2 < capacity {
                self.replace(&mut writer, segment, segment.resized(len));
            }
            Self::show_in(slot);
        }
        let slots = slots_for(writer.size.segments);
        if slots * 2 <= table.slots.len() {
            self.rebuild(&mut writer, slots, bounds);
        }
        self.make_room(&mut writer, bounds);
        freed
    }
}

/// The writer's side; whoever calls has the lock.
impl Shard {
    #[expect(clippy::too_many_arguments, reason = "what its two callers were given, and what they found")]
    fn hold(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        claim: Claim,
        segment: Found,
        spot: Spot,
        chain: &[ChainHash],
        mask: u64,
        bounds: &Bounds<'_>,
    ) -> Option<Held> {
        let offset = usize::from(spot.offset);
        let mut segment = segment;
        let mut count = segment.matching(offset, chain);
        if count < chain.len() {
            let appended = self.append(writer, &segment, offset + count, &chain[count..], bounds);
            if appended > 0 {
                segment = self.find(spot.head)?;
            }
            count += appended;
        }
        if count == 0 {
            return None;
        }
        let blocks = (u64::MAX >> (RUN - count) & mask) << offset;
        let (before, untrusted) = self.enter(writer, &segment, claim, blocks);
        self.show(spot.head);
        self.make_room(writer, bounds);
        Some(Held { spot, count, before: before >> offset, untrusted: untrusted >> offset })
    }

    /// Begins a segment with as many blocks of `chain` as have no segment of their own.
    fn create(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        claim: Claim,
        from: From,
        chain: &[ChainHash],
        mask: u64,
        bounds: &Bounds<'_>,
    ) -> Option<Held> {
        let most = chain.len().min(RUN);
        let fork = bounds.index.first_to_begin(&chain[1..most]).map(|at| at + 1);
        let count = fork.unwrap_or(most);
        writer.serial += 1;
        let spot = Spot { head: *chain.first()?, serial: writer.serial, offset: 0 };
        let mut view = View::default();
        claim.put_into(&mut view, u64::MAX >> (RUN - count) & mask);
        let holders = Holders::of_one(claim.worker, &view);
        let parent = adopt(from, bounds);
        writer.size.memberships += view.memberships();
        writer.size.bytes += holders.heap_bytes();
        let segment = Segment::new(spot.serial, from.position, parent, &chain[..count], count, Arc::new(holders));
        if let Some(fork) = fork {
            segment.set_fork(fork);
        }
        self.reserve(writer, bounds);
        writer.size.segments += 1;
        writer.size.blocks += count;
        writer.size.bytes += segment.heap_bytes();
        if let Some(table) = self.table.load().as_ref() {
            writer.used += usize::from(table.insert(spot.head, Arc::new(segment)));
        }
        let is_full = writer.size.bytes > bounds.max_bytes;
        self.make_room(writer, bounds);
        // Else evicted as soon as it was entered: there is no room at all.
        let is_there = !is_full || self.at(spot).is_some();
        is_there.then_some(Held { spot, count, before: 0, untrusted: 0 })
    }

    /// Appends blocks from `at` on, up to the first that has a segment of its own; returns how many.
    fn append(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        segment: &Segment,
        at: usize,
        chain: &[ChainHash],
        bounds: &Bounds<'_>,
    ) -> usize {
        if at < segment.len() {
            segment.set_fork(at);
        }
        if at != segment.len() {
            return 0;
        }
        let most = chain.len().min(RUN - at);
        let was_another = |step: &usize| at + step < segment.filled() && segment.hash(at + step) != Some(chain[*step]);
        let is_fork = |step: &usize| was_another(step) || segment.is_fork(at + step);
        let first_fork = (0..most).find(is_fork).unwrap_or(most);
        let count = bounds.index.first_to_begin(&chain[..first_fork]).unwrap_or(first_fork);
        if count < chain.len() {
            segment.set_fork(at + count);
        }
        let mut done = 0;
        while done < count && segment.push(chain[done]) {
            done += 1;
        }
        if done < count {
            let need = at + count;
            let grown = segment.resized(need + need / SPARE);
            for hash in &chain[done..count] {
                grown.push(*hash);
            }
            self.replace(writer, segment, grown);
        }
        writer.size.blocks += count;
        count
    }

    /// Lets the slot of a segment say what that is like now.
    fn show(&self, head: ChainHash) {
        if let Some(slot) = self.table.load().as_ref().and_then(|table| table.slot_of(head)) {
            Self::show_in(slot);
        }
    }

    fn show_in(slot: &Slot) {
        if let Some(segment) = slot.segment.load().as_ref() {
            slot.show(segment);
        }
    }

    fn enter(&self, writer: &mut MutexGuard<'_, Writer>, segment: &Segment, claim: Claim, blocks: u64) -> (u64, u64) {
        let mut view = segment.view(claim.worker);
        let found = claim.put_into(&mut view, blocks);
        Self::set_view(writer, segment, claim.worker, view);
        found
    }

    fn set_view(writer: &mut MutexGuard<'_, Writer>, segment: &Segment, worker: WorkerId, view: View) {
        let [memberships, bytes] = segment.set_view(worker, view);
        writer.size.memberships = writer.size.memberships + memberships.1 - memberships.0;
        writer.size.bytes = writer.size.bytes + bytes.1 - bytes.0;
    }

    /// Lets blocks and segments go that nobody has any more, where that is quickly told.
    fn settle(&self, writer: &mut MutexGuard<'_, Writer>, segment: &Segment, bounds: &Bounds<'_>) {
        let few = segment.holders().as_ref().is_none_or(|holders| holders.records.len() <= FEW_RECORDS);
        if few {
            self.tidy(writer, segment, bounds);
        }
    }

    fn tidy(&self, writer: &mut MutexGuard<'_, Writer>, segment: &Segment, bounds: &Bounds<'_>) {
        let union = segment.holders().as_ref().map_or(0, |holders| holders.union());
        let len = RUN - union.leading_zeros() as usize;
        if len == 0 {
            self.remove(writer, segment, bounds);
        } else if len < segment.len() {
            writer.size.blocks -= segment.len() - len;
            segment.set_len(len);
        }
    }

    fn remove(&self, writer: &mut MutexGuard<'_, Writer>, segment: &Segment, bounds: &Bounds<'_>) {
        let table = self.table.load();
        let slot = table.as_ref().and_then(|table| table.slot_of(segment.head()));
        let Some(slot) = slot else { return };
        writer.size.segments -= 1;
        writer.size.blocks -= segment.len();
        if let Some(holders) = segment.holders().as_ref() {
            writer.size.memberships -= holders.memberships();
            writer.size.bytes -= holders.heap_bytes();
        }
        writer.size.bytes -= segment.heap_bytes();
        slot.vacate();
        leave(segment, bounds);
    }

    fn replace(&self, writer: &mut MutexGuard<'_, Writer>, old: &Segment, new: Segment) {
        let table = self.table.load();
        let Some(slot) = table.as_ref().and_then(|table| table.slot_of(old.head())) else { return };
        writer.size.bytes = writer.size.bytes + new.heap_bytes() - old.heap_bytes();
        slot.segment.store(Some(Arc::new(new)));
    }
}

/// Counts a new segment as a child of the one it goes on from.
fn adopt(from: From, bounds: &Bounds<'_>) -> Parent {
    if from.position == 0 {
        return Parent::Start;
    }
    let children = from.parent.and_then(|parent| bounds.index.children(parent));
    let is_alive = children.as_ref().is_some_and(|children| children.fetch_add(1, Ordering::AcqRel) & IS_GONE == 0);
    if !is_alive {
        bounds.index.dangling().fetch_add(1, Ordering::AcqRel);
    }
    children.map_or(Parent::Gone, Parent::Segment)
}

/// A segment is gone: its children dangle from now on, and it does not any more.
fn leave(segment: &Segment, bounds: &Bounds<'_>) {
    let dangling = bounds.index.dangling();
    dangling.fetch_add(segment.children.fetch_or(IS_GONE, Ordering::AcqRel) as usize, Ordering::AcqRel);
    let did_dangle = match &segment.parent {
        Parent::Start => false,
        Parent::Segment(siblings) => siblings.fetch_sub(1, Ordering::AcqRel) & IS_GONE != 0,
        Parent::Gone => true,
    };
    if did_dangle {
        dangling.fetch_sub(1, Ordering::AcqRel);
    }
}
