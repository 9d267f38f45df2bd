//! Where settings come from: flags before environment before file before default. Everything is injected, so a test
//! passes a map and no test touches the process.

use super::problem::{Origin, Problem, Problems};
use super::written::Written;
use super::{Loaded, resolve};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prefix of every variable that is read.
pub const PREFIX: &str = "FOREBAY_";

/// Variables that select sources rather than set keys, or that other parts of the product read: the suites, a process that
/// hands over to this one, the service manager.
pub const SPECIAL: [&str; 5] = ["FOREBAY_CONFIG", "FOREBAY_LOG", "FOREBAY_REQUIRE", UPGRADE_VARIABLE, NOTIFY_VARIABLE];

/// Where a process that hands over to this one waits.
pub const UPGRADE_VARIABLE: &str = "FOREBAY_UPGRADE_SOCKET";
/// Where the service manager listens.
pub const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";

/// A larger file is a mistake (a log, a device): 10,000 workers take about 1 MiB.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// The environment's `FOREBAY_*` variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(pub BTreeMap<String, String>);

impl Environment {
    /// Reads the process environment, once.
    pub fn of_process() -> Self {
        let named = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self(
            named
                .filter(|(name, _)| name.starts_with(PREFIX) || name == NOTIFY_VARIABLE)
                .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
                .collect(),
        )
    }

    /// A variable, where set and not empty.
    pub fn find(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Settings from the command line, free of the parser that read them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// (flag as written, key, value) of scalars, in order; the last wins.
    pub scalars: Vec<(String, String, String)>,
    /// `--worker URL`.
    pub workers: Vec<String>,
    /// `--tokenizer MODEL=DIR`.
    pub tokenizers: Vec<String>,
}

/// All sources of one process; read again on every reload.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--config`, else `FOREBAY_CONFIG`, else none.
    pub file: Option<PathBuf>,
    /// Environment.
    pub environment: Environment,
    /// Flags.
    pub flags: Flags,
}

impl Sources {
    /// Reads the file, if there is one, and resolves everything.
    pub fn load(&self) -> Result<Loaded, Problems> {
        self.resolve(self.read_file()?.as_deref())
    }

    /// The file's text, bounded.
    pub fn read_file(&self) -> Result<Option<String>, Problems> {
        self.file.as_deref().map(read_text).transpose()
    }

    /// Resolves with `text` standing for the file.
    pub fn resolve(&self, text: Option<&str>) -> Result<Loaded, Problems> {
        let mut problems: Vec<Problem> = Vec::new();
        let mut written = Written::default();
        if let (Some(path), Some(text)) = (&self.file, text) {
            written.read_toml(&Arc::new(path.clone()), text, &mut problems);
        }
        written.read_environment(&self.environment, &mut problems);
        written.read_flags(&self.flags, &mut problems);
        resolve::resolve(&written, problems)
    }
}

fn read_text(path: &Path) -> Result<String, Problems> {
    let fault = |what: String| Problems::of(Origin::Flag("--config".to_owned()), what);
    let shown = path.display();
    let size =
        std::fs::metadata(path).map_err(|e| fault(format!("cannot read {shown}: {e}; name a readable file")))?.len();
    if size > MAX_FILE_BYTES {
        return Err(fault(format!("{shown} has {size} bytes, more than {MAX_FILE_BYTES}; name a configuration file")));
    }
    let bytes = std::fs::read(path).map_err(|e| fault(format!("cannot read {shown}: {e}; name a readable file")))?;
    String::from_utf8(bytes).map_err(|e| {
        let place = e.utf8_error().valid_up_to();
        fault(format!("{shown} is not UTF-8 at byte {place}; save it as UTF-8"))
    })
}
