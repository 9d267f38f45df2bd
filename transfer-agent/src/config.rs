//! The agent's configuration: one TOML file with a table for each role. Unknown keys are errors.

use serde::Deserialize;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Listeners that may be configured.
const MAX_WORKERS: usize = 256;
/// Transfer ports that may be configured; the kernel's table has as many.
const MAX_PORTS: usize = 64;

/// The file.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Role `load`.
    pub load: Option<Load>,
    /// Role `guard`.
    pub guard: Option<Guard>,
}

/// Role `load`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// Where gateways dial.
    pub listen: SocketAddr,
    /// Where metrics are answered.
    pub metrics: SocketAddr,
    /// Listeners of engines, `address:port`.
    pub workers: Vec<SocketAddr>,
    /// Ports at which every listener is an engine, `"8000-8100"`.
    pub discover_ports: Option<PortRange>,
    /// The cgroup (v2) that holds the engines; without it no program is attached.
    pub cgroup: Option<PathBuf>,
    /// Whether kernel programs are used where they can be.
    pub programs: bool,
    /// Whether sockets are listed.
    pub sockets: bool,
    /// Experimental: the program that looks at every packet.
    pub busy: bool,
    /// Ports of transfers between nodes.
    pub transfer_ports: Vec<u16>,
    /// `/sys`.
    pub sysfs: PathBuf,
    /// Between two records, ms.
    pub period_ms: u32,
    /// Between two lists of sockets, ms.
    pub sockets_period_ms: u32,
    /// File with the secret that gateways must show.
    pub token_file: Option<PathBuf>,
    /// For the lock and verifier logs.
    pub state_dir: PathBuf,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7_470)),
            metrics: SocketAddr::from(([127, 0, 0, 1], 8_082)),
            workers: Vec::new(),
            discover_ports: None,
            cgroup: None,
            programs: true,
            sockets: true,
            busy: false,
            transfer_ports: Vec::new(),
            sysfs: "/sys".into(),
            period_ms: 200,
            sockets_period_ms: 500,
            token_file: None,
            state_dir: "/run/forebay/load".into(),
        }
    }
}

/// Role `guard`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Ingress interface.
    pub interface: String,
    /// What is guarded, `address:port`; `0.0.0.0` for every address.
    pub targets: Vec<SocketAddr>,
    /// What happens to what would be refused.
    #[serde(default)]
    pub mode: Mode,
    /// Connections that one source may open in a second; 0 sets no limit.
    #[serde(default)]
    pub syn_per_s: u32,
    /// Connections that it may open at once.
    #[serde(default)]
    pub syn_burst: u32,
    /// One network a line; `#` begins a comment.
    pub allow_file: Option<PathBuf>,
    /// As `allow_file`.
    pub deny_file: Option<PathBuf>,
    /// Observation before arming, s.
    #[serde(default = "sixty")]
    pub window_s: u32,
    /// Arms although few sources send most; logged.
    #[serde(default)]
    pub arm_anyway: bool,
    /// SYNs a second from all sources above which the log has an alarm; nothing is enforced by it. 0 for none.
    #[serde(default)]
    pub alarm_syn_per_s: u64,
    /// Below a BPF file system; without it the guard ends with its process.
    pub pin_dir: Option<PathBuf>,
    /// Where metrics are answered.
    #[serde(default = "guard_metrics")]
    pub metrics: SocketAddr,
    /// For the lock and verifier logs.
    #[serde(default = "state_dir")]
    pub state_dir: PathBuf,
}

/// What the guard does.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Counts what it would refuse.
    #[default]
    Observe,
    /// Refuses it.
    Enforce,
}

fn sixty() -> u32 {
    60
}

fn guard_metrics() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8_083))
}

fn state_dir() -> PathBuf {
    "/run/forebay/guard".into()
}

/// `"8000-8100"` or `"8000"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRange(pub RangeInclusive<u16>);

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first @ 1..), Ok(last)) if first <= last => Ok(Self(first..=last)),
            _ => Err(serde::de::Error::custom(format!("\"{text}\" is no range of ports, such as \"8000-8100\""))),
        }
    }
}

impl Config {
    /// Reads and checks a file; the error names what is wrong, where, and what to write.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// As [`Self::read`], from text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        config.load.as_ref().map_or(Ok(()), Load::check)?;
        config.guard.as_ref().map_or(Ok(()), Guard::check)?;
        Ok(config)
    }
}

impl Load {
    fn check(&self) -> Result<(), String> {
        if self.workers.is_empty() && self.discover_ports.is_none() {
            return Err("load: no engine to watch; set workers or discover_ports".to_owned());
        }
        if self.workers.len() > MAX_WORKERS {
            return Err(format!("load.workers: {} are more than {MAX_WORKERS}", self.workers.len()));
        }
        if self.transfer_ports.len() > MAX_PORTS {
            return Err(format!("load.transfer_ports: {} are more than {MAX_PORTS}", self.transfer_ports.len()));
        }
        within("load.period_ms", self.period_ms, 50, 5_000)?;
        within("load.sockets_period_ms", self.sockets_period_ms, 200, 60_000)?;
        if !self.listen.ip().is_loopback() && self.token_file.is_none() {
            let listen = self.listen;
            return Err(format!(
                "load.listen: {listen} is open to others; set token_file, or listen at a loopback address"
            ));
        }
        if self.busy && self.cgroup.is_none() {
            return Err("load.busy: needs a cgroup; set load.cgroup".to_owned());
        }
        Ok(())
    }
}

impl Guard {
    fn check(&self) -> Result<(), String> {
        if self.targets.is_empty() {
            return Err("guard.targets: nothing is guarded; name the listeners of the gateway".to_owned());
        }
        if self.targets.iter().any(|target| target.port() == 0) {
            return Err("guard.targets: port 0 is no listener".to_owned());
        }
        if (self.syn_per_s == 0) != (self.syn_burst == 0) {
            return Err("guard: syn_per_s and syn_burst belong together; set both or neither".to_owned());
        }
        if self.targets.iter().any(|target| target.ip().is_multicast()) {
            return Err("guard.targets: a multicast address has no connections".to_owned());
        }
        within("guard.window_s", self.window_s, 1, 3_600)
    }
}

fn within(key: &str, value: u32, low: u32, high: u32) -> Result<(), String> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(format!("{key}: {value} is out of bounds; write {low} to {high}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_file_has_sensible_defaults() {
        let config = Config::parse("[load]\nworkers = [\"127.0.0.1:8000\"]\n").unwrap();
        let load = config.load.unwrap();
        assert_eq!((load.period_ms, load.programs, load.busy), (200, true, false));
        let guard =
            Config::parse("[guard]\ninterface = \"eth0\"\ntargets = [\"0.0.0.0:8080\"]\n").unwrap().guard.unwrap();
        assert_eq!((guard.mode, guard.window_s), (Mode::Observe, 60));
    }

    #[test]
    fn what_does_not_hold_together_is_said_with_what_to_write() {
        let cases = [
            ("[load]\n", "set workers or discover_ports"),
            ("[load]\nworkers = [\"1.2.3.4:1\"]\nlisten = \"0.0.0.0:7470\"\n", "set token_file"),
            ("[load]\nworkers = [\"1.2.3.4:1\"]\nperiod_ms = 1\n", "write 50 to 5000"),
            ("[load]\nworkers = [\"1.2.3.4:1\"]\ncolour = 1\n", "unknown field `colour`"),
            ("[load]\ndiscover_ports = \"9-3\"\n", "no range of ports"),
            ("[load]\nworkers = [\"1.2.3.4:1\"]\nbusy = true\n", "needs a cgroup"),
            ("[guard]\ninterface = \"eth0\"\ntargets = []\n", "nothing is guarded"),
            ("[guard]\ninterface = \"eth0\"\ntargets = [\"0.0.0.0:80\"]\nsyn_per_s = 5\n", "belong together"),
        ];
        for (text, expected) in cases {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
