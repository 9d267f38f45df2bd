//! A scripted engine: real HTTP for the gateway's probes, and for everything else what the test says, byte by byte.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One thing an engine does once a request is there.
#[derive(Clone)]
pub enum Step {
    /// Writes bytes.
    Write(Vec<u8>),
    /// Waits until the test rings.
    Wait(Arc<Notify>),
    /// Waits.
    Sleep(Duration),
    /// Waits for the gateway to close, and notes when it did.
    UntilClosed,
    /// Closes.
    Close,
    /// Resets.
    Reset,
}

/// Writes text.
pub fn write(text: impl Into<Vec<u8>>) -> Step {
    Step::Write(text.into())
}

/// A request as the engine saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub head: String,
    pub body: Vec<u8>,
    /// Counts from 0.
    pub connection: usize,
}

impl Seen {
    /// Value of a field; `None` when absent.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

type Script = dyn Fn(&Seen) -> Vec<Step> + Send + Sync;

/// A running engine.
#[derive(Clone)]
pub struct Engine {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    script: Mutex<Arc<Script>>,
    seen: Mutex<Vec<Seen>>,
    closed: Mutex<Vec<Instant>>,
    connections: AtomicUsize,
    changed: Notify,
    model: &'static str,
    mode: Mutex<Mode>,
    stop: CancellationToken,
    accepting: Semaphore,
    /// Answers no probe.
    sick: AtomicBool,
}

/// What happens instead of the script.
#[derive(Clone, Default)]
enum Mode {
    #[default]
    Script,
    /// Reads the head and then nothing, until rung.
    StopReading(Arc<Notify>),
    /// Answers heads without waiting for bodies, and closes.
    AnswerHeads(Vec<u8>),
    /// Answers with a head and then the same piece for ever, counting the bytes.
    Pour { head: String, piece: String, written: Arc<AtomicUsize> },
}

impl Engine {
    /// An engine of model `m`.
    pub async fn start(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::serving("m", script).await
    }

    pub async fn serving(model: &'static str, script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::listening(model, "127.0.0.1:0".parse().unwrap(), 1024, script)
    }

    /// An engine in the place of one that has died.
    pub fn at(address: SocketAddr, script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::listening("m", address, 1024, script)
    }

    /// An engine whose kernel queue holds next to nothing, for [`Engine::stop_accepting`].
    pub fn narrow(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::listening("m", "127.0.0.1:0".parse().unwrap(), 1, script)
    }

    fn listening(
        model: &'static str,
        address: SocketAddr,
        backlog: u32,
        script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(backlog).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            script: Mutex::new(Arc::new(script)),
            seen: Mutex::default(),
            closed: Mutex::default(),
            connections: AtomicUsize::new(0),
            changed: Notify::new(),
            model,
            mode: Mutex::default(),
            stop: CancellationToken::new(),
            accepting: Semaphore::new(1),
            sick: AtomicBool::new(false),
        });
        let engine = Self { address, state };
        let accepting = engine.clone();
        spawn(async move {
            let stop = accepting.state.stop.clone();
            while let Some(Ok((socket, _))) = stop.run_until_cancelled(listener.accept()).await {
                accepting.state.accepting.acquire().await.unwrap().forget();
                accepting.state.accepting.add_permits(1);
                let connection = accepting.clone().connection(socket);
                let stop = stop.clone();
                spawn(async move {
                    let _ended = stop.run_until_cancelled(connection).await;
                });
            }
        });
        engine
    }

    /// Dies: its port is closed and so are its connections.
    pub async fn stop_listening(&self) {
        self.state.stop.cancel();
        while TcpStream::connect(self.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// From now on answers no probe, as a process that hangs.
    pub fn fall_sick(&self) {
        self.state.sick.store(true, Ordering::SeqCst);
    }

    /// From now on accepts nothing, so that connecting neither succeeds nor fails; the queue is filled with what is
    /// returned.
    pub async fn stop_accepting(&self) -> Vec<TcpStream> {
        self.state.accepting.acquire().await.unwrap().forget();
        let mut crowd = Vec::new();
        while let Ok(connected) =
            tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(self.address)).await
        {
            crowd.push(connected.unwrap());
        }
        crowd
    }

    /// From now on reads heads and no bodies, until rung.
    pub fn stop_reading(&self, until: Arc<Notify>) {
        *self.state.mode.lock().unwrap() = Mode::StopReading(until);
    }

    /// From now on answers without waiting for the body.
    pub fn answer_to_heads(&self, answer: Vec<u8>) {
        *self.state.mode.lock().unwrap() = Mode::AnswerHeads(answer);
    }

    /// From now on answers without end.
    pub fn pour(&self, head: String, piece: String, written: Arc<AtomicUsize>) {
        *self.state.mode.lock().unwrap() = Mode::Pour { head, piece, written };
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the script.
    pub fn script(&self, script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) {
        *self.state.script.lock().unwrap() = Arc::new(script);
    }

    /// Requests that were not probes.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Waits until `count` requests have come.
    pub async fn wait_seen(&self, count: usize) {
        self.wait(|state| state.seen.lock().unwrap().len() >= count).await;
    }

    /// Waits until the gateway has closed `count` connections that a script watched, and says when the last one was.
    pub async fn wait_closed(&self, count: usize) -> Instant {
        self.wait(|state| state.closed.lock().unwrap().len() >= count).await;
        self.state.closed.lock().unwrap()[count - 1]
    }

    async fn wait(&self, done: impl Fn(&State) -> bool) {
        let waiting = async {
            loop {
                let changed = self.state.changed.notified();
                if done(&self.state) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the engine saw it");
    }

    async fn connection(self, mut socket: TcpStream) {
        socket.set_nodelay(true).unwrap();
        let mut number = None;
        let mut buf = Vec::new();
        while let Some(head) = read_head(&mut socket, &mut buf).await {
            let mode = if self.probe(&head).is_some() { Mode::Script } else { self.state.mode.lock().unwrap().clone() };
            match mode {
                Mode::Script => {}
                Mode::StopReading(until) => return until.notified().await,
                Mode::AnswerHeads(answer) => {
                    let _ = socket.write_all(&answer).await;
                    let _ = socket.shutdown().await;
                    while socket.read(&mut [0; 65536]).await.is_ok_and(|n| n > 0) {}
                    return;
                }
                Mode::Pour { head, piece, written } => return pour(socket, &head, &piece, &written).await,
            }
            let Some(body) = read_body(&mut socket, &head, &mut buf).await else { return };
            if let Some(answer) = self.probe(&head) {
                self.answer_probe(&mut socket, &answer).await;
                continue;
            }
            let connection = *number.get_or_insert_with(|| self.state.connections.fetch_add(1, Ordering::SeqCst));
            let seen = Seen { head, body, connection };
            let script = self.state.script.lock().unwrap().clone();
            let steps = script(&seen);
            self.state.seen.lock().unwrap().push(seen);
            self.state.changed.notify_waiters();
            for step in steps {
                match step {
                    Step::Write(bytes) => {
                        if socket.write_all(&bytes).await.is_err() {
                            return;
                        }
                    }
                    Step::Wait(bell) => bell.notified().await,
                    Step::Sleep(time) => tokio::time::sleep(time).await,
                    Step::UntilClosed => {
                        while socket.read(&mut [0; 256]).await.is_ok_and(|n| n > 0) {}
                        self.state.closed.lock().unwrap().push(Instant::now());
                        self.state.changed.notify_waiters();
                        return;
                    }
                    Step::Close => return,
                    Step::Reset => {
                        socket.set_zero_linger().unwrap();
                        return;
                    }
                }
            }
        }
    }

    async fn answer_probe(&self, socket: &mut TcpStream, answer: &str) {
        if self.state.sick.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let _ = socket.write_all(answer.as_bytes()).await;
    }

    fn probe(&self, head: &str) -> Option<String> {
        let body = match head.split(' ').nth(1)? {
            "/health" => String::new(),
            "/v1/models" => format!(r#"{{"object":"list","data":[{{"id":"{}"}}]}}"#, self.state.model),
            "/metrics" => String::new(),
            "/version" | "/kv_event_sources" | "/load" => "{}".to_owned(),
            _ => return None,
        };
        Some(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    }
}

#[expect(clippy::disallowed_methods, reason = "engines of a test end with its runtime")]
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work);
}

async fn read_head(socket: &mut TcpStream, buf: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(at) = memchr::memmem::find(buf, b"\r\n\r\n") {
            return Some(String::from_utf8(buf.drain(..at + 4).collect()).unwrap());
        }
        if socket.read_buf(buf).await.ok()? == 0 {
            return None;
        }
    }
}

async fn read_body(socket: &mut TcpStream, head: &str, buf: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |value| value.parse().unwrap());
    while buf.len() < length {
        if socket.read_buf(buf).await.ok()? == 0 {
            return None;
        }
    }
    Some(buf.drain(..length).collect())
}

/// A JSON answer with `Content-Length`.
pub fn json(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// Head of a stream of events.
pub const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// One frame as a chunk of its own.
pub fn frame(data: &str) -> String {
    let payload = format!("data: {data}\n\n");
    format!("{:x}\r\n{payload}\r\n", payload.len())
}

pub const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
pub const FINISH: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
pub const USAGE: &str =
    r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}"#;
pub const END: &str = "0\r\n\r\n";

/// A frame with one token.
pub fn token(text: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#)
}

/// A whole stream: role, the tokens, finish, usage, end.
pub fn whole_stream(tokens: &[&str]) -> String {
    let mut text = format!("{EVENTS}{}", frame(ROLE));
    for word in tokens {
        text.push_str(&frame(&token(word)));
    }
    text + &frame(FINISH) + &frame(USAGE) + &frame("[DONE]") + END
}

/// Writes `piece` for ever after `head`, until the other side has had enough.
async fn pour(mut socket: TcpStream, head: &str, piece: &str, written: &AtomicUsize) {
    let mut sent = socket.write_all(head.as_bytes()).await;
    while sent.is_ok() {
        sent = socket.write_all(piece.as_bytes()).await;
        written.fetch_add(piece.len(), Ordering::SeqCst);
    }
}
