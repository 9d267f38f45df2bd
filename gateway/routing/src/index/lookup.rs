//! From a prompt's chain hashes to what every worker has of it.
//!
//! One pass over the segments serves all workers. Those that have every block so far are *active*; each segment's records,
//! ascending like the candidates, narrow them. Who has more than plain blocks in device memory (other tiers, further
//! attention groups, unsure blocks) is set aside and walked through alone, with all planes, at the end.

use super::hits::{HitDetail, Hits};
use super::plane::{self, GroupKind, PLANES, Plane};
use super::segment::{RUN, Record, Segment};
use super::slot::{Groups, Standing};
use super::table::Glance;
use super::{MAX_GROUPS, PrefixIndex, Tables, mask, ticks};
use crate::WorkerId;
use crate::block::ChainHash;
use smallvec::SmallVec;

/// As many records for each active worker make it cheaper to search for it than to pass all records by.
const SPARSE: usize = 8;
/// Slots brought in at once.
const TOUCHED: usize = 8;

/// When and how own placements count.
#[derive(Clone, Copy)]
struct Moment {
    now: u64,
    own_placements: bool,
}

impl PrefixIndex {
    /// Fills `out` with the prefix that each worker has. `own_placements`: whether dispatches to workers with events count
    /// before an event confirms them.
    pub fn lookup(&self, chain: &[ChainHash], now_ms: u64, own_placements: bool, out: &mut Hits) {
        out.clear();
        let moment = Moment { now: u64::from(ticks(now_ms)), own_placements };
        let tables = self.tables.load();
        let Some(tables) = tables.as_ref() else { return };
        let (mut position, mut touched) = (0, 0);
        while let Some(&head) = chain.get(position) {
            if position > 0 && position >= touched {
                touched = touch(tables, chain, position);
            }
            let rest = &chain[position..];
            let glance = tables.of(head).glance(head).filter(|glance| position > 0 && glance.is_front_of(rest));
            let count = match glance {
                Some(glance) => {
                    narrow_to_few(glance, position, out);
                    glance.len
                }
                None => self.take(position, rest, moment, out),
            };
            if out.active.is_empty() || count == 0 {
                break;
            }
            position += count;
        }
        if !out.special.is_empty() {
            self.finish(chain, moment, out);
        }
    }

    /// Goes on by the segment that begins with `rest`; returns how many of its blocks belong to the prompt.
    fn take(&self, position: usize, rest: &[ChainHash], moment: Moment, out: &mut Hits) -> usize {
        let Some(segment) = rest.first().and_then(|head| self.shard(*head).find(*head)) else { return 0 };
        let count = segment.matching(0, rest);
        if position == 0 {
            self.begin(&segment, count, moment, out);
        } else if count > 0 {
            narrow(&segment, position, count, moment, out);
        }
        count
    }

    /// Candidates are those that have the first block.
    fn begin(&self, segment: &Segment, count: usize, moment: Moment, out: &mut Hits) {
        let holders = segment.holders();
        let Some(holders) = holders.as_ref() else { return };
        if holders.is_plain {
            return self.begin_plain(&holders.records, count, out);
        }
        let mut rest = &holders.records[..];
        while let Some(first) = rest.first() {
            let mut group = gather(&mut rest, first.key, moment);
            if group.have & 1 == 0 && !group.is_special {
                continue;
            }
            match self.slots.standing(first.worker()) {
                Standing::Dead => continue,
                Standing::Plain => {}
                Standing::Special => group.is_special = true,
            }
            let at = out.blocks.len() as u32;
            let blocks = (group.have.trailing_ones() as usize).min(count);
            out.blocks.push((first.worker(), blocks as u32));
            if group.is_special {
                out.special.push(at);
            } else if blocks == count {
                out.active.push(at);
            }
        }
    }

    /// [`PrefixIndex::begin`], where each record is another worker's: the head of all prompts is everybody's.
    fn begin_plain(&self, records: &[Record], count: usize, out: &mut Hits) {
        out.blocks.reserve(records.len());
        out.active.reserve(records.len());
        for record in records {
            let blocks = (record.bits().trailing_ones() as usize).min(count);
            let worker = record.worker();
            let standing = self.slots.standing(worker);
            if blocks == 0 || standing == Standing::Dead {
                continue;
            }
            let at = out.blocks.len() as u32;
            out.blocks.push((worker, blocks as u32));
            if standing == Standing::Special {
                out.special.push(at);
            } else if blocks == count {
                out.active.push(at);
            }
        }
    }

    /// Looks at those set aside, each with all its planes.
    fn finish(&self, chain: &[ChainHash], moment: Moment, out: &mut Hits) {
        out.special.sort_unstable();
        for &at in &out.special {
            let (worker, blocks) = &mut out.blocks[at as usize];
            let detail = self.detail(chain, *worker, moment);
            *blocks = detail.device;
            out.details.push((*worker, detail));
        }
        out.blocks.retain(|(_, blocks)| *blocks > 0);
    }

    fn detail(&self, chain: &[ChainHash], worker: WorkerId, moment: Moment) -> HitDetail {
        let groups = self.slots.groups(worker);
        let groups = groups.as_ref().and_then(|groups| groups.as_ref()).map(|groups| &**groups);
        let mut progress = Progress::new(groups);
        self.walk(chain, |_, segment, _, count| {
            let holders = segment.holders();
            let Some(holders) = holders.as_ref() else { return false };
            progress.advance(&holders.records[holders.of(worker)], count, moment)
        });
        let detail = progress.detail(self.survival(worker), self.correction(worker));
        if self.slots.drafts(worker) { detail.without_last() } else { detail }
    }
}

/// What one worker has of a segment.
struct Group {
    have: u64,
    is_special: bool,
}

/// Takes the records of the worker of `key` from the front of `rest`.
#[inline]
fn gather(rest: &mut &[Record], key: u64, moment: Moment) -> Group {
    // Nearly all workers have one record, of plain blocks.
    if let [only, others @ ..] = *rest
        && only.plane() <= Plane::RECENT
        && only.key >> 8 == key >> 8
        && others.first().is_none_or(|next| next.key >> 8 != key >> 8)
    {
        *rest = others;
        return Group { have: only.bits(), is_special: false };
    }
    let mut group = Group { have: 0, is_special: false };
    let mut placed = 0;
    while let Some(record) = rest.first().filter(|record| record.key >> 8 == key >> 8) {
        let plane = plane::plane(record.key);
        match plane {
            Plane::HELD | Plane::RECENT => group.have |= record.bits(),
            Plane::PLACED => placed = record.bits(),
            Plane::UNTIL if moment.own_placements && record.bits() > moment.now => group.have |= placed,
            _ => group.is_special |= plane.is_special(),
        }
        *rest = &rest[1..];
    }
    group
}

/// Brings in the slots of segments that probably come next: most are full. Reads that wait for nothing overlap. Returns how far
/// that goes.
fn touch(tables: &Tables, chain: &[ChainHash], position: usize) -> usize {
    let heads = chain[position..].iter().step_by(RUN).take(TOUCHED);
    std::hint::black_box(heads.fold(0, |sum, head| sum ^ tables.of(*head).touch(*head)));
    position + RUN * TOUCHED
}

/// [`narrow`] by a glance at the segment.
fn narrow_to_few(glance: Glance, position: usize, out: &mut Hits) {
    let mut kept: SmallVec<[u32; 2]> = SmallVec::new();
    for (key, bits) in glance.records() {
        let worker = plane::worker(key);
        let Ok(found) = out.active.binary_search_by_key(&worker, |&at| out.blocks[at as usize].0) else { continue };
        let at = out.active[found];
        let blocks = (bits.trailing_ones() as usize).min(glance.len);
        out.blocks[at as usize].1 = (position + blocks) as u32;
        if blocks == glance.len {
            kept.push(at);
        }
    }
    out.active.clear();
    out.active.extend(kept);
}

/// Keeps active those that have all `count` blocks of `segment`; the depth of the others stands.
///
/// Behind a head that everybody has come segments of few, so it is the records that are gone through.
fn narrow(segment: &Segment, position: usize, count: usize, moment: Moment, out: &mut Hits) {
    let holders = segment.holders();
    let mut rest = holders.as_ref().map_or(&[][..], |holders| &holders.records);
    let is_crowded = out.active.len() * SPARSE < rest.len();
    let (mut kept, mut next) = (0, 0);
    while let (Some(record), Some(&at)) = (rest.first(), out.active.get(next)) {
        let base = plane::base(out.blocks[at as usize].0);
        if record.key < base {
            let behind = if is_crowded { rest.partition_point(|record| record.key < base) } else { 1 };
            rest = &rest[behind..];
            continue;
        }
        if record.key >= base + PLANES {
            let worker = record.worker();
            next += out.active[next..].partition_point(|&at| out.blocks[at as usize].0 < worker);
            continue;
        }
        next += 1;
        let group = gather(&mut rest, base, moment);
        let blocks = (group.have.trailing_ones() as usize).min(count);
        out.blocks[at as usize].1 = (position + blocks) as u32;
        if group.is_special {
            out.special.push(at);
        } else if blocks == count {
            out.active[kept] = at;
            kept += 1;
        }
    }
    out.active.truncate(kept);
}

/// One worker's way along a prompt, with all its planes.
struct Progress<'a> {
    groups: Option<&'a Groups>,
    /// Blocks walked.
    depth: u32,
    /// Contiguous blocks and unsure ones among them, by tier; each tier includes those above it.
    reach: [(u32, u32); 4],
    is_open: [bool; 4],
    /// Blocks that each further group has in a row up to here.
    rows: [u32; MAX_GROUPS],
    /// Longest prefix from which all groups can go on, and unsure blocks in it.
    cut: (u32, u32),
}

impl<'a> Progress<'a> {
    fn new(groups: Option<&'a Groups>) -> Self {
        Self { groups, depth: 0, reach: [(0, 0); 4], is_open: [true; 4], rows: [0; MAX_GROUPS], cut: (0, 0) }
    }

    /// Goes on by the `count` blocks of a segment; false when nothing continues.
    fn advance(&mut self, records: &[Record], count: usize, moment: Moment) -> bool {
        let mut rest = records;
        let plain = records.first().map_or(0, |first| gather(&mut rest, first.key, moment).have);
        let (mut lower, mut further, mut unsure) = ([0; 3], [0; MAX_GROUPS], 0);
        for record in records {
            let plane = record.plane();
            if plane == Plane::UNSURE {
                unsure = record.bits();
            } else if let Some(tier) = plane.as_lower_tier() {
                lower[tier] = record.bits();
            } else if let Some(group) = plane.as_group().filter(|group| *group < MAX_GROUPS) {
                further[group] = record.bits();
            }
        }
        let has_full = self.groups.is_none_or(|groups| groups.has_full);
        let mut have = if has_full { plain } else { further[0] };
        let device = have;
        let before = self.reach[0];
        for tier in 0..4_usize {
            have |= tier.checked_sub(1).map_or(0, |tier| lower[tier]);
            if self.is_open[tier] {
                let blocks = (have.trailing_ones() as usize).min(count);
                self.reach[tier].0 += blocks as u32;
                self.reach[tier].1 += (unsure & mask(0, blocks)).count_ones();
                self.is_open[tier] = blocks == count;
            }
        }
        if before.0 == self.depth {
            let blocks = (device.trailing_ones() as usize).min(count);
            self.find_cut(&further, unsure, blocks, before.1);
        }
        self.depth += count as u32;
        self.is_open.contains(&true)
    }

    /// Looks at every end among the next `blocks`, all of which the device has, whether all groups can go on from there.
    fn find_cut(&mut self, further: &[u64; MAX_GROUPS], unsure: u64, blocks: usize, unsure_before: u32) {
        let kinds = self.groups.map_or(&[][..], |groups| &groups.further);
        if kinds.is_empty() {
            self.cut = self.reach[0];
            return;
        }
        for at in 0..blocks {
            let mut all = true;
            for (group, kind) in kinds.iter().enumerate() {
                let row = if further[group] >> at & 1 == 1 { self.rows[group] + 1 } else { 0 };
                self.rows[group] = row;
                let position = self.depth + at as u32 + 1;
                all &= match kind {
                    GroupKind::Full | GroupKind::Unknown => row == position,
                    GroupKind::Window { blocks } => row >= (*blocks).max(1).min(position),
                    GroupKind::State => row > 0,
                };
            }
            if all {
                let unsure = unsure_before + (unsure & mask(0, at + 1)).count_ones();
                self.cut = (self.depth + at as u32 + 1, unsure);
            }
        }
    }

    fn detail(&self, survival: f64, correction: f64) -> HitDetail {
        let weigh = |(blocks, unsure): (u32, u32)| blocks - unsure + (f64::from(unsure) * survival) as u32;
        let is_corrected = self.groups.is_some_and(|groups| groups.is_corrected);
        let device = weigh(self.cut);
        let device = if is_corrected { (f64::from(device) * correction) as u32 } else { device };
        HitDetail {
            device,
            host: weigh(self.reach[1]).max(device),
            disk: weigh(self.reach[2]).max(device),
            remote: weigh(self.reach[3]).max(device),
            unconfirmed: self.cut.1,
            is_corrected,
        }
    }
}
