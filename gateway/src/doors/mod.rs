//! doors: who may come in, and how the wire is protected on both sides.
//!
//! ```text
//! keys.file ──────────┐                 ┌─► admit(credential) ─► Caller (tenant, roles) or 401/403
//! certificates, CAs ──┴─ read ─► Built ─┼─► acceptor()  TLS to clients: server names, client certificates
//!                                (swap) └─► towards()   TLS to engines: trust, own certificate
//! ```
//!
//! What the files say is read whole, built whole and swapped in at once; a request sees one state or the other.
//!
//! Invariants: a file that cannot be used changes nothing and says why, so that a bad edit locks nobody out; no message
//! and no log line holds a key or a line of the file. Failure: at start an unusable file ends the process.

pub mod keys;
mod tls;
mod towards;

pub use keys::{Caller, Keys};
pub use towards::Towards;

use crate::config::Config;
use crate::config::resolved::Certificate;
use crate::error::Fault;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::{ClientConfig, ServerConfig};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tls::{ClientTexts, ServerTexts};
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
    /// A certificate, its key, or a list of authorities.
    #[error("{key}: {why}")]
    Tls {
        /// Configuration key.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
}

/// Files as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Files {
    keys: Option<PathBuf>,
    certificates: Vec<Certificate>,
    client_ca: Option<PathBuf>,
    client_certificate_required: bool,
    http2: bool,
    upstream_ca: Option<PathBuf>,
    upstream_own: Option<(PathBuf, PathBuf)>,
}

/// What the files held.
#[derive(Clone, Default, PartialEq, Eq)]
struct Contents {
    keys: Option<String>,
    server: ServerTexts,
    client: ClientTexts,
}

impl Files {
    fn of(config: &Config) -> Self {
        let own = (config.upstream.certificate_file.clone(), config.upstream.certificate_key_file.clone());
        Self {
            keys: config.keys.file.clone(),
            certificates: config.certificates.clone(),
            client_ca: config.listen.client_ca_file.clone(),
            client_certificate_required: config.listen.client_certificate_required,
            http2: config.listen.http2,
            upstream_ca: config.upstream.ca_file.clone(),
            upstream_own: own.0.zip(own.1),
        }
    }

    fn read(&self) -> Result<Contents, DoorsError> {
        let pem = |key, path: &Path| read(key, path, tls::MAX_PEM_BYTES);
        let pair = |key, chain: &Path, private: &Path| {
            Ok::<_, DoorsError>(tls::Pair { chain: pem(key, chain)?, key: pem(key, private)? })
        };
        let keys = self.keys.as_deref().map(|path| read("keys.file", path, keys::MAX_FILE_BYTES));
        let pairs = self.certificates.iter().map(|one| pair("certificates", &one.chain_file, &one.key_file));
        let system = Path::new(tls::SYSTEM_AUTHORITIES);
        let authorities = match &self.upstream_ca {
            Some(path) => Some(pem("upstream.ca_file", path)?),
            // Where the system has no list, engines with TLS need `upstream.ca_file`; others do not care.
            None => pem("upstream.ca_file", system).ok(),
        };
        Ok(Contents {
            keys: keys.transpose()?,
            server: ServerTexts {
                pairs: pairs.collect::<Result<_, _>>()?,
                client_authorities: self
                    .client_ca
                    .as_deref()
                    .map(|path| pem("listen.client_ca_file", path))
                    .transpose()?,
                client_certificate_required: self.client_certificate_required,
                http2: self.http2,
            },
            client: ClientTexts {
                authorities,
                own: self
                    .upstream_own
                    .as_ref()
                    .map(|(chain, key)| pair("upstream.certificate_file", chain, key))
                    .transpose()?,
            },
        })
    }
}

/// What was made of them.
#[derive(Default)]
struct Built {
    contents: Contents,
    keys: Option<Keys>,
    server: Option<Arc<ServerConfig>>,
    client: Option<Arc<ClientConfig>>,
}

impl Built {
    fn of(contents: Contents) -> Result<Self, DoorsError> {
        Ok(Self {
            keys: contents.keys.as_deref().map(Keys::parse).transpose()?,
            server: tls::server(&contents.server)?,
            client: tls::client(&contents.client)?,
            contents,
        })
    }
}

/// Everybody who comes passes here.
pub struct Doors {
    files: Mutex<Files>,
    asks_for_keys: bool,
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
        let asks_for_keys = files.keys.is_some();
        let files = Mutex::new(files);
        Self {
            files,
            asks_for_keys,
            built: ArcSwap::from_pointee(built),
            problem: Mutex::new(None),
            now: Notify::new(),
        }
    }

    /// Reads what `config` names.
    pub fn load(config: &Config) -> Result<Self, DoorsError> {
        let files = Files::of(config);
        let built = Built::of(files.read()?)?;
        Ok(Self::with(files, built))
    }

    /// Nobody is asked for anything; peers are trusted by `ca_file`, or by the system's authorities.
    pub fn trusting(ca_file: Option<PathBuf>) -> Result<Self, DoorsError> {
        let files = Files { upstream_ca: ca_file, ..Files::default() };
        let built = Built::of(files.read()?)?;
        Ok(Self::with(files, built))
    }

    /// Whether callers need a key.
    pub fn ask_for_keys(&self) -> bool {
        self.asks_for_keys
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

    /// How to speak with a client that has just connected; `None` in the clear.
    pub fn acceptor(&self) -> Option<Arc<ServerConfig>> {
        self.built.load().server.clone()
    }

    /// Takes over the list of certificates of a changed configuration. A listener that speaks TLS never goes back to the
    /// clear while it runs: clients would send their keys unprotected.
    pub fn reload(&self, config: &Config) {
        let mut files = self.files.lock();
        if config.certificates.is_empty() && !files.certificates.is_empty() {
            tracing::error!("certificates: all were taken out; the listener keeps those it has until a restart");
            return;
        }
        files.certificates.clone_from(&config.certificates);
        drop(files);
        self.look_now();
    }

    /// Looks at the files at once.
    pub fn look_now(&self) {
        self.now.notify_one();
    }

    /// Watches the files until dropped. A change is applied once two looks in a row agree, so that a half-written file is
    /// not taken for a short one; when asked, at once.
    pub async fn watch(self: Arc<Self>) {
        let mut seen = None;
        loop {
            let asked = tokio::select! {
                () = self.now.notified() => true,
                () = tokio::time::sleep(LOOK_INTERVAL) => false,
            };
            let files = self.files.lock().clone();
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
