//! Ports that two workloads may use between each other, over all pairs of their pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::classes::{Class, Classes};
use super::lines::TierRuleName;
use super::ports::FlowPorts;
use super::terms::OtherEnd;
use super::workloads::{Families, Workload, bit};
use crate::Direction;

/// Ports allowed between pairs of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    /// Allowed for at least one pair.
    pub(super) some: FlowPorts,
    /// Allowed for every pair.
    pub(super) every: FlowPorts,
}

impl Pair {
    pub(super) fn of(pairs: impl IntoIterator<Item = FlowPorts>) -> Pair {
        let nothing_said = Pair { some: FlowPorts::none(), every: FlowPorts::everything() };
        let mut any = false;
        let joined = pairs.into_iter().fold(nothing_said, |pair, ports| {
            any = true;
            Pair { some: pair.some.union(&ports), every: pair.every.intersection(&ports) }
        });
        if any { joined } else { Pair::nothing() }
    }

    pub(super) fn nothing() -> Pair {
        Pair { some: FlowPorts::none(), every: FlowPorts::none() }
    }

    pub(super) fn everything() -> Pair {
        Pair { some: FlowPorts::everything(), every: FlowPorts::everything() }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.some.is_none()
    }

    /// The ports that both allow.
    pub(super) fn meet(&self, other: &Pair) -> Pair {
        Pair { some: self.some.intersection(&other.some), every: self.every.intersection(&other.every) }
    }

    /// The ports of the lines, with whether each is partial, beyond those that the wildcard edge already
    /// declares.
    pub(super) fn beyond(&self, wildcard: &Pair) -> [(bool, FlowPorts); 2] {
        let partial = self.some.beyond(&self.every).beyond(&wildcard.some);
        // A partial line omits ports that are open to everyone. If the remainder were "everything", it would include
        // those ports again, so then only ports open for every pair are omitted.
        let said = if partial.is_everything() { &wildcard.every } else { &wildcard.some };
        [(false, self.every.beyond(said)), (true, partial)]
    }
}

/// Ports that pods of one class may use to those of another.
fn allowed(source: &Class, destination: &Class) -> FlowPorts {
    let side = |direction, own: &Class, other: &Class| match own.terms(direction) {
        Some(terms) => terms.allow(other.as_other_end()),
        None => FlowPorts::everything(),
    };
    let out = side(Direction::Egress, source, destination);
    if out.is_none() {
        return out;
    }
    out.intersection(&side(Direction::Ingress, destination, source))
}

/// Every pair of pods that can reach each other counts, also two pods of the same class.
pub(super) fn between(source: &Workload, destination: &Workload, classes: &Classes) -> Pair {
    let pairs = source.classes.iter().flat_map(|s| destination.classes.iter().map(|d| (*s, *d)));
    let pairs = pairs.map(|(s, d)| (&classes.slots[s], &classes.slots[d]));
    Pair::of(pairs.filter(|(s, d)| s.key.family == d.key.family).map(|(s, d)| allowed(s, d)))
}

/// Rules of cluster policies that accept flows of an edge: sorted, with whether the ports hold for some pairs only.
pub(super) type AcceptingRules = Arc<[(Arc<TierRuleName>, bool, FlowPorts)]>;

/// The rules of both sides that accept flows between the workloads.
pub(super) fn accepting(source: &Workload, destination: &Workload, classes: &Classes) -> AcceptingRules {
    let accepts = |workload: &Workload, direction| {
        let mut own = workload.classes.iter().filter_map(|class| classes.slots[*class].terms(direction));
        own.any(|terms| terms.accepts())
    };
    if !accepts(source, Direction::Egress) && !accepts(destination, Direction::Ingress) {
        return Arc::default();
    }
    let pairs = source.classes.iter().flat_map(|s| destination.classes.iter().map(|d| (*s, *d)));
    let pairs = pairs.map(|(s, d)| (&classes.slots[s], &classes.slots[d]));
    joined(pairs.filter(|(s, d)| s.key.family == d.key.family).map(|(s, d)| {
        let side = |direction, own: &Class, other: &Class| {
            own.terms(direction).map_or_else(Vec::new, |terms| terms.accepting(other.as_other_end()))
        };
        let (egress, ingress) = (side(Direction::Egress, s, d), side(Direction::Ingress, d, s));
        let (both, rules) = (allowed(s, d), egress.into_iter().chain(ingress));
        rules.map(|(rule, ports)| (rule, ports.intersection(&both))).collect()
    }))
}

/// The rules of the workload's side that accept the ports of its wildcard edge.
pub(super) fn accepting_anyone(
    workload: &Workload,
    direction: Direction,
    wildcard: &Pair,
    classes: &Classes,
) -> AcceptingRules {
    let own = workload.classes.iter().map(|class| &classes.slots[*class]);
    joined(own.map(|class| {
        let anyone = OtherEnd::Unnamed { ordinary: true };
        let rules = class.terms(direction).map_or_else(Vec::new, |terms| terms.accepting(anyone));
        rules.into_iter().map(|(rule, ports)| (rule, ports.intersection(&wildcard.some))).collect()
    }))
}

/// Merges the rules of each pair of pods.
fn joined(pairs: impl Iterator<Item = Vec<(Arc<TierRuleName>, FlowPorts)>>) -> AcceptingRules {
    let mut by_rule: BTreeMap<Arc<TierRuleName>, Vec<FlowPorts>> = BTreeMap::new();
    let mut count = 0;
    for rules in pairs {
        count += 1;
        for (rule, ports) in rules {
            by_rule.entry(rule).or_default().push(ports);
        }
    }
    let of_rule = |(rule, mut ports): (Arc<TierRuleName>, Vec<FlowPorts>)| {
        ports.resize(count, FlowPorts::none());
        let by_partiality = Pair::of(ports).beyond(&Pair::nothing());
        by_partiality.into_iter().map(move |(partial, ports)| (rule.clone(), partial, ports))
    };
    by_rule.into_iter().flat_map(of_rule).filter(|(.., ports)| !ports.is_none()).collect()
}

/// Ports between a workload and any partner in a known namespace that has these families and whose own side allows
/// everything.
pub(super) fn by_default(workload: &Workload, direction: Direction, families: Families, classes: &Classes) -> Pair {
    let classes = workload.classes.iter().map(|class| &classes.slots[*class]);
    let reachable = classes.filter(|class| bit(class.key.family) & families != 0);
    Pair::of(
        reachable
            .map(|class| class.terms(direction).map_or_else(FlowPorts::everything, |terms| terms.by_default().clone())),
    )
}

/// The ports between each governed workload and its partners. A partner whose own side allows everything has an entry
/// if its ports differ from the group's default, any other partner if there are ports at all.
#[derive(Debug, Clone, Default)]
pub(super) struct Entries {
    entries: BTreeMap<(u32, u32), Entry>,
    reverse: BTreeSet<(u32, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pair: Pair,
    /// The partner's nature when the entry was recorded: its own side allows everything, and its families.
    pub(super) free: bool,
    pub(super) families: Families,
}

impl Entries {
    pub(super) fn get(&self, anchor: u32, partner: u32) -> Option<&Entry> {
        self.entries.get(&(anchor, partner))
    }

    /// Returns the previous entry.
    pub(super) fn set(&mut self, anchor: u32, partner: u32, entry: Option<Entry>) -> Option<Entry> {
        match entry {
            Some(entry) => {
                self.reverse.insert((partner, anchor));
                self.entries.insert((anchor, partner), entry)
            }
            None => {
                self.reverse.remove(&(partner, anchor));
                self.entries.remove(&(anchor, partner))
            }
        }
    }

    pub(super) fn of(&self, anchor: u32) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.range((anchor, 0)..=(anchor, u32::MAX)).map(|((_, partner), entry)| (*partner, entry))
    }

    /// The anchors that have an entry with the partner.
    pub(super) fn with(&self, partner: u32) -> impl Iterator<Item = u32> {
        self.reverse.range((partner, 0)..=(partner, u32::MAX)).map(|(_, anchor)| *anchor)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
