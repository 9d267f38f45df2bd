//! A new binary takes over the listening socket without a refused connection or a broken stream.
//!
//! ```text
//! old  SIGUSR2 ─ lets go of admin ─ starts the new one ─ hands the socket over ─ waits ─► drains: its streams run to their end
//! new                                  └─ takes it ─ admin, engines ready ─ accepts ─ says so ┘
//! ```
//!
//! Both accept for a moment from the same queue of the kernel, so nobody who connects is turned away. A new process that
//! ends, or that is not ready in time, is given up: the old one takes its admin address back and serves on as if nothing had
//! happened.

use crate::config::Environment;
use crate::config::source::UPGRADE_VARIABLE;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixListener;
use tokio::process::{Child, Command};
use tokio::time::{Duration, timeout};

/// For the new process to be ready: it reads its tokenizers and asks its engines first.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// For the old process to hand its socket over; it does nothing else meanwhile.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Goes with the socket, because descriptors cannot travel alone.
const WORD: &[u8] = b"L";
/// The new process serves.
const READY: &[u8] = b"R";

/// What an old process hands over to this one.
#[derive(Debug)]
pub(super) struct Inheritance {
    /// The clients' listening socket.
    pub(super) listener: TcpListener,
    old: UnixStream,
}

impl Inheritance {
    /// Takes what the environment says there is; `None` where there is nothing.
    pub(super) fn take(environment: &Environment) -> io::Result<Option<Self>> {
        let Some(path) = environment.find(UPGRADE_VARIABLE) else { return Ok(None) };
        let old = UnixStream::connect(path)?;
        old.set_read_timeout(Some(HAND_OVER_TIMEOUT))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut word = [0; 1];
        recvmsg(&old, &mut [IoSliceMut::new(&mut word)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let socket = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let listener = TcpListener::from(socket.ok_or_else(|| io::Error::other("no socket came"))?);
        Ok(Some(Self { listener, old }))
    }

    /// Tells the old process that this one serves.
    pub(super) fn say_ready(mut self) {
        if let Err(error) = self.old.write_all(READY) {
            tracing::warn!(%error, "the process before this one could not be told");
        }
    }
}

/// A started successor.
pub(super) struct Successor {
    child: Child,
    door: UnixListener,
    /// Holds the socket at which it is met.
    _folder: Folder,
}

/// A private folder that goes away with its owner.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Left over, it is a small folder among temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Successor {
    /// Starts `arguments`, the program first.
    pub(super) fn start(arguments: &[OsString]) -> io::Result<Self> {
        let (program, rest) = arguments.split_first().ok_or(io::ErrorKind::NotFound)?;
        let folder = Folder(std::env::temp_dir().join(format!("forebay-{:016x}", fastrand::u64(..))));
        DirBuilder::new().mode(0o700).create(&folder.0)?;
        let path = folder.0.join("upgrade");
        let door = UnixListener::bind(&path)?;
        let child = Command::new(program).args(rest).env(UPGRADE_VARIABLE, &path).spawn()?;
        Ok(Self { child, door, _folder: folder })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Hands `socket` over and waits until it is served. The error says why it never will be; the successor is ended then.
    pub(super) async fn hand_over(&mut self, socket: &OwnedFd) -> Result<(), String> {
        let door = &self.door;
        let meeting = async {
            let (mut stream, _) = door.accept().await?;
            send(&stream, socket)?;
            let mut word = [0; 1];
            stream.read_exact(&mut word).await.map(drop)
        };
        let waiting = async {
            tokio::select! {
                met = meeting => met.map_err(|error| format!("it did not say that it serves: {error}")),
                ended = self.child.wait() => match ended {
                    Ok(status) => Err(format!("it ended ({status}); its log says why")),
                    Err(error) => Err(error.to_string()),
                },
            }
        };
        let outcome = match timeout(READY_TIMEOUT, waiting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("it was not ready within {} s", READY_TIMEOUT.as_secs())),
        };
        if outcome.is_err() {
            // It may have ended by itself.
            let _ = self.child.kill().await;
        }
        outcome
    }
}

fn send(stream: &tokio::net::UnixStream, socket: &OwnedFd) -> io::Result<()> {
    let descriptors = [socket.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for one descriptor"));
    }
    sendmsg(stream, &[IoSlice::new(WORD)], &mut control, SendFlags::empty())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        TcpListener::bind("127.0.0.1:0").expect("bound").into()
    }

    #[tokio::test]
    async fn the_socket_arrives_and_word_comes_back() {
        let original = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = original.local_addr().expect("an address");
        let handed: OwnedFd = original.into();
        // Stands for a new process: it lives, and this one plays its part.
        let mut successor = Successor::start(&["sleep".into(), "60".into()]).expect("started");
        let path = successor._folder.0.join("upgrade").to_str().expect("UTF-8").to_owned();
        let environment = Environment([(UPGRADE_VARIABLE.to_owned(), path)].into());
        let taking = tokio::task::spawn_blocking(move || {
            let inheritance = Inheritance::take(&environment).expect("taken").expect("there is one");
            let taken = inheritance.listener.local_addr().expect("an address");
            inheritance.say_ready();
            taken
        });
        successor.hand_over(&handed).await.expect("it serves");
        assert_eq!(taking.await.expect("no panic"), address);
        successor.child.kill().await.expect("ended");
        assert!(Inheritance::take(&Environment::default()).expect("nothing").is_none());
    }

    #[tokio::test]
    async fn a_successor_that_ends_is_given_up() {
        let mut successor = Successor::start(&["false".into()]).expect("started");
        let why = successor.hand_over(&socket()).await.expect_err("it ended");
        assert!(why.contains("it ended"), "{why}");
        assert!(Successor::start(&["/nowhere/at/all".into()]).is_err());
        let folder = successor._folder.0.clone();
        drop(successor);
        assert!(!folder.exists());
    }
}
