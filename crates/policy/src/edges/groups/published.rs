//! The published edges, and their delta since the last update.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

use crate::edges::declared_lines::{DeclaredLine, EdgeEnd, TierRuleName};
use crate::edges::ports::FlowPorts;
use crate::edges::workloads::{AcceptingRules, WorkloadIndex};
use crate::{Direction, ObjectName};

/// Represents all workloads in wildcard edges.
pub(super) const ANYONE: u32 = u32::MAX;

/// The direction, the governed workload, its partner, and whether the edge is partial.
pub(in crate::edges) type Key = (Direction, u32, u32, bool);

/// The direction, the governed workload, and its partner.
pub(in crate::edges) type RulesKey = (Direction, u32, u32);

#[derive(Debug, Clone, Default)]
pub(in crate::edges) struct PublishedEdges {
    pub(in crate::edges) edges: OrdMap<Key, FlowPorts>,
    /// The rules that accept flows of edges, by direction, workload and partner; never empty.
    pub(in crate::edges) rules: OrdMap<RulesKey, AcceptingRules>,
    rule_count: usize,
    /// Number of edges that lack some denied ports of everything.
    with_denied_ports: usize,
    pub(in crate::edges) added: Vec<DeclaredLine>,
    pub(in crate::edges) removed: Vec<DeclaredLine>,
}

impl PublishedEdges {
    pub(super) fn set(
        &mut self,
        direction: Direction,
        anchor: u32,
        partner: u32,
        partial: bool,
        ports: FlowPorts,
        workloads: &WorkloadIndex,
    ) {
        let key = (direction, anchor, partner, partial);
        let line = |ports| edge(key, ports, |workload| workloads.slots[workload].name.clone());
        let before = match ports.is_none() {
            true => self.edges.remove(&key),
            false => self.edges.insert(key, ports.clone()),
        };
        if before.as_ref() == Some(&ports) {
            return;
        }
        let lacks_some = |ports: &FlowPorts| usize::from(ports.has_portless() && !ports.is_everything());
        self.with_denied_ports += lacks_some(&ports);
        self.with_denied_ports -= before.as_ref().map_or(0, lacks_some);
        self.removed.extend(before.map(line));
        self.added.extend((!ports.is_none()).then(|| line(ports)));
    }

    /// Replaces the rules that accept flows of the edge.
    pub(super) fn set_rules(&mut self, key: RulesKey, rules: AcceptingRules, workloads: &WorkloadIndex) {
        let before = match rules.is_empty() {
            true => self.rules.remove(&key),
            false => self.rules.insert(key, rules.clone()),
        };
        let before = before.unwrap_or_default();
        if before == rules {
            return;
        }
        self.rule_count = self.rule_count + rules.len() - before.len();
        let name = |workload: u32| workloads.slots[workload].name.clone();
        self.removed.extend(rule_lines(key, &before, name));
        self.added.extend(rule_lines(key, &rules, name));
    }

    /// Replaces the rules of all edges of the workload, given by partner.
    pub(super) fn replace_rules(
        &mut self,
        direction: Direction,
        anchor: u32,
        rules: BTreeMap<u32, AcceptingRules>,
        workloads: &WorkloadIndex,
    ) {
        let of_before = self.rules.range((direction, anchor, 0)..=(direction, anchor, u32::MAX));
        let gone: Vec<RulesKey> = of_before.map(|(key, _)| *key).filter(|key| !rules.contains_key(&key.2)).collect();
        for key in gone {
            self.set_rules(key, AcceptingRules::default(), workloads);
        }
        for (partner, rules) in rules {
            self.set_rules((direction, anchor, partner), rules, workloads);
        }
    }

    /// Replaces all lines of the workload, given by partner; no ports are empty.
    pub(super) fn replace(
        &mut self,
        direction: Direction,
        anchor: u32,
        lines: BTreeMap<(u32, bool), FlowPorts>,
        workloads: &WorkloadIndex,
    ) {
        let all = (direction, anchor, 0, false)..=(direction, anchor, u32::MAX, true);
        let of_before = self.edges.range(all).map(|((_, _, partner, partial), _)| (*partner, *partial));
        let gone: Vec<(u32, bool)> = of_before.filter(|key| !lines.contains_key(key)).collect();
        for (partner, partial) in gone {
            self.set(direction, anchor, partner, partial, FlowPorts::none(), workloads);
        }
        for ((partner, partial), ports) in lines {
            self.set(direction, anchor, partner, partial, ports, workloads);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.edges.len() + self.rule_count
    }

    /// Number of edges that allow everything but some denied ports.
    pub(in crate::edges) fn with_denied_ports(&self) -> usize {
        self.with_denied_ports
    }
}

/// The lines of the rules that accept flows of an edge.
pub(in crate::edges) fn rule_lines(
    (direction, anchor, partner): RulesKey,
    rules: &[(Arc<TierRuleName>, bool, FlowPorts)],
    name: impl Fn(u32) -> ObjectName,
) -> Vec<DeclaredLine> {
    let (source, destination) = ends(direction, anchor, partner, name);
    let line = |(rule, partial, ports): &(Arc<TierRuleName>, bool, FlowPorts)| DeclaredLine::Rule {
        source: source.clone(),
        destination: destination.clone(),
        ports: ports.clone(),
        partial: *partial,
        rule: rule.clone(),
    };
    rules.iter().map(line).collect()
}

/// The edge of the key's pair, of which one end may be any workload.
pub(in crate::edges) fn edge(key: Key, ports: FlowPorts, name: impl Fn(u32) -> ObjectName) -> DeclaredLine {
    let (direction, anchor, partner, partial) = key;
    let (source, destination) = ends(direction, anchor, partner, name);
    DeclaredLine::Edge { source, destination, ports, partial }
}

/// The source and the destination of an edge.
fn ends(direction: Direction, anchor: u32, partner: u32, name: impl Fn(u32) -> ObjectName) -> (EdgeEnd, EdgeEnd) {
    let end = |workload: u32| match workload {
        ANYONE => EdgeEnd::Any,
        number => EdgeEnd::Workload(name(number)),
    };
    match direction {
        Direction::Ingress => (end(partner), end(anchor)),
        Direction::Egress => (end(anchor), end(partner)),
    }
}
