//! Bounded CPU pool: long prompts are encoded here, so that short ones on the same core do not wait behind them.
//!
//! A job whose caller is gone (cancelled, or past its deadline) is skipped when its turn comes. A full queue refuses at
//! once. Threads end, and are waited for, when the pool is dropped.

use super::metrics::Metrics;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

type Job = Box<dyn FnOnce() + Send>;

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// As many jobs as may wait are waiting.
    Full,
    /// The deadline passed.
    Late,
    /// The job panicked, or the pool is shutting down.
    Lost,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    metrics: Arc<Metrics>,
}

/// The pool.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    max_queue: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` threads; at most `max_queue` jobs wait.
    ///
    /// # Errors
    /// The system's, when it gives no thread.
    pub(crate) fn start(threads: usize, max_queue: usize, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), ready: Condvar::new(), metrics });
        let mut pool = Self { shared, max_queue, threads: Vec::new() };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("tokenize-{number}"));
            pool.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Runs `work` on a pool thread.
    ///
    /// # Errors
    /// [`Refused`]; the job then never starts, or its result is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refused> {
        if Instant::now() >= deadline {
            self.shared.metrics.jobs_late.inc();
            return Err(Refused::Late);
        }
        let (reply, result) = oneshot::channel();
        let metrics = Arc::clone(&self.shared.metrics);
        let job = Box::new(move || {
            if reply.is_closed() {
                metrics.jobs_skipped.inc();
                return;
            }
            metrics.jobs_run.inc();
            // The caller may have left meanwhile: then nobody wants the result.
            let _ = reply.send(work());
        });
        self.push(job)?;
        match timeout_at(deadline, result).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(Refused::Lost),
            Err(_) => {
                self.shared.metrics.jobs_late.inc();
                Err(Refused::Late)
            }
        }
    }

    fn push(&self, job: Job) -> Result<(), Refused> {
        let mut queue = self.shared.queue.lock();
        if queue.jobs.len() >= self.max_queue {
            self.shared.metrics.jobs_refused.inc();
            return Err(Refused::Full);
        }
        queue.jobs.push_back(job);
        self.shared.metrics.queue_depth.set(i64::try_from(queue.jobs.len()).unwrap_or(i64::MAX));
        drop(queue);
        self.shared.ready.notify_one();
        Ok(())
    }
}

impl Shared {
    /// Takes jobs until the pool closes.
    fn work(&self) {
        while let Some(job) = self.next() {
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("a tokenizing job panicked: its request is routed by text");
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                self.metrics.queue_depth.set(i64::try_from(queue.jobs.len()).unwrap_or(i64::MAX));
                return Some(job);
            }
            self.ready.wait(&mut queue);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        queue.jobs.clear();
        drop(queue);
        self.shared.ready.notify_all();
        for thread in self.threads.drain(..) {
            // Jobs' panics are caught, so the thread itself has none to report.
            let _ = thread.join();
        }
    }
}
