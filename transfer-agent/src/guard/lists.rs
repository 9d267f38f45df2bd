//! Allow and deny lists: one network a line, `#` begins a comment.

use forebay_common::kernel::address;
use forebay_common::kernel::guard::{MAX_PREFIXES, MAX_RULES};
use forebay_ebpf::guard::Prefix;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Longest file that is read.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Both lists: networks to allow, and networks to deny with the positions of their counters.
pub type Pair = (Vec<Prefix>, Vec<(Prefix, u32)>);

/// The files, and what was read of them last.
#[derive(Debug)]
pub struct Lists {
    allow: Option<PathBuf>,
    deny: Option<PathBuf>,
    read_at: Option<(Stamp, Stamp)>,
    rules: Vec<String>,
}

/// When a file was last changed, and its length.
type Stamp = Option<(SystemTime, u64)>;

impl Lists {
    /// Nothing is read yet.
    pub fn new(allow: Option<PathBuf>, deny: Option<PathBuf>) -> Self {
        Self { allow, deny, read_at: None, rules: Vec::new() }
    }

    /// The lists, when their files changed since they were read; an error leaves what was read before. A file that failed is tried again
    /// when it changes.
    pub fn changed(&mut self) -> Result<Option<Pair>, String> {
        let stamps = (stamp(self.allow.as_deref()), stamp(self.deny.as_deref()));
        if self.read_at == Some(stamps) {
            return Ok(None);
        }
        self.read_at = Some(stamps);
        let allow = read(self.allow.as_deref())?;
        let deny = read(self.deny.as_deref())?;
        self.rules = deny.iter().map(|(_, text)| text.clone()).take(MAX_RULES as usize).collect();
        // Rules beyond those with counters share the last one.
        let numbered = deny.iter().zip(0..).map(|((prefix, _), n): (_, u32)| (*prefix, n.min(MAX_RULES - 1))).collect();
        Ok(Some((allow.into_iter().map(|(prefix, _)| prefix).collect(), numbered)))
    }

    /// Rules of the deny list: position of the counter, and the network as it is written.
    pub fn rules(&self) -> impl Iterator<Item = (u32, &str)> {
        (0..).zip(self.rules.iter().map(String::as_str))
    }
}

fn stamp(path: Option<&Path>) -> Stamp {
    let data = std::fs::metadata(path?).ok()?;
    Some((data.modified().ok()?, data.len()))
}

fn read(path: Option<&Path>) -> Result<Vec<(Prefix, String)>, String> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let shown = path.display();
    let length = std::fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?.len();
    if length > MAX_FILE_BYTES {
        return Err(format!("{shown}: {length} bytes are more than {MAX_FILE_BYTES}"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    let list = parse(&text).map_err(|error| format!("{shown}: {error}"))?;
    if list.len() > MAX_PREFIXES as usize {
        return Err(format!("{shown}: {} networks are more than {MAX_PREFIXES}", list.len()));
    }
    Ok(list)
}

/// Networks with the text of each.
pub fn parse(text: &str) -> Result<Vec<(Prefix, String)>, String> {
    let mut list = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let network = line.split('#').next().unwrap_or_default().trim();
        if !network.is_empty() {
            let prefix = prefix(network).map_err(|error| format!("line {}: {error}", number + 1))?;
            list.push((prefix, network.to_owned()));
        }
    }
    Ok(list)
}

fn prefix(network: &str) -> Result<Prefix, String> {
    let unfit = || format!("\"{network}\" is no network, such as 10.0.0.0/8 or 2001:db8::/32");
    let (address, bits) = match network.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| unfit())?)),
        None => (network, None),
    };
    let (bytes, most, before) = match address.parse::<IpAddr>().map_err(|_| unfit())? {
        IpAddr::V4(v4) => (address::from_v4(v4.octets()), 32, 96),
        IpAddr::V6(v6) => (v6.octets(), 128, 0),
    };
    let bits = bits.unwrap_or(most);
    if bits > most {
        return Err(unfit());
    }
    let (bits, whole) = (bits + before, u128::from_be_bytes(bytes));
    if bits < 128 && whole.checked_shl(bits).is_some_and(|rest| rest != 0) {
        return Err(format!("\"{network}\" has bits set beyond its length; write the network's first address"));
    }
    Ok((bits, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_both_families_and_comments() {
        let list = parse("# office\n10.0.0.0/8\n\n192.0.2.7 # one host\n2001:db8::/32\n0.0.0.0/0\n").unwrap();
        let prefixes: Vec<_> = list.iter().map(|(prefix, _)| *prefix).collect();
        assert_eq!(prefixes[0], (104, address::from_v4([10, 0, 0, 0])));
        assert_eq!(prefixes[1], (128, address::from_v4([192, 0, 2, 7])));
        assert_eq!((prefixes[2].0, prefixes[3].0), (32, 96));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, expected) in [
            ("10.0.0.0/8\nten.0.0.0/8\n", "line 2"),
            ("10.0.0.0/33\n", "no network"),
            ("10.0.0.1/8\n", "bits set beyond"),
            ("::1/64\n", "bits set beyond"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn files_are_read_when_they_change_and_a_bad_one_is_said_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deny");
        std::fs::write(&path, "10.0.0.0/8\n").unwrap();
        let mut lists = Lists::new(None, Some(path.clone()));
        let (allow, deny) = lists.changed().unwrap().unwrap();
        assert_eq!((allow.len(), deny.len(), deny[0].1), (0, 1, 0));
        assert_eq!(lists.changed(), Ok(None), "nothing changed");
        std::fs::write(&path, "broken line\n").unwrap();
        assert!(lists.changed().is_err());
        assert_eq!(lists.changed(), Ok(None), "said once");
        assert_eq!(lists.rules().collect::<Vec<_>>(), [(0, "10.0.0.0/8")], "what was read before stays");
    }
}
