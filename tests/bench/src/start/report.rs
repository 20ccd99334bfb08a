//! The figures as a table, and whether the bars are met.

use std::fmt::{self, Write};
use std::time::Duration;

use super::super::fed::thousands;
use super::super::figures::{Bar, Figure, median_of};
use super::super::record::{Measurement, Record};
use super::super::table::MarkdownTable;
use super::{Run, Start};

/// The bar is that of a cluster of this size.
const BAR_AT_PODS: usize = 100_000;
const COMMITTED_BELOW_SECONDS: f64 = 1.5;

pub(super) struct StartReport {
    pub(super) runs: Vec<Run>,
}

fn figure(starts: &[Start], of: impl Fn(&Start) -> Duration) -> Figure {
    Figure::of(starts.iter().map(|start| of(start).as_secs_f64()))
}

impl StartReport {
    pub(super) fn measured(&self) -> Measurement {
        let mut records = Vec::new();
        for run in &self.runs {
            let x = (run.cluster.pods as f64, "pods");
            let mut put = |line: &str, figure: &Figure, bar: Option<f64>| {
                let record = Record::new("start", ("into force", line), x, (figure, "s"));
                records.push(Record { bar, ..record });
            };
            let bar = (run.cluster.pods == BAR_AT_PODS).then_some(COMMITTED_BELOW_SECONDS);
            put("from the lists to the first commit", &figure(&run.cold, |start| start.committed), bar);
            put("from the process's start to the first commit", &figure(&run.cold, Start::whole), None);
            put("processor time for reading and decoding", &figure(&run.cold, |start| start.decoding), None);
            put("from the lists to nothing to do, after a restart", &figure(&run.again, |start| start.committed), None);
        }
        Measurement { report: self.to_string(), records }
    }
}

impl StartReport {
    fn table(&self) -> MarkdownTable {
        let pods = self.runs.iter().map(|run| format!("{} pods", thousands(run.cluster.pods)));
        let mut table = MarkdownTable::new(std::iter::once(String::new()).chain(pods));
        let mut row = |what: &str, of: &dyn Fn(&Run) -> String| {
            table.row(std::iter::once(what.to_owned()).chain(self.runs.iter().map(of)));
        };
        row("JSON, MB", &|run| format!("{:.0}", run.json_bytes as f64 / 1e6));
        row("elements on the node", &|run| run.cold[0].elements.to_string());
        let [listed, decoding, committed, whole]: [fn(&Start) -> Duration; 4] =
            [|start| start.listed, |start| start.decoding, |start| start.committed, Start::whole];
        row("from the process's start until all is listed", &|run| figure(&run.cold, listed).short());
        row("processor time in it: reading, decoding, the state", &|run| figure(&run.cold, decoding).short());
        row("from the lists to the first commit", &|run| figure(&run.cold, committed).short());
        row("from the process's start to the first commit", &|run| figure(&run.cold, whole).short());
        row("from the lists to nothing to do, where the kernel has the right rules", &|run| {
            figure(&run.again, committed).short()
        });
        table
    }
}

impl fmt::Display for StartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.runs.first().map_or(0, |run| run.cold.len());
        writeln!(f, "\nstart: s, {}\n\n{}", median_of(rounds), self.table())?;
        let mut bars = String::new();
        for run in &self.runs {
            let pods = thousands(run.cluster.pods);
            let committed = figure(&run.cold, |start| start.committed).median();
            if run.cluster.pods == BAR_AT_PODS {
                let bar = Bar { figure: committed, below: COMMITTED_BELOW_SECONDS };
                writeln!(bars, "  from the lists to the first commit, s, {pods} pods: {bar}")?;
            }
            let commits = run.again.iter().map(|start| start.commits).max().unwrap_or(0);
            let bar = Bar { figure: commits as f64, below: 1.0 };
            writeln!(bars, "  commits of a start that finds the right rules, {pods} pods: {bar}")?;
        }
        write!(f, "bars\n{bars}")
    }
}
