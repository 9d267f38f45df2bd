//! Bytes on a socket: requests that no well-behaved client would send, and engines that answer the same way.

use crate::process::Failure;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A peer that neither answers nor closes within this time is hung.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// What came back on a raw connection.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status, 0 when there was no status line.
    pub status: u16,
    /// Head, as sent.
    pub head: String,
    /// Everything after it, still in its transfer coding.
    pub body: String,
}

/// Sends `request` and reads until the peer closes, or until a whole answer with a length has come.
pub async fn exchange(address: SocketAddr, request: &[u8]) -> Result<Answer, Failure> {
    let work = async {
        let mut stream = TcpStream::connect(address).await?;
        // The peer may refuse and close before everything is written; what it said is still there to read.
        let written = stream.write_all(request).await;
        let mut bytes = Vec::new();
        let read = read_answer(&mut stream, &mut bytes).await;
        if bytes.is_empty() {
            written?;
            read?;
        }
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = tokio::time::timeout(PEER_TIMEOUT, work)
        .await
        .map_err(|_| Failure("the peer neither answered nor closed".to_owned()))?
        .map_err(|e| Failure(e.to_string()))?;
    Ok(parse(&bytes))
}

async fn read_answer(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        if is_whole(bytes) {
            return Ok(());
        }
        match stream.read(&mut chunk).await? {
            0 => return Ok(()),
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    }
}

fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let body = &bytes[end + 4..];
    match head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok()) {
        Some(length) => body.len() >= length,
        None => head.contains("transfer-encoding") && body.ends_with(b"0\r\n\r\n"),
    }
}

fn parse(bytes: &[u8]) -> Answer {
    let end = memchr::memmem::find(bytes, b"\r\n\r\n").unwrap_or(bytes.len());
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let body = String::from_utf8_lossy(bytes.get(end + 4..).unwrap_or_default()).into_owned();
    Answer { status, head, body }
}

/// A POST of `body` to the chat route.
pub fn chat_request(address: SocketAddr, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// An engine that is healthy, serves one model, and answers every chat request with the same bytes, then closes.
pub struct OddEngine {
    /// Where it listens.
    pub address: SocketAddr,
    _serving: JoinSet<()>,
}

impl OddEngine {
    /// Starts one that serves `model` and answers chat requests with `answer`.
    pub async fn start(model: &str, answer: impl Into<Arc<[u8]>>) -> Result<Self, Failure> {
        let answer: Arc<[u8]> = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| Failure(e.to_string()))?;
        let address = listener.local_addr().map_err(|e| Failure(e.to_string()))?;
        let models =
            format!(r#"{{"object":"list","data":[{{"id":"{model}","object":"model","max_model_len":4096}}]}}"#);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, models.clone(), answer.clone()));
            }
        });
        Ok(Self { address, _serving: serving })
    }

    /// Base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// One exchange a connection: reads the head and as much body as it announces, answers, closes.
async fn serve(mut stream: TcpStream, models: String, answer: Arc<[u8]>) {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    while !request_is_whole(&bytes) {
        match stream.read(&mut chunk).await {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n]),
            _ => return,
        }
    }
    let json = |body: &str| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let reply: Vec<u8> = match bytes.split(|&b| b == b' ').nth(1).unwrap_or_default() {
        b"/v1/chat/completions" | b"/v1/completions" => answer.to_vec(),
        b"/v1/models" => json(&models).into_bytes(),
        b"/health" => b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_vec(),
    };
    // The gateway may have left; then there is nobody to tell.
    let _ = stream.write_all(&reply).await;
    let _ = stream.shutdown().await;
}

fn request_is_whole(bytes: &[u8]) -> bool {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    bytes.len() - end - 4 >= length.unwrap_or(0)
}
