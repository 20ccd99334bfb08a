//! The peers that rules name: which classes of pods each peer selects, and which workloads' policies name it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{Class, Classes};
use crate::edges::terms::PeerTerm;
use crate::edges::vocabulary::{Vocabulary, selection_of_nodes};
use crate::peers::{Namespaces, PodPeer};
use crate::slab::Slots;
use crate::{ClusterState, Direction, Labels, Selection};

#[derive(Debug, Clone, Default)]
pub(in crate::edges) struct Matches {
    numbers: HashMap<PeerTerm, u32>,
    slots: Slots<PeerTerm>,
    /// Peers by the namespace that they name; the others are in `of_any`.
    of_namespace: HashMap<Arc<str>, BTreeSet<u32>>,
    of_any: BTreeSet<u32>,
    /// Pairs of a peer and a class that it selects.
    classes: BTreeSet<(u32, u32)>,
    /// By direction, for each peer and workload whose policies name it, the number of the workload's classes. One map
    /// serves all peers: most have one or two users, so that maps per peer would waste memory.
    users: [BTreeMap<(u32, u32), u32>; 2],
}

impl Matches {
    /// The number of the peer, and whether the peer is new. The classes that a new peer selects are looked up.
    pub(in crate::edges) fn number(
        &mut self,
        named: PeerTerm,
        classes: &mut Classes,
        vocabulary: &Vocabulary,
        state: &ClusterState,
    ) -> (u32, bool) {
        if let Some(number) = self.numbers.get(&named) {
            return (*number, false);
        }
        let matched: BTreeSet<u32> = match &named {
            PeerTerm::Pods(peer) => {
                let candidates: Vec<u32> = match &peer.namespaces {
                    Namespaces::Named(namespace) => classes.in_namespace(namespace).collect(),
                    Namespaces::Selected(selector) => {
                        let namespaces = state.namespaces_matching(selector);
                        namespaces.flat_map(|name| classes.in_namespace(&name.name)).collect()
                    }
                    Namespaces::Every => classes.slots.iter().map(|(class, _)| class).collect(),
                };
                let is = |class: &u32| {
                    let class = &classes.slots[*class];
                    class.is_meant_by(peer, state.namespace_labels(&class.namespace))
                };
                candidates.into_iter().filter(is).collect()
            }
            PeerTerm::Block(_)
            | PeerTerm::Scope(_)
            | PeerTerm::PossibleScope(_)
            | PeerTerm::Nodes(_)
            | PeerTerm::PossibleNodes => {
                let is = |class: &Class| {
                    // Most blocks and nodes are outside of the cluster's pods, so their classes need no namespace.
                    is_selected(&named, class, vocabulary, || state.namespace_labels(&class.namespace))
                };
                classes.slots.iter().filter(|(_, class)| is(class)).map(|(class, _)| class).collect()
            }
        };
        let number = self.slots.insert(named.clone());
        for class in matched {
            let peers = &mut classes.slots[class].peers;
            let place = peers.partition_point(|other| *other < number);
            peers.insert(place, number);
            self.classes.insert((number, class));
        }
        self.namespaced(&named).insert(number);
        self.numbers.insert(named, number);
        (number, true)
    }

    /// The peers of NetworkPolicies that select pods, with their numbers.
    pub(in crate::edges) fn pod_peers(&self) -> impl Iterator<Item = (u32, &PodPeer)> {
        self.slots.iter().filter_map(|(number, named)| Some((number, named.pod_peer()?)))
    }

    /// The selectors of nodes, with their numbers, and the peer of nodes with unknown labels.
    pub(in crate::edges) fn node_peers(&self) -> impl Iterator<Item = u32> {
        let of_nodes = |named: &PeerTerm| matches!(named, PeerTerm::Nodes(_) | PeerTerm::PossibleNodes);
        self.slots.iter().filter(move |(_, named)| of_nodes(named)).map(|(number, _)| number)
    }

    /// The peer of the number; `None` unless it is one of a NetworkPolicy that selects pods.
    pub(in crate::edges) fn pod_peer(&self, number: u32) -> Option<&PodPeer> {
        self.slots.get(number)?.pod_peer()
    }

    fn namespaced(&mut self, named: &PeerTerm) -> &mut BTreeSet<u32> {
        match named {
            PeerTerm::Pods(peer) => match &peer.namespaces {
                Namespaces::Named(namespace) => self.of_namespace.entry(namespace.clone()).or_default(),
                Namespaces::Selected(_) | Namespaces::Every => &mut self.of_any,
            },
            PeerTerm::Block(_)
            | PeerTerm::Scope(_)
            | PeerTerm::PossibleScope(_)
            | PeerTerm::Nodes(_)
            | PeerTerm::PossibleNodes => &mut self.of_any,
        }
    }

    /// Looks up the peers that select the class, after the class was added or its namespace changed.
    pub(in crate::edges) fn find(
        &mut self,
        number: u32,
        class: &mut Class,
        vocabulary: &Vocabulary,
        state: &ClusterState,
    ) {
        self.discard(number, class);
        let namespace = &class.namespace;
        let labels = state.namespace_labels(namespace);
        let candidates = self.of_namespace.get(namespace).into_iter().flatten().chain(&self.of_any);
        let is = |peer: &&u32| is_selected(&self.slots[**peer], class, vocabulary, || labels);
        let mut peers: Vec<u32> = candidates.filter(is).copied().collect();
        peers.sort_unstable();
        for peer in &peers {
            self.classes.insert((*peer, number));
        }
        class.peers = peers;
        class.ordinary = labels.is_some() && !class.key.unreadable;
    }

    /// Removes the class from all peers.
    pub(in crate::edges) fn discard(&mut self, number: u32, class: &mut Class) {
        for peer in std::mem::take(&mut class.peers) {
            self.classes.remove(&(peer, number));
        }
    }

    /// Records that policies of one more class of the workload name the peer.
    pub(in crate::edges) fn used(&mut self, peer: u32, direction: Direction, workload: u32) {
        *self.users[direction as usize].entry((peer, workload)).or_default() += 1;
    }

    pub(in crate::edges) fn unused(&mut self, peer: u32, direction: Direction, workload: u32) {
        let users = &mut self.users[direction as usize];
        if let Some(count) = users.get_mut(&(peer, workload)) {
            *count -= 1;
            if *count == 0 {
                users.remove(&(peer, workload));
            }
        }
    }

    /// Removes those of the peers that no policy names any more. Returns their numbers.
    pub(in crate::edges) fn sweep(&mut self, peers: BTreeSet<u32>, classes: &mut Classes) -> Vec<u32> {
        let mut dropped = Vec::new();
        for number in peers {
            if Direction::BOTH.into_iter().any(|direction| self.users(number, direction).next().is_some()) {
                continue;
            }
            let Some(named) = self.slots.remove(number) else { continue };
            dropped.push(number);
            while let Some(of_peer) = self.classes.range(of(number)).next().copied() {
                self.classes.remove(&of_peer);
                classes.slots[of_peer.1].peers.retain(|other| *other != number);
            }
            self.numbers.remove(&named);
            self.namespaced(&named).remove(&number);
            if let PeerTerm::Pods(named) = &named
                && let Namespaces::Named(namespace) = &named.namespaces
                && self.of_namespace.get(namespace).is_some_and(BTreeSet::is_empty)
            {
                self.of_namespace.remove(namespace);
            }
        }
        dropped
    }

    pub(in crate::edges) fn classes(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.classes.range(of(peer)).map(|(_, class)| *class)
    }

    /// Workloads whose policies name the peer in the direction.
    pub(in crate::edges) fn users(&self, peer: u32, direction: Direction) -> impl Iterator<Item = u32> {
        self.users[direction as usize].range(of(peer)).map(|((_, workload), _)| *workload)
    }
}

/// Whether the peer selects the class, whose namespace has these labels, if known.
fn is_selected<'a>(
    peer: &PeerTerm,
    class: &Class,
    vocabulary: &Vocabulary,
    labels: impl Fn() -> Option<&'a Labels>,
) -> bool {
    match peer {
        PeerTerm::Pods(peer) => class.is_meant_by(peer, labels()),
        PeerTerm::Block(block) => {
            vocabulary.block_id(block).is_some_and(|id| class.key.blocks.binary_search(&id).is_ok())
        }
        PeerTerm::Scope(scope) => class.selection(scope, labels()) == Selection::Yes,
        PeerTerm::PossibleScope(scope) => class.selection(scope, labels()) == Selection::Unknown,
        PeerTerm::Nodes(selector) => selection_of_nodes(selector, class.key.nodes.iter().cloned()) == Selection::Yes,
        PeerTerm::PossibleNodes => class.key.nodes.contains(&None),
    }
}

/// All pairs that begin with the number.
fn of(number: u32) -> RangeInclusive<(u32, u32)> {
    (number, 0)..=(number, u32::MAX)
}
