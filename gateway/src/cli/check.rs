//! `forebay check`: everything that is wrong with a configuration, or what it comes to.

use super::{Exit, complain, say};
use crate::config::{Environment, Loaded, Sources, policy_name, reference};
use std::path::PathBuf;

/// Validates `file` (with the environment over it) and says the outcome.
pub fn run(file: Option<PathBuf>, with_reference: bool, environment: Environment) -> Exit {
    if with_reference {
        say(reference::markdown().trim_end());
        if file.is_none() {
            return Exit::Done;
        }
    }
    let file = file.or_else(|| environment.find("FOREBAY_CONFIG").map(PathBuf::from));
    let sources = Sources { file, environment, ..Sources::default() };
    match sources.load() {
        Ok(loaded) => {
            for note in &loaded.notes {
                say(&format!("note: {note}"));
            }
            say(&summary(&loaded));
            Exit::Done
        }
        Err(problems) => {
            complain(&format!("the configuration does not hold together\n{problems}"));
            Exit::Usage
        }
    }
}

fn summary(loaded: &Loaded) -> String {
    let config = &loaded.config;
    format!(
        "ok: clients {}, operators {}, policy {}, {} workers, {} DNS names, {} models",
        config.listen.address,
        config.admin.address,
        policy_name(config.routing.policy),
        config.workers.len(),
        config.dns.len(),
        config.models.len()
    )
}
