//! What node agents see in their kernels: load of other gateways and direct clients, stuck accept queues, the fabric.
//!
//! ```text
//! site ─ add(agent, worker) ─► one stream per agent ─ Load frames ─► Report of each worker behind it ─► fleet
//! ```
//!
//! One task for each agent address, however many workers it stands beside. It dials, greets, and takes what comes; when the stream
//! ends it dials again with growing pauses. Nothing waits for it: reports age, and a gateway without agents decides as if there were
//! none. A frame is a total, so one that is lost is made good by the next; a new epoch replaces, an older sequence is ignored.

mod agents;
mod fabric;
mod stream;

pub use agents::{Agents, Options};
