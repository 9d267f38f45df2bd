//! Where kernel programs are tested: every test in a cgroup and network namespace of its own, which go with it.
//!
//! ```text
//! test process ── makes cgroup forebay-test-PID-N ── starts itself again inside, with --exact NAME
//!                                                       └─ unshare: own network and mounts, lo up ─► the test's body
//! ```
//!
//! Nothing is ever attached to the root cgroup or to an interface of the host. Where privileges are missing a test says
//! so and passes, unless `FOREBAY_REQUIRE=all` and the process is root: then something is wrong.

pub mod flood;
pub mod packets;
pub mod private;
pub mod traffic;
pub mod veth;
