//! Resident set of the agent on clusters of three sizes: after its start, its peak until then, and during random events
//! that keep the number of objects constant.

mod report;

use std::path::Path;

use policy::Kind;

use super::fed::{Stage, feed, restore_size};
use super::machine::Memory;
use super::record::Measurement;
use generator::cluster::{Cluster, Size as ClusterSize};
use report::MemoryReport;

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    /// Pods of each cluster.
    pub pods: Vec<usize>,
    /// Runs with each cluster, whose medians are reported: each starts an agent twice.
    pub rounds: usize,
    /// Events of a run.
    pub events: usize,
}

/// Samples of the memory during the events, evenly spaced.
pub const POINTS: usize = 10;

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn new(pods: Vec<usize>, rounds: usize, full: bool) -> Size {
        Size { pods, rounds, events: if full { 1_000_000 } else { 100_000 } }
    }
}

/// All runs with one cluster.
struct Runs {
    cluster: ClusterSize,
    json_bytes: usize,
    runs: Vec<Run>,
}

struct Run {
    /// Idle after the start.
    started: Memory,
    /// After this many events, with as many objects as at the start.
    later: Vec<(usize, Memory)>,
    /// An agent that starts on the final objects. Random events reduce what the pods of a workload have in common, so
    /// that more has to be stored than at the beginning.
    anew: Memory,
    /// The agent's own estimate of the memory of its stores, at the end.
    estimated_bytes: u64,
}

/// Measures with the program, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(program: &Path, size: &Size) -> Measurement {
    let clusters = size.pods.iter().map(|pods| {
        let cluster = Cluster::of(ClusterSize::of_pods(*pods));
        let json_bytes = Kind::ALL.map(|kind| cluster.json_bytes(kind)).iter().sum();
        let runs = (0..size.rounds).map(|_| run(program, cluster.clone(), size.events)).collect();
        Runs { cluster: cluster.size(), json_bytes, runs }
    });
    MemoryReport { events: size.events, clusters: clusters.collect() }.measured()
}

fn run(program: &Path, cluster: Cluster, events: usize) -> Run {
    let stage = Stage::new(program);
    let api = stage.serve(cluster);
    let mut agent = stage.start(&api);
    agent.until_ready();
    agent.until_idle();
    let started = agent.memory();
    let mut later = Vec::new();
    agent.reset_peak();
    for point in 1..=POINTS {
        feed(&api, events * point / POINTS - events * (point - 1) / POINTS);
        restore_size(&api);
        agent.until_idle();
        later.push((events * point / POINTS, agent.memory()));
    }
    // The metric is updated every few seconds only, and would be 0 right after the start.
    let estimated_bytes = agent.0.metric("ringfence_store_memory_bytes");
    agent.0.stop();
    let mut agent = stage.start(&api);
    agent.until_ready();
    agent.until_idle();
    let anew = agent.memory();
    Run { started, later, anew, estimated_bytes }
}
