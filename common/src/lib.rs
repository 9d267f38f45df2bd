//! Plain data that more than one Forebay process speaks.
//!
//! `no_std` by default, so that kernel programs may use it too. Pure: no I/O, no clock, and without the feature `wire`
//! no allocation.
#![no_std]
#![forbid(unsafe_code)]

pub mod id;
pub mod kernel;
#[cfg(feature = "wire")]
pub mod wire;
