//! What can go wrong between a process and the kernel, with everything that an operator needs to act.

use std::fmt;
use std::io;

/// Where it went wrong; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The object could not be read, or its maps not be made.
    Open,
    /// The verifier or a missing privilege refused a program.
    Load,
    /// A program could not be put where it runs.
    Attach,
    /// A map could not be read or written.
    Map,
    /// A pin could not be made, adopted or removed.
    Pin,
    /// Another process has the lock.
    Owner,
    /// The cgroup, the interface or the namespace is not what was asked for.
    Place,
}

impl Stage {
    /// As a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Load => "load",
            Self::Attach => "attach",
            Self::Map => "map",
            Self::Pin => "pin",
            Self::Owner => "owner",
            Self::Place => "place",
        }
    }
}

/// A failure, its stage, and what the kernel said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Where.
    pub stage: Stage,
    /// Program, map or path.
    pub what: String,
    /// What went wrong and what to do.
    pub why: String,
    /// The kernel's error number, where it gave one.
    pub errno: Option<i32>,
    /// The verifier's log, where it refused a program.
    pub verifier_log: Option<String>,
}

/// Longest verifier log that is kept: the end of it names the instruction.
const MAX_VERIFIER_LOG_BYTES: usize = 256 << 10;

impl Error {
    pub(crate) fn new(stage: Stage, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { stage, what: what.into(), why: why.into(), errno: None, verifier_log: None }
    }

    /// From an error of the library: the first errno in its chain of causes, and one line of words.
    pub(crate) fn caused(stage: Stage, what: impl Into<String>, error: &(dyn std::error::Error + 'static)) -> Self {
        let (mut errno, mut words) = (None, Vec::new());
        let mut next = Some(error);
        while let Some(cause) = next {
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                errno = errno.or(io.raw_os_error());
            }
            if let Some(failed) = cause.downcast_ref::<aya::programs::ProgramError>()
                && let aya::programs::ProgramError::LoadError { io_error, verifier_log } = failed
            {
                return Self::refused(what, io_error, &verifier_log.to_string());
            }
            words.push(cause.to_string());
            next = cause.source();
        }
        words.dedup();
        Self { stage, what: what.into(), why: words.join(": ") + advice(errno), errno, verifier_log: None }
    }

    fn refused(what: impl Into<String>, io_error: &io::Error, log: &str) -> Self {
        let errno = io_error.raw_os_error();
        let from = log.len().saturating_sub(MAX_VERIFIER_LOG_BYTES);
        let kept: String = log.char_indices().filter(|(at, _)| *at >= from).map(|(_, c)| c).collect();
        // With a log it was the verifier, and no privilege would help.
        let advice = if kept.is_empty() {
            advice(errno)
        } else {
            "; the verifier's log says why (CAP_PERFMON is missing, or this kernel is too old)"
        };
        let why = format!("the kernel refused the program: {io_error}{advice}");
        Self { stage: Stage::Load, what: what.into(), why, errno, verifier_log: (!kept.is_empty()).then_some(kept) }
    }

    pub(crate) fn io(stage: Stage, what: impl Into<String>, error: &io::Error) -> Self {
        let errno = error.raw_os_error();
        Self { stage, what: what.into(), why: format!("{error}{}", advice(errno)), errno, verifier_log: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.what, self.stage.name(), self.why)
    }
}

impl std::error::Error for Error {}

/// What to do about an error number.
fn advice(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EPERM | libc::EACCES) => "; needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
        Some(libc::ENOMEM) => "; no memory for it: some drivers refuse XDP with more than 64 processors",
        Some(libc::E2BIG) => "; the program is too long for this kernel",
        Some(libc::EBUSY | libc::EEXIST) => "; another program is there already",
        Some(libc::ENOSYS) => "; this kernel lacks the system call",
        Some(libc::ENOTSUP) => "; this kernel or driver lacks the feature, or the MTU is too large for it",
        _ => "",
    }
}
