//! signal: what workers and their caches say of themselves.
