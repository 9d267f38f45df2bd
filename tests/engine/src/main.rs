//! Mock engine: entry point.
fn main() {}
