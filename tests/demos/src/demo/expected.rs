//! The expected matrix, written by a person.
//!
//! The first line names the columns, every other one is a row; `ok` is a connection, `--` none, `=` a cell that is not
//! tested. `#` starts a comment.

use std::path::Path;

use anyhow::Context;

use super::shop::{Party, Shop};

/// The file's name in the example's folder.
pub const FILE: &str = "expected.txt";

/// A value for each source (rows) and destination; `None` for cells that are not tested.
pub type PairTable<T> = Vec<Vec<Option<T>>>;

/// Why a text is an invalid expectation for this example.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotExpectation {
    #[error("there is no line that names the columns")]
    Empty,
    #[error("line {line}: the columns must be {wanted}")]
    Columns { line: usize, wanted: String },
    #[error("line {line}: this row must be {wanted}")]
    Row { line: usize, wanted: String },
    #[error("line {line}: {found} cells for {wanted} columns")]
    Length { line: usize, found: usize, wanted: usize },
    #[error("line {line}: {cell} is not {wanted}, the cell of {destination}")]
    Cell { line: usize, cell: String, wanted: &'static str, destination: String },
    #[error("the row of {0} is missing")]
    Missing(String),
    #[error("line {line}: there are no more rows")]
    Surplus { line: usize },
}

pub fn read(folder: &Path, shop: &Shop) -> anyhow::Result<PairTable<bool>> {
    let path = folder.join(FILE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text, shop).with_context(|| path.display().to_string())
}

pub fn parse(text: &str, shop: &Shop) -> Result<PairTable<bool>, NotExpectation> {
    let lines = text.lines().enumerate().map(|(index, line)| {
        let words = line.split('#').next().unwrap_or_default().split_whitespace();
        (index + 1, words.collect::<Vec<&str>>())
    });
    let mut lines = lines.filter(|(_, words)| !words.is_empty());
    let (line, columns) = lines.next().ok_or(NotExpectation::Empty)?;
    let wanted: Vec<&str> = shop.destinations.iter().map(|party| party.name.as_str()).collect();
    if columns != wanted {
        return Err(NotExpectation::Columns { line, wanted: wanted.join(" ") });
    }
    let mut table = shop.table(|_, _| false);
    for (row, source) in table.iter_mut().zip(&shop.sources) {
        let (line, words) = lines.next().ok_or_else(|| NotExpectation::Missing(source.name.clone()))?;
        fill(row, source, &shop.destinations, line, &words)?;
    }
    match lines.next() {
        Some((line, _)) => Err(NotExpectation::Surplus { line }),
        None => Ok(table),
    }
}

fn fill(
    row: &mut [Option<bool>],
    source: &Party,
    destinations: &[Party],
    line: usize,
    words: &[&str],
) -> Result<(), NotExpectation> {
    let Some((_, cells)) = words.split_first().filter(|(name, _)| **name == source.name) else {
        return Err(NotExpectation::Row { line, wanted: source.name.clone() });
    };
    if cells.len() != row.len() {
        return Err(NotExpectation::Length { line, found: cells.len(), wanted: row.len() });
    }
    for ((value, cell), destination) in row.iter_mut().zip(cells).zip(destinations) {
        let tried = value.is_some();
        *value = match *cell {
            "ok" if tried => Some(true),
            "--" if tried => Some(false),
            "=" if !tried => None,
            other => {
                let wanted = if tried { "ok or --" } else { "=" };
                let destination = destination.name.clone();
                return Err(NotExpectation::Cell { line, cell: other.into(), wanted, destination });
            }
        };
    }
    Ok(())
}
