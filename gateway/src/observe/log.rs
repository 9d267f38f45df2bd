//! The process's own log: to standard error, filtered by `FOREBAY_LOG`.

use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// What is logged when nothing is asked for: our own doings, and what libraries warn of.
const DEFAULT: &str = "warn,forebay=info";

/// Starts logging; a filter that cannot be read is replaced by the default, with a word about it.
pub fn start(filter: Option<&str>) {
    let asked = EnvFilter::try_new(filter.unwrap_or(DEFAULT));
    let (filter, fault) = match asked {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(DEFAULT), Some(error)),
    };
    let ansi = std::io::stderr().is_terminal();
    // Only a second start in one process fails, and then the first one's log is there.
    _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).try_init();
    if let Some(error) = fault {
        tracing::warn!(%error, "FOREBAY_LOG cannot be read; logging {DEFAULT}");
    }
}
