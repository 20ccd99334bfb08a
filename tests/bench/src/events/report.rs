//! The figures as a table for each cluster, and whether the bars are met.

use std::fmt::{self, Write};
use std::time::Duration;

use super::super::fed::thousands;
use super::super::figures::{Bar, Figure, Spread, median_of};
use super::super::record::{Measurement, Record};
use super::super::table::MarkdownTable;
use super::{Run, Runs, Sample, Samples, measured_kinds};
use generator::cluster::events::EventKind;

/// The bars are those of a cluster of this size.
const BARS_AT_PODS: usize = 100_000;
const POD_MEDIAN_BELOW_MS: f64 = 1.0;
const POD_P99_BELOW_MS: f64 = 10.0;
const POLICY_MEDIAN_BELOW_MS: f64 = 5.0;

pub(super) struct EventsReport {
    /// Maximum number of events of each kind in a run.
    pub(super) events: usize,
    pub(super) clusters: Vec<Runs>,
}

/// The bars of a kind of event: median, and 99th percentile.
fn bars(kind: EventKind) -> (Option<f64>, Option<f64>) {
    if kind.is_of_pod() {
        return (Some(POD_MEDIAN_BELOW_MS), Some(POD_P99_BELOW_MS));
    }
    let is_of_policy = kind != EventKind::NamespaceRelabelled;
    (is_of_policy.then_some(POLICY_MEDIAN_BELOW_MS), None)
}

/// One figure of a kind of event, of each run.
struct Figures {
    took_median: Figure,
    took_p99: Figure,
    took_most: Figure,
    commit_median: Figure,
    floor_median: Figure,
    floor_p99: Figure,
    operations: Figure,
}

impl Runs {
    fn samples(&self, kind: EventKind) -> impl Iterator<Item = &Samples> {
        self.runs.iter().filter_map(move |run: &Run| run.get(&kind))
    }

    /// `None` if no event of the kind changed the rules.
    fn changed(&self, kind: EventKind) -> Option<Figures> {
        let figure = |sample: fn(&Sample) -> f64, part: fn(&Spread) -> f64| {
            let spreads = self.samples(kind).filter_map(|samples| Spread::of(samples.changed.iter().map(sample)));
            Figure::of_any(spreads.map(|spread| part(&spread)))
        };
        let [took, commit, floor]: [fn(&Sample) -> f64; 3] =
            [|s| milliseconds(s.took), |s| milliseconds(s.commit), |s| milliseconds(s.floor)];
        Some(Figures {
            took_median: figure(took, |s| s.median)?,
            took_p99: figure(took, |s| s.p99)?,
            took_most: figure(took, |s| s.most)?,
            commit_median: figure(commit, |s| s.median)?,
            floor_median: figure(floor, |s| s.median)?,
            floor_p99: figure(floor, |s| s.p99)?,
            operations: figure(|s| s.operations as f64, |s| s.median)?,
        })
    }

    /// The median of the events that changed nothing.
    fn unchanged(&self, kind: EventKind) -> Option<Figure> {
        let spread = |samples: &Samples| Spread::of(samples.unchanged.iter().map(|took| milliseconds(*took)));
        Figure::of_any(self.samples(kind).filter_map(|samples| Some(spread(samples)?.median)))
    }

    /// How many events changed the rules, out of how many, over all runs.
    fn counts(&self, kind: EventKind) -> String {
        let changed: usize = self.samples(kind).map(|samples| samples.changed.len()).sum();
        let all: usize = self.samples(kind).map(|samples| samples.changed.len() + samples.unchanged.len()).sum();
        format!("{changed}/{all}")
    }

    fn table(&self) -> MarkdownTable {
        let mut table = MarkdownTable::new([
            "event",
            "changed/all",
            "p50",
            "p99",
            "most",
            "operations, p50",
            "of it the commit, p50",
            "floor, p50",
            "floor, p99",
            "nothing, p50",
        ]);
        for kind in measured_kinds() {
            let short = |figure: &Figure| figure.short();
            let mut row = vec![kind.words().to_owned(), self.counts(kind)];
            match self.changed(kind) {
                Some(figures) => {
                    row.extend([&figures.took_median, &figures.took_p99, &figures.took_most].map(short));
                    row.push(format!("{:.0}", figures.operations.median()));
                    row.extend([&figures.commit_median, &figures.floor_median, &figures.floor_p99].map(short));
                }
                None => row.extend(vec!["-".to_owned(); 7]),
            }
            row.push(self.unchanged(kind).map_or("-".into(), |figure| short(&figure)));
            table.row(row);
        }
        table
    }
}

impl EventsReport {
    pub(super) fn measured(&self) -> Measurement {
        let mut records = Vec::new();
        for runs in &self.clusters {
            let x = (runs.cluster.pods as f64, "pods");
            for kind in measured_kinds() {
                let Some(figures) = runs.changed(kind) else { continue };
                let (median_bar, p99_bar) = bars(kind);
                let of = |subject: &str, figure: &Figure, bar: Option<f64>| {
                    let record = Record::new("events", (subject, kind.words()), x, (figure, "ms"));
                    Record { bar: bar.filter(|_| runs.cluster.pods == BARS_AT_PODS), ..record }
                };
                records.push(of("event to kernel, median", &figures.took_median, median_bar));
                records.push(of("event to kernel, 99th percentile", &figures.took_p99, p99_bar));
                records.push(of("bare commit of the same operations, median", &figures.floor_median, None));
            }
        }
        Measurement { report: self.to_string(), records }
    }

    /// How the figures grow with the cluster.
    fn growth(&self) -> MarkdownTable {
        let heads = ["p50", "p99"].map(|part| {
            let head = |runs: &Runs| format!("{part} at {} pods", thousands(runs.cluster.pods));
            self.clusters.iter().map(head).collect::<Vec<String>>()
        });
        let mut table = MarkdownTable::new(std::iter::once("event".to_owned()).chain(heads.into_iter().flatten()));
        for kind in measured_kinds() {
            let figures: Vec<Option<Figures>> = self.clusters.iter().map(|runs| runs.changed(kind)).collect();
            let cells = |part: fn(&Figures) -> &Figure| {
                let shown = |figures: &Option<Figures>| figures.as_ref().map_or("-".into(), |f| part(f).short());
                figures.iter().map(shown).collect::<Vec<String>>()
            };
            let (medians, p99s) = (cells(|f| &f.took_median), cells(|f| &f.took_p99));
            table.row(std::iter::once(kind.words().to_owned()).chain(medians).chain(p99s));
        }
        table
    }

    fn write_bars(&self, f: &mut String) -> fmt::Result {
        for runs in self.clusters.iter().filter(|runs| runs.cluster.pods == BARS_AT_PODS) {
            for kind in measured_kinds() {
                let Some(figures) = runs.changed(kind) else { continue };
                let (median_bar, p99_bar) = bars(kind);
                for (what, figure, bar) in
                    [("p50", &figures.took_median, median_bar), ("p99", &figures.took_p99, p99_bar)]
                {
                    let Some(below) = bar else { continue };
                    let bar = Bar { figure: figure.median(), below };
                    writeln!(f, "  {}, {what}, ms, {} pods: {bar}", kind.words(), thousands(BARS_AT_PODS))?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for EventsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.clusters.first().map_or(0, |runs| runs.runs.len());
        writeln!(
            f,
            "\nevents: from a change to the kernel's acknowledgement, in one process; ms, {} of at most {} events of each kind; changed/all counts those of all runs",
            median_of(runs),
            self.events
        )?;
        for runs in &self.clusters {
            let size = runs.cluster;
            writeln!(
                f,
                "\n{} pods in {} namespaces with {} policies, {} pods on the node, {} elements in its sets\n",
                size.pods, size.namespaces, size.policies, size.local_pods, runs.elements
            )?;
            write!(f, "{}", runs.table())?;
        }
        if self.clusters.len() > 1 {
            write!(f, "\nby the size of the cluster\n\n{}", self.growth())?;
        }
        let mut bars_met = String::new();
        self.write_bars(&mut bars_met)?;
        if bars_met.is_empty() { Ok(()) } else { write!(f, "\nbars\n{bars_met}") }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
