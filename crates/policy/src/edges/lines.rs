//! Snapshot of all lines.

use imbl::OrdMap;

use super::FlowPorts;
use super::governance::Governance;
use super::groups::edge;
use super::line::Line;
use super::pairs::AcceptingRules;
use super::published::{Key, RulesKey, rule_lines};
use super::remote_edges::{self, RemoteKey};
use crate::ObjectName;

/// A snapshot of the data for all lines. Cheap to clone; snapshots share unchanged parts.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    pub(super) edges: OrdMap<Key, FlowPorts>,
    pub(super) rules: OrdMap<RulesKey, AcceptingRules>,
    /// Edges with remote sets, by workload.
    pub(super) remote: OrdMap<u32, OrdMap<RemoteKey, FlowPorts>>,
    /// By workload; includes every workload with an edge.
    pub(super) governances: OrdMap<u32, Governance>,
}

impl Lines {
    /// Unique lines, unordered.
    pub fn iter(&self) -> impl Iterator<Item = Line> + '_ {
        self.with_names(|workload| self.governances[&workload].name.clone())
    }

    /// Like [`Lines::iter`], with names also for workloads without governance.
    pub(super) fn with_names(&self, name: impl Fn(u32) -> ObjectName + Copy) -> impl Iterator<Item = Line> {
        let edges = self.edges.iter().map(move |(key, ports)| edge(*key, ports.clone(), name));
        let remote = self.remote.iter().flat_map(move |(workload, edges)| {
            let name = name(*workload);
            edges.iter().map(move |(key, ports)| remote_edges::line(key, name.clone(), ports.clone()))
        });
        let rules = self.rules.iter().flat_map(move |(key, rules)| rule_lines(*key, rules, name));
        edges.chain(rules).chain(remote).chain(self.governances.values().flat_map(Governance::lines))
    }
}
