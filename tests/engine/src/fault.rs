//! Misbehaviour on demand: what, how often, on which paths.
//!
//! Faults are set by `--fault JSON` at start and by `POST /_ctl` at any time. Each is one JSON object with a `kind`;
//! all other keys are optional and checked against it. A fault strikes a request when its path matches, its `share`
//! (drawn from a seeded generator) says so, and it has strikes left (`next`).

use crate::serve::is_generating;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Longest list of faults at once; nobody needs more, and each request walks it.
const MOST_FAULTS: usize = 64;
/// What a stall without `ms` lasts: longer than any deadline in use.
const FOREVER_MS: u64 = 3_600_000;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// `ms` pass between accepting a connection and reading from it.
    SlowAccept,
    /// `ms` (for ever without it) pass before anything is sent, or after `after_chunks` chunks of a stream.
    Stall,
    /// Answered with `status` (500 without it) in the engine's error shape, nothing generated.
    Error,
    /// The connection ends after `after_chunks` chunks (0 without it: right after the head), by `how`. An answer that
    /// is not streamed is cut in the middle of its body.
    Cut,
    /// The connection ends after the request was read and before anything is sent, by `how`.
    EarlyClose,
    /// Bytes that are not HTTP, then the connection ends.
    Garbage,
    /// All token counts in `usage` are off by `by` (never below 0).
    WrongUsage,
    /// The announced content length is off by `by`; not for streams.
    WrongLength,
    /// An event batch takes a sequence number and is kept for replay, but is not sent.
    EventDrop,
    /// An event batch takes a sequence number and is lost altogether: replay cannot fill the gap.
    EventGap,
    /// An event batch vanishes without a trace, no sequence number used.
    EventSilence,
    /// An event batch is sent as bytes that are not msgpack.
    EventGarbage,
}

impl FaultKind {
    fn is_event(self) -> bool {
        matches!(self, Self::EventDrop | Self::EventGap | Self::EventSilence | Self::EventGarbage)
    }

    /// Keys that mean something for this kind, besides `kind`, `share`, `next` and `path`.
    fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::SlowAccept => &["ms"],
            Self::Stall => &["ms", "after_chunks"],
            Self::Error => &["status"],
            Self::Cut => &["after_chunks", "how"],
            Self::EarlyClose => &["how"],
            Self::WrongUsage | Self::WrongLength => &["by"],
            Self::Garbage | Self::EventDrop | Self::EventGap | Self::EventSilence | Self::EventGarbage => &[],
        }
    }
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutHow {
    /// An orderly close at the wrong moment.
    #[default]
    Fin,
    /// A reset, as when a process is killed.
    Rst,
}

/// One fault; the JSON form has the same keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// Part of the matching requests, connections or event batches that are struck, 0 to 1. All without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Strikes left. Unlimited without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
    /// Only requests whose path starts with this; `/v1/c` without it (completions and chat completions).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
    /// Chunks of a stream that pass before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_chunks: Option<u32>,
    /// HTTP status, 400 to 599.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How the connection ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<CutHow>,
    /// Tokens or bytes, may be negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<i64>,
}

impl Fault {
    /// A fault of `kind` that always strikes.
    pub fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            share: None,
            next: None,
            path: None,
            ms: None,
            after_chunks: None,
            status: None,
            how: None,
            by: None,
        }
    }

    /// From the JSON form; the error says what is wrong with which key.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let fault: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        fault.check()?;
        Ok(fault)
    }

    /// Whether the values make sense together.
    pub fn check(&self) -> Result<(), String> {
        if self.share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err("share must lie between 0 and 1".to_owned());
        }
        if self.status.is_some_and(|status| !(400..600).contains(&status)) {
            return Err("status must lie between 400 and 599".to_owned());
        }
        let given = [
            ("ms", self.ms.is_some()),
            ("after_chunks", self.after_chunks.is_some()),
            ("status", self.status.is_some()),
            ("how", self.how.is_some()),
            ("by", self.by.is_some()),
        ];
        match given.iter().find(|(name, set)| *set && !self.kind.parameters().contains(name)) {
            Some((name, _)) => Err(format!("`{name}` means nothing for {:?}", self.kind)),
            None => Ok(()),
        }
    }

    /// Duration of a delay, ms.
    pub(crate) fn delay_ms(&self) -> u64 {
        self.ms.unwrap_or(FOREVER_MS)
    }

    fn applies_to(&self, path: &str) -> bool {
        self.path.as_deref().map_or_else(|| is_generating(path), |prefix| path.starts_with(prefix))
    }
}

/// The faults in force, shared by everything that can misbehave.
#[derive(Debug)]
pub(crate) struct FaultBoard {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    faults: Vec<Fault>,
    rng: fastrand::Rng,
}

impl FaultBoard {
    pub(crate) fn new(faults: Vec<Fault>, seed: u64) -> Self {
        Self { inner: Mutex::new(Inner { faults, rng: fastrand::Rng::with_seed(seed) }) }
    }

    /// Replaces all faults.
    pub(crate) fn replace(&self, faults: Vec<Fault>) -> Result<(), String> {
        if faults.len() > MOST_FAULTS {
            return Err(format!("at most {MOST_FAULTS} faults"));
        }
        faults.iter().try_for_each(Fault::check)?;
        self.inner.lock().faults = faults;
        Ok(())
    }

    /// Those in force, strikes left included.
    pub(crate) fn list(&self) -> Vec<Fault> {
        self.inner.lock().faults.clone()
    }

    /// Whether a fault of `kind` strikes a request to `path` now; uses up one strike.
    pub(crate) fn strike(&self, kind: FaultKind, path: &str) -> Option<Fault> {
        self.strike_where(|fault| fault.kind == kind && fault.applies_to(path))
    }

    /// As `strike`, for a new connection, which has no path yet.
    pub(crate) fn strike_connection(&self) -> Option<Fault> {
        self.strike_where(|fault| fault.kind == FaultKind::SlowAccept)
    }

    /// As `strike`, for an event batch.
    pub(crate) fn strike_events(&self) -> Option<FaultKind> {
        self.strike_where(|fault| fault.kind.is_event()).map(|fault| fault.kind)
    }

    fn strike_where(&self, matches: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let at = inner.faults.iter().position(matches)?;
        let fault = &mut inner.faults[at];
        if fault.share.is_some_and(|share| inner.rng.f64() >= share) {
            return None;
        }
        let struck = fault.clone();
        if let Some(left) = &mut fault.next {
            *left = left.saturating_sub(1);
            if *left == 0 {
                inner.faults.remove(at);
            }
        }
        Some(struck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_checked_key_by_key() {
        let fault = Fault::from_json(r#"{"kind":"cut","after_chunks":3,"how":"rst","next":2}"#).unwrap();
        assert_eq!((fault.kind, fault.after_chunks, fault.how), (FaultKind::Cut, Some(3), Some(CutHow::Rst)));
        for (json, expected) in [
            (r#"{"kind":"cutt"}"#, "unknown variant `cutt`"),
            (r#"{"kind":"cut","afterchunks":1}"#, "unknown field `afterchunks`"),
            (r#"{"kind":"cut","ms":1}"#, "`ms` means nothing"),
            (r#"{"kind":"error","status":200}"#, "between 400 and 599"),
            (r#"{"kind":"error","share":2}"#, "between 0 and 1"),
        ] {
            let reason = Fault::from_json(json).unwrap_err();
            assert!(reason.contains(expected), "{json}: {reason}");
        }
    }

    #[test]
    fn strikes_are_counted_and_paths_matched() {
        let fault = |json: &str| Fault::from_json(json).unwrap();
        let board = FaultBoard::new(vec![fault(r#"{"kind":"error","next":2}"#)], 1);
        assert!(board.strike(FaultKind::Error, "/health").is_none(), "inference paths only by default");
        assert!(board.strike(FaultKind::Stall, "/v1/completions").is_none());
        assert!(board.strike(FaultKind::Error, "/v1/completions").is_some());
        assert!(board.strike(FaultKind::Error, "/v1/chat/completions").is_some());
        assert!(board.strike(FaultKind::Error, "/v1/completions").is_none(), "used up");
        board.replace(vec![fault(r#"{"kind":"error","path":"/health","status":503}"#)]).unwrap();
        assert_eq!(board.strike(FaultKind::Error, "/health").unwrap().status, Some(503));
        assert!(board.strike(FaultKind::Error, "/v1/completions").is_none());
    }

    #[test]
    fn a_share_strikes_about_that_many() {
        let board = FaultBoard::new(vec![Fault { share: Some(0.25), ..Fault::new(FaultKind::Error) }], 7);
        let struck = (0..4_000).filter(|_| board.strike(FaultKind::Error, "/v1/completions").is_some()).count();
        assert!((800..1_200).contains(&struck), "{struck}");
    }
}
