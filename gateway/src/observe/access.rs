//! One JSON line for each request, written by one task off the request path. No prompt text, no headers, no keys.

use super::record::{Record, reason_name};
use crate::clock::unix_seconds;
use crate::config::AccessLog;
use crate::tasks::TaskGroup;
use prometheus::{IntCounterVec, Opts};
use serde::Serialize;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

/// Lines that may wait for the writer: a second of a busy gateway. More are lost and counted.
const MAX_QUEUED: usize = 8_192;

/// Lines written at once.
const BATCH: usize = 256;

/// Bytes of a text field that others chose (id, model); longer ones are cut.
const MAX_FIELD: usize = 256;

enum Message {
    Line(f64, Box<Record>),
    Reopen,
    Flush(oneshot::Sender<()>),
}

/// The request path's end of the log.
pub struct AccessWriter {
    queue: mpsc::Sender<Message>,
    lost: IntCounterVec,
}

impl AccessWriter {
    /// Opens the log and starts its writer; `None` when the log is off.
    pub async fn start(log: &AccessLog, tasks: &TaskGroup) -> io::Result<Option<Self>> {
        let target = match log {
            AccessLog::Off => return Ok(None),
            AccessLog::Stdout => Target::of_descriptor(io::stdout().as_fd())?,
            AccessLog::Stderr => Target::of_descriptor(io::stderr().as_fd())?,
            AccessLog::File(path) => Target::File(path.clone(), open(path).await?),
        };
        Ok(Some(Self::with_target(target, tasks)))
    }

    fn with_target(target: Target, tasks: &TaskGroup) -> Self {
        let opts = Opts::new("forebay_access_log_lost_lines_total", "Access log lines lost, by why");
        let lost = IntCounterVec::new(opts, &["reason"]).expect("a constant name and label that Prometheus allows");
        let (queue, lines) = mpsc::channel(MAX_QUEUED);
        tasks.spawn("access log", write(target, lines, lost.clone()));
        Self { queue, lost }
    }

    pub(super) fn lost(&self) -> &IntCounterVec {
        &self.lost
    }

    pub(super) fn log(&self, record: Record) {
        if self.queue.try_send(Message::Line(unix_seconds(), Box::new(record))).is_err() {
            self.lost.with_label_values(&["queue_full"]).inc();
        }
    }

    pub(super) fn reopen(&self) {
        // A full queue is being written: the operator's next signal finds room.
        if self.queue.try_send(Message::Reopen).is_err() {
            tracing::warn!("the access log is too busy to be opened anew; signal again");
        }
    }

    pub(super) async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.queue.send(Message::Flush(done)).await.is_ok() {
            _ = written.await;
        }
    }
}

enum Target {
    Stream(Box<dyn AsyncWrite + Send + Unpin>),
    File(PathBuf, File),
}

impl Target {
    /// A second handle on one of the process's own streams.
    fn of_descriptor(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let own = std::fs::File::from(descriptor.try_clone_to_owned()?);
        Ok(Self::Stream(Box::new(File::from_std(own))))
    }

    async fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let stream: &mut (dyn AsyncWrite + Send + Unpin) = match self {
            Self::Stream(stream) => stream,
            Self::File(_, file) => file,
        };
        stream.write_all(lines).await?;
        stream.flush().await
    }

    async fn reopen(&mut self) {
        if let Self::File(path, file) = self {
            match open(path).await {
                Ok(new) => *file = new,
                Err(error) => tracing::warn!(%error, path = %path.display(), "the access log cannot be opened anew"),
            }
        }
    }
}

async fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path).await
}

async fn write(mut target: Target, mut queue: mpsc::Receiver<Message>, lost: IntCounterVec) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut lines = Vec::new();
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        let mut count = 0;
        for message in batch.drain(..) {
            match message {
                Message::Line(at_s, record) => {
                    count += 1;
                    append(&mut lines, at_s, &record);
                    continue;
                }
                Message::Reopen => {
                    put(&mut target, &mut lines, &mut count, &lost).await;
                    target.reopen().await;
                }
                Message::Flush(done) => {
                    put(&mut target, &mut lines, &mut count, &lost).await;
                    // Nobody waits any more: the line is written all the same.
                    _ = done.send(());
                }
            }
        }
        put(&mut target, &mut lines, &mut count, &lost).await;
    }
}

async fn put(target: &mut Target, lines: &mut Vec<u8>, count: &mut u64, lost: &IntCounterVec) {
    if !lines.is_empty() {
        if let Err(error) = target.write(lines).await {
            let counter = lost.with_label_values(&["write_failed"]);
            if counter.get() == 0 {
                tracing::warn!(%error, "the access log cannot be written; lines are lost and counted");
            }
            counter.inc_by(*count);
        }
        lines.clear();
    }
    *count = 0;
}

/// The line's fields, in its order; what is unknown is null.
#[derive(Serialize)]
struct Line<'a> {
    time_s: f64,
    id: &'a str,
    tenant: Option<&'a str>,
    model: &'a str,
    dialect: &'a str,
    status: u16,
    outcome: &'a str,
    error: Option<&'a str>,
    worker: Option<&'a str>,
    reason: Option<&'a str>,
    text_reason: Option<&'a str>,
    retries: u32,
    prompt_tokens: u32,
    predicted_cached_tokens: u32,
    cached_tokens: Option<u32>,
    output_tokens: u32,
    received_ms: f64,
    tokenize_ms: f64,
    overhead_ms: f64,
    queue_ms: Option<f64>,
    ttft_ms: Option<f64>,
    itl_ms: Option<f64>,
    total_ms: f64,
}

fn append(lines: &mut Vec<u8>, at_s: f64, record: &Record) {
    let micro = |ms: f64| (ms * 1e3).round() / 1e3;
    let line = Line {
        time_s: (at_s * 1e3).round() / 1e3,
        id: cut(&record.id),
        tenant: record.tenant.as_deref(),
        model: cut(&record.model),
        dialect: record.dialect,
        status: record.status,
        outcome: record.outcome.name(),
        error: record.fault,
        worker: record.worker.as_ref().map(|(_, url)| &**url),
        reason: record.reason.map(reason_name),
        text_reason: record.text_reason,
        retries: record.retries,
        prompt_tokens: record.prompt_tokens,
        predicted_cached_tokens: record.predicted_cached,
        cached_tokens: record.cached_tokens,
        output_tokens: record.output_tokens,
        received_ms: micro(record.received_ms),
        tokenize_ms: micro(record.tokenize_ms),
        overhead_ms: micro(record.overhead_ms),
        queue_ms: record.queue_ms.map(micro),
        ttft_ms: record.ttft_ms.map(micro),
        itl_ms: record.itl_ms.map(micro),
        total_ms: micro(record.total_ms),
    };
    match serde_json::to_writer(&mut *lines, &line) {
        Ok(()) => lines.push(b'\n'),
        Err(error) => tracing::error!(%error, "an access log line could not be written as JSON"),
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_FIELD)]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::observe::{Observer, Outcome};
    use forebay_routing::decision::Reason;
    use tokio::time::{Duration, timeout};

    const WAIT: Duration = Duration::from_secs(60);

    fn record(id: &str) -> Record {
        Record {
            id: id.to_owned(),
            model: "m".into(),
            dialect: "chat",
            status: 200,
            outcome: Outcome::Ok,
            worker: Some((forebay_routing::WorkerId::new(0, 0), "http://a:1".into())),
            reason: Some(Reason::PrefixHit),
            total_ms: 12.345_678,
            ..Record::default()
        }
    }

    #[tokio::test]
    async fn a_line_is_json_with_known_fields_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("access.log");
        let tasks = TaskGroup::new();
        let writer = AccessWriter::start(&AccessLog::File(path.clone()), &tasks).await.expect("opened");
        let observer = Observer::new(writer).expect("registered");
        observer.finish(record("one\n\"two\""));
        observer.finish(record(&"é".repeat(300)));
        timeout(WAIT, observer.flush_log()).await.expect("written");
        let text = std::fs::read_to_string(&path).expect("readable");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["id"], "one\n\"two\"");
        assert_eq!(lines[0]["worker"], "http://a:1");
        assert_eq!(lines[0]["total_ms"], 12.346);
        assert_eq!(lines[0]["ttft_ms"], serde_json::Value::Null);
        assert_eq!(lines[1]["id"].as_str().map(str::len), Some(MAX_FIELD));
        let fields: Vec<&String> = lines[0].as_object().expect("an object").keys().collect();
        assert_eq!(
            fields,
            [
                "time_s",
                "id",
                "tenant",
                "model",
                "dialect",
                "status",
                "outcome",
                "error",
                "worker",
                "reason",
                "text_reason",
                "retries",
                "prompt_tokens",
                "predicted_cached_tokens",
                "cached_tokens",
                "output_tokens",
                "received_ms",
                "tokenize_ms",
                "overhead_ms",
                "queue_ms",
                "ttft_ms",
                "itl_ms",
                "total_ms",
            ],
            "a new field is a decision: none may carry text of a prompt or a header"
        );
    }

    #[tokio::test]
    async fn a_moved_file_is_opened_anew() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, moved) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
        let tasks = TaskGroup::new();
        let writer = AccessWriter::start(&AccessLog::File(path.clone()), &tasks).await.expect("opened");
        let observer = Observer::new(writer).expect("registered");
        observer.finish(record("before"));
        timeout(WAIT, observer.flush_log()).await.expect("written");
        std::fs::rename(&path, &moved).expect("moved");
        observer.reopen_log();
        observer.finish(record("after"));
        timeout(WAIT, observer.flush_log()).await.expect("written");
        assert!(std::fs::read_to_string(&moved).expect("readable").contains("before"));
        let text = std::fs::read_to_string(&path).expect("readable");
        assert!(text.contains("after") && !text.contains("before"));
    }

    /// A log that takes nothing, like a full disk whose writes hang.
    struct Stuck;

    impl AsyncWrite for Stuck {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &[u8],
        ) -> std::task::Poll<io::Result<usize>> {
            std::task::Poll::Pending
        }
        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Pending
        }
        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_stuck_log_loses_lines_counts_them_and_holds_up_nobody() {
        let tasks = TaskGroup::new();
        let writer = AccessWriter::with_target(Target::Stream(Box::new(Stuck)), &tasks);
        let lost = writer.lost().clone();
        let observer = Observer::new(Some(writer)).expect("registered");
        for _ in 0..MAX_QUEUED + BATCH + 10 {
            observer.finish(record("r"));
        }
        assert!(lost.with_label_values(&["queue_full"]).get() >= 10);
        assert!(tasks.drain(WAIT).await, "a stuck log does not hold up the end");
    }
}
