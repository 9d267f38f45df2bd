//! A mock LLM engine, held to what a real vLLM sends.
//!
//! ```text
//! http ─► serve ─► text (template, tokenizer, words)
//!           │
//!           ▼
//!         rank (real time) ─► model (virtual time: scheduler, block cache, cost)
//!           │                    │
//!           ▼                    ▼
//!        metrics              events (ZMQ)
//! ```
//!
//! [`model`] is pure and serves a simulator as well; everything else makes it a server. [`EngineBuilder`] starts
//! engines inside a test, the binary `forebay-engine` starts them as processes. The package shares no code with the
//! gateway: the two check each other.
#![forbid(unsafe_code)]

mod builder;
pub mod cli;
mod clock;
pub mod config;
mod engine;
pub mod events;
pub mod fault;
mod http;
mod metrics;
pub mod model;
mod rank;
mod serve;
pub mod text;
pub mod thin;

pub use builder::EngineBuilder;
pub use engine::{EngineHandle, start};

#[cfg(test)]
mod testing;
