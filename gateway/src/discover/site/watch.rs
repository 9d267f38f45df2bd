//! What goes on while an engine serves: health checks, readings of its load, and whether it is still who it was.
//!
//! Watching ends when the engine is down or another one; the site then introduces it anew.

use super::super::probe;
use super::{Site, is_another_instance, is_another_process};
use crate::fleet::EngineKind;
use crate::signal::engine;
use crate::signal::http::Peer;
use forebay_routing::WorkerId;
use forebay_routing::event::ServedName;
use tokio::time::{Duration, MissedTickBehavior, interval};

/// How often names are asked again: adapters come and go while an engine runs.
const REFRESH_EVERY: Duration = Duration::from_secs(30);

impl Site {
    /// Checks and scrapes until the engine is down or another process.
    pub(super) async fn watch(&mut self, peer: &Peer, kind: EngineKind) {
        let mut seen = std::mem::take(&mut self.seen);
        tokio::select! {
            () = self.check_until_down(peer) => {}
            () = self.scrape_until_restart(peer, kind, &mut seen) => {}
            () = self.refresh_names(peer) => {}
        }
        self.seen = seen;
    }

    async fn check_until_down(&self, peer: &Peer) {
        let mut ticks = ticks(self.shared.health.interval);
        let mut failures = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.probe.notified() => {}
            }
            let started_ms = self.shared.clock.now_ms();
            let outcome = engine::check(peer).await.map_err(|error| error.to_string());
            let well = outcome.is_ok() || self.handles.iter().any(|handle| handle.served_since(started_ms));
            failures = if well { 0 } else { failures + 1 };
            self.tell_checked(&outcome, started_ms).await;
            if failures >= self.shared.health.failures.max(1) {
                tracing::warn!(url = %self.address.base, problem = ?outcome.err(), "worker is down");
                return;
            }
        }
    }

    async fn scrape_until_restart(&self, peer: &Peer, kind: EngineKind, seen: &mut Vec<WorkerId>) {
        let mut ticks = ticks(self.shared.health.metrics_interval);
        loop {
            ticks.tick().await;
            // A failed scrape leaves the last reading to age; health checks decide whether the engine is well.
            let Ok(reading) = engine::scrape(peer, kind).await else { continue };
            if is_another_process(self.process_start_seconds, reading.process_start_seconds) {
                return;
            }
            *seen = self.identities();
            self.report_loads(&reading);
        }
    }

    async fn refresh_names(&self, peer: &Peer) {
        let mut ticks = ticks(REFRESH_EVERY);
        let mut known: Option<Vec<ServedName>> = None;
        loop {
            ticks.tick().await;
            let Ok(served) = probe::models(peer, self.worker.model.as_deref()).await else { continue };
            if self.instance.is_some() && is_another_instance(&self.instance, &probe::instance(peer).await) {
                return;
            }
            if self.handles.first().is_some_and(|handle| *handle.model != *served.model) {
                return;
            }
            if known.as_ref() != Some(&served.names) {
                for handle in &self.handles {
                    self.shared.fleet.learn_names(handle, served.names.clone()).await;
                }
                known = Some(served.names);
            }
        }
    }
}

/// Ticks every `period`, the first after one period.
fn ticks(period: Duration) -> tokio::time::Interval {
    let period = period.max(Duration::from_millis(10));
    let mut ticks = interval(period);
    ticks.reset();
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
