//! The data path end to end: a real gateway, real sockets, and engines that do exactly what a script says.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test binary: nothing is exported, and failing is what it is for"
)]

mod bad_input;
mod cancel;
mod client;
mod dialects;
mod doors;
mod engine;
mod golden;
mod headers;
mod hostile;
mod limits;
mod outage;
mod resilience;
mod retry;
mod rig;
mod secure;
mod streams;
