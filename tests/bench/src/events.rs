//! Latency from a change to the kernel's acknowledgement, in this process: the cost of one event on clusters of three
//! sizes, compared with the floor, the bare commit of the same operations.

mod committer;
mod report;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use generator::cluster::events::{EventKind, Place};
use generator::cluster::{Cluster, Size as ClusterSize};

use super::record::Measurement;
use committer::{Committer, Floor};
use report::EventsReport;

/// The measured kinds of event, in an order that changes every time. Moving pods are left out: for the rules, a pod
/// that has ended is a removed pod.
fn measured_kinds() -> impl Iterator<Item = EventKind> {
    EventKind::ALL.into_iter().filter(|happening| *happening != EventKind::PodMoved)
}

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    /// Pods of each cluster.
    pub pods: Vec<usize>,
    /// Runs with each cluster, whose medians are reported. Each starts with the same cluster and the same events.
    pub rounds: usize,
    /// Events of each kind in a run, at most.
    pub events: usize,
    /// Time limit of a run: a slow translation gets fewer events, but at least a few.
    pub time: Duration,
}

const FEWEST_EVENTS: usize = 5;

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn new(pods: Vec<usize>, rounds: usize) -> Size {
        Size { pods, rounds, events: 1_000, time: Duration::from_secs(120) }
    }
}

/// One event that changed the rules.
struct Sample {
    took: Duration,
    /// The commit in it, and the same commit in another table.
    commit: Duration,
    floor: Duration,
    operations: usize,
}

/// The events of one kind on one cluster.
#[derive(Default)]
struct Samples {
    changed: Vec<Sample>,
    /// Time to determine that the rules need no change.
    unchanged: Vec<Duration>,
}

/// The samples of one run, by kind.
type Run = BTreeMap<EventKind, Samples>;

/// All runs with one cluster.
struct Runs {
    cluster: ClusterSize,
    elements: usize,
    runs: Vec<Run>,
}

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(size: &Size) -> Measurement {
    let clusters = size.pods.iter().map(|pods| {
        let mut elements = 0;
        let runs = (0..size.rounds).map(|_| {
            let (run, run_elements) = run(*pods, size);
            elements = run_elements;
            run
        });
        let runs = runs.collect();
        Runs { cluster: ClusterSize::of_pods(*pods), elements, runs }
    });
    EventsReport { events: size.events, clusters: clusters.collect() }.measured()
}

/// One run; also returns the node's elements at the end.
fn run(pods: usize, size: &Size) -> (Run, usize) {
    let mut cluster = Cluster::of(ClusterSize::of_pods(pods));
    let mut committer = Committer::new(cluster.state());
    let mut floor = Floor::like(&committer);
    let mut kinds = Run::new();
    let begun = Instant::now();
    for event in 0..size.events {
        if event >= FEWEST_EVENTS && begun.elapsed() > size.time {
            break;
        }
        let mut order: Vec<EventKind> = measured_kinds().collect();
        cluster.shuffle(&mut order);
        for kind in order {
            let change = cluster.happen(kind, Place::Here).change();
            let step = committer.take(change);
            let samples = kinds.entry(kind).or_default();
            match step.commit {
                None => samples.unchanged.push(step.took),
                Some(commit) => {
                    let operations = step.operations.len();
                    let floor = floor.commit(&step.operations);
                    samples.changed.push(Sample { took: step.took, commit, floor, operations });
                }
            }
        }
    }
    (kinds, committer.elements())
}
