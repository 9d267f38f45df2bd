//! What the operating system asks of the process.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// One request of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM: an orchestrator.
    Terminate,
    /// SIGINT: a person.
    Interrupt,
    /// SIGHUP: read the configuration again; no stop.
    Hangup,
    /// SIGUSR2: hand over to a new process.
    Upgrade,
}

impl Stop {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
            Self::Hangup => "SIGHUP",
            Self::Upgrade => "SIGUSR2",
        }
    }
}

/// Listens from its making on, so that nothing is missed while the gateway starts.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    upgrade: Signal,
}

impl Signals {
    /// Takes the signals over. Must be called inside a tokio runtime.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.hangup.recv() => Stop::Hangup,
            _ = self.upgrade.recv() => Stop::Upgrade,
        }
    }
}
