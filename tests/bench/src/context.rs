//! The context provider on clusters of three sizes: the cost of a baseline and of an event, the bytes published, and
//! the fan-out to thousands of subscribers.

mod cost;
mod freshness;
mod report;
mod served;
mod subscribers;

use std::time::Duration;

use super::figures::Spread;
use super::machine::Memory;
use super::record::Measurement;
use cost::Cost;
use generator::cluster::Size as ClusterSize;
use report::ContextReport;

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    /// Pods of each cluster.
    pub pods: Vec<usize>,
    /// Runs with each cluster, whose medians are reported: each builds new tables and starts a new provider.
    pub rounds: usize,
    /// Events of each kind in a run.
    pub events: usize,
    /// Streams on the loopback, and the number of silent ones, which read nothing.
    pub subscribers: usize,
    pub silent: usize,
    /// Single events of a run that are tracked to every subscriber.
    pub deltas: usize,
    /// Events of a steady stream, 100 per second.
    pub steady: usize,
    /// Events at full speed while some subscribers read nothing.
    pub storm: usize,
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn new(pods: Vec<usize>, rounds: usize) -> Size {
        Size { pods, rounds, events: 1_000, subscribers: 5_000, silent: 100, deltas: 10, steady: 1_000, storm: 20_000 }
    }
}

/// All runs with one cluster.
struct Runs {
    cluster: ClusterSize,
    runs: Vec<Run>,
}

struct Run {
    cost: Cost,
    served: Served,
    /// Resident set after the first downloads of the same cluster without policies, so that hardly anything is
    /// declared.
    without_policies: Memory,
}

/// The provider as a process.
struct Served {
    /// From the start of the process until its first baseline has been downloaded.
    first_download: Duration,
    /// Memory after the first download.
    started: Memory,
    database_bytes: usize,
    compressed_bytes: usize,
    addresses: u64,
    /// Memory with all subscribers, and after a storm with the silent ones.
    subscribed: Memory,
    stormed: Memory,
    subscribers: usize,
    /// Seconds from an event to the median subscriber and to the last; medians of the events.
    to_the_middle: f64,
    to_the_last: f64,
    /// Seconds from a change to a subscriber during a steady stream of events.
    steady: Spread,
}

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured.
pub fn measure(size: &Size) -> Measurement {
    let clusters = size.pods.iter().map(|pods| {
        let cluster = ClusterSize::of_pods(*pods);
        let run = |_| {
            let without_policies = served::started(ClusterSize { policies: 0, ..cluster });
            Run { cost: cost::measure(cluster, size), served: served::measure(cluster, size), without_policies }
        };
        Runs { cluster, runs: (0..size.rounds).map(run).collect() }
    });
    ContextReport { clusters: clusters.collect() }.measured()
}
