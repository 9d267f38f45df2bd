//! What people and scripts read of many runs.

pub mod html;
pub mod json;
pub mod table;
