//! Markdown tables and the formats of their cells.

use crate::stats::Repeated;
use std::fmt::Write as _;

/// A markdown table.
#[derive(Clone, Debug)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(header: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { header: header.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; a cell for each column.
    pub fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// As markdown.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let rule = vec!["---".to_owned(); self.header.len()];
        for row in [&self.header, &rule].into_iter().chain(&self.rows) {
            _ = writeln!(out, "| {} |", row.join(" | "));
        }
        out
    }
}

/// A number with as many digits as it deserves: `1,234`, `56.7`, `3.21`.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1_000.0 => return grouped(value),
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The median, or `na`.
pub fn median(value: Option<Repeated>) -> String {
    value.map_or_else(|| "na".to_owned(), |value| number(value.median))
}

/// The median and the range, or `na`.
pub fn ranged(value: Option<Repeated>) -> String {
    value.map_or_else(
        || "na".to_owned(),
        |value| format!("{} ({}–{})", number(value.median), number(value.min), number(value.max)),
    )
}

/// How many times the base, or `na`.
pub fn times(value: Option<Repeated>, base: Option<Repeated>) -> String {
    ratio(value, base).map_or_else(|| "na".to_owned(), |ratio| format!("{ratio:.2}×"))
}

/// Ratio of medians.
pub fn ratio(value: Option<Repeated>, base: Option<Repeated>) -> Option<f64> {
    let (value, base) = (value?.median, base?.median);
    (base > 0.0).then(|| value / base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_three_digits_or_so() {
        let shown: Vec<String> = [0.0, 3.214, 17.26, 326.4, 1_564.8, 194_200.7, -1_200.0].map(number).to_vec();
        assert_eq!(shown, ["0.00", "3.21", "17.3", "326", "1,565", "194,201", "-1,200"]);
    }

    #[test]
    fn what_is_missing_reads_na() {
        let some = Repeated::of([2.0, 4.0, 9.0]);
        assert_eq!((median(None), ranged(None), times(None, some)), ("na".into(), "na".into(), "na".into()));
        assert_eq!((ranged(some), times(some, some)), ("4.00 (2.00–9.00)".into(), "1.00×".into()));
        assert_eq!(ratio(some, Repeated::of([0.0])), None);
    }

    #[test]
    fn tables_render_as_markdown() {
        let mut table = Table::new(["a", "b"]);
        table.push(vec!["1".into(), "2".into()]);
        assert_eq!(table.render(), "| a | b |\n| --- | --- |\n| 1 | 2 |\n");
    }
}
