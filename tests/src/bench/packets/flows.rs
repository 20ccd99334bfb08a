//! What flow records cost: accounting and events of connection tracking in the way of a packet, the processor time of a
//! listener and the events that it loses, and a dynamic set of edges.

mod cost;
mod edges;
mod listener;
mod report;
mod run;

use std::fs;
use std::time::Duration;

use super::place::Place;
use super::{Size as PacketSize, on_one_processor};
use crate::bench::record::Measured;
use run::Scenario;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Size {
    pub packets: PacketSize,
    /// Connections a second that a listener is measured at. The last is that of the scenarios in which it stands still.
    pub rates: Vec<u32>,
    /// How long connections are opened in each scenario.
    pub lasting: Duration,
    /// How long the listener stands still in those that measure losses.
    pub still: Duration,
    /// How long the last entries of a scenario may take to expire; the rest is removed.
    pub expiry: Duration,
    /// How many addresses at each end make the edges; they have no common divisor.
    pub edge_ends: [u32; 2],
}

impl Size {
    /// What `docs/performance.md` is measured with.
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
pub fn measure(size: &Size) -> Measured {
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

/// Sets a number of `net.netfilter.nf_conntrack_*` in the node's namespace.
fn set_conntrack(place: &Place, name: &str, value: u32) {
    let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
    place.on_node(|| fs::write(&path, value.to_string()).unwrap_or_else(|e| panic!("{path}: {e}")));
}
