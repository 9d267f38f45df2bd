//! Columns of text for a terminal.

/// Rows under a header, each column as wide as its widest cell, numbers to the right.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub(super) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// The lines, without trailing blanks.
    pub(super) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| {
                let blank = " ".repeat(width - cell.chars().count());
                let is_number = cell.parse::<f64>().is_ok();
                if is_number { format!("{blank}{cell}") } else { format!("{cell}{blank}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["worker", "ms"]);
        table.push(vec!["http://a:1".to_owned(), "7.5".to_owned()]);
        table.push(vec!["é".to_owned(), "120.0".to_owned()]);
        assert_eq!(table.render(), "worker      ms\nhttp://a:1    7.5\né           120.0");
    }
}
