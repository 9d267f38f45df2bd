//! The life of a request in eight steps.
