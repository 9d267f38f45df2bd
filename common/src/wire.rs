//! What gateways and node agents say to each other, on one stream that the gateway dials.
//!
//! ```text
//! frame = length of the rest (u32, big-endian) ‖ kind (u16, big-endian) ‖ body (MessagePack map)
//!
//! gateway ─ Hello ──────────────► agent
//!         ◄───────────── Welcome ─         or Refused, and the end
//!         ◄──── Load, Load, Load ─         one every `Welcome::period_ms`
//! ```
//!
//! A reader passes over kinds and fields that it does not know and counts them, so either side may be the older one; a
//! [`VERSION`] that differs is refused in words. Counters are totals of the agent's life, never differences: a frame that is lost costs
//! nothing. A reader takes a new [`Welcome::epoch`] as a new agent, ignores a sequence that it has seen, and takes nothing for known that is
//! older than three periods. Ages are measured by the sender; the two clocks are never compared.

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Of this page.
pub const VERSION: u16 = 1;
/// Longest frame: a thousand workers and as many links take a tenth of it.
pub const MAX_FRAME_BYTES: u32 = 4 << 20;
/// Longest token that a gateway shows.
pub const MAX_TOKEN_BYTES: usize = 1_024;

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// [`Hello`].
    Hello = 1,
    /// [`Welcome`].
    Welcome = 2,
    /// [`Refused`].
    Refused = 3,
    /// [`Load`].
    Load = 4,
}

impl Kind {
    /// The kind with that number.
    pub const fn of(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Hello),
            2 => Some(Self::Welcome),
            3 => Some(Self::Refused),
            4 => Some(Self::Load),
            _ => None,
        }
    }
}

/// First frame of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u16,
    /// Secret of the deployment, where the agent asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// First frame of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`].
    pub version: u16,
    /// Differs for every start of an agent.
    pub epoch: u64,
    /// Between two [`Load`] frames.
    pub period_ms: u32,
    /// How much the agent can see: 0 nothing, 1 sockets, 2 kernel programs.
    pub level: u8,
}

/// Why an agent ends the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// What is wrong and what to do.
    pub why: String,
}

/// What an agent sees of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Increases with every frame of an epoch.
    pub sequence: u64,
    /// Age of the youngest part when it was sent.
    pub age_ms: u32,
    /// Workers of the node.
    pub workers: Vec<WorkerLoad>,
    /// Ports of RDMA devices.
    #[serde(default)]
    pub rdma: Vec<RdmaPort>,
    /// Ways to other nodes over TCP.
    #[serde(default)]
    pub peers: Vec<PeerLink>,
}

/// One worker. Absent is unknown, never zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLoad {
    /// Where it listens: 16 bytes, IPv4 mapped; all zero for every address of the node.
    pub address: [u8; 16],
    /// Port.
    pub port: u16,
    /// Connections that are open, whoever opened them.
    #[serde(default)]
    pub open: Option<u32>,
    /// Connections established since the agent began to watch.
    #[serde(default)]
    pub opened: Option<u64>,
    /// Connections ended since then.
    #[serde(default)]
    pub closed: Option<u64>,
    /// Bytes that clients sent.
    #[serde(default)]
    pub bytes_in: Option<u64>,
    /// Bytes that clients acknowledged.
    #[serde(default)]
    pub bytes_out: Option<u64>,
    /// Segments sent again.
    #[serde(default)]
    pub retransmits: Option<u64>,
    /// Connections whose request is in and whose answer has not got going.
    #[serde(default)]
    pub awaiting: Option<u32>,
    /// Connections on which an answer is being sent.
    #[serde(default)]
    pub streaming: Option<u32>,
    /// Connections that wait to be accepted.
    #[serde(default)]
    pub backlog: Option<u32>,
    /// How many may.
    #[serde(default)]
    pub backlog_limit: Option<u32>,
    /// Bytes that have arrived and that the engine has not read.
    #[serde(default)]
    pub unread_bytes: Option<u64>,
    /// Age of `awaiting`, `streaming`, `backlog` and `unread_bytes` when the frame was sent.
    #[serde(default)]
    pub sockets_age_ms: Option<u32>,
    /// Why `open` is not to be trusted at the moment.
    #[serde(default)]
    pub suspect: Option<String>,
}

/// One port of an RDMA device; counters are totals since the agent started, with resets and wraps taken out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Device, as sysfs names it.
    pub device: String,
    /// Port, from 1.
    pub port: u16,
    /// Whether it is emulated over Ethernet by the kernel: good for tests, says nothing of a fabric.
    #[serde(default)]
    pub soft: bool,
    /// Whether the link is up.
    #[serde(default)]
    pub active: Option<bool>,
    /// Rate of the link, Mbit/s.
    #[serde(default)]
    pub rate_mbps: Option<u32>,
    /// Bytes received.
    #[serde(default)]
    pub bytes_in: Option<u64>,
    /// Bytes sent.
    #[serde(default)]
    pub bytes_out: Option<u64>,
    /// Ticks with something to send and no credit to send it.
    #[serde(default)]
    pub wait_ticks: Option<u64>,
    /// Congestion notifications that this port obeyed.
    #[serde(default)]
    pub congestion: Option<u64>,
    /// Timeouts, sequence errors and links lost: anything that makes it a bad choice for a while.
    #[serde(default)]
    pub faults: Option<u64>,
}

/// The way to one peer over TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLink {
    /// Address of the peer: 16 bytes, IPv4 mapped.
    pub address: [u8; 16],
    /// Transfer port.
    pub port: u16,
    /// Connections that are open.
    pub open: u32,
    /// Bytes received on connections that ended.
    pub bytes_in: u64,
    /// Bytes acknowledged on connections that ended.
    pub bytes_out: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Mean of the smoothed round-trip times, µs.
    #[serde(default)]
    pub srtt_us: Option<u32>,
}

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Longer than [`MAX_FRAME_BYTES`], or too short to have a kind.
    Length(u32),
    /// The body is not what its kind says.
    Body(String),
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "a frame of {bytes} bytes; 2 to {MAX_FRAME_BYTES} are allowed"),
            Self::Body(why) => write!(f, "a frame whose body cannot be read: {why}"),
        }
    }
}

impl core::error::Error for WireError {}

/// A frame, ready to be sent.
pub fn encode<T: Serialize>(kind: Kind, body: &T) -> Result<Vec<u8>, WireError> {
    let body = rmp_serde::to_vec_named(body).map_err(|error| WireError::Body(alloc::format!("{error}")))?;
    let length = u32::try_from(body.len() + 2).unwrap_or(u32::MAX);
    check_length(length)?;
    let mut frame = Vec::with_capacity(body.len() + 6);
    frame.extend(length.to_be_bytes());
    frame.extend((kind as u16).to_be_bytes());
    frame.extend(body);
    Ok(frame)
}

/// Whether a frame may have that length behind its first four bytes.
pub const fn check_length(length: u32) -> Result<(), WireError> {
    if length < 2 || length > MAX_FRAME_BYTES { Err(WireError::Length(length)) } else { Ok(()) }
}

/// Number of the kind, and the body, of a frame without its length.
pub fn split(frame: &[u8]) -> Result<(u16, &[u8]), WireError> {
    match frame {
        [high, low, body @ ..] => Ok((u16::from_be_bytes([*high, *low]), body)),
        _ => Err(WireError::Length(frame.len() as u32)),
    }
}

/// A body.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    rmp_serde::from_slice(body).map_err(|error| WireError::Body(alloc::format!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_the_wire() {
        let load = Load {
            sequence: 7,
            workers: alloc::vec![WorkerLoad { port: 8000, awaiting: Some(3), ..WorkerLoad::default() }],
            ..Load::default()
        };
        let frame = encode(Kind::Load, &load).unwrap();
        assert_eq!(u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize, frame.len() - 4);
        let (kind, body) = split(&frame[4..]).unwrap();
        assert_eq!(Kind::of(kind), Some(Kind::Load));
        assert_eq!(decode::<Load>(body), Ok(load));
    }

    /// A newer agent says more, an older one less: neither is an error, and what is not said is unknown.
    #[test]
    fn unknown_fields_are_passed_over_and_missing_ones_unknown() {
        #[derive(Serialize)]
        struct Newer {
            version: u16,
            colour: &'static str,
        }
        let frame = encode(Kind::Hello, &Newer { version: 1, colour: "red" }).unwrap();
        let (_, body) = split(&frame[4..]).unwrap();
        assert_eq!(decode::<Hello>(body), Ok(Hello { version: 1, token: None }));
        assert_eq!(Kind::of(999), None);
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        assert_eq!(check_length(MAX_FRAME_BYTES + 1), Err(WireError::Length(MAX_FRAME_BYTES + 1)));
        assert_eq!(split(&[1]), Err(WireError::Length(1)));
        assert!(decode::<Load>(&[0xc1]).is_err());
    }
}
