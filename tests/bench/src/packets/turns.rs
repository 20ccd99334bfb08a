//! Rulesets that are loaded in their places together and active alternately.

use std::collections::BTreeMap;

use super::Size;
use super::ours::Cluster;
use super::place::{Place, Rules, put_to_sleep};
use super::series::{Point, RuleLayout};
use super::traffic::{Ends, Traffic};
use crate::figures::Figure;
use kit::kernel_table::{load_netlink, load_text};

/// One of the alternating rulesets.
pub(super) struct Variant {
    pub(super) point: Point,
    pub(super) place: usize,
    pub(super) rules: Rules,
    pub(super) traffic: Traffic,
}

/// The namespaces: one without rules, one for nftables, one for iptables, whose hooks cannot be dormant.
pub(super) struct Places {
    places: [(Place, Ends); 3],
}

pub(super) const MAIN: usize = 0;
pub(super) const BARE: usize = 1;
pub(super) const IPTABLES: usize = 2;

/// A rule with `ct state` enables connection tracking, although no packet meets its chain.
const CONNTRACK: &str =
    "add table inet conntrack\nadd chain inet conntrack unused\nadd rule inet conntrack unused ct state new accept";

impl Places {
    pub(super) fn new() -> Places {
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

    pub(super) fn place(&self, number: usize) -> &Place {
        &self.places[number].0
    }

    /// Loads the ruleset into the place as dormant.
    pub(super) fn load(&self, place: usize, ruleset: &nft::Ruleset) -> Rules {
        let table = ruleset.table.name.to_string();
        self.place(place).on_node(|| {
            load_netlink(ruleset);
            put_to_sleep("inet", &table);
        });
        Rules::Table(table)
    }

    /// Loads the rules of the cluster into the place as dormant: those at interfaces too, if sources are checked.
    pub(super) fn load_ours(&self, place: usize, cluster: &Cluster, table: &str) -> Rules {
        let rules = self.load(place, &cluster.ruleset(table));
        let Some(edge) = cluster.edge(table) else { return rules };
        self.place(place).on_node(|| {
            load_netlink(&edge);
            put_to_sleep("netdev", table);
        });
        Rules::Tables(table.into())
    }

    /// Sends the established flow through the rules, which may set a mark on it that the other rulesets see.
    pub(super) fn establish(&mut self, place: usize, rules: &Rules) {
        let (place, ends) = &mut self.places[place];
        place.switch_to(rules);
        ends.establish();
        place.switch_to(&Rules::None);
    }

    /// Alternates the variants, and returns the median of each run.
    pub(super) fn run(&mut self, variants: &[Variant], size: Size) -> BTreeMap<Point, Vec<f64>> {
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
                if variant.point.0 != RuleLayout::Nothing {
                    place.flush_conntrack();
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
            RuleLayout::Nothing | RuleLayout::Conntrack | RuleLayout::CutOff => false,
            RuleLayout::Ours | RuleLayout::OursUnchecked | RuleLayout::LinearNft | RuleLayout::LinearIptables => true,
        };
        assert_eq!(ends.passes_from_world(), !judges, "{} and a flow that no policy allows", variant.point.0);
        place.switch_to(&Rules::None);
    }
}
