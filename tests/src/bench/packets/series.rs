//! Rulesets that take turns: all that are compared with each other are measured in one run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Size;
use super::linear;
use super::ours::Cluster;
use super::place::{Place, Rules, put_to_sleep};
use super::traffic::{Ends, Traffic};
use crate::bench::figures::Figure;
use crate::kernel_table::{load_netlink, load_text};

/// Whose rules are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// No table at all, and so no connection tracking.
    Nothing,
    /// Connection tracking, which a rule that no packet meets asks for.
    Conntrack,
    Ours,
    /// With `--source-check off`.
    OursUnchecked,
    LinearNft,
    LinearIptables,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Line::Nothing => "no table",
            Line::Conntrack => "conntrack alone",
            Line::Ours => "ours",
            Line::OursUnchecked => "ours, --source-check off",
            Line::LinearNft => "linear, nftables",
            Line::LinearIptables => "linear, iptables and ipset",
        })
    }
}

/// Which packet of a flow.
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

/// The axis that has bars.
pub(super) const POLICIES: &str = "policies";

/// A line at one place of the axis.
pub(super) type Point = (Line, u32);

/// What is measured together.
pub(super) struct Series {
    pub(super) packet: Packet,
    /// What the axis counts.
    pub(super) unit: &'static str,
    /// The median of each run, in nanoseconds a packet.
    pub(super) runs: BTreeMap<Point, Vec<f64>>,
    /// Lines that this machine cannot have, and why.
    pub(super) missing: BTreeMap<Line, String>,
}

/// One that takes its turns.
struct Variant {
    point: Point,
    place: usize,
    rules: Rules,
    traffic: Traffic,
}

/// The namespaces: one has no rules at all, one those of iptables, whose hooks cannot sleep.
struct Places {
    places: [(Place, Ends); 3],
}

const MAIN: usize = 0;
const BARE: usize = 1;
const IPTABLES: usize = 2;

/// Connection tracking begins with a rule that asks for it, though no packet comes to its chain.
const CONNTRACK: &str =
    "add table inet conntrack\nadd chain inet conntrack unused\nadd rule inet conntrack unused ct state new accept";

impl Series {
    pub(super) fn all(size: Size) -> Vec<Series> {
        let large = |most: u32| (most / size.divisor).max(10);
        let steps = |all: &[u32]| {
            let most = large(all[all.len() - 1]);
            all.iter().map(|n| (*n).min(most)).collect::<BTreeSet<u32>>().into_iter().collect::<Vec<u32>>()
        };
        let cluster = Cluster::SMALLEST;
        let by_locals = |n| Cluster { local_addresses: n, ..cluster };
        let by_peers = |n| Cluster { peer_addresses: n, ..cluster };
        let by_ports = |n| Cluster { ports: n, ..cluster };
        let by_ranges = |n| Cluster { ports: 0, ranges: n, ..cluster };
        let by_blocks = |n| Cluster { blocks: n, ..cluster };
        let (policies, locals, peers) = ([1, 10, 100, 1000], [10, 1000, 50_000], [100, 10_000, 100_000]);
        let mut all = Vec::new();
        for packet in [Packet::Established, Packet::First] {
            all.push(by_policies(packet, size, &steps(&policies)));
            all.push(ours_alone(packet, "local addresses", size, &steps(&locals), by_locals));
            all.push(ours_alone(packet, "peer addresses", size, &steps(&peers), by_peers));
        }
        let mut first = |unit, most: &[u32], cluster: &dyn Fn(u32) -> Cluster| {
            all.push(ours_alone(Packet::First, unit, size, &steps(most), cluster));
        };
        first("exact ports", &[1, 10, 100, 1000], &by_ports);
        first("port ranges", &[1, 10, 300], &by_ranges);
        first("CIDRs", &[1, 10, 100, 5000], &by_blocks);
        all
    }

    pub(super) fn figure(&self, point: Point) -> Figure {
        Figure::of(self.runs[&point].iter().copied())
    }

    /// Of each run.
    pub(super) fn ratio(&self, point: Point, to: Point) -> Figure {
        Figure::of(self.runs[&point].iter().zip(&self.runs[&to]).map(|(a, b)| a / b))
    }
}

/// Between two pods, with every layout.
fn by_policies(packet: Packet, size: Size, policies: &[u32]) -> Series {
    let traffic = match packet {
        Packet::Established => Traffic::Established,
        Packet::First => Traffic::FirstBetweenPods,
    };
    let places = Places::new();
    let main = &places.places[MAIN].0;
    let mut missing = BTreeMap::new();
    let mut variants = vec![
        Variant { point: (Line::Nothing, 0), place: BARE, rules: Rules::None, traffic: traffic.clone() },
        Variant { point: (Line::Conntrack, 0), place: MAIN, rules: Rules::None, traffic: traffic.clone() },
    ];
    let mut add = |line, n, place, rules| {
        variants.push(Variant { point: (line, n), place, rules, traffic: traffic.clone() });
    };
    for &n in policies {
        let cluster = Cluster { policies: n, ..Cluster::SMALLEST };
        add(Line::Ours, n, MAIN, load(main, cluster, &format!("ours-{n}")));
        let unchecked = Cluster { check_sources: false, ..cluster };
        add(Line::OursUnchecked, n, MAIN, load(main, unchecked, &format!("unchecked-{n}")));
        add(Line::LinearNft, n, MAIN, linear::load_nft(main, n));
        match linear::load_iptables(&places.places[IPTABLES].0, n) {
            Ok(rules) => add(Line::LinearIptables, n, IPTABLES, rules),
            Err(reason) => {
                missing.insert(Line::LinearIptables, reason);
            }
        }
    }
    Series { packet, unit: POLICIES, runs: places.run(variants, size), missing }
}

/// Ours and conntrack alone with the same packets. First packets come from addresses of other nodes and go to local
/// ones, all that there are in turn.
fn ours_alone(
    packet: Packet,
    unit: &'static str,
    size: Size,
    steps: &[u32],
    cluster: impl Fn(u32) -> Cluster,
) -> Series {
    let places = Places::new();
    let mut variants = Vec::new();
    for &n in steps {
        let cluster = cluster(n);
        let traffic = match packet {
            Packet::Established => Traffic::Established,
            Packet::First => {
                Traffic::FirstFromWorld { sources: cluster.remote_peers(), destinations: cluster.destinations() }
            }
        };
        let alone = Variant { point: (Line::Conntrack, n), place: MAIN, rules: Rules::None, traffic: traffic.clone() };
        let rules = load(&places.places[MAIN].0, cluster, &format!("ours-{n}"));
        variants.extend([alone, Variant { point: (Line::Ours, n), place: MAIN, rules, traffic }]);
    }
    Series { packet, unit, runs: places.run(variants, size), missing: BTreeMap::new() }
}

/// Puts the cluster's rules into the place, asleep.
fn load(place: &Place, cluster: Cluster, table: &str) -> Rules {
    let ruleset = cluster.ruleset(table);
    place.on_node(|| {
        load_netlink(&ruleset);
        put_to_sleep(table);
    });
    Rules::Table(table.into())
}

impl Places {
    fn new() -> Places {
        let places = [MAIN, BARE, IPTABLES].map(|_| {
            let place = Place::new();
            let ends = Ends::of(&place);
            (place, ends)
        });
        for place in [MAIN, IPTABLES] {
            places[place].0.on_node(|| load_text(CONNTRACK));
        }
        Places { places }
    }

    /// Lets the variants take turns, and gives the median of each run.
    fn run(mut self, variants: Vec<Variant>, size: Size) -> BTreeMap<Point, Vec<f64>> {
        variants.iter().for_each(|variant| self.check(variant));
        let mut runs: BTreeMap<Point, Vec<f64>> = BTreeMap::new();
        for _ in 0..size.rounds {
            let mut slices: BTreeMap<Point, Vec<f64>> = BTreeMap::new();
            for slice in 0..size.slices {
                for turn in 0..variants.len() {
                    let variant = &variants[(turn + slice) % variants.len()];
                    slices.entry(variant.point).or_default().push(self.slice(variant, size.batches));
                }
            }
            for (point, slices) in slices {
                runs.entry(point).or_default().push(Figure::of(slices).median());
            }
        }
        runs
    }

    fn slice(&mut self, variant: &Variant, batches: u32) -> f64 {
        let (place, ends) = &mut self.places[variant.place];
        place.switch_to(&variant.rules);
        match variant.traffic {
            Traffic::Established => {
                ends.establish();
                ends.nanoseconds(&variant.traffic, batches / 2, batches)
            }
            Traffic::FirstBetweenPods | Traffic::FirstFromWorld { .. } => {
                let nanoseconds = ends.nanoseconds(&variant.traffic, batches / 2, batches);
                if variant.point.0 != Line::Nothing {
                    place.forget_flows();
                }
                nanoseconds
            }
        }
    }

    /// # Panics
    /// If the rules are not in force, or deny the measured flow.
    fn check(&mut self, variant: &Variant) {
        let (place, ends) = &mut self.places[variant.place];
        place.switch_to(&variant.rules);
        let judges = match variant.point.0 {
            Line::Nothing | Line::Conntrack => false,
            Line::Ours | Line::OursUnchecked | Line::LinearNft | Line::LinearIptables => true,
        };
        assert_eq!(ends.passes_from_world(), !judges, "{} and a flow that no policy allows", variant.point.0);
        place.switch_to(&Rules::None);
    }
}
