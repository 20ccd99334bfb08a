//! From a change to the kernel's acknowledgement, in this process: what one event costs on clusters of three sizes, and
//! beside it the floor, the bare commit of the same operations.

mod committer;
mod report;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::scale::events::{Happening, Place};
use crate::scale::{Cluster, Size as ClusterSize};

use super::record::Measured;
use committer::{Committer, Floor};
use report::Report;

/// What happens in every round, in an order that changes from round to round. Moving pods are left out: for the rules
/// a pod that ends is one that goes.
fn measured_kinds() -> impl Iterator<Item = Happening> {
    Happening::ALL.into_iter().filter(|happening| *happening != Happening::PodMoved)
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Size {
    /// Pods of each cluster.
    pub pods: Vec<usize>,
    /// Events of each kind at most.
    pub rounds: usize,
    /// With one cluster, at most: a slow translation gets fewer rounds, but at least a few.
    pub time: Duration,
}

const FEWEST_ROUNDS: usize = 5;

impl Size {
    /// What `docs/performance.md` is measured with.
    pub fn of_pods(pods: Vec<usize>) -> Size {
        Size { pods, rounds: 1_000, time: Duration::from_secs(120) }
    }
}

/// One event that changed the rules.
struct Sample {
    took: Duration,
    /// The commit in it, and the same commit in a table of its own.
    commit: Duration,
    floor: Duration,
    operations: usize,
}

/// The events of one kind on one cluster.
#[derive(Default)]
struct Samples {
    changed: Vec<Sample>,
    /// How long it took to find out that nothing had to be changed.
    unchanged: Vec<Duration>,
}

struct Run {
    cluster: ClusterSize,
    elements: usize,
    kinds: BTreeMap<Happening, Samples>,
}

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(size: &Size) -> Measured {
    let runs = size.pods.iter().map(|pods| run(*pods, size)).collect();
    Report { runs }.measured()
}

fn run(pods: usize, size: &Size) -> Run {
    let mut cluster = Cluster::of(ClusterSize::of_pods(pods));
    let mut committer = Committer::new(cluster.state());
    let mut floor = Floor::like(&committer);
    let mut kinds: BTreeMap<Happening, Samples> = BTreeMap::new();
    let begun = Instant::now();
    for round in 0..size.rounds {
        if round >= FEWEST_ROUNDS && begun.elapsed() > size.time {
            break;
        }
        let mut order: Vec<Happening> = measured_kinds().collect();
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
    Run { cluster: cluster.size(), elements: committer.elements(), kinds }
}
