//! What the tests of this package share.

use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};

/// Longest wait for anything: a loaded machine is slow, a hang is for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// `.cache/tokenizers/NAME` of this checkout. `None` where it was not set up, unless `FOREBAY_REQUIRE=all` makes
/// every optional test mandatory.
#[expect(clippy::disallowed_methods, reason = "tests alone; says whether optional tests may be skipped")]
pub(crate) fn tokenizer_folder(name: &str) -> Option<PathBuf> {
    let start = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut folders = start.ancestors().map(|up| up.join(".cache/tokenizers").join(name));
    let found = folders.find(|folder| folder.join("tokenizer.json").exists());
    let required = std::env::var("FOREBAY_REQUIRE").is_ok_and(|value| value == "all");
    assert!(found.is_some() || !required, "FOREBAY_REQUIRE=all, but .cache/tokenizers/{name} is absent");
    found
}

/// A client that shows the bytes: what an engine does wrong on purpose must be seen, not mended.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Self {
        let stream = timeout(PATIENCE, TcpStream::connect(to)).await.expect("connected in time").unwrap();
        Self { stream, unread: Vec::new() }
    }

    pub(crate) async fn get(&mut self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
        self.response().await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> String {
        self.send_post(path, "", body).await;
        self.response().await
    }

    /// Sends without waiting for the answer; `headers` end with CRLF each.
    pub(crate) async fn send_post(&mut self, path: &str, headers: &str, body: &str) {
        let length = body.len();
        self.send(&format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n{body}")).await;
    }

    pub(crate) async fn send(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// The next whole response, its chunks joined: head, blank line, body.
    pub(crate) async fn response(&mut self) -> String {
        let head = self.until(b"\r\n\r\n").await;
        let lower = head.to_ascii_lowercase();
        if lower.contains("transfer-encoding: chunked") {
            let mut body = String::new();
            loop {
                let size = usize::from_str_radix(self.until(b"\r\n").await.trim(), 16).unwrap();
                body.push_str(&String::from_utf8(self.exactly(size).await).unwrap());
                self.until(b"\r\n").await;
                if size == 0 {
                    return head + &body;
                }
            }
        }
        let length =
            lower.split("content-length: ").nth(1).map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
        head + &String::from_utf8(self.exactly(length).await).unwrap()
    }

    /// Everything until the other side closes; the error is how it closed, if not in order.
    pub(crate) async fn rest(&mut self) -> (Vec<u8>, Option<std::io::ErrorKind>) {
        let mut all = std::mem::take(&mut self.unread);
        let end = timeout(PATIENCE, self.stream.read_to_end(&mut all)).await.expect("closed in time");
        (all, end.err().map(|error| error.kind()))
    }

    /// Reads up to and with `mark`.
    pub(crate) async fn until(&mut self, mark: &[u8]) -> String {
        loop {
            if let Some(at) = memchr::memmem::find(&self.unread, mark) {
                let rest = self.unread.split_off(at + mark.len());
                return String::from_utf8(std::mem::replace(&mut self.unread, rest)).unwrap();
            }
            self.more().await;
        }
    }

    async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.unread.len() < length {
            self.more().await;
        }
        let rest = self.unread.split_off(length);
        std::mem::replace(&mut self.unread, rest)
    }

    async fn more(&mut self) {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await.expect("answered in time").unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&self.unread));
    }
}

/// What follows the head.
pub(crate) fn body_of(response: &str) -> &str {
    response.split_once("\r\n\r\n").expect("a head").1
}
