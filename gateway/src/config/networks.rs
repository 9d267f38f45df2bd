//! Lists of networks and host names, as configured: who is trusted, who may be added.

use std::net::{IpAddr, Ipv6Addr};

/// Entries of one list; it is walked for each look-up.
const MAX_ENTRIES: usize = 256;

/// Words that stand for several networks. Link-local addresses (a cloud's metadata service) are in none of them.
const WORDS: [(&str, &[&str]); 3] = [
    ("loopback", &["127.0.0.0/8", "::1/128"]),
    ("private", &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"]),
    ("any", &["0.0.0.0/0", "::/0"]),
];

/// One network; IPv4 is kept in its IPv6 mapping, so that both families compare alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    bits: u128,
    mask: u128,
}

/// Which hosts are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    networks: Vec<Network>,
    /// Lower case; `*.lan` stands for every name below.
    names: Vec<String>,
    /// As written.
    text: String,
}

impl std::fmt::Display for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Hosts {
    /// Reads `"10.0.0.0/8, gpu-1.lan, *.engines.lan, loopback"`. The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut hosts = Self { text: text.to_owned(), ..Self::default() };
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            if hosts.networks.len() + hosts.names.len() >= MAX_ENTRIES {
                return Err(format!("has more than {MAX_ENTRIES} entries; write wider networks"));
            }
            hosts.push(entry)?;
        }
        Ok(hosts)
    }

    fn push(&mut self, entry: &str) -> Result<(), String> {
        if let Some((word, networks)) = WORDS.iter().find(|(word, _)| *word == entry) {
            self.networks.extend(networks.iter().filter_map(|network| Network::parse(network)));
            if *word == "loopback" {
                self.names.push("localhost".to_owned());
            }
            if *word == "any" {
                self.names.push("*".to_owned());
            }
            return Ok(());
        }
        if let Some(network) = Network::parse(entry) {
            self.networks.push(network);
            return Ok(());
        }
        let name = entry.strip_prefix("*.").unwrap_or(entry);
        let label = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        let numeric = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if numeric || !name.split('.').all(label) {
            return Err(format!(
                "\"{entry}\" is neither a network nor a name; write 10.0.0.0/8, host.lan, *.lan, loopback, private or any"
            ));
        }
        self.names.push(entry.to_ascii_lowercase());
        Ok(())
    }

    /// Nobody is meant.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.names.is_empty()
    }

    /// Whether names are listed, beside networks.
    pub fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether `address` lies in a listed network.
    pub fn has_address(&self, address: IpAddr) -> bool {
        let bits = bits_of(address);
        self.networks.iter().any(|network| bits & network.mask == network.bits)
    }

    /// Whether `host`, a name or an address as a URL writes it, is listed. A name is never looked up here: what it stands
    /// for may change between the look and the use.
    pub fn has(&self, host: &str) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            return self.has_address(address);
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.names.iter().any(|name| match name.strip_prefix('*') {
            Some(below) => host.ends_with(below) && host.len() > below.len(),
            None => *name == host,
        })
    }
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(width);
        if length > width {
            return None;
        }
        let mask = u128::MAX.checked_shl(width - length).unwrap_or(0);
        // The mapping's fixed part belongs to every IPv4 network.
        let mask = if width == 32 { mask | u128::MAX << 32 } else { mask };
        Some(Self { bits: bits_of(address) & mask, mask })
    }
}

fn bits_of(address: IpAddr) -> u128 {
    let mapped: Ipv6Addr = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    mapped.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_names_and_words() {
        let hosts = Hosts::parse("10.1.0.0/16, gpu-1.lan, *.engines.lan, loopback, 2001:db8::/32").expect("good");
        for inside in ["10.1.2.3", "GPU-1.lan", "a.engines.lan", "127.9.9.9", "[::1]", "localhost", "2001:db8::7"] {
            assert!(hosts.has(inside), "{inside}");
        }
        for outside in ["10.2.0.1", "gpu-2.lan", "engines.lan", "169.254.169.254", "8.8.8.8", "2001:db9::1", "evil.com"]
        {
            assert!(!hosts.has(outside), "{outside}");
        }
        assert!(hosts.has("::ffff:10.1.0.9"), "IPv4 in IPv6's clothes");
        assert!(!hosts.has("::ffff:10.2.0.9"));
        let wide = Hosts::parse("private").expect("good");
        assert!(wide.has("192.168.7.7") && wide.has("fd00::1") && !wide.has("169.254.169.254") && !wide.has("1.1.1.1"));
        let any = Hosts::parse("any").expect("good");
        assert!(any.has("8.8.8.8") && any.has("::2") && any.has("name.example"));
    }

    #[test]
    fn nonsense_is_refused_and_nothing_means_nobody() {
        for bad in ["10.0.0.0/33", "::/129", "a b", "10.0.0", "*", "*.*.lan", "http://a:1", "a..b"] {
            assert!(Hosts::parse(bad).is_err(), "{bad}");
        }
        let many = vec!["10.0.0.1"; 257].join(",");
        assert!(Hosts::parse(&many).expect_err("too many").contains("256"));
        let nobody = Hosts::parse("").expect("empty");
        assert!(nobody.is_empty() && !nobody.has("10.0.0.1"));
    }
}
