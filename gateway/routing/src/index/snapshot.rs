//! What ledgers know, as bytes: a gateway that restarts loads it instead of asking every engine for its whole history.
//!
//! ```text
//! magic 8 · version u32 · hash key id u64 · sections u32 │ section … │ checksum u64      all little-endian
//! section: length u64 · meta length u32 · meta │ groups │ runs: domain, position, parent, unsure, hashes │ names
//! ```
//!
//! One section for each ledger, with bytes of the caller beside it (who the worker is, how far its feed had come). A file
//! counts as a whole or not at all: the checksum, keyed with the deployment's secret, is compared before anything is read
//! into the index, so a damaged or foreign file is refused and the gateway starts cold. Own placements and blocks of workers
//! without events are not in it: they are gone by the time it is read.
//!
//! What a section restores is as old as the file. The caller goes on from the sequence number in its meta, or calls
//! [`Ledger::unconfirm`] when the engine cannot replay from there.

use super::PrefixIndex;
use super::ledger::{Image, ImageName, ImageRun, Ledger};
use super::plane::{GroupKind, MAX_GROUPS, Plane};
use super::segment::RUN;
use crate::WorkerId;
use crate::block::{ChainHash, Domain, HashKey};
use crate::event::MAX_WORKERS;
use crate::index::ledger::{ExternalHash, MAX_LINKS};
use std::fmt;

const MAGIC: [u8; 8] = *b"FOREBAYX";
/// Of the format above; another one is refused.
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 + 8 + 4;
const CHECKSUM_BYTES: usize = 8;
/// Bytes of meta in a section: a worker's address and a few numbers need far less.
pub const MAX_META_BYTES: usize = 64 << 10;
/// Where no run goes before.
const NONE: u32 = u32::MAX;

/// Why a snapshot was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// It does not begin like a snapshot.
    Foreign,
    /// It is of another version of the format.
    Version {
        /// The one found.
        found: u32,
    },
    /// Its hashes are of another deployment's key, or of this one's before the key changed.
    WrongKey {
        /// Id of the key that it was written with.
        found: u64,
    },
    /// It is cut short or was altered.
    Damaged,
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not a snapshot of the prefix index"),
            Self::Version { found } => write!(f, "version {found} of the format, expected {VERSION}"),
            Self::WrongKey { found } => write!(f, "written with another hash key ({found:016x})"),
            Self::Damaged => f.write_str("damaged: the checksum or a length is wrong"),
        }
    }
}

impl std::error::Error for SnapshotError {}

/// Collects ledgers into a snapshot.
#[derive(Debug)]
pub struct Writer<'a> {
    key: &'a HashKey,
    bytes: Vec<u8>,
    sections: u32,
}

impl<'a> Writer<'a> {
    /// An empty snapshot; `key` is that of the index's hashes.
    pub fn new(key: &'a HashKey) -> Self {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(key.id().to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        Self { key, bytes, sections: 0 }
    }

    /// Adds what `ledger` knows, with the caller's `meta`; false when that is longer than [`MAX_META_BYTES`] or there are
    /// [`MAX_WORKERS`] sections. O(names).
    pub fn add(&mut self, meta: &[u8], ledger: &Ledger, index: &PrefixIndex) -> bool {
        if meta.len() > MAX_META_BYTES || self.sections as usize >= MAX_WORKERS {
            return false;
        }
        let start = self.bytes.len();
        self.bytes.extend(0_u64.to_le_bytes());
        self.bytes.extend((meta.len() as u32).to_le_bytes());
        self.bytes.extend(meta);
        encode(&ledger.image(index), &mut self.bytes);
        let length = (self.bytes.len() - start - 8) as u64;
        self.bytes[start..start + 8].copy_from_slice(&length.to_le_bytes());
        self.sections += 1;
        true
    }

    /// The snapshot's bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&self.sections.to_le_bytes());
        let checksum = self.key.text(&self.bytes);
        self.bytes.extend(checksum.to_le_bytes());
        self.bytes
    }
}

/// A snapshot that was found whole and of this deployment.
#[derive(Debug)]
pub struct Reader<'a> {
    sections: Vec<Section<'a>>,
}

/// One ledger in a snapshot.
#[derive(Debug)]
pub struct Section<'a> {
    /// What the caller gave to [`Writer::add`].
    pub meta: &'a [u8],
    image: Image,
}

impl<'a> Reader<'a> {
    /// Checks and decodes `bytes`. Nothing of a refused one is used.
    pub fn open(bytes: &'a [u8], key: &HashKey) -> Result<Self, SnapshotError> {
        let mut input = Input(bytes);
        if input.take(8) != Ok(&MAGIC[..]) {
            return Err(SnapshotError::Foreign);
        }
        let version = input.u32()?;
        if version != VERSION {
            return Err(SnapshotError::Version { found: version });
        }
        let id = input.u64()?;
        if id != key.id() {
            return Err(SnapshotError::WrongKey { found: id });
        }
        let count = input.u32()? as usize;
        let (body, checksum) = bytes.split_at(bytes.len().checked_sub(CHECKSUM_BYTES).ok_or(SnapshotError::Damaged)?);
        if body.len() < HEADER_BYTES || key.text(body).to_le_bytes() != *checksum || count > MAX_WORKERS {
            return Err(SnapshotError::Damaged);
        }
        let mut input = Input(&body[HEADER_BYTES..]);
        let sections = (0..count).map(|_| section(&mut input)).collect::<Result<_, _>>()?;
        if input.0.is_empty() { Ok(Self { sections }) } else { Err(SnapshotError::Damaged) }
    }

    /// The ledgers in it.
    pub fn sections(&self) -> &[Section<'a>] {
        &self.sections
    }
}

impl Section<'_> {
    /// A ledger of `worker` that knows what the written one did, entered into `index`. O(names).
    pub fn restore(&self, worker: WorkerId, index: &PrefixIndex) -> Ledger {
        Ledger::of_image(worker, index, &self.image)
    }

    /// Names in all places.
    pub fn names(&self) -> usize {
        self.image.names.len()
    }
}

fn encode(image: &Image, out: &mut Vec<u8>) {
    out.push(image.groups.len() as u8);
    for (group, kind) in &image.groups {
        let (tag, blocks) = match *kind {
            GroupKind::Full => (0, 0),
            GroupKind::Window { blocks } => (1, blocks),
            GroupKind::State => (2, 0),
            GroupKind::Unknown => (3, 0),
        };
        out.extend(group.to_le_bytes());
        out.push(tag);
        out.extend(blocks.to_le_bytes());
    }
    out.extend((image.runs.len() as u32).to_le_bytes());
    for run in &image.runs {
        out.extend(run.domain.0.to_le_bytes());
        out.extend(run.position.to_le_bytes());
        let (parent, offset) = run.parent.unwrap_or((NONE, 0));
        out.extend(parent.to_le_bytes());
        out.push(offset);
        out.extend(run.unsure.to_le_bytes());
        out.push(run.hashes.len() as u8);
        out.extend(run.hashes.iter().flat_map(|hash| hash.0.to_le_bytes()));
    }
    out.extend((image.names.len() as u32).to_le_bytes());
    for name in &image.names {
        out.extend(name.hash.0.to_le_bytes());
        out.extend(name.run.to_le_bytes());
        out.extend([name.offset, name.plane.0]);
        out.extend(name.copies.to_le_bytes());
    }
}

fn section<'a>(input: &mut Input<'a>) -> Result<Section<'a>, SnapshotError> {
    let length = usize::try_from(input.u64()?).map_err(|_| SnapshotError::Damaged)?;
    let mut input = Input(input.take(length)?);
    let meta_bytes = input.u32()? as usize;
    let meta = input.take(meta_bytes)?;
    let image = decode(&mut input)?;
    if input.0.is_empty() { Ok(Section { meta, image }) } else { Err(SnapshotError::Damaged) }
}

fn decode(input: &mut Input<'_>) -> Result<Image, SnapshotError> {
    let mut image = Image::default();
    for _ in 0..input.u8()? {
        let group = input.u32()?;
        let (tag, blocks) = (input.u8()?, input.u32()?);
        let kind = match tag {
            0 => GroupKind::Full,
            1 => GroupKind::Window { blocks },
            2 => GroupKind::State,
            3 => GroupKind::Unknown,
            _ => return Err(SnapshotError::Damaged),
        };
        image.groups.push((group, kind));
    }
    for at in 0..input.u32()? {
        image.runs.push(decode_run(input, at)?);
    }
    for _ in 0..input.u32()? {
        let hash = ExternalHash(input.u64()?);
        let (run, offset, plane) = (input.u32()?, input.u8()?, Plane(input.u8()?));
        let copies = input.u16()?;
        let run_of = image.runs.get(run as usize).filter(|run| usize::from(offset) < run.hashes.len());
        let is_place = plane == Plane::HELD || plane.as_lower_tier().is_some() || plane.as_group() < Some(MAX_GROUPS);
        if run_of.is_none() || copies == 0 || !is_place || !plane.is_membership() || image.names.len() >= MAX_LINKS {
            return Err(SnapshotError::Damaged);
        }
        image.names.push(ImageName { hash, run, offset, plane, copies });
    }
    Ok(image)
}

/// Run number `at`; its parent goes before it.
fn decode_run(input: &mut Input<'_>, at: u32) -> Result<ImageRun, SnapshotError> {
    let (domain, position) = (Domain(input.u64()?), input.u32()?);
    let (parent, offset) = (input.u32()?, input.u8()?);
    let unsure = input.u64()?;
    let count = usize::from(input.u8()?);
    if count == 0 || count > RUN || (parent != NONE && parent >= at) || usize::from(offset) >= RUN {
        return Err(SnapshotError::Damaged);
    }
    let hashes = (0..count).map(|_| input.u64().map(ChainHash)).collect::<Result<_, _>>()?;
    Ok(ImageRun { domain, position, parent: (parent != NONE).then_some((parent, offset)), unsure, hashes })
}

/// Bytes that are left.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], SnapshotError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SnapshotError::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SnapshotError::Damaged)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, SnapshotError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, SnapshotError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, SnapshotError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, SnapshotError> {
        self.array().map(u64::from_le_bytes)
    }
}
