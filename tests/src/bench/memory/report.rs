//! The figures as a table, and whether the bars are met.

use std::fmt::{self, Write};

use super::super::fed::thousands;
use super::super::figures::{Bar, Figure};
use super::super::machine::Memory;
use super::super::record::{Measured, Record};
use super::Run;

const MEBI: f64 = (1 << 20) as f64;

/// The bars are those of a cluster of this size: in a small one most is what the program and its queues take.
const BAR_AT_PODS: usize = 100_000;
const STARTED_BELOW_MIB: f64 = 150.0;
/// The peak of the start, by what is there after it.
const PEAK_BELOW: f64 = 1.5;
/// After events, by what a start on the same objects takes: what the allocator's own holes may add.
const GROWTH_BELOW: f64 = 1.05;

pub(super) struct Report {
    pub(super) runs: Vec<Run>,
}

impl Run {
    fn growth(&self) -> Option<f64> {
        let (_, last) = self.later.last()?;
        Some(resident(*last) / resident(self.anew))
    }
}

fn resident(memory: Memory) -> f64 {
    memory.resident_bytes as f64 / MEBI
}

fn peak(memory: Memory) -> f64 {
    memory.peak_bytes as f64 / MEBI
}

impl Report {
    pub(super) fn measured(&self) -> Measured {
        let mut records = Vec::new();
        let record =
            |series: (&str, &str), x: (f64, &str), y: f64| Record::new("memory", series, x, (&Figure::of([y]), "MiB"));
        for run in &self.runs {
            let pods = (run.cluster.pods as f64, "pods");
            let started = record(("by size of the cluster", "after start"), pods, resident(run.started));
            records.push(if run.cluster.pods == BAR_AT_PODS { started.below(STARTED_BELOW_MIB) } else { started });
            records.push(record(("by size of the cluster", "peak of the start"), pods, peak(run.started)));
            let over_events = |events: usize, memory: Memory| {
                let line = format!("{} pods", thousands(run.cluster.pods));
                record(("over events", &line), (events as f64, "events"), resident(memory))
            };
            records.push(over_events(0, run.started));
            records.extend(run.later.iter().map(|(events, memory)| over_events(*events, *memory)));
        }
        Measured { report: self.to_string(), records }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nmemory: resident set of the agent, MiB")?;
        writeln!(f, "  {:<8} {:>9} {:>12} {:>9} {:>15}", "pods", "JSON", "after start", "peak", "its own estimate")?;
        let mut bars = String::new();
        for run in &self.runs {
            let pods = thousands(run.cluster.pods);
            let (json, estimated) = (run.json_bytes as f64 / MEBI, run.estimated_bytes as f64 / MEBI);
            let (started, most) = (resident(run.started), peak(run.started));
            writeln!(f, "  {pods:<8} {json:>9.1} {started:>12.1} {most:>9.1} {estimated:>15.1}")?;
            if run.cluster.pods != BAR_AT_PODS {
                continue;
            }
            let bar = Bar { figure: started, below: STARTED_BELOW_MIB };
            writeln!(bars, "  after start, MiB, {pods} pods: {bar}")?;
            let bar = Bar { figure: most / started, below: PEAK_BELOW };
            writeln!(bars, "  peak of the start by what is there after it, {pods} pods: {bar}")?;
            if let (Some(figure), Some((events, _))) = (run.growth(), run.later.last()) {
                let bar = Bar { figure, below: GROWTH_BELOW };
                writeln!(bars, "  after {events} events by a start on the same objects, {pods} pods: {bar}")?;
            }
        }
        for run in &self.runs {
            writeln!(f, "  {} pods, after events, with as many objects as before:", thousands(run.cluster.pods))?;
            for (events, memory) in &run.later {
                writeln!(f, "  {events:>12} {:>9.1}, at most so far {:.1}", resident(*memory), peak(*memory))?;
            }
            writeln!(f, "  a start on these objects {:.1}", resident(run.anew))?;
        }
        if bars.is_empty() { Ok(()) } else { write!(f, "bars\n{bars}") }
    }
}
