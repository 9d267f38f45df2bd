//! The metrics page: text of Prometheus, answered to whoever asks.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Duration, timeout};

/// Time for one question and its answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest question that is read.
const MAX_QUESTION_BYTES: usize = 4_096;

/// A page in the making.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// A family and its samples: labels as `name="value",…` (or nothing) and value.
    pub fn family(&mut self, name: &str, kind: &str, help: &str, samples: &[(String, f64)]) {
        if samples.is_empty() {
            return;
        }
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _ = writeln!(self.text, "{name}{braces} {value}");
        }
    }

    /// One sample without labels.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help, &[(String::new(), value)]);
    }

    /// The text.
    pub fn finish(self) -> Arc<str> {
        self.text.into()
    }
}

/// Answers at `listener` with the latest page, one question after the other: a scraper asks every few seconds.
pub async fn serve(listener: TcpListener, page: watch::Receiver<Arc<str>>) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        let text = page.borrow().clone();
        let answered = timeout(DEADLINE, async {
            let mut question = [0; MAX_QUESTION_BYTES];
            let mut length = 0;
            while !question[..length].windows(4).any(|end| end == b"\r\n\r\n") && length < MAX_QUESTION_BYTES {
                match stream.read(&mut question[length..]).await? {
                    0 => break,
                    read => length += read,
                }
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                text.len()
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(text.as_bytes()).await?;
            stream.shutdown().await
        });
        if !matches!(answered.await, Ok(Ok(()))) {
            tracing::debug!("a question for metrics was not answered");
        }
    }
}

/// Listens, or says what is wrong.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("cannot listen at {address}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_without_samples_is_left_out() {
        let mut page = Page::default();
        page.family("a_total", "counter", "A.", &[("x=\"1\"".to_owned(), 2.0)]);
        page.family("b", "gauge", "B.", &[]);
        page.single("c", "gauge", "C.", 0.5);
        let expected =
            "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n# HELP c C.\n# TYPE c gauge\nc 0.5\n";
        assert_eq!(&*page.finish(), expected);
    }
}
