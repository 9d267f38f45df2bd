//! The fault benchmark's tables and its last line.

use super::load::Row;
use super::soak::Soak;
use std::fmt::Write as _;

/// Everything that one run found; what did not run is absent.
#[derive(Default)]
pub struct Report {
    /// Engines that fail.
    pub kills: Vec<Row>,
    /// The gateway replaced.
    pub replacements: Vec<Row>,
    /// Minutes of it.
    pub soak: Option<Soak>,
}

impl Report {
    /// As markdown, the `RESULT` line last.
    pub fn render(&self) -> String {
        let mut page = String::from(
            "| what | requests | whole | lost before commit | ended in an error event | cut in silence | longest TTFT ms | s |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for row in self.rows() {
            let ends = row.endings;
            let what = if row.what.is_empty() { row.name.to_owned() } else { format!("{}: {}", row.name, row.what) };
            let total = ends.complete + ends.lost + ends.told + ends.silent;
            let _ = writeln!(
                page,
                "| {what} | {total} | {} | {} | {} | {} | {:.0} | {:.0} |",
                ends.complete, ends.lost, ends.told, ends.silent, row.worst_ttft_ms, row.seconds
            );
        }
        let examples: Vec<String> = self
            .rows()
            .flat_map(|row| row.examples.iter().map(move |text| format!("- {}: {text}", row.name)))
            .collect();
        if !examples.is_empty() {
            let _ = write!(page, "\nAn example of each failure:\n\n{}\n", examples.join("\n"));
        }
        if let Some(soak) = &self.soak {
            let _ = write!(page, "\nThe soak, read in moments of quiet:\n\n```\n{}\n```\n", soak.readings.join("\n"));
            let left = if soak.left_behind.is_empty() { "nothing".to_owned() } else { soak.left_behind.join("; ") };
            let _ = write!(page, "\nLeft behind at its end (reservations, buffers): {left}.\n");
        }
        let _ = write!(page, "\n{}\n", self.result());
        page
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.kills.iter().chain(&self.replacements).chain(self.soak.as_ref().map(|soak| &soak.row))
    }

    /// The last line.
    pub fn result(&self) -> String {
        let all = self.kills.iter().chain(self.soak.as_ref().map(|soak| &soak.row));
        let lost: Vec<usize> = all.map(|row| row.endings.lost + row.endings.silent).collect();
        let broken = self.replacements.iter().map(|row| row.endings.lost + row.endings.told + row.endings.silent);
        let broken: Vec<usize> = broken.collect();
        let sum = |values: &[usize]| match values {
            [] => "na".to_owned(),
            values => values.iter().sum::<usize>().to_string(),
        };
        let slope = |of: fn(&Soak) -> f64, digits: usize| match self.soak.as_ref().map(of) {
            // A tiny negative one would read as `-0`.
            Some(slope) if slope.is_finite() => format!("{:.digits$}", if slope.abs() < 0.005 { 0.0 } else { slope }),
            _ => "na".to_owned(),
        };
        format!(
            "RESULT lost_before_commit={} broken_by_upgrade={} rss_slope_kb_min={} fd_slope={}",
            sum(&lost),
            sum(&broken),
            slope(|soak| soak.rss_slope_kb_min, 0),
            slope(|soak| soak.fd_slope, 2)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::replay::Endings;

    fn row(name: &'static str, complete: usize, lost: usize, told: usize) -> Row {
        Row {
            name,
            what: String::new(),
            endings: Endings { complete, lost, told, silent: 0 },
            seconds: 1.0,
            worst_ttft_ms: 2.0,
            examples: Vec::new(),
        }
    }

    #[test]
    fn what_did_not_run_reads_na_and_an_error_event_counts_where_nothing_should_break() {
        let mut report = Report::default();
        assert_eq!(
            report.result(),
            "RESULT lost_before_commit=na broken_by_upgrade=na rss_slope_kb_min=na fd_slope=na"
        );
        report.kills = vec![row("a", 90, 2, 8), row("b", 100, 1, 0)];
        report.replacements = vec![row("c", 499, 0, 1)];
        report.soak = Some(Soak {
            row: row("soak", 10, 0, 0),
            rss_slope_kb_min: -0.2,
            fd_slope: -0.001,
            readings: vec!["one".to_owned()],
            left_behind: Vec::new(),
        });
        assert_eq!(
            report.result(),
            "RESULT lost_before_commit=3 broken_by_upgrade=1 rss_slope_kb_min=-0 fd_slope=0.00"
        );
        assert!(report.render().contains("| a | 100 | 90 | 2 | 8 | 0 | 2 | 1 |"));
    }
}
