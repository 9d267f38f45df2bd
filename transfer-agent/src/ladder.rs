//! What is on, what is off and why: each signal has a level of its own.

use forebay_ebpf::Error;

/// One signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its name; a metric label.
    pub name: &'static str,
    /// Level that it has reached; 0 is off.
    pub level: u8,
    /// Why it is no higher, where something is missing.
    pub why: Option<String>,
}

impl Signal {
    /// At its full level.
    pub fn on(name: &'static str, level: u8) -> Self {
        Self { name, level, why: None }
    }

    /// Off, or lower than it could be.
    pub fn held(name: &'static str, level: u8, why: impl Into<String>) -> Self {
        Self { name, level, why: Some(why.into()) }
    }
}

/// All signals of a role in one line.
pub fn line(signals: &[Signal]) -> String {
    let words: Vec<String> = signals
        .iter()
        .map(|signal| match (&signal.why, signal.level) {
            (None, level) => format!("{} L{level}", signal.name),
            (Some(why), 0) => format!("{} off ({why})", signal.name),
            (Some(why), level) => format!("{} L{level} ({why})", signal.name),
        })
        .collect();
    words.join("; ")
}

/// How often each stage failed with each error number, for the metric `forebay_agent_kernel_signal_errors_total`.
#[derive(Debug, Default)]
pub struct Failures {
    counts: Vec<(&'static str, i32, u64)>,
}

impl Failures {
    /// Counts one; 0 stands for a failure without a number.
    pub fn count(&mut self, error: &Error) {
        let (stage, errno) = (error.stage.name(), error.errno.unwrap_or(0));
        match self.counts.iter_mut().find(|(s, e, _)| (*s, *e) == (stage, errno)) {
            Some((_, _, count)) => *count += 1,
            None => self.counts.push((stage, errno, 1)),
        }
    }

    /// Stage, error number, how often.
    pub fn counts(&self) -> &[(&'static str, i32, u64)] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_on_what_is_off_and_why() {
        let signals = [
            Signal::on("sockets", 1),
            Signal::held("connections", 1, "no CAP_BPF"),
            Signal::held("rdma", 0, "no device"),
        ];
        assert_eq!(line(&signals), "sockets L1; connections L1 (no CAP_BPF); rdma off (no device)");
    }
}
