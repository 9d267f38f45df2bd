//! A fleet in virtual time: the gateway's own decisions, or a rival's, over the mock engine's model.
//!
//! ```text
//! workload ─► world ─► gateway (forebay_routing) ─► policy ─► engine model ─► measure ─► compare ─► report
//! ```
//!
//! | Module | What it owns |
//! |---|---|
//! | [`workload`] | what is asked, and when: traces and generators, committed |
//! | [`hardware`] | what engines cost |
//! | [`scenario`] | fleet, signals (late, lost, wrong), faults |
//! | [`world`] | the run: one queue of events |
//! | [`gateway`] | the routing core, fed as the product feeds it |
//! | [`policy`] | ours, rivals', the oracle |
//! | [`measure`] | objectives, goodput, percentiles |
//! | [`compare`] | many runs with paired seeds, intervals, capacity |
//! | [`report`] | table, JSON, page |
//! | `bench` | the goals, in one RESULT line; `speed` times a decision |
//!
//! No clock and no randomness but from seeds: one scenario, workload, policy and seed have one result, to the byte.
#![forbid(unsafe_code)]

mod bench;
pub mod cli;
pub mod compare;
pub mod gateway;
pub mod hardware;
pub mod measure;
pub mod policy;
pub mod report;
pub mod scenario;
mod speed;
pub mod workload;
pub mod world;
