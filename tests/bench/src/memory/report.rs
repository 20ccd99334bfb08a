//! The figures as tables, and whether the bars are met. A megabyte is 10^6 bytes.

use std::fmt::{self, Write};

use super::super::fed::thousands;
use super::super::figures::{Bar, Figure, median_of};
use super::super::record::{Measurement, Record};
use super::super::table::MarkdownTable;
use super::{POINTS, Run, Runs};

const MEGA: f64 = 1e6;
const UNIT: &str = "MB";

/// The bars are those of a cluster of this size: in a small one the program and its queues dominate.
const BAR_AT_PODS: usize = 100_000;
const STARTED_BELOW_MB: f64 = 150.0;
/// The peak of the start over the resident set after it.
const PEAK_BELOW: f64 = 1.5;
/// The resident set after events over that of a start on the same objects: allocator fragmentation may add this much.
const GROWTH_BELOW: f64 = 1.05;

pub(super) struct MemoryReport {
    /// Events of a run.
    pub(super) events: usize,
    pub(super) clusters: Vec<Runs>,
}

impl Run {
    /// Resident set after the last events.
    fn last_bytes(&self) -> u64 {
        self.later.last().map_or(self.started, |(_, memory)| *memory).resident_bytes
    }

    fn growth(&self) -> f64 {
        self.last_bytes() as f64 / self.anew.resident_bytes as f64
    }
}

impl Runs {
    fn megabytes(&self, bytes: impl Fn(&Run) -> u64) -> Figure {
        Figure::of(self.runs.iter().map(|run| bytes(run) as f64 / MEGA))
    }

    fn ratio(&self, of: impl Fn(&Run) -> f64) -> Figure {
        Figure::of(self.runs.iter().map(of))
    }

    /// Resident set after each number of events, which is the same in each run.
    fn over_events(&self) -> impl Iterator<Item = (usize, Figure)> {
        (0..POINTS).map(|point| {
            let events = self.runs[0].later[point].0;
            (events, self.megabytes(|run| run.later[point].1.resident_bytes))
        })
    }
}

impl MemoryReport {
    pub(super) fn measured(&self) -> Measurement {
        let mut records = Vec::new();
        for runs in &self.clusters {
            let pods = (runs.cluster.pods as f64, "pods");
            let record = |series: (&str, &str), x: (f64, &str), figure: &Figure| {
                Record::new("memory", series, x, (figure, UNIT))
            };
            let after_start = runs.megabytes(|run| run.started.resident_bytes);
            let started = record(("by size of the cluster", "after start"), pods, &after_start);
            records.push(if runs.cluster.pods == BAR_AT_PODS { started.below(STARTED_BELOW_MB) } else { started });
            let peak = runs.megabytes(|run| run.started.peak_bytes);
            records.push(record(("by size of the cluster", "peak of the start"), pods, &peak));
            let line = format!("{} pods", thousands(runs.cluster.pods));
            let mut over_events = |events: usize, figure: &Figure| {
                records.push(record(("over events", &line), (events as f64, "events"), figure));
            };
            over_events(0, &after_start);
            runs.over_events().for_each(|(events, figure)| over_events(events, &figure));
        }
        Measurement { report: self.to_string(), records }
    }

    fn by_size(&self) -> MarkdownTable {
        let after = format!("after {} events", self.events);
        let mut table = MarkdownTable::new([
            "pods",
            "JSON",
            "after the start",
            "peak",
            &after,
            "a start on the same objects",
            "growth over that",
            "the agent's own estimate",
        ]);
        for runs in &self.clusters {
            let figures = [
                runs.megabytes(|run| run.started.resident_bytes),
                runs.megabytes(|run| run.started.peak_bytes),
                runs.megabytes(Run::last_bytes),
                runs.megabytes(|run| run.anew.resident_bytes),
            ];
            let json = format!("{:.1}", runs.json_bytes as f64 / MEGA);
            let mut row = vec![thousands(runs.cluster.pods), json];
            row.extend(figures.iter().map(Figure::short));
            row.push(format!("{:.3}", runs.ratio(Run::growth)));
            row.push(runs.megabytes(|run| run.estimated_bytes).short());
            table.row(row);
        }
        table
    }

    fn over_events(&self) -> MarkdownTable {
        let pods = self.clusters.iter().map(|runs| format!("{} pods", thousands(runs.cluster.pods)));
        let mut table = MarkdownTable::new(std::iter::once("after events".to_owned()).chain(pods));
        let columns: Vec<Vec<(usize, Figure)>> =
            self.clusters.iter().map(|runs| runs.over_events().collect()).collect();
        for point in 0..POINTS {
            let Some(first) = columns.first() else { break };
            let cells = columns.iter().map(|column| column[point].1.short());
            table.row(std::iter::once(first[point].0.to_string()).chain(cells));
        }
        table
    }

    fn write_bars(&self, f: &mut String) -> fmt::Result {
        for runs in self.clusters.iter().filter(|runs| runs.cluster.pods == BAR_AT_PODS) {
            let pods = thousands(BAR_AT_PODS);
            let mut bar = |what: &str, figure: &Figure, below: f64| {
                writeln!(f, "  {what}, {pods} pods: {}", Bar { figure: figure.median(), below })
            };
            bar("after start, MB", &runs.megabytes(|run| run.started.resident_bytes), STARTED_BELOW_MB)?;
            let peak = runs.ratio(|run| run.started.peak_bytes as f64 / run.started.resident_bytes as f64);
            bar("peak of the start by what is there after it", &peak, PEAK_BELOW)?;
            let what = format!("after {} events by a start on the same objects", self.events);
            bar(&what, &runs.ratio(Run::growth), GROWTH_BELOW)?;
        }
        Ok(())
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = median_of(self.clusters.first().map_or(0, |runs| runs.runs.len()));
        writeln!(f, "\nmemory: resident set of the agent, MB (10^6 bytes), {spread}\n")?;
        write!(f, "{}", self.by_size())?;
        writeln!(f, "\nover events, with as many objects as before\n")?;
        write!(f, "{}", self.over_events())?;
        let mut bars = String::new();
        self.write_bars(&mut bars)?;
        if bars.is_empty() { Ok(()) } else { write!(f, "\nbars\n{bars}") }
    }
}
