//! signal: what workers and their caches say of themselves.
//!
//! [`engine`] asks over HTTP (health, load), [`cache_events`] listens over ZMQ (what each cache holds), [`kernel`] hears node
//! agents (load that is nobody's here). None is ever on a request's path: they only report to the fleet.

pub mod cache_events;
pub mod engine;
pub mod exposition;
pub mod http;
pub mod kernel;
