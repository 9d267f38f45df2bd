//! The node agent: what the kernel knows of the engines on this node, and a guard before them.
//!
//! ```text
//! forebay-agent load    sockets, kernel programs, sysfs ─► one record a period ─► every gateway that dialled
//! forebay-agent guard   lists, limits ─► XDP program at one interface ─► counters, alarms
//! forebay-agent doctor  what this node and these privileges allow, and what is missing
//! ```
//!
//! Each role is a process of its own with privileges of its own ([`load`] CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, or none; [`guard`] the three), so
//! that a fault in one does not take the other's down. A missing privilege lowers the level of the signal that needs it and of
//! no other; one log line says what is on, what is off and why.
//!
//! | Level | Needs | Gives |
//! |---|---|---|
//! | L0 | nothing | RDMA counters from sysfs |
//! | L1 | a socket | connections, backlog, unread bytes, connections at work (INET_DIAG) |
//! | L2 | CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, cgroup v2 | + every connection that opened or closed, bytes, retransmits, transfer peers |
//! | L3 | tracing | nothing yet: no signal here needs it |
//!
//! Nothing here is on the path of a request. A gateway that loses its agent decides as if there were none.
#![forbid(unsafe_code)]

pub mod clock;
pub mod config;
pub mod doctor;
pub mod guard;
pub mod ladder;
pub mod load;
pub mod page;
