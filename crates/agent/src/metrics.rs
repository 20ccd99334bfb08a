//! Figures for Prometheus, in OpenMetrics text. Labels are bounded: no pod names, no addresses.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::api::status::{Commits, Repairs};
use crate::status::{Status, Totals};

/// Counters are moved where things happen; gauges are set from the status when scraped.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) commits: Counter,
    pub(crate) refused_commits: Counter,
    pub(crate) repairs: Counter,
    pub(crate) comparisons: Counter,
    pub(crate) events: Counter,
    pub(crate) commit_seconds: Histogram,
    pub(crate) cni_add_seconds: Histogram,
    ready: Gauge,
    elements: Gauge,
    programs: Gauge,
    pods_on_node: Gauge,
    isolated_pods: Gauge,
    not_understood: Gauge,
    source_problems: Gauge,
    seconds_since_commit: Gauge<f64, AtomicU64>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut registry = Registry::with_prefix("ringfence");
        let mut counter = |name: &str, help: &str| {
            let metric = Counter::default();
            registry.register(name, help, metric.clone());
            metric
        };
        let commits = counter("commits", "Transactions that the kernel took");
        let refused_commits = counter("refused_commits", "Transactions that the kernel refused");
        let repairs = counter("repairs", "Transactions that repaired rules which somebody else had changed");
        let comparisons = counter("comparisons", "Times that the tables were read and compared whole");
        let events = counter("events", "Reports of the source, each of which may hold many changes");
        let mut gauge = |name: &str, help: &str| {
            let metric = Gauge::default();
            registry.register(name, help, metric.clone());
            metric
        };
        let ready = gauge("ready", "1 while the rules that the policies ask for are in force");
        let elements = gauge("elements", "Elements in all sets and maps");
        let programs = gauge("programs", "Compiled programs: distinct sets of rules on this node");
        let pods_on_node = gauge("pods_on_node", "Pods of this node that have an address of their own");
        let isolated_pods = gauge("isolated_pods", "Pods of this node that some policy isolates");
        let not_understood = gauge("not_understood", "Findings of parts of objects that were not understood and deny");
        let source_problems = gauge("source_problems", "What keeps the source from telling the whole truth");
        let seconds_since_commit = Gauge::default();
        let about = "Age of the last commit";
        registry.register_with_unit("last_commit_age", about, Unit::Seconds, seconds_since_commit.clone());
        // 50 µs to 1.6 s.
        let commit_seconds = Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        registry.register_with_unit(
            "commit_duration",
            "From a change to the kernel's acknowledgement",
            Unit::Seconds,
            commit_seconds.clone(),
        );
        // 0.5 ms to 16 s.
        let cni_add_seconds = Histogram::new(exponential_buckets(0.000_5, 2.0, 16));
        registry.register_with_unit(
            "cni_add_duration",
            "From the CNI plugin's question to the commit of the pod's rules",
            Unit::Seconds,
            cni_add_seconds.clone(),
        );
        Metrics {
            registry,
            commits,
            refused_commits,
            repairs,
            comparisons,
            events,
            commit_seconds,
            cni_add_seconds,
            ready,
            elements,
            programs,
            pods_on_node,
            isolated_pods,
            not_understood,
            source_problems,
            seconds_since_commit,
        }
    }

    /// What the counters have come to.
    pub(crate) fn totals(&self) -> Totals {
        let commits = Commits { taken: self.commits.get(), refused: self.refused_commits.get() };
        let repairs = Repairs { changed: self.repairs.get(), removed: 0, at_start: 0 };
        Totals { commits, repairs, drops: None }
    }

    pub(crate) fn text(&self, status: &Status) -> Result<String, std::fmt::Error> {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.ready.set(i64::from(status.unready().is_none()));
        self.elements.set(number(status.elements));
        self.programs.set(number(status.programs));
        self.pods_on_node.set(number(status.pods_on_node));
        self.isolated_pods.set(number(status.isolated_pods));
        self.not_understood.set(number(status.diagnostics.len()));
        self.source_problems.set(number(status.problems.len()));
        if let Some(commit) = status.last_commit {
            self.seconds_since_commit.set(commit.at.elapsed().as_secs_f64());
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
