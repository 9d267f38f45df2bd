//! A table in plain text: a block for each cell, a line for each policy, the best goodput first.

use crate::compare::{Row, Run, rows};
use std::fmt::Write as _;

/// All runs.
pub fn table(runs: &[Run]) -> String {
    let rows = rows(runs);
    let mut text = String::new();
    let mut cells: Vec<_> = Vec::new();
    for row in &rows {
        if !cells.contains(&row.cell) {
            cells.push(row.cell);
        }
    }
    for cell in cells {
        let (workload, engine, workers, load) = cell;
        let _ = writeln!(text, "{workload}, load {load}, {workers} workers, engine {engine}");
        let _ = writeln!(
            text,
            "  {:<20} {:>15} {:>6} {:>9} {:>9} {:>8} {:>8} {:>6} {:>9} {:>6}",
            "policy", "goodput", "late1", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "hit", "recomp ms", "max/mn"
        );
        let mut here: Vec<&Row<'_>> = rows.iter().filter(|row| row.cell == cell).collect();
        here.sort_by(|a, b| {
            b.estimate(|summary| summary.goodput).mean.total_cmp(&a.estimate(|summary| summary.goodput).mean)
        });
        for row in here {
            line(&mut text, row);
        }
        text.push('\n');
    }
    text
}

fn line(text: &mut String, row: &Row<'_>) {
    let goodput = row.estimate(|summary| summary.goodput);
    let mean = |figure: fn(&crate::measure::Summary) -> f64| row.estimate(figure).mean;
    let _ = writeln!(
        text,
        "  {:<20} {:>7.4} ±{:>6.4} {:>6.3} {:>9.1} {:>9.0} {:>8.2} {:>8.2} {:>6.3} {:>9.2} {:>6.2}",
        row.policy,
        goodput.mean,
        goodput.half,
        mean(|summary| summary.late_first),
        mean(|summary| summary.ttft_p50_ms),
        mean(|summary| summary.ttft_p99_ms),
        mean(|summary| summary.itl_p50_ms),
        mean(|summary| summary.itl_p99_ms),
        mean(|summary| summary.hit),
        mean(|summary| summary.recompute_ms),
        mean(|summary| summary.imbalance),
    );
}
