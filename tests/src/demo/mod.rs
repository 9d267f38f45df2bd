//! The demo: the same chat sessions through the same engines twice, and what the policy changed.
//!
//! ```text
//! workload (committed sessions) ─► replay (open loop) ─► report (one table, one RESULT line)
//!        └─► capacity (how fast is 0.8?)     exact: is every predicted hit true?     kill: one engine dies under load
//! ```

pub mod capacity;
pub mod compare;
pub mod exact;
pub mod kill;
pub mod ledger;
pub mod replay;
pub mod report;
pub mod stage;
pub mod workload;
