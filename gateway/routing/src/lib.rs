//! Forebay's pure core: from facts about a request and a view of the fleet to a decision that explains itself.
//!
//! ```text
//! token ids ─ block::chain ─► chain hashes ─ index::lookup ─► Hits ─┐
//! RequestFacts ─────────────────────────────────────────────────────┼─ decide() ─► Decision | Refusal
//! FleetEvent ─ FleetState::apply ─► FleetView ───────────────────────────┤
//! own reservations (LocalLoad), now_ms, rng, cursor ────────────────┘
//! ```
//!
//! No I/O, clock, environment or global randomness: time and rng are arguments, so one input has one output and the
//! simulator runs the very code that serves traffic.
#![forbid(unsafe_code)]

pub mod block;
pub mod decision;
pub mod event;
pub mod facts;
pub mod index;
pub mod rates;
pub mod score;
mod select;
pub mod view;

pub use decision::{Candidate, DecideInput, Decision, Policy, Refusal, decide, explain};
pub use event::{Effect, FleetEvent, FleetState};
pub use facts::RequestFacts;
pub use forebay_common::id::WorkerId;
pub use view::{FleetView, LocalLoad, WorkerView};
