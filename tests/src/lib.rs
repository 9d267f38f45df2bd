//! What the suites that cross packages share: real processes, a plain client, and the demo built on both.
//!
//! ```text
//! process (spawn, watch, kill)  ◄── cluster (mock engines + gateway)  ◄── demo (workload, replay, report), faults
//!                                    client (one request, one Outcome) ◄──┤        tests/e2e_*.rs
//!                                                                          └── life (the simulator beside real processes)
//! ```
//!
//! Nothing here reaches into the gateway's insides: it starts the binaries that ship and speaks HTTP to them, so that what
//! passes here is what a user gets.
#![forbid(unsafe_code)]

pub mod client;
pub mod cluster;
pub mod console;
pub mod demo;
pub mod faults;
pub mod feed;
pub mod life;
pub mod process;
pub mod raw;
pub mod scene;
