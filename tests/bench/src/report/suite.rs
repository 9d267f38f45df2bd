//! The files of one suite, read and grouped.
//!
//! `samples.jsonl`: one [`Sample`] a line. `na.tsv`: router, test or `*`, reason. `machine.tsv`: what and its value.
//! `scale.tsv`: what `scale.sh` found (see [`super::scale`]).
//! `metrics/TEST.REP.{before,after}`: the metrics page of `forebay_kv` around one run.

use super::index::IndexUse;
use super::scale::{Scaled, scaled};
use crate::sample::Sample;
use crate::stats::Repeated;
use std::fs;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Failed requests for each answered one above which a repetition says nothing.
const MAX_ERROR_SHARE: f64 = 0.01;
/// The router whose index must be hit.
const KV_PEER: &str = "forebay_kv";

/// Why a suite cannot be reported.
#[derive(Debug, Error)]
pub enum SuiteError {
    /// A file that every suite has is not there.
    #[error("{path}: {error}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A sample that is none.
    #[error("samples.jsonl line {line}: {error}")]
    Sample {
        /// From 1.
        line: usize,
        /// Why.
        error: serde_json::Error,
    },
    /// No sample at all.
    #[error("samples.jsonl holds no sample: nothing ran")]
    Empty,
}

/// Why a router has no figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Router.
    pub peer: String,
    /// Test, `*` for all.
    pub test: String,
    /// What happened.
    pub reason: String,
}

/// Everything that one suite found.
#[derive(Clone, Debug, Default)]
pub struct Suite {
    /// Runs, in order, those with too many failures left out.
    pub samples: Vec<Sample>,
    /// What has no figure.
    pub missing: Vec<Missing>,
    /// What ran where: key and value.
    pub machine: Vec<(String, String)>,
    /// What the index did, a row for each test of `forebay_kv`.
    pub index: Vec<IndexUse>,
    /// What was measured at scale.
    pub scale: Vec<Scaled>,
}

impl Suite {
    /// Reads a suite's folder.
    ///
    /// # Errors
    /// There are no samples, or one does not parse. The other files may be missing.
    pub fn load(dir: &Path) -> Result<Self, SuiteError> {
        let path = dir.join("samples.jsonl");
        let text = fs::read_to_string(&path).map_err(|error| SuiteError::Read { path, error })?;
        // Error texts of strangers need not be UTF-8.
        let optional = |name: &str| {
            fs::read(dir.join(name)).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
        };
        let mut suite = Self::of(&text, &optional("na.tsv"), &optional("machine.tsv"), &optional("scale.tsv"))?;
        let page = |test: &str, rep: u64, when: &str| {
            fs::read_to_string(dir.join("metrics").join(format!("{test}.{rep}.{when}"))).ok()
        };
        suite.read_index(page);
        Ok(suite)
    }

    /// Parses the files' texts.
    ///
    /// # Errors
    /// There are no samples, or one does not parse.
    pub fn of(samples: &str, missing: &str, machine: &str, scale: &str) -> Result<Self, SuiteError> {
        let mut suite = Self { scale: scaled(scale), ..Self::default() };
        for (number, line) in samples.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let sample = serde_json::from_str(line).map_err(|error| SuiteError::Sample { line: number + 1, error })?;
            suite.take(sample);
        }
        if suite.samples.is_empty() && suite.missing.is_empty() && suite.scale.is_empty() {
            return Err(SuiteError::Empty);
        }
        suite.missing.extend(missing.lines().filter_map(|line| {
            let mut fields = line.splitn(3, '\t').map(str::to_owned);
            Some(Missing { peer: fields.next()?, test: fields.next()?, reason: fields.next()? })
        }));
        suite.machine =
            machine.lines().filter_map(|line| line.split_once('\t')).map(|(k, v)| (k.into(), v.into())).collect();
        Ok(suite)
    }

    fn take(&mut self, sample: Sample) {
        if sample.requests > 0 && sample.errors as f64 <= sample.requests as f64 * MAX_ERROR_SHARE {
            self.samples.push(sample);
            return;
        }
        let first = sample.first_error.as_deref().unwrap_or("no request was answered");
        let reason = format!(
            "rep {}: {} of {} failed: {first}",
            sample.rep,
            sample.errors,
            sample.requests as u64 + sample.errors
        );
        self.missing.push(Missing { peer: sample.peer, test: sample.test, reason });
    }

    /// Reads what the index did. A test whose prompts repeat and that never hit it is no run of `kv`: it is dropped.
    fn read_index(&mut self, page: impl Fn(&str, u64, &str) -> Option<String>) {
        for test in self.tests() {
            let mut used = IndexUse::new(&test);
            for sample in self.samples.iter().filter(|sample| sample.test == test && sample.peer == KV_PEER) {
                if let (Some(before), Some(after)) =
                    (page(&test, sample.rep, "before"), page(&test, sample.rep, "after"))
                {
                    used.add(&before, &after);
                }
            }
            if let Some(reason) = used.fault() {
                self.samples.retain(|sample| sample.test != test || sample.peer != KV_PEER);
                self.missing.push(Missing { peer: KV_PEER.into(), test: test.clone(), reason });
            }
            if used.runs > 0 {
                self.index.push(used);
            }
        }
    }

    /// Tests in the order in which they ran.
    pub fn tests(&self) -> Vec<String> {
        in_order(self.samples.iter().map(|sample| &sample.test))
    }

    /// Routers in the order in which they ran, those that never ran last.
    pub fn peers(&self) -> Vec<String> {
        let ran = self.samples.iter().map(|sample| &sample.peer);
        in_order(ran.chain(self.missing.iter().map(|missing| &missing.peer)))
    }

    /// The largest repetition.
    pub fn reps(&self) -> u64 {
        self.samples.iter().map(|sample| sample.rep).max().unwrap_or(0)
    }

    /// A figure of a router in a test, over the repetitions; `None` where there is none.
    pub fn figure(&self, test: &str, peer: &str, of: impl Fn(&Sample) -> Option<f64>) -> Option<Repeated> {
        let runs = self.samples.iter().filter(|sample| sample.test == test && sample.peer == peer);
        Repeated::of(runs.filter_map(of))
    }
}

fn in_order<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(name) {
            seen.push(name.clone());
        }
    }
    seen
}

#[cfg(test)]
pub(crate) mod tests;
