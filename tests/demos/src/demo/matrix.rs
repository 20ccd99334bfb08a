//! The connectivity matrix, measured with connections in both families.

use std::time::{Duration, Instant};

use super::expected::PairTable;
use super::screen::{BAD, FAINT, GOOD, STRONG, Screen, seconds};
use super::shop::{Party, Shop};
use kit::lab::{Lab, probe_all};
use kit::oracle::Probe;

/// Whether a connection succeeded over IPv4 and over IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reachability([bool; 2]);

impl Reachability {
    pub(super) const BOTH: Reachability = Reachability([true, true]);
    pub(super) const NEITHER: Reachability = Reachability([false, false]);

    fn as_str(self) -> &'static str {
        match self.0 {
            [true, true] => "ok",
            [false, false] => "--",
            [true, false] => "v4",
            [false, true] => "v6",
        }
    }

    pub(super) fn described(self) -> &'static str {
        match self.0 {
            [true, true] => "connects",
            [false, false] => "does not connect",
            [true, false] => "connects over IPv4 only",
            [false, true] => "connects over IPv6 only",
        }
    }
}

pub(super) struct Matrix {
    pub(super) cells: PairTable<Reachability>,
    took: Duration,
}

/// A cell that differs from the expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrong {
    row: usize,
    column: usize,
    reached: Reachability,
    expected: bool,
}

impl Wrong {
    pub(super) fn name(&self, shop: &Shop) -> String {
        let (source, destination) = (&shop.sources[self.row], &shop.destinations[self.column]);
        let should = if self.expected { "should" } else { "should not" };
        format!("{} {} to {}, but {should}", source.full_name(), self.reached.described(), destination.full_name())
    }
}

/// One connection per family.
fn probes(source: &Party, destination: &Party) -> [Probe; 2] {
    [0, 1].map(|family| Probe {
        source: source.addresses[family],
        destination: destination.addresses[family],
        protocol: Probe::TCP,
        port: destination.port,
    })
}

/// Measures one cell.
pub(super) fn measure(lab: &Lab, source: &Party, destination: &Party) -> Reachability {
    let arrived = probe_all(lab, &probes(source, destination));
    Reachability([arrived[0], arrived[1]])
}

impl Matrix {
    /// Measures all cells at once.
    pub(super) fn measure(lab: &Lab, shop: &Shop) -> Matrix {
        let begun = Instant::now();
        let mut all = Vec::new();
        shop.table(|source, destination| all.extend(probes(source, destination)));
        let arrived = probe_all(lab, &all);
        let mut pairs = arrived.chunks_exact(2);
        let cells = shop.table(|_, _| {
            let pair = pairs.next().expect("two probes for every cell");
            Reachability([pair[0], pair[1]])
        });
        Matrix { cells, took: begun.elapsed() }
    }

    pub(super) fn compare(&self, shop: &Shop, expected: &PairTable<bool>) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        for row in 0..shop.sources.len() {
            for column in 0..shop.destinations.len() {
                let (Some(reached), Some(expected)) = (self.cells[row][column], expected[row][column]) else {
                    continue;
                };
                if reached != if expected { Reachability::BOTH } else { Reachability::NEITHER } {
                    wrong.push(Wrong { row, column, reached, expected });
                }
            }
        }
        wrong
    }

    pub(super) fn print(&self, screen: &Screen, shop: &Shop, wrong: &[Wrong]) {
        let titles: Vec<(&str, &str)> =
            shop.destinations.iter().map(|d| d.name.rsplit_once('-').unwrap_or((&d.name, ""))).collect();
        let widths: Vec<usize> = titles.iter().map(|(name, number)| name.len().max(number.len() + 1).max(3)).collect();
        let margin = 4 + shop.sources.iter().map(|source| source.name.len()).max().unwrap_or(0);
        let header = |texts: Vec<String>| {
            let cells = texts.iter().zip(&widths).map(|(text, width)| format!(" {text:width$}"));
            format!("{:margin$}{}", "", cells.collect::<String>()).trim_end().to_owned()
        };
        screen.line(format_args!("{:margin$}{STRONG}{}{STRONG:#}", "", groups_above(&shop.destinations, &widths)));
        screen.line(header(titles.iter().map(|(name, _)| (*name).into()).collect()));
        let numbers =
            titles.iter().map(|(_, number)| if number.is_empty() { String::new() } else { format!("-{number}") });
        screen.line(format_args!("{FAINT}{}{FAINT:#}", header(numbers.collect())));
        let mut group = "";
        for (row, source) in shop.sources.iter().enumerate() {
            if source.group != group {
                group = &source.group;
                screen.line(format_args!("   {STRONG}{group}{STRONG:#}"));
            }
            let mut line = format!("    {:width$}", source.name, width = margin - 4);
            for (column, width) in widths.iter().enumerate() {
                let is_wrong = wrong.iter().any(|cell| cell.row == row && cell.column == column);
                line.push_str(&format!(" {}", shown(self.cells[row][column], is_wrong, *width)));
            }
            screen.line(line.trim_end());
        }
        self.summarise(screen, wrong.len());
    }

    fn summarise(&self, screen: &Screen, wrong: usize) {
        let cells: Vec<Reachability> = self.cells.iter().flatten().flatten().copied().collect();
        let connected = cells.iter().filter(|cell| **cell == Reachability::BOTH).count();
        let silent = cells.iter().filter(|cell| **cell == Reachability::NEITHER).count();
        let (style, verdict) =
            if wrong == 0 { (GOOD, "as expected".into()) } else { (BAD, format!("{wrong} not as expected (!)")) };
        screen.line(format_args!(
            "   {connected} pairs connect (ok), {silent} get no answer (--), over IPv4 and over IPv6: \
             {style}{verdict}{style:#} {FAINT}{}{FAINT:#}",
            seconds(self.took)
        ));
    }
}

/// A cell, padded to its width.
fn shown(cell: Option<Reachability>, is_wrong: bool, width: usize) -> String {
    let Some(reached) = cell else { return " ".repeat(width) };
    let style = if is_wrong {
        BAD
    } else if reached == Reachability::BOTH {
        GOOD
    } else {
        FAINT
    };
    let text = format!("{}{}", reached.as_str(), if is_wrong { "!" } else { "" });
    let padding = " ".repeat(width.saturating_sub(text.len()));
    format!("{style}{text}{style:#}{padding}")
}

/// The header line with each namespace over the first of its columns.
fn groups_above(destinations: &[Party], widths: &[usize]) -> String {
    let mut line = String::new();
    let mut start: usize = 1;
    let mut group = "";
    for (destination, width) in destinations.iter().zip(widths) {
        if destination.group != group {
            group = &destination.group;
            line.push_str(&" ".repeat(start.saturating_sub(line.len())));
            line.push_str(group);
        }
        start += width + 1;
    }
    line
}
