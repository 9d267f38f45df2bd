//! doors: who may come in.
//!
//! ```text
//! keys.file ─ read ─► Built ─ swap ─► admit(credential) ─► Caller (tenant, roles) or 401/403
//! ```
//!
//! What the files say is read whole, built whole and swapped in at once; a request sees one state or the other.
//!
//! Invariants: a file that cannot be used changes nothing and says why, so that a bad edit locks nobody out; no message
//! and no log line holds a key or a line of the file. Failure: at start an unusable file ends the process.

pub mod keys;

pub use keys::{Caller, Keys};

use crate::config::Config;
use crate::error::Fault;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Duration;

/// Between two looks at the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a caller must be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Send requests to models.
    Use,
    /// Look at and change what the gateway does.
    Operate,
}

/// A file of the doors cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DoorsError {
    /// Not readable.
    #[error("{key}: cannot read {}: {why}", path.display())]
    File {
        /// Configuration key.
        key: &'static str,
        /// File.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// A line of the keys file.
    #[error("keys.file: line {line}: {what}")]
    Keys {
        /// From 1.
        line: usize,
        /// What is wrong, without the line's text.
        what: String,
    },
}

/// Files as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Files {
    keys: Option<PathBuf>,
}

/// What the files held.
#[derive(Clone, Default, PartialEq, Eq)]
struct Contents {
    keys: Option<String>,
}

impl Files {
    fn read(&self) -> Result<Contents, DoorsError> {
        let keys = self.keys.as_deref().map(|path| read("keys.file", path, keys::MAX_FILE_BYTES));
        Ok(Contents { keys: keys.transpose()? })
    }
}

/// What was made of them.
#[derive(Default)]
struct Built {
    contents: Contents,
    keys: Option<Keys>,
}

impl Built {
    fn of(contents: Contents) -> Result<Self, DoorsError> {
        let keys = contents.keys.as_deref().map(Keys::parse).transpose()?;
        Ok(Self { contents, keys })
    }
}

/// Everybody who comes passes here.
pub struct Doors {
    files: Files,
    built: ArcSwap<Built>,
    problem: Mutex<Option<String>>,
    now: Notify,
}

impl Doors {
    /// Nobody is asked for anything.
    pub fn open() -> Self {
        Self::with(Files::default(), Built::default())
    }

    fn with(files: Files, built: Built) -> Self {
        Self { files, built: ArcSwap::from_pointee(built), problem: Mutex::new(None), now: Notify::new() }
    }

    /// Reads what `config` names.
    pub fn load(config: &Config) -> Result<Self, DoorsError> {
        let files = Files { keys: config.keys.file.clone() };
        let built = Built::of(files.read()?)?;
        Ok(Self::with(files, built))
    }

    /// Whether callers need a key.
    pub fn ask_for_keys(&self) -> bool {
        self.files.keys.is_some()
    }

    /// Number of good keys.
    pub fn keys(&self) -> usize {
        self.built.load().keys.as_ref().map_or(0, Keys::len)
    }

    /// Why the files as they are now are not in force.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Who calls, if they may do what `role` says. `key` is what they presented.
    ///
    /// # Errors
    /// 401 without a good key, 403 with a key that lacks the role.
    pub fn admit(&self, key: Option<&[u8]>, role: Role) -> Result<Caller, Fault> {
        let built = self.built.load();
        let Some(keys) = &built.keys else { return Ok(Caller::anybody()) };
        let key = key.ok_or_else(|| {
            let message = "no API key; send it as `Authorization: Bearer …` or `x-api-key`";
            Fault { kind: "authentication_error", ..Fault::client(401, "missing_api_key", message) }
        })?;
        let caller = keys.find(key).ok_or_else(|| Fault {
            kind: "authentication_error",
            ..Fault::client(401, "invalid_api_key", "this API key is not known here")
        })?;
        let (allowed, name) = match role {
            Role::Use => (caller.may_use, "use"),
            Role::Operate => (caller.may_operate, "operate"),
        };
        if allowed {
            return Ok(caller.clone());
        }
        let message = format!("this API key lacks the role `{name}`");
        Err(Fault { kind: "permission_error", ..Fault::client(403, "forbidden", message) })
    }

    /// Looks at the files at once.
    pub fn look_now(&self) {
        self.now.notify_one();
    }

    /// Watches the files until dropped. A change is applied once two looks in a row agree, so that a half-written file is
    /// not taken for a short one; when asked, at once.
    pub async fn watch(self: Arc<Self>) {
        if self.files == Files::default() {
            return;
        }
        let mut seen = None;
        loop {
            let asked = tokio::select! {
                () = self.now.notified() => true,
                () = tokio::time::sleep(LOOK_INTERVAL) => false,
            };
            let files = self.files.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else { continue };
            let settled = asked || seen.as_ref() == Some(&read);
            if settled {
                self.apply(read.clone());
            }
            seen = Some(read);
        }
    }

    fn apply(&self, read: Result<Contents, DoorsError>) {
        let problem = match read {
            Ok(contents) if contents == self.built.load().contents => None,
            Ok(contents) => match Built::of(contents) {
                Ok(built) => {
                    self.built.store(Arc::new(built));
                    tracing::info!(keys = self.keys(), "the doors' files were read again");
                    None
                }
                Err(error) => Some(error),
            },
            Err(error) => Some(error),
        };
        let problem = problem.map(|error| error.to_string());
        let mut known = self.problem.lock();
        if let Some(error) = problem.as_ref().filter(|error| known.as_ref() != Some(error)) {
            tracing::error!("{error}; what was read before stays in force");
        }
        *known = problem;
    }
}

/// A text file of at most `max` bytes.
fn read(key: &'static str, path: &Path, max: u64) -> Result<String, DoorsError> {
    let failed = |why: String| DoorsError::File { key, path: path.to_owned(), why };
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    file.take(max + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > max {
        return Err(failed(format!("it has more than {max} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
