//! config: `written` (what the file says) → `resolved` (what it means). The rest of the gateway sees only `resolved`.

pub mod resolved;

pub use resolved::Config;
