//! A client that says what it is told and checks the framing of what it gets.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for anything: far beyond what a busy machine needs, so that a hang fails instead of lasting.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the gateway.
pub struct Client {
    pub socket: TcpStream,
    buf: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// It reached the end that its framing announced.
    pub complete: bool,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields(name).first().copied()
    }

    pub fn fields(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// `error.message` of an answer in OpenAI's shape, which it must have.
    pub fn error(&self) -> String {
        let value: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        let error = &value["error"];
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "no {key} in {value}");
        }
        assert_eq!(error["code"], self.status);
        error["message"].as_str().unwrap().to_owned()
    }
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, buf: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a chat request for model `m`.
    pub async fn chat(&mut self, body: &str) {
        self.send(post("/v1/chat/completions", body)).await;
    }

    async fn fill(&mut self) -> usize {
        let read =
            tokio::time::timeout(PATIENCE, self.socket.read_buf(&mut self.buf)).await.expect("the gateway answers");
        read.unwrap_or(0)
    }

    /// Waits until `text` has come, wherever; for streams that are still running.
    pub async fn wait_for(&mut self, text: &str) {
        while memchr::memmem::find(&self.buf, text.as_bytes()).is_none() {
            assert!(self.fill().await > 0, "closed before {text:?}: {:?}", String::from_utf8_lossy(&self.buf));
        }
    }

    /// Nothing more comes, only the end.
    pub async fn is_closed(&mut self) -> bool {
        self.buf.is_empty() && self.fill().await == 0
    }

    /// Bytes read and not taken by an answer.
    pub fn pending(&self) -> &[u8] {
        &self.buf
    }

    pub async fn answer(&mut self) -> Answer {
        self.answer_to("POST").await
    }

    pub async fn answer_to(&mut self, method: &str) -> Answer {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.buf, b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.fill().await > 0, "closed before an answer: {:?}", String::from_utf8_lossy(&self.buf));
        };
        let head = String::from_utf8(self.buf.drain(..end).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new(), complete: true };
        if method == "HEAD" || status == 204 || (100..200).contains(&status) {
            return answer;
        }
        let length = answer.field("content-length").map(|value| value.parse::<usize>().unwrap());
        if answer.field("transfer-encoding") == Some("chunked") {
            assert!(length.is_none(), "two framings");
            answer.complete = self.chunks(&mut answer.body).await;
        } else if let Some(length) = length {
            while self.buf.len() < length {
                if self.fill().await == 0 {
                    answer.complete = false;
                    break;
                }
            }
            answer.body = self.buf.drain(..length.min(self.buf.len())).collect();
        } else {
            while self.fill().await > 0 {}
            answer.body = std::mem::take(&mut self.buf);
        }
        answer
    }

    async fn chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(line) = self.line().await else { return false };
            let size = usize::from_str_radix(line.trim(), 16).expect("a chunk size");
            while self.buf.len() < size + 2 {
                if self.fill().await == 0 {
                    return false;
                }
            }
            body.extend(self.buf.drain(..size));
            assert_eq!(self.buf.drain(..2).collect::<Vec<_>>(), b"\r\n");
            if size == 0 {
                return true;
            }
        }
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.buf.iter().position(|byte| *byte == b'\n') {
                return Some(String::from_utf8(self.buf.drain(..=at).collect()).unwrap());
            }
            if self.fill().await == 0 {
                return None;
            }
        }
    }
}

/// A POST with a JSON body.
pub fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
pub const STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
