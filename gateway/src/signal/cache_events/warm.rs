//! What feeds know, kept in a file: a gateway that restarts goes on from it instead of asking every engine for its past.
//!
//! ```text
//! file: one part for each feed: length u64, little-endian · snapshot of one ledger (`routing::index::snapshot`)
//! meta of a part: JSON, who the worker is, which process it was, how far its feed had come
//! ```
//!
//! A part counts only for the very process it was taken from, proven by its start time or instance name, and only with the
//! engine's replay from there on; where either is missing the feed begins as if there were no file. A file that is damaged,
//! foreign or of another hash key is refused as a whole, with its reason, and every feed starts cold.

use forebay_routing::block::HashKey;
use forebay_routing::index::snapshot::{Reader, SnapshotError};
use hashbrown::HashMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a file: 10 million memberships take a tenth.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Bytes of a part's length.
const LENGTH_BYTES: usize = 8;

/// What stands beside a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) model: String,
    /// URL and rank.
    pub(super) worker: String,
    /// Names the engine's process.
    pub(super) process: String,
    /// The batch to apply next.
    pub(super) next: u64,
    /// When the last one had been published, Unix seconds.
    pub(super) published: Option<f64>,
    /// Attention groups and the tokens of their blocks.
    pub(super) groups: Vec<(u32, u32)>,
}

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    /// The system's word.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// More than [`MAX_FILE_BYTES`].
    #[error("{0}: more than 4 GiB")]
    TooLarge(PathBuf),
    /// A length does not fit.
    #[error("{0}: cut short or damaged")]
    Damaged(PathBuf),
    /// One of its ledgers.
    #[error("{path}: {source}")]
    Part {
        /// Which.
        path: PathBuf,
        /// Why.
        source: SnapshotError,
    },
}

/// One worker's bytes, by model and worker.
type Parts = HashMap<(String, String), Vec<u8>>;

/// Parts that nobody has asked for yet; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Warm(Arc<Mutex<Parts>>);

impl Warm {
    /// Reads `path`; no file is an empty one.
    pub(super) fn read(path: &Path, key: &HashKey) -> Result<Self, WarmError> {
        let failed = |source| WarmError::File { path: path.to_owned(), source };
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(error)),
            Ok(file) if file.len() > MAX_FILE_BYTES => return Err(WarmError::TooLarge(path.to_owned())),
            Ok(_) => {}
        }
        let bytes = std::fs::read(path).map_err(failed)?;
        let mut parts = HashMap::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let damaged = || WarmError::Damaged(path.to_owned());
            let (length, after) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(damaged)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged())?;
            let (part, after) = after.split_at_checked(length).ok_or_else(damaged)?;
            let reader = Reader::open(part, key).map_err(|source| WarmError::Part { path: path.to_owned(), source })?;
            let meta = reader.sections().first().and_then(|section| meta(section.meta)).ok_or_else(damaged)?;
            parts.insert((meta.model, meta.worker), part.to_vec());
            rest = after;
        }
        Ok(Self(Arc::new(Mutex::new(parts))))
    }

    /// Takes over what `other` holds.
    pub(super) fn fill(&self, other: Self) {
        self.0.lock().extend(std::mem::take(&mut *other.0.lock()));
    }

    /// Feeds in it.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Takes out the part of one worker.
    pub(super) fn take(&self, model: &str, worker: &str) -> Option<Vec<u8>> {
        self.0.lock().remove(&(model.to_owned(), worker.to_owned()))
    }
}

/// Reads the meta of a part.
pub(super) fn meta(bytes: &[u8]) -> Option<Meta> {
    serde_json::from_slice(bytes).ok()
}

/// Writes `parts` so that `path` is the old file or the new one, never half of it.
pub(super) fn write(path: &Path, parts: &[Vec<u8>]) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&beside)?);
    for part in parts {
        file.write_all(&(part.len() as u64).to_le_bytes())?;
        file.write_all(part)?;
    }
    file.into_inner()?.sync_all()?;
    std::fs::rename(&beside, path)
}
