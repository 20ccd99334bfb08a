//! Edges between governed workloads and remote sets.
//!
//! No policy here governs a remote set: only the rules of the workload decide which ports are open between them. There
//! are edges with the sets that a rule selects. Rules for every address, or for those in a block, result in lines for
//! addresses (`outside.rs`), whoever owns them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;
use nft::Family;

use super::classes::{Class, Classes};
use super::lines::{End, Line, Withheld};
use super::pairs::Pair;
use super::ports::FlowPorts;
use super::remote_matches::{RemoteMatches, TouchedSets};
use super::terms::OtherEnd;
use super::vocabulary::NodeIndex;
use super::workloads::{Workload, Workloads, bit};
use crate::remote::RemoteSet;
use crate::{ClusterState, Direction, ObjectName};

/// The direction in which the workload is governed, the set at the other end, and whether the edge is partial.
pub(super) type RemoteKey = (Direction, Arc<RemoteSet>, bool);

/// The inputs of the edges.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) classes: &'a Classes,
    pub(super) workloads: &'a Workloads,
    pub(super) remote: &'a RemoteMatches,
    pub(super) nodes: &'a NodeIndex,
    pub(super) state: &'a ClusterState,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RemoteEdges {
    /// By workload; the inner maps are never empty.
    pub(super) edges: OrdMap<u32, OrdMap<RemoteKey, FlowPorts>>,
    count: usize,
    pub(super) added: Vec<Line>,
    pub(super) removed: Vec<Line>,
}

impl RemoteEdges {
    /// Recomputes all edges of the workloads in `dirty`, and the edges of other workloads with the touched sets.
    pub(super) fn reconcile<'a>(
        &mut self,
        dirty: impl IntoIterator<Item = &'a u32>,
        touched: &TouchedSets,
        sources: Sources<'_>,
        limit: usize,
    ) -> Result<(), Withheld> {
        // Until replaced, old edges within the limit add to the new ones, as in `groups.rs`.
        let on_the_way = limit.saturating_mul(2);
        if !self.edges.is_empty() || !sources.remote.is_empty() {
            for workload in dirty {
                self.rebuild(*workload, sources);
                self.check(on_the_way)?;
            }
        }
        for (direction, workload, set) in touched {
            self.refresh(*workload, *direction, set, sources);
            self.check(on_the_way)?;
        }
        self.check(limit)
    }

    fn check(&self, limit: usize) -> Result<(), Withheld> {
        if self.count > limit { Err(Withheld::TooMany) } else { Ok(()) }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn rebuild(&mut self, number: u32, sources: Sources<'_>) {
        let workload = &sources.workloads.slots[number];
        let mut wanted: BTreeMap<RemoteKey, FlowPorts> = BTreeMap::new();
        for direction in Direction::BOTH {
            for set in sets_selected(workload, direction, sources) {
                for (partial, ports) in pair(workload, direction, &set, sources).beyond(&Pair::nothing()) {
                    wanted.insert((direction, set.clone(), partial), ports);
                }
            }
        }
        let of_before = self.edges.get(&number).into_iter().flat_map(OrdMap::keys);
        let gone: Vec<RemoteKey> = of_before.filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in gone {
            self.set(number, key, FlowPorts::none(), workload);
        }
        for (key, ports) in wanted {
            self.set(number, key, ports, workload);
        }
    }

    fn refresh(&mut self, number: u32, direction: Direction, set: &Arc<RemoteSet>, sources: Sources<'_>) {
        let workload = &sources.workloads.slots[number];
        for (partial, ports) in pair(workload, direction, set, sources).beyond(&Pair::nothing()) {
            self.set(number, (direction, set.clone(), partial), ports, workload);
        }
    }

    fn set(&mut self, number: u32, key: RemoteKey, ports: FlowPorts, workload: &Workload) {
        let before = self.edges.get(&number).and_then(|edges| edges.get(&key)).cloned();
        if before.as_ref().unwrap_or(&FlowPorts::none()) == &ports {
            return;
        }
        let line = |ports| line(&key, workload.name.clone(), ports);
        self.removed.extend(before.clone().map(line));
        self.added.extend((!ports.is_none()).then(|| line(ports.clone())));
        self.count = self.count + usize::from(!ports.is_none()) - usize::from(before.is_some());
        let edges = self.edges.entry(number).or_default();
        match ports.is_none() {
            true => edges.remove(&key),
            false => edges.insert(key, ports),
        };
        if edges.is_empty() {
            self.edges.remove(&number);
        }
    }
}

/// The sets that rules of the workload's policies select.
pub(super) fn sets_selected(
    workload: &Workload,
    direction: Direction,
    sources: Sources<'_>,
) -> BTreeSet<Arc<RemoteSet>> {
    let classes = workload.classes.iter().map(|class| &sources.classes.slots[*class]);
    let peers = classes.filter_map(|class| class.terms(direction)).filter_map(|terms| terms.policies.as_ref());
    let peers = peers.flat_map(|terms| &terms.peers);
    let peers: BTreeSet<u32> = peers.map(|(peer, _)| *peer).collect();
    peers.into_iter().flat_map(|peer| sources.remote.selected_by(peer)).cloned().collect()
}

/// Ports between the workload and the set; empty if no rule of the workload selects the set.
fn pair(workload: &Workload, direction: Direction, set: &RemoteSet, sources: Sources<'_>) -> Pair {
    let Sources { classes, workloads: _, remote, nodes, state } = sources;
    let families = remote.families(set);
    let is_selected_by = |peer: u32| remote.selects(peer, set);
    let own_classes = || {
        let classes = workload.classes.iter().map(|class| &classes.slots[*class]);
        classes.filter(|class| bit(class.key.family) & families != 0)
    };
    let is_named = |class: &Class| {
        let policies = class.terms(direction).and_then(|terms| terms.policies.as_ref());
        policies.is_some_and(|terms| terms.peers.iter().any(|(peer, _)| is_selected_by(*peer)))
    };
    if !own_classes().any(is_named) {
        return Pair::nothing();
    }
    let allowed = |class: &Class| {
        let Some(terms) = class.terms(direction) else { return vec![FlowPorts::everything()] };
        let addresses = state.remote_addresses_of(set).into_iter().flatten();
        let addresses = addresses.filter(|address| Family::of(*address) == class.key.family);
        // Unless rules of cluster policies name addresses, all of the set are the same to them.
        let distinct = if terms.names_addresses() { usize::MAX } else { 1 };
        let with = |address: IpAddr| {
            terms.allow_remote(OtherEnd::Outside { addresses: &address.into(), nodes }, is_selected_by)
        };
        addresses.take(distinct).map(with).collect()
    };
    Pair::of(own_classes().flat_map(allowed))
}

pub(super) fn line((direction, set, partial): &RemoteKey, workload: ObjectName, ports: FlowPorts) -> Line {
    let (workload, set, partial) = (End::Workload(workload), End::Remote(set.clone()), *partial);
    match direction {
        Direction::Ingress => Line::Edge { source: set, destination: workload, ports, partial },
        Direction::Egress => Line::Edge { source: workload, destination: set, ports, partial },
    }
}
