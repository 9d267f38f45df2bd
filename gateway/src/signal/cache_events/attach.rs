//! ZMQ endpoints as configurations and engines write them → what this side does with them.

/// How this side gets at a socket of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attach {
    /// The engine has bound this endpoint.
    Connect(String),
    /// The engine connects to this endpoint.
    Bind(String),
    /// The engine is asked at this path of its own address, and forgets what it has answered.
    Poll(String),
}

/// Why an endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("KV event endpoint {endpoint:?}: {reason}")]
pub struct AttachError {
    /// As it was given.
    pub endpoint: String,
    /// What is wrong, and what to write instead.
    pub reason: &'static str,
}

impl Attach {
    /// Reads `endpoint`; `bind:` in front makes this side the one that binds. A wildcard host, which says where the engine
    /// has bound, becomes `host`, where the engine is reached.
    pub fn parse(endpoint: &str, host: &str) -> Result<Self, AttachError> {
        let wrong = |reason| AttachError { endpoint: endpoint.to_owned(), reason };
        if let Some(path) = endpoint.strip_prefix("poll:") {
            let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
            return if is_path { Ok(Self::Poll(path.to_owned())) } else { Err(wrong("write poll:/path")) };
        }
        let (binds, address) = match endpoint.strip_prefix("bind:") {
            Some(address) => (true, address),
            None => (false, endpoint),
        };
        // libzmq takes C strings.
        if address.contains(|c: char| c.is_control() || c == ' ') {
            return Err(wrong("it contains spaces or control characters"));
        }
        let address = if let Some(place) = address.strip_prefix("tcp://") {
            let (name, port) = place.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
            if port.parse::<u16>().is_ok_and(|port| port > 0) {
                let wildcard = matches!(name, "*" | "0.0.0.0" | "[::]" | "::");
                let name = if wildcard && !binds { bracketed(host) } else { name.to_owned() };
                format!("tcp://{name}:{port}")
            } else {
                return Err(wrong("the port is not a number from 1 to 65535"));
            }
        } else if address.strip_prefix("ipc://").is_some_and(|path| !path.is_empty()) {
            address.to_owned()
        } else {
            return Err(wrong("write tcp://host:port, ipc://path, bind: before one of them, or poll:/path"));
        };
        Ok(if binds { Self::Bind(address) } else { Self::Connect(address) })
    }

    /// `host:port` to which this side connects over TCP.
    pub fn tcp_target(&self) -> Option<&str> {
        match self {
            Self::Connect(address) => address.strip_prefix("tcp://"),
            Self::Bind(_) | Self::Poll(_) => None,
        }
    }

    /// The endpoint itself.
    pub fn address(&self) -> &str {
        match self {
            Self::Connect(address) | Self::Bind(address) | Self::Poll(address) => address,
        }
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The endpoint of data-parallel rank `rank`, given rank 0's: vLLM adds the rank to the port.
pub fn for_rank(endpoint: &str, rank: u16) -> String {
    let moved = endpoint.rsplit_once(':').and_then(|(place, port)| {
        let port = port.parse::<u16>().ok()?.checked_add(rank)?;
        Some(format!("{place}:{port}"))
    });
    moved.unwrap_or_else(|| endpoint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_endpoints() {
        let connect = |address: &str| Ok(Attach::Connect(address.to_owned()));
        for (endpoint, want) in [
            ("tcp://127.0.0.1:5557", connect("tcp://127.0.0.1:5557")),
            ("tcp://*:5557", connect("tcp://gpu-1:5557")),
            ("tcp://0.0.0.0:5557", connect("tcp://gpu-1:5557")),
            ("ipc:///tmp/a.sock", connect("ipc:///tmp/a.sock")),
            ("poll:/kv_cache_events", Ok(Attach::Poll("/kv_cache_events".to_owned()))),
            ("bind:tcp://*:5557", Ok(Attach::Bind("tcp://*:5557".to_owned()))),
        ] {
            assert_eq!(Attach::parse(endpoint, "gpu-1"), want, "{endpoint}");
        }
        assert_eq!(Attach::parse("tcp://[::]:5", "::1"), connect("tcp://[::1]:5"));
        for bad in [
            "",
            "5557",
            "tcp://x",
            "tcp://x:0",
            "tcp://x:70000",
            "ipc://",
            "udp://x:1",
            "tcp://a b:1",
            "tcp://a\0:1",
            "bind:",
            "poll:",
            "poll:kv",
            "poll:/a b",
        ] {
            assert!(Attach::parse(bad, "gpu-1").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ranks_follow_in_ports() {
        assert_eq!(for_rank("tcp://*:5557", 3), "tcp://*:5560");
        assert_eq!(for_rank("ipc:///tmp/x", 3), "ipc:///tmp/x");
        assert_eq!(for_rank("tcp://x:65535", 1), "tcp://x:65535");
    }
}
