//! Forebay's gateway: the life of a request, and the modules in that order.
//!
//! ```text
//! accept → parse → tokenize → hash → score → dispatch → stream → observe      (serve.rs reads as these eight steps)
//!             ▲ fleet (view, reservations, index) ◄── discover, signal
//! ```
#![forbid(unsafe_code)]

pub mod accept;
pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod discover;
pub mod dispatch;
pub mod doors;
pub mod error;
pub mod fleet;
pub mod http1;
pub mod limits;
pub mod observe;
pub mod parse;
pub mod serve;
pub mod signal;
pub mod stream;
pub mod tasks;
pub mod tokenize;
