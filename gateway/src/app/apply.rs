//! A changed configuration takes effect: models, workers, DNS names, policies.

use crate::admin::Console;
use crate::config::Config;
use crate::tasks::TaskGroup;
use std::sync::Arc;

/// Applies the configuration as it is, then every change of it.
pub(super) fn start(console: &Arc<Console>, tasks: &TaskGroup) {
    let console = console.clone();
    let mut changes = console.reloader.subscribe();
    apply_workers(&console, &changes.borrow_and_update().clone());
    tasks.spawn("apply configuration", async move {
        let mut before = changes.borrow_and_update().clone();
        while changes.changed().await.is_ok() {
            let config = changes.borrow_and_update().clone();
            if config.models != before.models {
                reload_tokenizers(&console, &config).await;
            }
            console.gateway.reload(&config);
            console.gateway.doors.reload(&config);
            apply_workers(&console, &config);
            before = config;
        }
    });
}

fn apply_workers(console: &Console, config: &Config) {
    if let Err(error) = console.discovery.reconcile(config.workers.clone()) {
        // The configuration was checked with the same parser, so this names a fault of the program, not of the file.
        tracing::error!(%error, "the workers of the configuration were not applied");
    }
    console.discovery.reconcile_names(config.dns.clone());
}

/// Loading takes a second a model and must not hold up a thread that serves.
async fn reload_tokenizers(console: &Console, config: &Arc<Config>) {
    let (tokenizers, config) = (console.gateway.tokenizers.clone(), config.clone());
    if let Err(error) = tokio::task::spawn_blocking(move || tokenizers.reload(&config.models)).await {
        tracing::error!(%error, "the tokenizers of the changed configuration were not loaded");
    }
}
