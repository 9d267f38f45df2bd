//! A stretch of network in front of one engine that can swallow everything, as a dead switch or a firewall does.
//!
//! Silent, it reads and writes nothing on the connections that it has, closes none, and lets no new one in: its listener's
//! queue is filled by itself, so that the kernel drops further SYNs and connecting takes until it times out.

use crate::process::Failure;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Duration, timeout};

/// Connections that the kernel completes for a listener which accepts none (with its queue at its smallest).
const QUEUE_FILLERS: usize = 4;
/// Time for one of them; those beyond the queue never connect.
const FILL_TIMEOUT: Duration = Duration::from_millis(100);
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// A relay that runs. Dropping it closes everything.
pub struct Relay {
    address: SocketAddr,
    silent: watch::Sender<bool>,
    fillers: Vec<TcpStream>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// In front of `target`.
    pub fn start(target: SocketAddr) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure(format!("relay: {error}"));
        let socket = TcpSocket::new_v4().map_err(failed)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).map_err(failed)?;
        let listener = socket.listen(1).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (silent, heard) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut pairs = JoinSet::new();
            let mut hush = heard.clone();
            loop {
                tokio::select! {
                    biased;
                    () = silence(&mut hush) => std::future::pending().await,
                    accepted = listener.accept() => {
                        let Ok((client, _)) = accepted else { continue };
                        pairs.spawn(pass(client, target, heard.clone()));
                    }
                }
            }
        });
        Ok(Self { address, silent, fillers: Vec::new(), _tasks: tasks })
    }

    /// Where clients of the engine connect.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on nothing passes.
    pub async fn fall_silent(&mut self) {
        self.silent.send_replace(true);
        for _ in 0..QUEUE_FILLERS {
            if let Ok(Ok(filler)) = timeout(FILL_TIMEOUT, TcpStream::connect(self.address)).await {
                self.fillers.push(filler);
            }
        }
    }
}

/// Passes bytes both ways until either side closes, or for ever holds both once it is silent.
async fn pass(client: TcpStream, target: SocketAddr, silent: watch::Receiver<bool>) {
    let Ok(engine) = TcpStream::connect(target).await else { return };
    // Only fails on a socket that is closed already.
    let _ = (client.set_nodelay(true), engine.set_nodelay(true));
    let ((from_client, to_client), (from_engine, to_engine)) = (client.into_split(), engine.into_split());
    let mut ways = JoinSet::new();
    ways.spawn(one_way(from_client, to_engine, silent.clone()));
    ways.spawn(one_way(from_engine, to_client, silent));
    // The first end ends both: engines and gateway use no half-closed connections.
    ways.join_next().await;
}

async fn one_way(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut silent: watch::Receiver<bool>) {
    let work = async {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match from.read(&mut buffer).await {
                Ok(length @ 1..) if to.write_all(&buffer[..length]).await.is_ok() => {}
                _ => return,
            }
        }
    };
    tokio::select! {
        biased;
        () = silence(&mut silent) => std::future::pending().await,
        () = work => {}
    }
}

/// Waits for it.
async fn silence(silent: &mut watch::Receiver<bool>) {
    // An error means that the relay was dropped; then this task is about to be.
    let _ = silent.wait_for(|silent| *silent).await;
}
