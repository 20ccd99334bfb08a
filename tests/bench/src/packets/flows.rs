//! Cost of flow records: conntrack accounting and events in the path of a packet, the processor time of a listener and
//! the events that it loses, and a dynamic set of edges.

mod cost;
mod edges;
mod listener;
mod report;
mod run;

use std::fs;
use std::time::Duration;

use super::place::Place;
use super::{Size as PacketSize, on_one_processor};
use crate::record::Measurement;
use run::Scenario;

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    pub packets: PacketSize,
    /// Connections a second that a listener is measured at. The last is the rate of the scenarios with a paused
    /// listener.
    pub rates: Vec<u32>,
    /// How long connections are opened in each scenario.
    pub lasting: Duration,
    /// How long the listener is paused in the scenarios that measure losses.
    pub still: Duration,
    /// Deadline for the last entries of a scenario to expire; the others are removed.
    pub expiry: Duration,
    /// Number of addresses at each end of the edges; the two are coprime.
    pub edge_ends: [u32; 2],
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn of_rounds(rounds: usize) -> Size {
        Size {
            packets: PacketSize::of_rounds(rounds),
            rates: vec![1_000, 10_000, 30_000],
            lasting: Duration::from_secs(4),
            still: Duration::from_secs(1),
            expiry: Duration::from_secs(4),
            edge_ends: [255, 257],
        }
    }
}

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(size: &Size) -> Measurement {
    on_one_processor(|| {
        let costs = cost::measure(size.packets);
        let edges = edges::measure(size);
        let scenarios = Scenario::all(size);
        let mut runs: Vec<Vec<run::Run>> = scenarios.iter().map(|_| Vec::new()).collect();
        for _ in 0..size.packets.rounds {
            for (scenario, runs) in scenarios.iter().zip(&mut runs) {
                runs.push(run::run(scenario));
            }
        }
        report::of(size, &costs, &edges, &scenarios.into_iter().zip(runs).collect::<Vec<_>>())
    })
}

/// Sets a sysctl of `net.netfilter.nf_conntrack_*` in the node's namespace.
fn set_conntrack(place: &Place, name: &str, value: u32) {
    let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
    place.on_node(|| fs::write(&path, value.to_string()).unwrap_or_else(|e| panic!("{path}: {e}")));
}
