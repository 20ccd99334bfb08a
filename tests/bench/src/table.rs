//! Markdown tables for documents, with aligned columns for readers in a terminal.

use std::fmt;

/// A table whose rows have as many cells as the head.
#[derive(Debug)]
pub(super) struct MarkdownTable {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl MarkdownTable {
    pub(super) fn new<T: Into<String>>(head: impl IntoIterator<Item = T>) -> MarkdownTable {
        MarkdownTable { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// # Panics
    /// If the row has more or fewer cells than the head.
    pub(super) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        // A `|` in a cell, as rules write it between two sets of bits, would end the column.
        let cells: Vec<String> = cells.into_iter().map(|cell| cell.into().replace('|', "\\|")).collect();
        assert_eq!(cells.len(), self.head.len(), "{cells:?} under {:?}", self.head);
        self.rows.push(cells);
    }
}

impl fmt::Display for MarkdownTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let last = self.head.len() - 1;
        // The last column has long cells, and nothing follows it.
        let width = |column: usize| match column {
            column if column == last => 0,
            column => lines().map(|line| line[column].chars().count()).max().unwrap_or(0),
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for (number, line) in lines().enumerate() {
            for (cell, width) in line.iter().zip(&widths) {
                write!(f, "| {cell:<width$} ")?;
            }
            writeln!(f, "|")?;
            if number == 0 {
                writeln!(f, "{}|", "|---".repeat(self.head.len()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_except_the_last() {
        let mut table = MarkdownTable::new(["", "ns", "rule"]);
        table.row(["established", "9", "a long | one"]);
        table.row(["first", "100", "b"]);
        let shown = "|             | ns  | rule |\n|---|---|---|\n| established | 9   | a long \\| one |\n\
                     | first       | 100 | b |\n";
        assert_eq!(table.to_string(), shown);
    }
}
