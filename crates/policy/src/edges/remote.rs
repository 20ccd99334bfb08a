//! Edges between governed workloads and remote sets, and the index of the sets that the peers of rules select.
//!
//! No policy here governs a remote set: only the rules of the workload decide which ports are open between them. There
//! are edges with the sets that a rule selects. Rules for every address, or for those in a block, result in lines for
//! addresses (`workloads/governance.rs`), whoever owns them.
//!
//! Only peers that require the cluster label can select any ([`PodPeer::reaches_remote`]). A set is included while it
//! has an address that no pod of this cluster has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use imbl::OrdMap;
use nft::Family;

use super::classes::peer_index::Matches;
use super::classes::{Class, Classes};
use super::declared_lines::{DeclaredLine, EdgeEnd, Withheld};
use super::ports::FlowPorts;
use super::terms::OtherEnd;
use super::vocabulary::NodeIndex;
use super::workloads::{EdgeWorkload, FamilyBits, PairPorts, WorkloadIndex, bit};
use crate::peers::PodPeer;
use crate::remote::RemoteSet;
use crate::{ClusterState, Direction, ObjectName, StateDelta};

/// Index of the remote sets that the peers of rules select.
#[derive(Debug, Clone, Default)]
pub(super) struct RemoteMatches {
    /// For every included set, the families of its addresses that no pod of this cluster has.
    families: BTreeMap<Arc<RemoteSet>, FamilyBits>,
    /// For each peer that can select remote sets, the sets that it selects.
    by_peer: BTreeMap<u32, BTreeSet<Arc<RemoteSet>>>,
}

/// Workloads, with the direction in which they are governed, whose edges with a set may have changed.
pub(super) type TouchedSets = BTreeSet<(Direction, u32, Arc<RemoteSet>)>;

impl RemoteMatches {
    /// Updates the sets for the state; all of them the first time. Peers that rules started to name in the same delta
    /// are added afterwards.
    pub(super) fn update(
        &mut self,
        state: &ClusterState,
        changed: &StateDelta,
        begins: bool,
        matches: &Matches,
    ) -> TouchedSets {
        let mut touched = TouchedSets::new();
        if changed.families {
            self.touch_all(matches, &mut touched);
            self.by_peer.clear();
            for (number, peer) in matches.pod_peers() {
                self.add_peer(number, peer, state);
            }
            self.touch_all(matches, &mut touched);
        }
        let mut sets = BTreeSet::new();
        if begins {
            sets.extend(state.remote_sets().map(|(set, _)| set));
        }
        sets.extend(&changed.remote_sets);
        // The owner of an address may have changed.
        let addresses = changed.addresses.iter().map(|noted| noted.address);
        sets.extend(addresses.flat_map(|address| state.remote().with(address)).map(|(set, _)| set));
        for set in sets {
            self.update_set(set, state, matches, &mut touched);
        }
        touched
    }

    fn update_set(&mut self, set: &RemoteSet, state: &ClusterState, matches: &Matches, touched: &mut TouchedSets) {
        let now = families_of(set, state);
        let known = self.families.get_key_value(set).map(|(set, families)| (set.clone(), *families));
        if now == known.as_ref().map_or(0, |(_, families)| *families) {
            return;
        }
        let set = known.map_or_else(|| Arc::new(set.clone()), |(set, _)| set);
        let seen = state.remote().seen(&set).filter(|_| now != 0);
        for (peer, selected) in &mut self.by_peer {
            let was_selected = selected.remove(&set);
            let is_selected = seen.is_some_and(|seen| matches.pod_peer(*peer).is_some_and(|p| p.selects_remote(seen)));
            if is_selected {
                selected.insert(set.clone());
            }
            if was_selected || is_selected {
                touch(*peer, &set, matches, touched);
            }
        }
        match now {
            0 => self.families.remove(&set),
            families => self.families.insert(set, families),
        };
    }

    fn touch_all(&self, matches: &Matches, touched: &mut TouchedSets) {
        for (peer, selected) in &self.by_peer {
            selected.iter().for_each(|set| touch(*peer, set, matches, touched));
        }
    }

    /// Adds a peer that no rule named before.
    pub(super) fn add_peer(&mut self, number: u32, peer: &PodPeer, state: &ClusterState) {
        if peer.reaches_remote(state.remote().families()) {
            let is_selected = |set: &&Arc<RemoteSet>| selects(peer, set, state);
            let selected = self.families.keys().filter(is_selected).cloned().collect();
            self.by_peer.insert(number, selected);
        }
    }

    /// Removes a peer that no rule names any more.
    pub(super) fn remove_peer(&mut self, number: u32) {
        self.by_peer.remove(&number);
    }

    /// The sets among these that peers select, with the workloads whose policies name the peers.
    pub(super) fn users_of(&self, sets: &BTreeSet<&RemoteSet>, matches: &Matches) -> TouchedSets {
        let mut users = TouchedSets::new();
        for (peer, selected) in self.by_peer.iter().filter(|_| !sets.is_empty()) {
            for set in sets.iter().filter_map(|set| selected.get(*set)) {
                touch(*peer, set, matches, &mut users);
            }
        }
        users
    }

    /// The sets that the peer selects.
    pub(super) fn selected_by(&self, peer: u32) -> impl Iterator<Item = &Arc<RemoteSet>> {
        self.by_peer.get(&peer).into_iter().flatten()
    }

    pub(super) fn selects(&self, peer: u32, set: &RemoteSet) -> bool {
        self.by_peer.get(&peer).is_some_and(|selected| selected.contains(set))
    }

    /// Empty for a set that is not included.
    pub(super) fn families(&self, set: &RemoteSet) -> FamilyBits {
        self.families.get(set).copied().unwrap_or_default()
    }

    /// Whether no peer selects any set.
    pub(super) fn is_empty(&self) -> bool {
        self.families.is_empty() || self.by_peer.is_empty()
    }
}

fn selects(peer: &PodPeer, set: &RemoteSet, state: &ClusterState) -> bool {
    state.remote().seen(set).is_some_and(|seen| peer.selects_remote(seen))
}

fn touch(peer: u32, set: &Arc<RemoteSet>, matches: &Matches, touched: &mut TouchedSets) {
    for direction in Direction::BOTH {
        touched.extend(matches.users(peer, direction).map(|workload| (direction, workload, set.clone())));
    }
}

/// The families of the set's addresses that no pod of this cluster has.
fn families_of(set: &RemoteSet, state: &ClusterState) -> FamilyBits {
    let Some(addresses) = state.remote().addresses_of(set) else { return 0 };
    // IPv4 addresses sort first.
    let first_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let is_remote = |address: &IpAddr| state.holder(*address).is_none();
    let v4 = addresses.range(..first_v6).any(is_remote).then_some(bit(Family::V4));
    let v6 = addresses.range(first_v6..).any(is_remote).then_some(bit(Family::V6));
    v4.unwrap_or_default() | v6.unwrap_or_default()
}

/// The direction in which the workload is governed, the set at the other end, and whether the edge is partial.
pub(super) type RemoteKey = (Direction, Arc<RemoteSet>, bool);

/// The inputs of the edges.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) classes: &'a Classes,
    pub(super) workloads: &'a WorkloadIndex,
    pub(super) remote: &'a RemoteMatches,
    pub(super) nodes: &'a NodeIndex,
    pub(super) state: &'a ClusterState,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RemoteEdges {
    /// By workload; the inner maps are never empty.
    pub(super) edges: OrdMap<u32, OrdMap<RemoteKey, FlowPorts>>,
    count: usize,
    pub(super) added: Vec<DeclaredLine>,
    pub(super) removed: Vec<DeclaredLine>,
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
                for (partial, ports) in pair(workload, direction, &set, sources).beyond(&PairPorts::nothing()) {
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
        for (partial, ports) in pair(workload, direction, set, sources).beyond(&PairPorts::nothing()) {
            self.set(number, (direction, set.clone(), partial), ports, workload);
        }
    }

    fn set(&mut self, number: u32, key: RemoteKey, ports: FlowPorts, workload: &EdgeWorkload) {
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
    workload: &EdgeWorkload,
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
fn pair(workload: &EdgeWorkload, direction: Direction, set: &RemoteSet, sources: Sources<'_>) -> PairPorts {
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
        return PairPorts::nothing();
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
    PairPorts::of(own_classes().flat_map(allowed))
}

pub(super) fn line((direction, set, partial): &RemoteKey, workload: ObjectName, ports: FlowPorts) -> DeclaredLine {
    let (workload, set, partial) = (EdgeEnd::Workload(workload), EdgeEnd::Remote(set.clone()), *partial);
    match direction {
        Direction::Ingress => DeclaredLine::Edge { source: set, destination: workload, ports, partial },
        Direction::Egress => DeclaredLine::Edge { source: workload, destination: set, ports, partial },
    }
}
