//! accept: socket → request head within limits, with an id.
