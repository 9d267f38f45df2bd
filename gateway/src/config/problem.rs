//! What is wrong with a configuration: where, what, and what to do. One line each, all of them at once.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a value came from; the first thing an error says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Built in.
    Default,
    /// The file; line and column (in characters) count from 1.
    File {
        /// Its path as given.
        path: Arc<PathBuf>,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A command-line flag.
    Flag(String),
}

impl Origin {
    /// The place of byte `offset` of `text`, which was read from `path`.
    pub(super) fn in_file(path: &Arc<PathBuf>, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        Self::File {
            path: path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    /// For cross references within one file: `line 8`, else the whole origin.
    pub(super) fn brief(&self) -> String {
        match self {
            Self::File { line, .. } => format!("line {line}"),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// Key at fault (`workers[1].url`), empty for the file as a whole.
    pub key: String,
    /// What is wrong and, after a semicolon, what to do.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.origin, self.what)
        } else {
            write!(f, "{}: {}: {}", self.origin, self.key, self.what)
        }
    }
}

/// Every fault found, in the order of the file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// A fault that is not about one key.
    pub(super) fn of(origin: Origin, what: String) -> Self {
        Self(vec![Problem { origin, key: String::new(), what }])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}
