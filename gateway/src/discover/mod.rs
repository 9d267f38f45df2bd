//! discover: where workers come from.
