//! `forebay-agent doctor`: what this node and these privileges allow, found out by trying.

use crate::load::sockets;
use forebay_ebpf::probe::probe;
use std::fmt::Write as _;

/// Capabilities by their bits in `/proc/self/status`.
const CAPABILITIES: [(&str, u32); 4] =
    [("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];

/// The report, and whether everything is possible.
pub fn report() -> (String, bool) {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "capabilities: {}",
        capabilities(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    );
    let mut all = true;
    let listed = sockets::dump().map(|listed| listed.len());
    match listed {
        Ok(count) => row(&mut text, "sockets", "yes", &format!("{count} TCP sockets in this namespace (L1)")),
        Err(error) => {
            all = false;
            row(&mut text, "sockets", "no", &error.to_string());
        }
    }
    for feature in probe() {
        match feature.missing {
            None => row(&mut text, feature.name, "yes", feature.gives),
            Some(error) => {
                all = false;
                let errno = error.errno.map(|errno| format!(" [errno {errno}]")).unwrap_or_default();
                row(&mut text, feature.name, "no", &format!("{error}{errno}"));
            }
        }
    }
    (text, all)
}

fn row(text: &mut String, name: &str, answer: &str, words: &str) {
    let _ = writeln!(text, "{name:<12} {answer:<4} {words}");
}

/// Those of [`CAPABILITIES`] that the process has, by the text of `/proc/self/status`.
fn capabilities(status: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(bits) = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) else { return "unknown".to_owned() };
    let words: Vec<_> = CAPABILITIES
        .iter()
        .map(|(name, bit)| if bits >> bit & 1 == 1 { (*name).to_owned() } else { format!("no {name}") })
        .collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_named_whether_there_or_missing() {
        let status = "Name:\tx\nCapEff:\t000001fffeffffff\n";
        assert_eq!(capabilities(status), "CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF");
        assert_eq!(
            capabilities("CapEff:\t0000000000000000\n"),
            "no CAP_NET_ADMIN, no CAP_SYS_ADMIN, no CAP_PERFMON, no CAP_BPF"
        );
        assert_eq!(capabilities(""), "unknown");
    }
}
