//! The fault benchmark: what clients lose when engines die, hang or fail, and when the gateway itself is replaced.
//!
//! ```text
//! load (clients × streams) ─► kill     engines: killed, stopped, cut off the network, failing
//!                          ─► replace  the gateway: told to stop, upgraded in place, reconfigured
//!                          ─► soak     all of it for minutes, with memory and open files read between
//! ```
//!
//! A request is *lost before commit* when its client got nothing of an answer: it could have been served by somebody else, so
//! it should have been. One that was cut after its answer had begun must end in an error event, never in silence.

pub mod kill;
pub mod load;
pub mod relay;
pub mod replace;
pub mod report;
pub mod soak;
