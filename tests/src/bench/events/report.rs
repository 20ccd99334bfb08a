//! The figures as a table for each cluster, and whether the bars are met.

use std::fmt::{self, Write};
use std::time::Duration;

use super::super::fed::thousands;
use super::super::figures::{Bar, Figure, Spread};
use super::super::record::{Measured, Record};
use super::{Run, Sample, measured_kinds};
use crate::scale::events::Happening;

/// The bars are those of a cluster of this size.
const BARS_AT_PODS: usize = 100_000;
const POD_MEDIAN_BELOW_MS: f64 = 1.0;
const POD_P99_BELOW_MS: f64 = 10.0;
const POLICY_MEDIAN_BELOW_MS: f64 = 5.0;

pub(super) struct Report {
    pub(super) runs: Vec<Run>,
}

/// What a kind of event has to keep to; the median, and the 99th percentile.
fn bars(kind: Happening) -> (Option<f64>, Option<f64>) {
    if kind.is_of_pod() {
        return (Some(POD_MEDIAN_BELOW_MS), Some(POD_P99_BELOW_MS));
    }
    let is_of_policy = kind != Happening::NamespaceRelabelled;
    (is_of_policy.then_some(POLICY_MEDIAN_BELOW_MS), None)
}

impl Report {
    pub(super) fn measured(&self) -> Measured {
        let mut records = Vec::new();
        for run in &self.runs {
            let x = (run.cluster.pods as f64, "pods");
            for (kind, samples) in &run.kinds {
                let Some(took) = spread(&samples.changed, |sample| sample.took) else { continue };
                let Some(floor) = spread(&samples.changed, |sample| sample.floor) else { continue };
                let (median_bar, p99_bar) = bars(*kind);
                let of = |subject: &str, milliseconds: f64, bar: Option<f64>| {
                    let figure = Figure::of([milliseconds]);
                    let record = Record::new("events", (subject, kind.words()), x, (&figure, "ms"));
                    Record { bar: bar.filter(|_| run.cluster.pods == BARS_AT_PODS), ..record }
                };
                records.push(of("event to kernel, median", took.median, median_bar));
                records.push(of("event to kernel, 99th percentile", took.p99, p99_bar));
                records.push(of("bare commit of the same operations, median", floor.median, None));
            }
        }
        Measured { report: self.to_string(), records }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nevents: from a change to the kernel's acknowledgement, in one process; ms")?;
        let mut bars_met = String::new();
        for run in &self.runs {
            let size = run.cluster;
            writeln!(
                f,
                "{} pods in {} namespaces with {} policies, {} pods on the node, {} elements in its sets",
                size.pods, size.namespaces, size.policies, size.local_pods, run.elements
            )?;
            writeln!(
                f,
                "  {:<24} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11} {:>9} {:>9} {:>12}",
                "",
                "changed",
                "p50",
                "p99",
                "most",
                "operations",
                "commit, p50",
                "floor p50",
                "floor p99",
                "nothing, p50"
            )?;
            for kind in measured_kinds() {
                let Some(samples) = run.kinds.get(&kind) else { continue };
                let (changed, all) = (samples.changed.len(), samples.changed.len() + samples.unchanged.len());
                write!(f, "  {:<24} {:>9}", kind.words(), format!("{changed}/{all}"))?;
                if let Some(took) = spread(&samples.changed, |sample| sample.took) {
                    let commit = spread(&samples.changed, |sample| sample.commit).expect("as many");
                    let floor = spread(&samples.changed, |sample| sample.floor).expect("as many");
                    let operations = Spread::of(samples.changed.iter().map(|sample| sample.operations as f64));
                    let operations = operations.expect("as many").median;
                    write!(f, " {:>9.3} {:>9.3} {:>9.3} {operations:>11.0}", took.median, took.p99, took.most)?;
                    write!(f, " {:>11.3} {:>9.3} {:>9.3}", commit.median, floor.median, floor.p99)?;
                    let cluster = thousands(size.pods);
                    let (median_bar, p99_bar) = bars(kind);
                    for (what, figure, bar) in [("p50", took.median, median_bar), ("p99", took.p99, p99_bar)] {
                        if let Some(below) = bar.filter(|_| size.pods == BARS_AT_PODS) {
                            let bar = Bar { figure, below };
                            writeln!(bars_met, "  {}, {what}, ms, {cluster} pods: {bar}", kind.words())?;
                        }
                    }
                } else {
                    write!(f, " {:>73}", "")?;
                }
                match Spread::of(samples.unchanged.iter().map(|took| milliseconds(*took))) {
                    Some(unchanged) => writeln!(f, " {:>12.3}", unchanged.median)?,
                    None => writeln!(f, " {:>12}", "-")?,
                }
            }
        }
        if !bars_met.is_empty() {
            write!(f, "bars\n{bars_met}")?;
        }
        Ok(())
    }
}

fn spread(samples: &[Sample], of: impl Fn(&Sample) -> Duration) -> Option<Spread> {
    Spread::of(samples.iter().map(|sample| milliseconds(of(sample))))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
