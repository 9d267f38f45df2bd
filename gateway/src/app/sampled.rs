//! Numbers that other parts keep, shown on the metrics page.

use crate::observe::Unit;
use crate::serve::Gateway;
use std::sync::{Arc, Weak};

/// Registers them all. Weak, because the gateway owns the page that would own the gateway.
pub(super) fn register(gateway: &Arc<Gateway>) -> Result<(), prometheus::Error> {
    let observer = &gateway.observer;
    let sample = |name, help, unit, read: fn(&Gateway) -> f64| {
        let weak: Weak<Gateway> = Arc::downgrade(gateway);
        observer.sample(name, help, unit, move || weak.upgrade().map_or(0.0, |gateway| read(&gateway)))
    };
    sample("open", "Open client connections", Unit::Connections, |gateway| gateway.limits.connections() as f64)?;
    let active = "Requests being served, from their head to the end of their answer";
    sample("active", active, Unit::Requests, |gateway| gateway.limits.serving() as f64)?;
    let queued = "Requests that wait for a place at an engine, or for an engine to come back";
    sample("queued", queued, Unit::Requests, |gateway| gateway.dispatcher.queued() as f64)?;
    sample("buffered", "Request bodies held in memory", Unit::Bytes, |gateway| gateway.limits.buffered() as f64)?;
    sample("uptime", "Since the start", Unit::Seconds, |gateway| gateway.clock.now_ms() as f64 / 1e3)
}
