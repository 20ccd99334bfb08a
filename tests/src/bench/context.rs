//! The context provider on clusters of three sizes: what a baseline and an event cost, what is sent of them, and how
//! thousands of subscribers are fed.

mod cost;
mod report;
mod served;
mod subscribers;

use std::time::Duration;

use super::figures::Figure;
use super::machine::Memory;
use super::record::Measured;
use crate::scale::Size as ClusterSize;
use cost::Cost;
use report::Report;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Size {
    /// Pods of each cluster.
    pub pods: Vec<usize>,
    /// Events of each kind.
    pub events: usize,
    /// Baselines from the lists.
    pub baselines: usize,
    /// Streams on the loopback, and how many of them read nothing.
    pub subscribers: usize,
    pub silent: usize,
    /// Single events that are followed to every subscriber.
    pub rounds: usize,
    /// Events as fast as they are taken, while some subscribers read nothing.
    pub storm: usize,
}

impl Size {
    /// What `docs/performance.md` is measured with.
    pub fn of_pods(pods: Vec<usize>) -> Size {
        Size { pods, events: 1_000, baselines: 3, subscribers: 5_000, silent: 100, rounds: 10, storm: 20_000 }
    }
}

/// One cluster.
struct Run {
    cluster: ClusterSize,
    cost: Cost,
    served: Served,
    /// Resident after the first download of the same cluster without policies, so that hardly anything is declared.
    without_policies: Memory,
}

/// The provider as a process.
struct Served {
    /// From its start until its first baseline has been downloaded.
    first_download: Duration,
    /// Then.
    started: Memory,
    database_bytes: usize,
    compressed_bytes: usize,
    addresses: u64,
    /// With all subscribers, and with as many of them as read nothing after a storm.
    subscribed: Memory,
    stormed: Memory,
    subscribers: usize,
    /// From an event to the subscriber in the middle, and to the last.
    to_the_middle: Figure,
    to_the_last: Figure,
}

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured.
pub fn measure(size: &Size) -> Measured {
    let runs = size.pods.iter().map(|pods| {
        let cluster = ClusterSize::of_pods(*pods);
        let without_policies = served::started(ClusterSize { policies: 0, ..cluster });
        Run { cluster, cost: cost::measure(cluster, size), served: served::measure(cluster, size), without_policies }
    });
    Report { runs: runs.collect() }.measured()
}
