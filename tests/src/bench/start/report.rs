//! The figures as a table, and whether the bars are met.

use std::fmt::{self, Write};
use std::time::Duration;

use super::super::fed::thousands;
use super::super::figures::{Bar, Figure};
use super::super::record::{Measured, Record};
use super::{Run, Start};

/// The bar is that of a cluster of this size.
const BAR_AT_PODS: usize = 100_000;
const COMMITTED_BELOW_SECONDS: f64 = 1.5;

pub(super) struct Report {
    pub(super) runs: Vec<Run>,
}

fn figure(starts: &[Start], of: impl Fn(&Start) -> Duration) -> Figure {
    Figure::of(starts.iter().map(|start| of(start).as_secs_f64()))
}

impl Report {
    pub(super) fn measured(&self) -> Measured {
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
        Measured { report: self.to_string(), records }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nstart: s, median (least-most)")?;
        let mut bars = String::new();
        for run in &self.runs {
            let (size, megabytes) = (run.cluster, run.json_bytes as f64 / 1e6);
            let pods = thousands(size.pods);
            let elements = run.cold[0].elements;
            writeln!(
                f,
                "{} pods in {} namespaces with {} policies: {megabytes:.0} MB of JSON become {elements} elements",
                size.pods, size.namespaces, size.policies
            )?;
            for (what, starts) in [("nothing in the kernel", &run.cold), ("the right rules there", &run.again)] {
                writeln!(f, "  {what}")?;
                let row = |f: &mut fmt::Formatter<'_>, what: &str, of: &dyn Fn(&Start) -> Duration| {
                    writeln!(f, "    {what:<50} {:.3}", figure(starts, of))
                };
                row(f, "from the process's start until all is listed", &|start| start.listed)?;
                row(f, "  processor time in it, for reading and decoding", &|start| start.decoding)?;
                row(f, "from the lists until the rules are in force", &|start| start.committed)?;
                row(f, "whole", &Start::whole)?;
            }
            let committed = figure(&run.cold, |start| start.committed).median();
            if size.pods == BAR_AT_PODS {
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
