//! The one place that prints: the demo's output is its product.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the demo talks to a person at a terminal")]

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;

/// Steps between two plain progress lines when the output is not a terminal, in percent.
const PLAIN_STEP_PERCENT: u64 = 20;

/// Prints a line.
pub fn say(line: impl AsRef<str>) {
    println!("{}", line.as_ref());
}

/// Prints a line to the error stream.
pub fn complain(line: impl AsRef<str>) {
    eprintln!("{}", line.as_ref());
}

/// Progress of one run: a bar on a terminal, a line every fifth otherwise.
pub struct Progress {
    title: String,
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts at zero of `total`.
    pub fn start(title: &str, total: u64) -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix:>12} [{bar:40}] {pos}/{len} {elapsed} eta {eta}");
            ProgressBar::new(total)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "))
                .with_prefix(title.to_owned())
        });
        Self { title: title.to_owned(), total, done: 0, bar }
    }

    /// One more is done.
    pub fn step(&mut self) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => {
                let percent = |done: u64| done * 100 / self.total.max(1) / PLAIN_STEP_PERCENT;
                if percent(self.done) != percent(self.done - 1) {
                    say(format!("{:>12} {}/{}", self.title, self.done, self.total));
                }
            }
        }
    }

    /// Leaves the bar as it stands.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish();
        }
    }
}
