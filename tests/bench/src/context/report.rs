//! The figures as tables, and whether the bars are met.

use std::fmt::{self, Write};

use super::super::fed::thousands;
use super::super::figures::{Bar, Figure, Spread, median_of};
use super::super::machine::Memory;
use super::super::record::{Measurement, Record};
use super::super::table::MarkdownTable;
use super::cost::Sample;
use super::{Run, Runs, Served};
use generator::cluster::events::EventKind;

/// The bars are those of a cluster of this size.
const BARS_AT_PODS: usize = 100_000;
const BASELINE_BELOW_SECONDS: f64 = 2.0;
const RESIDENT_BELOW_MB: f64 = 150.0;
const POD_MEDIAN_BELOW_MS: f64 = 1.0;
const LAST_SUBSCRIBER_BELOW_SECONDS: f64 = 1.0;
/// Limits of the latency from a change to a subscriber, at 100 events per second.
const STEADY_MEDIAN_BELOW_SECONDS: f64 = 0.25;
const STEADY_P99_BELOW_SECONDS: f64 = 0.6;
/// Memory limit of a subscriber in a storm, among those that read nothing.
const SUBSCRIBER_BELOW_KB: f64 = 64.0;

const MEGA: f64 = 1e6;

pub(super) struct ContextReport {
    pub(super) clusters: Vec<Runs>,
}

fn took(samples: &[Sample]) -> Spread {
    Spread::of(samples.iter().map(|sample| sample.took.as_secs_f64() * 1e3)).expect("some events")
}

fn bytes(samples: &[Sample], feed: usize) -> Spread {
    Spread::of(samples.iter().map(|sample| sample.bytes[feed] as f64)).expect("some events")
}

fn megabytes(memory: &Memory) -> f64 {
    memory.resident_bytes as f64 / MEGA
}

impl Served {
    /// Memory of each subscriber in a storm, including the share of the storm itself.
    fn subscriber_kb(&self) -> f64 {
        (self.stormed.peak_bytes.saturating_sub(self.started.resident_bytes)) as f64 / 1e3 / self.subscribers as f64
    }
}

impl Runs {
    fn figure(&self, of: impl Fn(&Run) -> f64) -> Figure {
        Figure::of(self.runs.iter().map(of))
    }

    /// A figure of the events of a kind.
    fn events(&self, kind: EventKind, of: impl Fn(&[Sample]) -> f64) -> Figure {
        self.figure(|run| of(&run.cost.kinds[&kind]))
    }

    fn kinds(&self) -> impl Iterator<Item = EventKind> {
        self.runs[0].cost.kinds.keys().copied()
    }

    fn subscribers(&self) -> usize {
        self.runs[0].served.subscribers
    }

    fn has_bars(&self) -> bool {
        self.cluster.pods == BARS_AT_PODS
    }

    fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let mut put = |series: (&str, &str), figure: &Figure, unit: &str, bar: Option<f64>| {
            let record = Record::new("context", series, (self.cluster.pods as f64, "pods"), (figure, unit));
            records.push(Record { bar: bar.filter(|_| self.has_bars()), ..record });
        };
        let addresses = self.figure(|run| run.cost.addresses);
        put(("baseline", "of addresses, from the lists"), &addresses, "s", Some(BASELINE_BELOW_SECONDS));
        put(("baseline", "of edges beside it"), &self.figure(|run| run.cost.edges), "s", None);
        for kind in self.kinds() {
            let bar = kind.is_of_pod().then_some(POD_MEDIAN_BELOW_MS);
            let median = self.events(kind, |samples| took(samples).median);
            put(("one event, median", kind.words()), &median, "ms", bar);
        }
        let resident = self.figure(|run| megabytes(&run.served.started));
        put(("resident", "with policies"), &resident, "MB", Some(RESIDENT_BELOW_MB));
        let resident = self.figure(|run| megabytes(&run.without_policies));
        put(("resident", "without policies"), &resident, "MB", Some(RESIDENT_BELOW_MB));
        let size = self.figure(|run| run.served.database_bytes as f64 / MEGA);
        put(("size of the database", "as it is"), &size, "MB", None);
        let size = self.figure(|run| run.served.compressed_bytes as f64 / MEGA);
        put(("size of the database", "compressed"), &size, "MB", None);
        let line = format!("to the last of {} subscribers", self.subscribers());
        let to_the_last = self.figure(|run| run.served.to_the_last);
        put(("a delta on its way", &line), &to_the_last, "s", Some(LAST_SUBSCRIBER_BELOW_SECONDS));
        let steady = "a change amid 100 events per second";
        let median = self.figure(|run| run.served.steady.median);
        put((steady, "to a subscriber, p50"), &median, "s", Some(STEADY_MEDIAN_BELOW_SECONDS));
        let p99 = self.figure(|run| run.served.steady.p99);
        put((steady, "to a subscriber, p99"), &p99, "s", Some(STEADY_P99_BELOW_SECONDS));
        records
    }

    fn events_table(&self) -> MarkdownTable {
        let mut table = MarkdownTable::new([
            "event",
            "p50, ms",
            "p99, ms",
            "most, ms",
            "bytes of addresses (most)",
            "bytes of edges (most)",
        ]);
        for kind in self.kinds() {
            let took = |part: fn(&Spread) -> f64| self.events(kind, |samples| part(&took(samples))).short();
            let sent = |feed: usize| {
                let of = |part: fn(&Spread) -> f64| self.events(kind, |samples| part(&bytes(samples, feed))).median();
                format!("{} ({})", of(|spread| spread.median), of(|spread| spread.most))
            };
            let [median, p99, most] = [took(|s| s.median), took(|s| s.p99), took(|s| s.most)];
            table.row([kind.words().to_owned(), median, p99, most, sent(0), sent(1)]);
        }
        table
    }

    fn write_bars(&self, f: &mut String) -> fmt::Result {
        let pods = thousands(self.cluster.pods);
        let mut put = |what: &str, figure: Figure, below: f64| {
            writeln!(f, "  {what}, {pods} pods: {}", Bar { figure: figure.median(), below })
        };
        for kind in self.kinds().filter(|kind| kind.is_of_pod()) {
            let median = self.events(kind, |samples| took(samples).median);
            put(&format!("{}, p50, ms", kind.words()), median, POD_MEDIAN_BELOW_MS)?;
        }
        put("from the lists to the database, s", self.figure(|run| run.cost.addresses), BASELINE_BELOW_SECONDS)?;
        let resident = self.figure(|run| megabytes(&run.served.started));
        put("resident after the first downloads, MB", resident, RESIDENT_BELOW_MB)?;
        let resident = self.figure(|run| megabytes(&run.without_policies));
        put("the same without policies, MB", resident, RESIDENT_BELOW_MB)?;
        let last = format!("from an event to the last of {} subscribers, s", self.subscribers());
        put(&last, self.figure(|run| run.served.to_the_last), LAST_SUBSCRIBER_BELOW_SECONDS)?;
        let steady = "from a change amid 100 events per second to a subscriber";
        put(&format!("{steady}, p50, s"), self.figure(|run| run.served.steady.median), STEADY_MEDIAN_BELOW_SECONDS)?;
        put(&format!("{steady}, p99, s"), self.figure(|run| run.served.steady.p99), STEADY_P99_BELOW_SECONDS)?;
        let each = format!("each of {} subscribers at most in a storm, kB", self.subscribers());
        put(&each, self.figure(|run| run.served.subscriber_kb()), SUBSCRIBER_BELOW_KB)
    }
}

/// Selects a row's figure from a run.
type FigureOf = fn(&Run) -> f64;

/// The rows of every cluster, with their labels.
const ROWS: [(&str, FigureOf); 19] = [
    ("from the lists to the bytes of the database, s", |run| run.cost.addresses),
    ("from there to the bytes of the edges, s", |run| run.cost.edges),
    ("from the process's start to the first download, s", |run| run.served.first_download.as_secs_f64()),
    ("database, MB", |run| run.served.database_bytes as f64 / MEGA),
    ("database, compressed, MB", |run| run.served.compressed_bytes as f64 / MEGA),
    ("lines of edges, MB", |run| run.cost.lines_bytes as f64 / MEGA),
    ("resident after the first downloads, MB", |run| megabytes(&run.served.started)),
    ("at most until then, MB", |run| run.served.started.peak_bytes as f64 / MEGA),
    ("resident, without policies, MB", |run| megabytes(&run.without_policies)),
    ("resident, with all subscribers, MB", |run| megabytes(&run.served.subscribed)),
    ("resident after a storm, some of them reading nothing, MB", |run| megabytes(&run.served.stormed)),
    ("at most in it, MB", |run| run.served.stormed.peak_bytes as f64 / MEGA),
    ("from an event to the subscriber in the middle, s", |run| run.served.to_the_middle),
    ("from an event to the last subscriber, s", |run| run.served.to_the_last),
    ("from a change amid 100 events per second to a subscriber, p50, s", |run| run.served.steady.median),
    ("the same, p99, s", |run| run.served.steady.p99),
    ("deltas of 1,000 pods that change together", |run| run.cost.together.0 as f64),
    ("bytes of them", |run| run.cost.together.1 as f64),
    ("bytes of them in the form of numbers", |run| run.cost.together_numbers as f64),
];

impl ContextReport {
    pub(super) fn measured(&self) -> Measurement {
        let records = self.clusters.iter().flat_map(Runs::records).collect();
        Measurement { report: self.to_string(), records }
    }

    fn rows(&self) -> MarkdownTable {
        let pods = self.clusters.iter().map(|runs| format!("{} pods", thousands(runs.cluster.pods)));
        let mut table = MarkdownTable::new(std::iter::once(String::new()).chain(pods));
        for (what, of) in ROWS {
            let cells = self.clusters.iter().map(|runs| runs.figure(of).short());
            table.row(std::iter::once(what.to_owned()).chain(cells));
        }
        table
    }
}

impl fmt::Display for ContextReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.clusters.first().map_or(0, |runs| runs.runs.len());
        writeln!(f, "\ncontext: who an address is, and which flows are declared; {}", median_of(rounds))?;
        for runs in &self.clusters {
            let Runs { cluster, runs } = runs;
            writeln!(
                f,
                "{} pods in {} namespaces with {} policies: {} addresses, {} lines of edges",
                cluster.pods, cluster.namespaces, cluster.policies, runs[0].served.addresses, runs[0].cost.lines
            )?;
        }
        write!(f, "\n{}", self.rows())?;
        let mut bars = String::new();
        for runs in &self.clusters {
            let pods = runs.cluster.pods;
            writeln!(f, "\none event, {pods} pods; of bytes the one in the middle, and the most\n")?;
            write!(f, "{}", runs.events_table())?;
            if runs.has_bars() {
                runs.write_bars(&mut bars)?;
            }
        }
        if bars.is_empty() { Ok(()) } else { write!(f, "\nbars\n{bars}") }
    }
}
