//! CPU time and memory of processes, read from `/proc`.
//!
//! CPU time is the sum over a process's live threads of `schedstat`'s first field: nanoseconds on a core, as the
//! scheduler counts them. A thread that ends between two readings takes its time with it; routers keep theirs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A named set of process ids that are measured as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// `router`, `engine`, …
    pub name: String,
    /// Its processes.
    pub pids: Vec<u32>,
}

impl std::str::FromStr for Watched {
    type Err = String;

    /// `NAME=PID` or `NAME=PID+PID`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not NAME=PID[+PID…]");
        let (name, pids) = text.split_once('=').ok_or_else(wrong)?;
        let pids = pids.split('+').map(|pid| pid.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
        Ok(Self { name: name.to_owned(), pids })
    }
}

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in ns.
    pub cpu_ns: u64,
    /// Resident memory in kB.
    pub rss_kb: u64,
    /// Threads.
    pub threads: u64,
}

impl Usage {
    /// Reads all processes of a set; `None` when one of them is gone.
    pub fn read(pids: &[u32]) -> Option<Self> {
        let mut usage = Self::default();
        for pid in pids {
            let one = read_process(&Path::new("/proc").join(pid.to_string()))?;
            usage.cpu_ns += one.cpu_ns;
            usage.rss_kb += one.rss_kb;
            usage.threads += one.threads;
        }
        Some(usage)
    }

    /// Reads every watched set, by name; sets with a dead process are left out.
    pub fn read_all(watched: &[Watched]) -> BTreeMap<String, Self> {
        watched.iter().filter_map(|set| Some((set.name.clone(), Self::read(&set.pids)?))).collect()
    }
}

fn read_process(dir: &Path) -> Option<Usage> {
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let mut usage = Usage { rss_kb: status_kb(&status, "VmRSS:").unwrap_or(0), ..Usage::default() };
    for task in fs::read_dir(dir.join("task")).ok()?.flatten() {
        // A thread may end between the listing and the reading.
        if let Ok(text) = fs::read_to_string(task.path().join("schedstat")) {
            usage.cpu_ns += schedstat_ns(&text).unwrap_or(0);
            usage.threads += 1;
        }
    }
    Some(usage)
}

fn schedstat_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn status_kb(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_parse() {
        let set: Watched = "router=12+34".parse().unwrap();
        assert_eq!(set, Watched { name: "router".into(), pids: vec![12, 34] });
        for wrong in ["router", "router=", "router=1+x"] {
            assert!(wrong.parse::<Watched>().unwrap_err().contains("NAME=PID"), "{wrong}");
        }
    }

    #[test]
    fn fields_are_read_where_they_stand() {
        assert_eq!(schedstat_ns("123456789 42 7\n"), Some(123_456_789));
        assert_eq!(schedstat_ns(""), None);
        assert_eq!(status_kb("Name:\tx\nVmRSS:\t  2048 kB\n", "VmRSS:"), Some(2_048));
        assert_eq!(status_kb("Name:\tx\n", "VmRSS:"), None);
    }

    #[test]
    fn own_process_uses_cpu_and_a_dead_one_reads_as_none() {
        let before = Usage::read(&[std::process::id()]).unwrap();
        let spun: u64 = (0..20_000_000_u64).fold(0, |sum, x| std::hint::black_box(sum ^ x));
        let after = Usage::read(&[std::process::id()]).unwrap();
        assert!(after.cpu_ns > before.cpu_ns, "{spun}");
        assert!(after.rss_kb > 0 && after.threads > 0);
        assert_eq!(Usage::read(&[u32::MAX]), None);
    }
}
