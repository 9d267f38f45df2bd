//! tests/engine
