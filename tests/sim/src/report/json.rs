//! All runs as JSON, one object each, with every figure.

use crate::compare::Run;

/// An array with one object for each run.
pub fn json(runs: &[Run]) -> Result<String, String> {
    serde_json::to_string_pretty(runs).map_err(|error| error.to_string())
}
