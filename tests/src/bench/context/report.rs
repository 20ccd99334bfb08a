//! The figures as tables, and whether the bars are met.

use std::fmt::{self, Write};

use super::super::fed::thousands;
use super::super::figures::{Bar, Figure, Spread};
use super::super::machine::Memory;
use super::super::record::{Measured, Record};
use super::cost::Sample;
use super::{Run, Served};

/// The bars are those of a cluster of this size.
const BARS_AT_PODS: usize = 100_000;
const BASELINE_BELOW_SECONDS: f64 = 2.0;
const RESIDENT_BELOW_MB: f64 = 150.0;
const POD_MEDIAN_BELOW_MS: f64 = 1.0;
const LAST_SUBSCRIBER_BELOW_SECONDS: f64 = 1.0;
/// What a subscriber may take in a storm, among those that read nothing.
const SUBSCRIBER_BELOW_KB: f64 = 64.0;

const MEGA: f64 = 1e6;

pub(super) struct Report {
    pub(super) runs: Vec<Run>,
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
    /// What each of the subscribers takes in a storm, with what the storm takes by itself.
    fn subscriber_kb(&self) -> f64 {
        (self.stormed.peak_bytes.saturating_sub(self.started.resident_bytes)) as f64 / 1e3 / self.subscribers as f64
    }
}

impl Report {
    pub(super) fn measured(&self) -> Measured {
        let mut records = Vec::new();
        for run in &self.runs {
            let (Run { cluster, cost, served, without_policies }, x) = (run, (run.cluster.pods as f64, "pods"));
            let mut put = |series: (&str, &str), figure: &Figure, unit: &str, bar: Option<f64>| {
                let record = Record::new("context", series, x, (figure, unit));
                records.push(Record { bar: bar.filter(|_| cluster.pods == BARS_AT_PODS), ..record });
            };
            put(("baseline", "of addresses, from the lists"), &cost.addresses, "s", Some(BASELINE_BELOW_SECONDS));
            put(("baseline", "of edges beside it"), &cost.edges, "s", None);
            for (kind, samples) in &cost.kinds {
                let bar = kind.is_of_pod().then_some(POD_MEDIAN_BELOW_MS);
                put(("one event, median", kind.words()), &Figure::of([took(samples).median]), "ms", bar);
            }
            let resident = |memory: &Memory| Figure::of([megabytes(memory)]);
            put(("resident", "with policies"), &resident(&served.started), "MB", Some(RESIDENT_BELOW_MB));
            put(("resident", "without policies"), &resident(without_policies), "MB", Some(RESIDENT_BELOW_MB));
            let size = |bytes: usize| Figure::of([bytes as f64 / MEGA]);
            put(("size of the database", "as it is"), &size(served.database_bytes), "MB", None);
            put(("size of the database", "compressed"), &size(served.compressed_bytes), "MB", None);
            let line = format!("to the last of {} subscribers", served.subscribers);
            put(("a delta on its way", &line), &served.to_the_last, "s", Some(LAST_SUBSCRIBER_BELOW_SECONDS));
        }
        Measured { report: self.to_string(), records }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ncontext: who an address is, and which flows are declared")?;
        let mut bars = String::new();
        for Run { cluster, cost, served, without_policies } in &self.runs {
            let pods = thousands(cluster.pods);
            writeln!(
                f,
                "{} pods in {} namespaces with {} policies: {} addresses, {} lines of edges",
                cluster.pods, cluster.namespaces, cluster.policies, served.addresses, cost.lines
            )?;
            let row = |f: &mut fmt::Formatter<'_>, what: &str, figure: &dyn fmt::Display| {
                writeln!(f, "  {what:<58} {figure}")
            };
            let mb = |bytes: u64| format!("{:.1}", bytes as f64 / MEGA);
            row(f, "from the lists to the bytes of the database, s", &format_args!("{:.3}", cost.addresses))?;
            row(f, "from there to the bytes of the edges, s", &format_args!("{:.3}", cost.edges))?;
            let download = served.first_download.as_secs_f64();
            row(f, "from the process's start to the first download, s", &format_args!("{download:.2}"))?;
            row(f, "database, MB", &mb(served.database_bytes as u64))?;
            row(f, "  compressed", &mb(served.compressed_bytes as u64))?;
            row(f, "lines of edges, MB", &mb(cost.lines_bytes as u64))?;
            row(f, "resident after the first download, MB", &mb(served.started.resident_bytes))?;
            row(f, "  at most until then", &mb(served.started.peak_bytes))?;
            row(f, "  of the same cluster without policies", &mb(without_policies.resident_bytes))?;
            row(f, &format!("  with {} subscribers", served.subscribers), &mb(served.subscribed.resident_bytes))?;
            row(f, "  after a storm, some of them reading nothing", &mb(served.stormed.resident_bytes))?;
            row(f, "  at most in it", &mb(served.stormed.peak_bytes))?;
            row(f, "from an event to the subscriber in the middle, s", &format_args!("{:.3}", served.to_the_middle))?;
            row(f, "  to the last", &format_args!("{:.3}", served.to_the_last))?;
            let (deltas, together) = cost.together;
            row(f, "deltas of 1,000 pods that change together", &deltas)?;
            row(f, "  bytes of them", &together)?;
            writeln!(
                f,
                "  {:<34} {:>9} {:>9} {:>9} {:>16} {:>16}",
                "one event", "p50, ms", "p99, ms", "most, ms", "bytes, identity", "bytes, edges"
            )?;
            for (kind, samples) in &cost.kinds {
                let (took, identity, edges) = (took(samples), bytes(samples, 0), bytes(samples, 1));
                writeln!(
                    f,
                    "  {:<34} {:>9.3} {:>9.3} {:>9.3} {:>16} {:>16}",
                    kind.words(),
                    took.median,
                    took.p99,
                    took.most,
                    format!("{} ({})", identity.median, identity.most),
                    format!("{} ({})", edges.median, edges.most),
                )?;
                if kind.is_of_pod() && cluster.pods == BARS_AT_PODS {
                    let bar = Bar { figure: took.median, below: POD_MEDIAN_BELOW_MS };
                    writeln!(bars, "  {}, p50, ms, {pods} pods: {bar}", kind.words())?;
                }
            }
            if cluster.pods == BARS_AT_PODS {
                let mut put = |what: &str, figure: f64, below: f64| {
                    writeln!(bars, "  {what}, {pods} pods: {}", Bar { figure, below })
                };
                put("from the lists to the database, s", cost.addresses.median(), BASELINE_BELOW_SECONDS)?;
                put("resident after the first download, MB", megabytes(&served.started), RESIDENT_BELOW_MB)?;
                put("the same without policies, MB", megabytes(without_policies), RESIDENT_BELOW_MB)?;
                let last = format!("from an event to the last of {} subscribers, s", served.subscribers);
                put(&last, served.to_the_last.median(), LAST_SUBSCRIBER_BELOW_SECONDS)?;
                let each = format!("each of {} subscribers at most in a storm, kB", served.subscribers);
                put(&each, served.subscriber_kb(), SUBSCRIBER_BELOW_KB)?;
            }
        }
        if bars.is_empty() { Ok(()) } else { write!(f, "bars\n{bars}") }
    }
}
