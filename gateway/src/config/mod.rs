//! config: `written` (what the sources say) → `resolved` (what it means). The rest of the gateway sees only `resolved`.
//!
//! ```text
//! TOML file ──┐
//! FOREBAY_* ──┼─ written (value + place) ─ resolve (table of keys, relations) ─► Config
//! flags ──────┘                                        └─► every Problem at once: place, key, what, what to do
//! ```
//!
//! Invariants: [`table::KEYS`] is the only list of keys, defaults and bounds; an unknown key is an error; a value has a
//! unit or is a plain count; flags win over the environment, that over the file, that over the defaults. Failure: at start
//! a bad configuration ends the process with exit code 64; on reload the old state stays and says why (`reload`).

pub mod key;
pub mod networks;
pub mod problem;
mod reader;
pub mod reference;
pub mod reload;
mod resolve;
pub mod resolved;
pub mod source;
pub mod table;
#[cfg(test)]
mod tests;
mod unit;
mod written;

pub use problem::{Origin, Problem, Problems};
pub use resolved::{AccessLog, Config};
pub use source::{Environment, Flags, Sources};

use forebay_routing::Policy;
use key::Value;
use std::collections::BTreeMap;

/// Names of the policies, as configured and as metric labels.
pub const POLICIES: [(&str, Policy); 6] = [
    ("kv", Policy::Kv),
    ("least-loaded", Policy::LeastLoaded),
    ("power-of-two", Policy::PowerOfTwo),
    ("round-robin", Policy::RoundRobin),
    ("consistent-hash", Policy::ConsistentHash),
    ("session", Policy::Session),
];

/// The name of `policy`.
pub fn policy_name(policy: Policy) -> &'static str {
    // Every variant has its row: `tests::the_policies_have_one_name_each` walks the enum.
    POLICIES.iter().find(|(_, known)| *known == policy).map_or("unknown", |(name, _)| name)
}

/// A configuration that holds together.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// What it means.
    pub config: Config,
    /// What is worth saying about it without refusing it.
    pub notes: Vec<String>,
    /// Effective value of every scalar key.
    effective: BTreeMap<&'static str, Option<Value>>,
}

impl Loaded {
    /// What differs in `new`, a line each, for people: `routing.policy: kv → session`, `workers: + http://b:1`. None of these
    /// values is a secret: keys and certificates stand in files of their own.
    pub fn changes(&self, new: &Self) -> Vec<String> {
        let show =
            |value: Option<&Option<Value>>| value.and_then(Option::as_ref).map_or("unset".to_owned(), Value::show);
        let scalars = self.effective.iter().filter(|(path, value)| new.effective.get(*path) != Some(value));
        let mut changes: Vec<String> = scalars
            .map(|(path, value)| format!("{path}: {} → {}", show(Some(value)), show(new.effective.get(path))))
            .collect();
        let (old, new) = (&self.config, &new.config);
        list_changes("models", &old.models, &new.models, |model| model.name.clone(), &mut changes);
        list_changes(
            "certificates",
            &old.certificates,
            &new.certificates,
            |one| one.chain_file.display().to_string(),
            &mut changes,
        );
        list_changes("workers", &old.workers, &new.workers, |worker| worker.url.clone(), &mut changes);
        list_changes("dns", &old.dns, &new.dns, |pool| pool.name.clone(), &mut changes);
        changes
    }

    /// Scalar keys that differ in `new` but only apply after a restart.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let restart = table::KEYS.iter().filter(|key| !key.live);
        restart.map(|key| key.path).filter(|path| self.effective.get(path) != new.effective.get(path)).collect()
    }
}

fn list_changes<T: PartialEq>(list: &str, old: &[T], new: &[T], name: impl Fn(&T) -> String, into: &mut Vec<String>) {
    let find = |all: &[T], wanted: &str| all.iter().position(|item| name(item) == wanted);
    into.extend(old.iter().map(&name).filter(|item| find(new, item).is_none()).map(|item| format!("{list}: - {item}")));
    for item in new {
        match find(old, &name(item)) {
            None => into.push(format!("{list}: + {}", name(item))),
            Some(at) if old[at] != *item => into.push(format!("{list}: ~ {}", name(item))),
            Some(_) => {}
        }
    }
}
