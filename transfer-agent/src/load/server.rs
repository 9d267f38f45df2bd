//! Streams to gateways.

use forebay_common::wire::{self, Hello, Kind, MAX_TOKEN_BYTES, Refused, Welcome};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Duration, timeout};

/// Gateways at once.
pub const MAX_GATEWAYS: usize = 256;
/// Time for a gateway to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// A gateway that takes nothing for so long is cut off.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest greeting.
const MAX_HELLO_BYTES: u32 = 4_096;

/// What every stream needs.
#[derive(Clone, Debug)]
pub struct Server {
    /// Said to every gateway.
    pub welcome: Welcome,
    /// Secret that it must show.
    pub token: Option<Arc<str>>,
    /// The latest record, encoded.
    pub latest: watch::Receiver<Arc<[u8]>>,
    /// Gateways that listen.
    pub gateways: Arc<AtomicU32>,
}

/// Reads the secret, which is one line.
pub fn read_token(path: &Path) -> Result<Arc<str>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("load.token_file: {}: {error}", path.display()))?;
    match text.trim() {
        "" => Err(format!("load.token_file: {} is empty", path.display())),
        token if token.len() > MAX_TOKEN_BYTES => {
            Err(format!("load.token_file: {} has more than {MAX_TOKEN_BYTES} bytes", path.display()))
        }
        token => Ok(token.into()),
    }
}

impl Server {
    /// Accepts for ever.
    pub async fn accept(self, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(MAX_GATEWAYS));
        let mut streams = JoinSet::new();
        loop {
            let Ok((stream, from)) = listener.accept().await else { continue };
            while streams.try_join_next().is_some() {}
            let Ok(place) = places.clone().try_acquire_owned() else {
                tracing::warn!(%from, "turned away: {MAX_GATEWAYS} gateways are connected");
                continue;
            };
            let server = self.clone();
            streams.spawn(async move {
                match server.serve(stream).await {
                    Ok(()) => tracing::debug!(%from, "a gateway left"),
                    Err(error) => tracing::info!(%from, %error, "a gateway's stream ended"),
                }
                drop(place);
            });
        }
    }

    async fn serve(mut self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let hello = timeout(HELLO_TIMEOUT, read_hello(&mut stream)).await.map_err(|_| late("said nothing"))??;
        if let Some(why) = self.refusal(&hello) {
            send(&mut stream, &encode(Kind::Refused, &Refused { why: why.clone() })?).await?;
            return Err(io::Error::other(why));
        }
        send(&mut stream, &encode(Kind::Welcome, &self.welcome)?).await?;
        self.gateways.fetch_add(1, Ordering::Relaxed);
        let ended = self.stream(&mut stream).await;
        self.gateways.fetch_sub(1, Ordering::Relaxed);
        ended
    }

    async fn stream(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let (mut incoming, mut outgoing) = stream.split();
        let mut further = [0; 256];
        loop {
            tokio::select! {
                changed = self.latest.changed() => if changed.is_err() { return Ok(()) },
                // A gateway has nothing more to say in this version; what it says is passed over.
                read = incoming.read(&mut further) => match read? {
                    0 => return Ok(()),
                    _ => continue,
                },
            }
            let frame = self.latest.borrow_and_update().clone();
            timeout(WRITE_TIMEOUT, outgoing.write_all(&frame)).await.map_err(|_| late("reads nothing"))??;
        }
    }

    fn refusal(&self, hello: &Hello) -> Option<String> {
        if hello.version != wire::VERSION {
            let (ours, theirs) = (wire::VERSION, hello.version);
            return Some(format!("this agent speaks version {ours}, the gateway {theirs}; bring both to one release"));
        }
        let token = self.token.as_deref()?;
        let shown = hello.token.as_deref().unwrap_or_default();
        (!same(token.as_bytes(), shown.as_bytes()))
            .then(|| "the token is not this agent's; set agents.token_file".to_owned())
    }
}

/// Compares without telling by its time how much was right.
fn same(ours: &[u8], theirs: &[u8]) -> bool {
    let differing = ours.iter().zip(theirs).fold(0, |acc, (a, b)| acc | (a ^ b));
    ours.len() == theirs.len() && differing == 0
}

async fn read_hello(stream: &mut TcpStream) -> io::Result<Hello> {
    let length = stream.read_u32().await?;
    if wire::check_length(length).is_err() || length > MAX_HELLO_BYTES {
        return Err(io::Error::other(format!("a greeting of {length} bytes")));
    }
    let mut frame = vec![0; length as usize];
    stream.read_exact(&mut frame).await?;
    let (kind, body) = wire::split(&frame).map_err(io::Error::other)?;
    if Kind::of(kind) != Some(Kind::Hello) {
        return Err(io::Error::other(format!("a frame of kind {kind} where a greeting belongs")));
    }
    wire::decode(body).map_err(io::Error::other)
}

fn encode<T: serde::Serialize>(kind: Kind, body: &T) -> io::Result<Vec<u8>> {
    wire::encode(kind, body).map_err(io::Error::other)
}

async fn send(stream: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    timeout(WRITE_TIMEOUT, stream.write_all(frame)).await.map_err(|_| late("reads nothing"))?
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("it {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_common::wire::Load;

    async fn answer(hello: &Hello, token: Option<&str>) -> (u16, Vec<u8>, TcpStream, watch::Sender<Arc<[u8]>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (records, latest) = watch::channel::<Arc<[u8]>>(Arc::new([]));
        let welcome = Welcome { version: wire::VERSION, epoch: 5, period_ms: 100, level: 1 };
        let server = Server { welcome, token: token.map(Into::into), latest, gateways: Arc::default() };
        #[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with its runtime")]
        tokio::spawn(server.accept(listener));
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(&wire::encode(Kind::Hello, hello).unwrap()).await.unwrap();
        let (kind, body) = frame(&mut stream).await;
        (kind, body, stream, records)
    }

    async fn frame(stream: &mut TcpStream) -> (u16, Vec<u8>) {
        let length = stream.read_u32().await.unwrap();
        let mut frame = vec![0; length as usize];
        stream.read_exact(&mut frame).await.unwrap();
        let (kind, body) = wire::split(&frame).unwrap();
        (kind, body.to_vec())
    }

    #[tokio::test]
    async fn who_is_welcome_gets_every_record() {
        let hello = Hello { version: wire::VERSION, token: Some("s3cret".to_owned()) };
        let (kind, body, mut stream, records) = answer(&hello, Some("s3cret")).await;
        assert_eq!(Kind::of(kind), Some(Kind::Welcome));
        assert_eq!(wire::decode::<Welcome>(&body).unwrap().epoch, 5);
        let load = Load { sequence: 3, ..Load::default() };
        records.send(wire::encode(Kind::Load, &load).unwrap().into()).unwrap();
        let (kind, body) = frame(&mut stream).await;
        assert_eq!(Kind::of(kind), Some(Kind::Load));
        assert_eq!(wire::decode::<Load>(&body).unwrap(), load);
    }

    #[tokio::test]
    async fn a_wrong_token_or_version_is_refused_in_words() {
        let wrong = Hello { version: wire::VERSION, token: Some("guess".to_owned()) };
        let (kind, body, ..) = answer(&wrong, Some("s3cret")).await;
        assert_eq!(Kind::of(kind), Some(Kind::Refused));
        assert!(wire::decode::<Refused>(&body).unwrap().why.contains("token"));
        let other = Hello { version: 99, token: None };
        let (kind, body, ..) = answer(&other, None).await;
        assert_eq!(Kind::of(kind), Some(Kind::Refused));
        assert!(wire::decode::<Refused>(&body).unwrap().why.contains("99"));
    }
}
