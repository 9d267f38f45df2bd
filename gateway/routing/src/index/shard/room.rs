//! Room in a shard: its table grows and shrinks with its segments, and beyond the byte budget the least valuable go.
//!
//! Least valuable is, of a few segments looked at, one that nobody living holds; else the one deepest in its prompts, since
//! what comes after an evicted block can no longer be credited; else the one that the fewest hold.

use super::super::claim::Bounds;
use super::super::scramble;
use super::super::table::{Table, slots_for};
use super::{Found, Shard, Writer};
use parking_lot::MutexGuard;
use std::cmp::Reverse;
use std::sync::Arc;

/// Segments looked at to find the one to evict.
const SAMPLES: usize = 8;

impl Shard {
    /// Makes room in the table for one more segment.
    pub(super) fn reserve(&self, writer: &mut MutexGuard<'_, Writer>, bounds: &Bounds<'_>) {
        let slots = self.table.load().as_ref().map_or(0, |table| table.slots.len());
        if (writer.used + 1) * 4 > slots * 3 {
            self.rebuild(writer, slots_for(writer.size.segments + 1), bounds);
        }
    }

    pub(super) fn rebuild(&self, writer: &mut MutexGuard<'_, Writer>, slots: usize, bounds: &Bounds<'_>) {
        let old = self.table.load();
        let (new, used) = old.as_ref().map_or_else(|| (Table::new(slots), 0), |old| old.rebuilt(slots));
        writer.used = used;
        let before = old.as_ref().map_or(0, |old| old.bytes());
        writer.size.bytes = writer.size.bytes + new.bytes() - before;
        let new = Arc::new(new);
        self.table.store(Some(new.clone()));
        bounds.index.publish(self.number, new);
    }

    /// Evicts while there is too much: each time the worst of a few sampled segments.
    pub(super) fn make_room(&self, writer: &mut MutexGuard<'_, Writer>, bounds: &Bounds<'_>) {
        while writer.size.bytes > bounds.max_bytes && writer.size.segments > 0 {
            let Some(worst) = self.sample(writer, bounds) else { return };
            let blocks = worst.len();
            self.remove(writer, &worst, bounds);
            writer.evicted += blocks as u64;
            self.shrink(writer, bounds);
        }
    }

    fn shrink(&self, writer: &mut MutexGuard<'_, Writer>, bounds: &Bounds<'_>) {
        let slots = slots_for(writer.size.segments);
        let now = self.table.load().as_ref().map_or(0, |table| table.slots.len());
        if slots * 4 <= now {
            self.rebuild(writer, slots, bounds);
        }
    }

    fn sample(&self, writer: &mut MutexGuard<'_, Writer>, bounds: &Bounds<'_>) -> Option<Found> {
        let table = self.table.load();
        let table = table.as_ref()?;
        let mut worst = None;
        for _ in 0..SAMPLES {
            writer.seed = writer.seed.wrapping_add(1);
            let first = scramble(writer.seed) as usize;
            let mask = table.slots.len() - 1;
            let taken = (0..=mask).map(|step| table.slots[(first + step) & mask].segment.load());
            let Some(found) = taken.into_iter().find(|loaded| loaded.is_some()) else { break };
            let found = Found(found);
            let rank = found.holders().as_ref().map(|holders| {
                let dead = !holders.records.iter().any(|record| bounds.index.is_live(record));
                (dead, found.position, Reverse(holders.records.len()))
            });
            if worst.as_ref().is_none_or(|(known, _)| *known < rank) {
                worst = Some((rank, found));
            }
        }
        worst.map(|(_, found)| found)
    }
}
