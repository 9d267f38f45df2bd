//! The gateway's entry point.
fn main() {}
