//! Hot reload: the file is read again when it changes or on SIGHUP; a bad file keeps the old state and says why.
//!
//! Change is seen by content, not by time stamp, so symbolic-link swaps and equal time stamps are seen too. A changed
//! text is applied once two looks in a row agree, so that a half-written file is not taken for a short one; SIGHUP
//! applies what is there at once.

use super::source::Sources;
use super::{Config, Loaded};
use parking_lot::RwLock;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio::time::Duration;

/// Between two looks at the file: quick for a person who waits, free for the machine.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What became of the last change; part of `/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReloadState {
    /// Changes applied since the start.
    pub applied: u64,
    /// Changes refused since the start.
    pub refused: u64,
    /// Unix seconds of the last change looked at.
    pub last_s: Option<f64>,
    /// Why the file as it is now is not in force; `None` when it is.
    pub error: Option<String>,
    /// What the last applied change changed, a line each.
    pub changes: Vec<String>,
    /// Keys whose new value waits for a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Told of every change that was looked at: applied, or refused with the reason.
pub type Report = Box<dyn Fn(Result<&[&'static str], &str>) + Send + Sync>;

/// Holds the configuration in force.
pub struct Reloader {
    sources: Sources,
    started_with: Loaded,
    last: RwLock<Loaded>,
    config: watch::Sender<Arc<Config>>,
    state: RwLock<ReloadState>,
    now: Notify,
    report: Report,
}

impl Reloader {
    /// Starts from what was loaded.
    pub fn new(sources: Sources, loaded: Loaded, report: Report) -> Self {
        let config = watch::Sender::new(Arc::new(loaded.config.clone()));
        let last = RwLock::new(loaded.clone());
        Self { sources, started_with: loaded, last, config, state: RwLock::default(), now: Notify::new(), report }
    }

    /// The configuration in force, now and after every change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Config>> {
        self.config.subscribe()
    }

    /// What became of the last change.
    pub fn state(&self) -> ReloadState {
        self.state.read().clone()
    }

    /// Looks at the file at once and applies what is there.
    pub fn reload_now(&self) {
        self.now.notify_one();
    }

    /// Watches until dropped. Without a file only [`Self::reload_now`] does anything.
    pub async fn watch(self: Arc<Self>) {
        let mut in_force = self.text().await;
        let mut seen = in_force.clone();
        loop {
            let asked = tokio::select! {
                () = self.now.notified() => true,
                () = tokio::time::sleep(LOOK_INTERVAL) => false,
            };
            let text = self.text().await;
            let settled = text == seen;
            seen.clone_from(&text);
            if asked || (settled && text != in_force) {
                self.apply(text.clone());
                in_force = text;
            }
        }
    }

    /// Resolves `text` and publishes it, or keeps what is in force.
    pub fn apply(&self, text: Result<Option<String>, String>) {
        let outcome = text.and_then(|text| self.sources.resolve(text.as_deref()).map_err(|e| e.to_string()));
        let mut state = self.state.write();
        state.last_s = Some(crate::clock::unix_seconds());
        match outcome {
            Ok(new) => {
                state.applied += 1;
                state.error = None;
                state.needs_restart = self.started_with.needs_restart(&new);
                let waiting = state.needs_restart.clone();
                state.changes = self.last.read().changes(&new);
                for change in &state.changes {
                    tracing::info!("configuration: {change}");
                }
                *self.last.write() = new.clone();
                drop(state);
                for note in &new.notes {
                    tracing::warn!("configuration: {note}");
                }
                self.config.send_replace(Arc::new(self.started_with.config.with_live_of(new.config)));
                (self.report)(Ok(&waiting));
            }
            Err(error) => {
                state.refused += 1;
                state.error = Some(error.clone());
                drop(state);
                (self.report)(Err(&error));
            }
        }
    }

    async fn text(&self) -> Result<Option<String>, String> {
        let sources = self.sources.clone();
        match tokio::task::spawn_blocking(move || sources.read_file()).await {
            Ok(read) => read.map_err(|e| e.to_string()),
            Err(e) => Err(format!("the file could not be read: {e}")),
        }
    }
}
