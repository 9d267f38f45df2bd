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
    /// Scalar keys that differ in `new` but only apply after a restart.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let restart = table::KEYS.iter().filter(|key| !key.live);
        restart.map(|key| key.path).filter(|path| self.effective.get(path) != new.effective.get(path)).collect()
    }
}
