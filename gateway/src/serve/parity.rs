//! A sample of live requests, whose ids are compared with the engine's own, beside the requests and never before them.

use super::Gateway;
use crate::parse::Parsed;
use crate::tasks::TaskGroup;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Comparisons that wait for the one that runs; what comes beyond is not compared.
const MAX_WAITING: usize = 16;
/// Larger bodies are not compared: the queue would hold them.
const MAX_BODY: usize = 1024 * 1024;

/// One request and who served it.
struct Sample {
    tokenizer: Arc<str>,
    parsed: Parsed,
    ids: Arc<[u32]>,
    base_url: String,
}

/// The queue of comparisons.
pub(super) struct Samples {
    queue: mpsc::Sender<Sample>,
    inbox: Mutex<Option<mpsc::Receiver<Sample>>>,
}

impl Samples {
    pub(super) fn new() -> Self {
        let (queue, inbox) = mpsc::channel(MAX_WAITING);
        Self { queue, inbox: Mutex::new(Some(inbox)) }
    }
}

impl Gateway {
    /// Compares what is sampled, one after the other, for as long as `tasks` runs.
    pub(crate) fn compare_in(self: &Arc<Self>, tasks: &TaskGroup) {
        let Some(mut inbox) = self.samples.inbox.lock().take() else { return };
        let gateway = self.clone();
        tasks.spawn("token parity", async move {
            while let Some(Sample { tokenizer, parsed, ids, base_url }) = inbox.recv().await {
                gateway.tokenizers.compare(&tokenizer, &parsed, &ids, &base_url).await;
            }
        });
    }

    /// What of a request is kept until its answer has ended: all of it where its turn to be compared has come.
    pub(super) fn sample(&self, parsed: Parsed, ids: Option<&Arc<[u32]>>) -> Option<(Parsed, Arc<[u32]>)> {
        let ids = ids.filter(|_| parsed.body.len() <= MAX_BODY && self.tokenizers.samples())?.clone();
        Some((parsed, ids))
    }

    /// Queues a sampled request for comparison.
    pub(super) fn compare(&self, tokenizer: &Arc<str>, (parsed, ids): (Parsed, Arc<[u32]>), base_url: &str) {
        let sample = Sample { tokenizer: tokenizer.clone(), parsed, ids, base_url: base_url.to_owned() };
        // A full queue means that engines answer slowly: this request is then simply none of the sample.
        let _ = self.samples.queue.try_send(sample);
    }
}
