//! The adapter between the kernel programs and the processes that use them: the one place that names aya.
//!
//! ```text
//! prebuilt/forebay.o ─ object::open ─► Load   (cgroup: conn_load, busy)   ─► watch, record, peers, counters
//!                                  └─► Guard  (interface: xdp_guard)      ─► lists, settings, verdicts
//! probe   what this kernel and these privileges allow, found out by trying
//! cgroup  where cgroup v2 is mounted and which cgroup a process is in, from /proc
//! owner   one process at a time, by a lock that dies with it
//! ```
//!
//! Lifetimes: what [`Load`] attaches is gone when it is dropped or its process dies, since figures of a dead process serve
//! nobody. What [`Guard`] attaches outlives it where a directory to pin in is given: a deny list must not lapse with a
//! restart. Pinned maps are adopted when their layout is ours, and refused in words otherwise.
//!
//! Failures are [`Error`]s with the stage, the kernel's errno and, where the verifier spoke, its log; nobody has to go on
//! without the other signals because one failed.
#![deny(unsafe_code)]

pub mod cgroup;
mod error;
pub mod guard;
mod link;
pub mod load;
mod object;
pub mod owner;
pub mod probe;
mod socket;
mod table;

pub use error::{Error, Stage};
pub use guard::Guard;
pub use load::Load;
pub use object::{OBJECT, ProgramRun, ProgramSize, RunStats};
pub use socket::netns_cookie;
