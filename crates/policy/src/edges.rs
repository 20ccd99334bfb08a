//! Declared edges: which workload may send to which according to the policies, derived from the terms of their rules.
//!
//! A flow is declared if the egress side of its source and the ingress side of its destination allow it. Audited
//! policies count as if they were enforced: a line states what is declared, and audit reports flows that are not. Pods
//! that no policy distinguishes form one class; edges between classes are merged per workload. Pods on the host network
//! and pods without an address are ignored.
//!
//! Each side is the verdict of the Admin tier, NetworkPolicies and the Baseline tier together.
//!
//! Like a [`crate::Translator`], edges are updated incrementally. After any sequence of changes, the lines equal those
//! of a fresh start.

mod classes;
mod declared_lines;
mod groups;
mod ports;
mod remote;
mod terms;
#[cfg(test)]
mod tests;
mod update;
mod vocabulary;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use declared_lines::{DeclaredLine, EdgeChanges, EdgeEnd, TierRuleName, Withheld};
use imbl::OrdMap;
pub use ports::{FlowPorts, PortSpan};

use crate::state::btree_packing::pack_shared;
use crate::{ClusterState, ObjectName, Pod, StateDelta};
use groups::{GroupInputs, Groups, Key, RulesKey, edge, rule_lines};
use remote::{RemoteEdges, RemoteKey};
use update::{EdgeInputs, Work};
use workloads::AcceptingRules;
use workloads::governance::Governance;

/// Limit of edges in memory, with the data they derive from. An edge uses some 100 bytes. A longer list is unreadable;
/// it results from policies that open much to many workloads while a few workloads are closed to them.
pub const MOST_EDGES: usize = 1_000_000;

/// The lines, kept up with the state.
#[derive(Debug, Clone)]
pub struct Edges {
    limit: usize,
    withheld: Option<Withheld>,
    inputs: EdgeInputs,
    groups: Groups,
    remote_edges: RemoteEdges,
    /// By workload.
    governances: OrdMap<u32, Governance>,
}

impl Default for Edges {
    fn default() -> Edges {
        Edges::with_limit(MOST_EDGES)
    }
}

impl Edges {
    /// Starts empty; the first update processes the whole state.
    pub fn new() -> Edges {
        Edges::default()
    }

    /// Uses this limit of edges instead of [`MOST_EDGES`].
    pub fn with_limit(limit: usize) -> Edges {
        Edges {
            limit,
            withheld: None,
            inputs: EdgeInputs::default(),
            groups: Groups::default(),
            remote_edges: RemoteEdges::default(),
            governances: OrdMap::new(),
        }
    }

    /// Why no lines are published; `None` if they are.
    pub fn withheld(&self) -> Option<Withheld> {
        self.withheld
    }

    /// Whether the list is empty because it is withheld, not because nothing is declared.
    pub fn is_withheld(&self) -> bool {
        self.withheld.is_some()
    }

    /// Applies the delta since the last update, like [`crate::Translator::update`], and the pods whose workload
    /// changed. `workload_of` returns the workload's name within the pod's namespace.
    pub fn update(
        &mut self,
        state: &ClusterState,
        changed: &StateDelta,
        workload_of: &dyn Fn(&Pod) -> Arc<str>,
        renamed: &BTreeSet<ObjectName>,
    ) -> EdgeChanges {
        let begins = !self.inputs.begun;
        let counts = self.inputs.workloads.census().clone();
        let Work { dirty, mut outside, touched_sets, .. } =
            self.inputs.apply_delta(state, changed, workload_of, renamed);
        if dirty.is_empty() && touched_sets.is_empty() && outside.is_empty() {
            return EdgeChanges::default();
        }
        let mut natures = BTreeMap::new();
        for number in &dirty {
            natures.insert(*number, self.inputs.workloads.recompute_nature(*number, &self.inputs.classes));
        }
        let was_withheld = self.withheld.take().is_some();
        if was_withheld {
            let all = self.inputs.workloads.slots.iter().map(|(number, workload)| (number, workload.nature));
            natures.extend(all.filter(|(number, _)| !dirty.contains(number)));
        }
        let EdgeInputs { classes, workloads, matches, .. } = &self.inputs;
        let known = GroupInputs { classes, workloads, matches };
        let counts_changed = workloads.census().differs(&counts).map(|differs| was_withheld || differs);
        let sources = self.inputs.sources(state);
        let remote_settled = self.remote_edges.reconcile(natures.keys(), &touched_sets, sources, self.limit);
        let elsewhere = self.remote_edges.len();
        let settled =
            remote_settled.and_then(|()| self.groups.reconcile(&natures, counts_changed, known, self.limit, elsewhere));
        let (mut added, mut removed) =
            (std::mem::take(&mut self.groups.published.added), std::mem::take(&mut self.groups.published.removed));
        added.append(&mut self.remote_edges.added);
        removed.append(&mut self.remote_edges.removed);
        outside.extend(natures.keys().copied());
        for number in &outside {
            let (before, now) = self.update_governance(*number);
            if before != now {
                removed.extend(before.iter().flat_map(Governance::lines));
                added.extend(now.iter().flat_map(Governance::lines));
            }
        }
        let changes = match settled {
            Ok(()) if was_withheld => EdgeChanges::settled(self.lines(), vec![]),
            Ok(()) => EdgeChanges::settled(added, removed),
            Err(reason) => {
                let now = self.lines_during_update();
                self.withheld = Some(reason);
                self.groups = Groups::default();
                self.remote_edges = RemoteEdges::default();
                match was_withheld {
                    true => EdgeChanges::default(),
                    false => EdgeChanges::settled(vec![], before(now, added, removed)),
                }
            }
        };
        let workloads = &mut self.inputs.workloads;
        let emptied = natures.into_keys().filter(|number| workloads.slots[*number].classes.is_empty());
        for number in emptied.collect::<Vec<_>>() {
            workloads.remove(number);
        }
        if begins {
            // Packs only once: later changes are few and meet mostly full nodes.
            pack_shared(&mut self.governances);
            pack_shared(&mut self.groups.published.edges);
        }
        changes
    }

    /// The previous and the current governance of the workload, which is published beside its edges.
    fn update_governance(&mut self, number: u32) -> (Option<Governance>, Option<Governance>) {
        let now = Governance::of(&self.inputs.workloads.slots[number], &self.inputs.classes, &self.inputs.nodes);
        let before = match &now {
            Some(now) => self.governances.insert(number, now.clone()),
            None => self.governances.remove(&number),
        };
        (before, now)
    }

    /// Every line in the middle of an update: edges may refer to workloads that are about to be removed.
    fn lines_during_update(&self) -> Vec<DeclaredLine> {
        self.snapshot().with_names(|workload| self.inputs.workloads.slots[workload].name.clone()).collect()
    }

    /// Every line, in order.
    pub fn lines(&self) -> Vec<DeclaredLine> {
        let mut lines: Vec<DeclaredLine> = self.snapshot().iter().collect();
        lines.sort_unstable();
        lines
    }

    /// A snapshot of all lines.
    pub fn snapshot(&self) -> DeclaredLines {
        match self.is_withheld() {
            true => DeclaredLines::default(),
            false => DeclaredLines {
                edges: self.groups.published.edges.clone(),
                rules: self.groups.published.rules.clone(),
                remote: self.remote_edges.edges.clone(),
                governances: self.governances.clone(),
            },
        }
    }

    /// The number of edges that allow everything but some denied ports. A list that can only say everything, or a few
    /// ports, lacks the other ports.
    pub fn count_with_denied_ports(&self) -> usize {
        self.groups.published.with_denied_ports()
    }

    /// The number of pod classes.
    pub fn class_count(&self) -> usize {
        self.inputs.classes.slots.len()
    }

    /// The number of workloads with pods that are not ignored.
    pub fn workload_count(&self) -> usize {
        self.inputs.workloads.slots.len()
    }
}

/// A snapshot of the data for all lines. Cheap to clone; snapshots share unchanged parts.
#[derive(Debug, Clone, Default)]
pub struct DeclaredLines {
    edges: OrdMap<Key, FlowPorts>,
    rules: OrdMap<RulesKey, AcceptingRules>,
    /// Edges with remote sets, by workload.
    remote: OrdMap<u32, OrdMap<RemoteKey, FlowPorts>>,
    /// By workload; includes every workload with an edge.
    governances: OrdMap<u32, Governance>,
}

impl DeclaredLines {
    /// Unique lines, unordered.
    pub fn iter(&self) -> impl Iterator<Item = DeclaredLine> + '_ {
        self.with_names(|workload| self.governances[&workload].name.clone())
    }

    /// Like [`DeclaredLines::iter`], with names also for workloads without governance.
    fn with_names(&self, name: impl Fn(u32) -> ObjectName + Copy) -> impl Iterator<Item = DeclaredLine> {
        let edges = self.edges.iter().map(move |(key, ports)| edge(*key, ports.clone(), name));
        let remote = self.remote.iter().flat_map(move |(workload, edges)| {
            let name = name(*workload);
            edges.iter().map(move |(key, ports)| remote::line(key, name.clone(), ports.clone()))
        });
        let rules = self.rules.iter().flat_map(move |(key, rules)| rule_lines(*key, rules, name));
        edges.chain(rules).chain(remote).chain(self.governances.values().flat_map(Governance::lines))
    }
}

/// Reconstructs the previous lines from the delta. In the middle of an update a line may exist for two reasons, such as
/// when the governed end changes sides.
fn before(now: Vec<DeclaredLine>, added: Vec<DeclaredLine>, removed: Vec<DeclaredLine>) -> Vec<DeclaredLine> {
    let mut reasons: BTreeMap<DeclaredLine, isize> = BTreeMap::new();
    for (lines, by) in [(now, 1), (added, -1), (removed, 1)] {
        for line in lines {
            *reasons.entry(line).or_default() += by;
        }
    }
    reasons.into_iter().filter(|(_, reasons)| *reasons > 0).map(|(line, _)| line).collect()
}
