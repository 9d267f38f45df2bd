//! Side-by-side proxy benchmark: what a router costs per request, per streamed chunk and in added latency.
//!
//! Two programs share this library. `lg` drives one run: it sends one workload to one port, watches the processes that it
//! is told to watch and prints one [`sample::Sample`] as a JSON line. `bench-report` reads the samples of a whole suite
//! and prints tables and the `RESULT` line. The shell scripts beside this package start the routers and decide the order.
//!
//! What must hold: every run of one test in one repetition sends the same bodies in the same order to every router; CPU
//! time is read from the kernel in nanoseconds, between two moments when nothing is in flight; a failed request is
//! counted and never timed.

pub mod client;
pub mod connect;
pub mod drive;
pub mod events;
pub mod http2;
pub mod procfs;
pub mod report;
pub mod sample;
pub mod stats;
pub mod text;
pub mod wire;
pub mod workload;
