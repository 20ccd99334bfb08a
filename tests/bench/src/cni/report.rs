//! The figures as a table for each cluster.

use std::fmt;

use super::super::figures::{Figure, Spread};
use super::super::record::{Measurement, Record};
use super::super::table::MarkdownTable;
use super::{Rounds, Samples, Size};

pub(super) struct CniReport {
    pub(super) size: Size,
    pub(super) clusters: [Rounds; 2],
}

/// Selects the samples of a round.
type FigureOf = fn(&Samples) -> &Vec<f64>;
/// The median, or the 99th percentile.
type Part = fn(&Spread) -> f64;

const LINES: [(&str, FigureOf); 6] = [
    ("ADD of the chain, without the plugin", |s| &s.without),
    ("ADD of the chain, with the plugin", |s| &s.with),
    ("the plugin's part of ADD", |s| &s.plugin),
    ("the plugin's part of DEL", |s| &s.plugin_delete),
    ("start of the plugin (`VERSION`)", |s| &s.version),
    ("start of a program that does nothing (`true`)", |s| &s.nothing),
];
const ADDED: &str = "added by the plugin";

const PARTS: [(&str, Part); 2] = [("median", |spread| spread.median), ("99th percentile", |spread| spread.p99)];

fn part_of(samples: &[f64], part: Part) -> f64 {
    part(&Spread::of(samples.iter().copied()).expect("some containers"))
}

impl Rounds {
    fn figure(&self, of: FigureOf, part: Part) -> Figure {
        Figure::of(self.rounds.iter().map(|round| part_of(of(round), part)))
    }

    /// The difference of the two chains, of each round.
    fn added(&self, part: Part) -> Figure {
        Figure::of(self.rounds.iter().map(|round| part_of(&round.with, part) - part_of(&round.without, part)))
    }

    /// All rows of a part, with their labels.
    fn lines(&self, part: Part) -> Vec<(&'static str, Figure)> {
        let mut lines: Vec<_> = LINES.iter().map(|(what, of)| (*what, self.figure(*of, part))).collect();
        lines.insert(2, (ADDED, self.added(part)));
        lines
    }
}

impl CniReport {
    pub(super) fn measured(&self) -> Measurement {
        let mut records = Vec::new();
        for cluster in &self.clusters {
            for (name, part) in PARTS {
                let subject = format!("a pod's start, {name}");
                let x = (cluster.pods as f64, "pods");
                let lines = cluster.lines(part).into_iter();
                records.extend(lines.map(|(what, figure)| Record::new("cni", (&subject, what), x, (&figure, "ms"))));
            }
        }
        Measurement { report: self.to_string(), records }
    }

    fn table(&self) -> MarkdownTable {
        let heads =
            self.clusters.iter().flat_map(|cluster| PARTS.map(|(name, _)| format!("{name}, {} pods", cluster.pods)));
        let mut table = MarkdownTable::new(std::iter::once(String::new()).chain(heads));
        let columns: Vec<_> =
            self.clusters.iter().flat_map(|cluster| PARTS.map(|(_, part)| cluster.lines(part))).collect();
        for row in 0..columns[0].len() {
            let cells = columns.iter().map(|column| format!("{:.1}", column[row].1));
            table.row(std::iter::once(columns[0][row].0.to_owned()).chain(cells));
        }
        table
    }
}

impl fmt::Display for CniReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { rounds, containers, .. } = self.size;
        writeln!(
            f,
            "\ncni: ms, the median of {rounds} rounds (least-most) of {containers} ADDs with the plugin and as many without \
             in turn; the agent knows so many pods\n\n{}",
            self.table()
        )
    }
}
