//! Forebay's pure core: from facts about a request and a view of the fleet to a decision that explains itself.
//!
//! ```text
//! token ids ─ block::chain ─► chain hashes ─ index::lookup ─► Hits ─┐
//! RequestFacts ─────────────────────────────────────────────────────┼─ decide() ─► Decision | Refusal
//! FleetEvent ─ FleetState::apply ─► FleetView ──────────────────────┤  explain() ─► every candidate, every term
//! own reservations (LocalLoad), now_ms, rng, cursor ────────────────┘
//! ```
//!
//! No I/O, clock, environment or global randomness: time and rng are arguments, so one input has one output and the
//! simulator runs the very code that serves traffic. What the core is told may be late, missing or wrong: events are
//! hints, reports have an age, and a wrong hint costs time, never correctness.
//!
//! | Module | What it owns |
//! |---|---|
//! | [`block`] | keyed hashes of token blocks: what makes two prefixes equal |
//! | [`index`] | who holds which block, by events, own placements or guess; [`index::ledger`] per event feed |
//! | [`event`] | the fleet as a reducer: identities, states, models, readings |
//! | [`view`] | the immutable snapshot that decisions read |
//! | [`rates`] | how long a worker takes, learned robustly; equal workers are equal |
//! | [`score`] | what a choice costs, one function for each term |
//! | [`foreign`] | what load that only the kernel sees adds to it |
//! | [`decision`] | the six policies, refusals, explanations |
//!
//! Costs, for a prompt of *b* blocks, *w* workers of its model, *h* of them with a hit:
//!
//! | Operation | Cost | Allocates |
//! |---|---|---|
//! | [`block::chain`] | O(tokens) | when `out` has to grow |
//! | [`index::PrefixIndex::lookup`] | O(b / 64 × h), at most one probe a block | when `out` has to grow |
//! | [`shortlist::shortlist`] | O(h), up to some hundred draws | when there are holders |
//! | [`decide`] | O(w · log h), w at most 192 but for rings | never |
//! | [`index::PrefixIndex::place`] | O(b) | for new blocks |
//! | ledger store, remove | O(1) a block | for new blocks |
//! | [`index::PrefixIndex::forget`] | O(1) | never |
//! | [`FleetState::apply`] | O(names of the worker) | for new workers and names |
//! | [`FleetState::view`] | O(workers + names) | the view |
//!
//! Limits: [`event::MAX_WORKERS`], [`event::MAX_MODELS`], [`event::MAX_NAMES_PER_WORKER`], the bytes given to
//! [`index::PrefixIndex::with_budget`], [`index::ledger::MAX_LINKS`], [`index::ledger::MAX_COPIES`], [`index::MAX_GROUPS`],
//! [`index::snapshot::MAX_META_BYTES`]; what goes when one is reached is said where it is defined.
#![forbid(unsafe_code)]

pub mod block;
pub mod decision;
pub mod event;
pub mod facts;
pub mod foreign;
pub mod index;
pub mod rates;
pub mod score;
mod select;
pub mod shortlist;
pub mod view;

pub use decision::{Candidate, DecideInput, Decision, Policy, Refusal, decide, explain};
pub use event::{Effect, FleetEvent, FleetState};
pub use facts::RequestFacts;
pub use forebay_common::id::WorkerId;
pub use view::{FleetView, LocalLoad, WorkerView};
