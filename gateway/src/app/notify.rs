//! What the service manager is told (systemd's notification protocol): ready, reloading, stopping, another main process.
//!
//! Failure: a manager that cannot be told is a line in the log and nothing more.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;

/// The way to the service manager; silent where there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Notifier {
    address: Option<Arc<str>>,
}

impl Notifier {
    /// Tells whoever listens at `address`: a path, or `@name` for an abstract socket.
    pub(super) fn new(address: Option<&str>) -> Self {
        Self { address: address.map(Into::into) }
    }

    /// Clients are served.
    pub(super) fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    /// The configuration is being read again; [`Self::ready`] ends it.
    pub(super) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec * 1_000_000 + now.tv_nsec / 1_000));
    }

    /// The drain has begun.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=draining");
    }

    /// Another process serves from now on.
    pub(super) fn succeeded_by(&self, pid: u32) {
        self.tell(&format!("MAINPID={pid}\nSTATUS=a new process serves"));
    }

    fn tell(&self, message: &str) {
        let Some(address) = &self.address else { return };
        if let Err(error) = send(address, message.as_bytes()) {
            tracing::warn!(%error, "the service manager could not be told");
        }
    }
}

/// Sends one datagram to `address`.
pub(super) fn send(address: &str, message: &[u8]) -> std::io::Result<()> {
    let to = match address.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_one_datagram() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bound");
        let notifier = Notifier::new(path.to_str());
        notifier.ready();
        notifier.reloading();
        notifier.stopping();
        notifier.succeeded_by(7);
        let mut buf = [0; 256];
        let mut next = || {
            let length = manager.recv(&mut buf).expect("told");
            String::from_utf8_lossy(&buf[..length]).into_owned()
        };
        assert!(next().starts_with("READY=1\n"));
        let reloading = next();
        let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").and_then(|text| text.parse::<u64>().ok());
        assert!(since.is_some_and(|since| since > 0), "{reloading}");
        assert!(next().starts_with("STOPPING=1\n") && next().starts_with("MAINPID=7\n"));
        drop(manager);
        notifier.ready();
        Notifier::new(None).ready();
    }
}
