//! Series of alternating rulesets: all layouts by number of policies, and our layout along the other axes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Size;
use super::linear;
use super::ours::Cluster;
use super::place::Rules;
use super::traffic::Traffic;
use super::turns::{BARE, IPTABLES, MAIN, Places, Variant};
use crate::figures::Figure;

/// The layout in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleLayout {
    /// No table, and so no connection tracking.
    Nothing,
    /// Connection tracking, enabled by a rule that no packet meets.
    Conntrack,
    Ours,
    /// With `--source-check off`.
    OursUnchecked,
    /// Ours, truncated so that a packet is matched against a given number of rules only.
    CutOff,
    LinearNft,
    LinearIptables,
}

impl fmt::Display for RuleLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleLayout::Nothing => "no table",
            RuleLayout::Conntrack => "conntrack alone",
            RuleLayout::Ours => "ours",
            RuleLayout::OursUnchecked => "ours, --source-check off",
            RuleLayout::CutOff => "ours, cut off",
            RuleLayout::LinearNft => "linear, nftables",
            RuleLayout::LinearIptables => "linear, iptables and ipset",
        })
    }
}

/// First or established packet of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    Established,
    First,
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Packet::Established => "established packet",
            Packet::First => "first packet",
        })
    }
}

/// The axis of all layouts, which has bars.
pub(super) const POLICIES: &str = "policies";

/// The other axis that has bars.
pub(super) const CLUSTER_POLICIES: &str = "ClusterNetworkPolicies of 5 rules";

/// A line at one value of the axis.
pub(super) type Point = (RuleLayout, u32);

/// Points measured in alternation.
pub(super) struct Series {
    pub(super) packet: Packet,
    /// The unit of the axis.
    pub(super) unit: &'static str,
    /// The median of each run, in nanoseconds a packet.
    pub(super) runs: BTreeMap<Point, Vec<f64>>,
    /// Lines that this machine does not support, and why.
    pub(super) missing: BTreeMap<RuleLayout, String>,
}

impl Series {
    pub(super) fn all(size: Size) -> Vec<Series> {
        let large = |most: u32| (most / size.divisor).max(10);
        let steps = |all: &[u32]| {
            let most = large(all[all.len() - 1]);
            all.iter().map(|n| (*n).min(most)).collect::<BTreeSet<u32>>().into_iter().collect::<Vec<u32>>()
        };
        let cluster = Cluster::SMALLEST;
        let by_locals = |n| Cluster { local_addresses: n, ..cluster };
        // Each pod has its own program and interface, so that the maps lead to as many chains as they have elements.
        let by_programs = |n| Cluster { programs: n, ..cluster };
        let by_peers = |n| Cluster { peer_addresses: n, ..cluster };
        let by_ports = |n| Cluster { ports: n, ..cluster };
        let by_ranges = |n| Cluster { ports: 0, ranges: n, ..cluster };
        let by_blocks = |n| Cluster { blocks: n, ..cluster };
        let by_cluster_policies = |n| Cluster { cluster_policies: n, ..cluster };
        let (policies, locals, peers) = ([1, 10, 100, 1000], [10, 1000, 50_000], [100, 10_000, 100_000]);
        let programs = [10, 1000, 10_000];
        let mut all = Vec::new();
        for packet in [Packet::Established, Packet::First] {
            all.push(by_policies(packet, size, &steps(&policies)));
            all.push(ours_alone(packet, "local addresses", size, &steps(&locals), by_locals));
            all.push(ours_alone(packet, "local pods with a policy each", size, &steps(&programs), by_programs));
            all.push(ours_alone(packet, "peer addresses", size, &steps(&peers), by_peers));
        }
        let mut first = |unit, most: &[u32], cluster: &dyn Fn(u32) -> Cluster| {
            all.push(ours_alone(Packet::First, unit, size, &steps(most), cluster));
        };
        first("exact ports", &[1, 10, 100, 1000], &by_ports);
        first("port ranges", &[1, 10, 300], &by_ranges);
        first("CIDRs", &[1, 10, 100, 5000], &by_blocks);
        first(CLUSTER_POLICIES, &[1, 100, 500], &by_cluster_policies);
        all
    }

    pub(super) fn figure(&self, point: Point) -> Figure {
        Figure::of(self.runs[&point].iter().copied())
    }

    /// The ratio of each run.
    pub(super) fn ratio(&self, point: Point, to: Point) -> Figure {
        Figure::of(self.runs[&point].iter().zip(&self.runs[&to]).map(|(a, b)| a / b))
    }
}

/// The series between two pods, with every layout.
fn by_policies(packet: Packet, size: Size, policies: &[u32]) -> Series {
    let traffic = match packet {
        Packet::Established => Traffic::Established,
        Packet::First => Traffic::FirstBetweenPods,
    };
    let mut places = Places::new();
    let mut missing = BTreeMap::new();
    let mut variants = vec![
        Variant { point: (RuleLayout::Nothing, 0), place: BARE, rules: Rules::None, traffic: traffic.clone() },
        Variant { point: (RuleLayout::Conntrack, 0), place: MAIN, rules: Rules::None, traffic: traffic.clone() },
    ];
    let mut add = |line, n, place, rules| {
        variants.push(Variant { point: (line, n), place, rules, traffic: traffic.clone() });
    };
    for &n in policies {
        let cluster = Cluster { policies: n, ..Cluster::SMALLEST };
        add(RuleLayout::Ours, n, MAIN, places.load_ours(MAIN, &cluster, &format!("ours-{n}")));
        let unchecked = Cluster { check_sources: false, ..cluster };
        add(RuleLayout::OursUnchecked, n, MAIN, places.load_ours(MAIN, &unchecked, &format!("unchecked-{n}")));
        add(RuleLayout::LinearNft, n, MAIN, linear::load_nft(places.place(MAIN), n));
        match linear::load_iptables(places.place(IPTABLES), n) {
            Ok(rules) => add(RuleLayout::LinearIptables, n, IPTABLES, rules),
            Err(reason) => {
                missing.insert(RuleLayout::LinearIptables, reason);
            }
        }
    }
    Series { packet, unit: POLICIES, runs: places.run(&variants, size), missing }
}

/// Our rules and conntrack alone with the same packets. First packets go from all addresses of other nodes in turn to
/// all local addresses in turn.
fn ours_alone(
    packet: Packet,
    unit: &'static str,
    size: Size,
    steps: &[u32],
    cluster: impl Fn(u32) -> Cluster,
) -> Series {
    let mut places = Places::new();
    let mut variants = Vec::new();
    for &n in steps {
        let cluster = cluster(n);
        let traffic = match packet {
            Packet::Established => Traffic::Established,
            Packet::First => {
                Traffic::FirstFromWorld { sources: cluster.remote_peers(), destinations: cluster.destinations() }
            }
        };
        let alone =
            Variant { point: (RuleLayout::Conntrack, n), place: MAIN, rules: Rules::None, traffic: traffic.clone() };
        let rules = places.load_ours(MAIN, &cluster, &format!("ours-{n}"));
        variants.extend([alone, Variant { point: (RuleLayout::Ours, n), place: MAIN, rules, traffic }]);
    }
    Series { packet, unit, runs: places.run(&variants, size), missing: BTreeMap::new() }
}
