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
//! gateway: the two check each other. Everything but the model is behind the feature `server`.
#![forbid(unsafe_code)]

#[cfg(feature = "server")]
mod builder;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
mod engine;
#[cfg(feature = "server")]
pub mod events;
#[cfg(feature = "server")]
pub mod fault;
#[cfg(feature = "server")]
mod http;
#[cfg(feature = "server")]
mod metrics;
pub mod model;
#[cfg(feature = "server")]
mod rank;
#[cfg(feature = "server")]
mod serve;
#[cfg(feature = "server")]
pub mod text;
#[cfg(feature = "server")]
pub mod thin;

#[cfg(feature = "server")]
pub use builder::EngineBuilder;
#[cfg(feature = "server")]
pub use engine::{EngineHandle, start};

#[cfg(test)]
#[cfg(feature = "server")]
mod testing;
