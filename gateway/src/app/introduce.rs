//! Engines that say who they are: they may be asked for token ids, and ours are compared with theirs.

use crate::admin::Console;
use crate::discover::Introduction;
use crate::tasks::TaskGroup;
use forebay_routing::view::WorkerState;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Duration;

/// How often the engines to ask are listed again, for those that went down without a word.
const REFRESH_EVERY: Duration = Duration::from_secs(5);

/// Handles introductions until `tasks` ends.
pub(super) fn start(console: &Arc<Console>, mut introduced: mpsc::Receiver<Introduction>, tasks: &TaskGroup) {
    let parity = console.clone();
    tasks.spawn("token parity", async move {
        while let Some(introduction) = introduced.recv().await {
            if let Some(towards) = introduction.peer.towards.clone() {
                parity.gateway.tokenizers.secure_engine(&introduction.url, towards);
            }
            list_engines(&parity).await;
            compare(&parity, &introduction).await;
        }
    });
    let console = console.clone();
    tasks.spawn("token sources", async move {
        loop {
            tokio::time::sleep(REFRESH_EVERY).await;
            list_engines(&console).await;
        }
    });
}

/// Tells the tokenizers which engines serve which model.
async fn list_engines(console: &Console) {
    let mut engines: BTreeMap<Arc<str>, Vec<String>> = BTreeMap::new();
    for worker in console.gateway.fleet.describe().await {
        let urls = engines.entry(worker.model.clone()).or_default();
        let url = worker.url.rsplit_once('@').map_or(&*worker.url, |(base, _)| base);
        if worker.view.state == WorkerState::Ready && !urls.iter().any(|known| known == url) {
            urls.push(url.to_owned());
        }
    }
    for (model, urls) in engines {
        console.gateway.tokenizers.set_engines(&model, urls);
    }
}

async fn compare(console: &Console, introduction: &Introduction) {
    let Introduction { url, model, .. } = introduction;
    let tokenizers = &console.gateway.tokenizers;
    if tokenizers.digest(model).is_none() {
        return; // No ids of our own to compare.
    }
    match tokenizers.check_parity(model, url).await {
        Ok(report) => match report.first_difference {
            None => tracing::info!(%url, %model, cases = report.cases, "token ids equal the engine's"),
            Some(difference) => {
                tracing::error!(%url, %model, ?difference, "token ids differ from the engine's; run `forebay doctor`");
            }
        },
        Err(fault) => tracing::warn!(%url, %model, why = %fault.message, "token ids could not be compared"),
    }
}
