//! The peers that rules name: which classes of pods each of them is, and whose policies name it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::classes::{Class, Classes};
use super::slots::Slots;
use super::terms::Named;
use super::vocabulary::Vocabulary;
use crate::peers::Namespaces;
use crate::{ClusterState, Direction};

#[derive(Debug, Clone, Default)]
pub(super) struct Matches {
    numbers: HashMap<Named, u32>,
    slots: Slots<Peer>,
    /// Peers by the namespace that they name; those of no one namespace apart.
    of_namespace: HashMap<Arc<str>, BTreeSet<u32>>,
    of_any: BTreeSet<u32>,
}

#[derive(Debug, Clone)]
struct Peer {
    named: Named,
    classes: BTreeSet<u32>,
    /// By direction, workloads whose policies name it, with the number of their classes.
    users: [BTreeMap<u32, usize>; 2],
}

impl Matches {
    /// The number of the peer, which is looked for among the classes when nobody has named it before.
    pub(super) fn number(
        &mut self,
        named: Named,
        classes: &mut Classes,
        vocabulary: &Vocabulary,
        state: &ClusterState,
    ) -> u32 {
        if let Some(number) = self.numbers.get(&named) {
            return *number;
        }
        let matched: BTreeSet<u32> = match &named {
            Named::Pods(peer) => {
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
            Named::Block(block) => {
                let id = vocabulary.block_id(block);
                let within = |class: &Class| id.is_some_and(|id| class.key.blocks.binary_search(&id).is_ok());
                classes.slots.iter().filter(|(_, class)| within(class)).map(|(class, _)| class).collect()
            }
        };
        let peer = Peer { named: named.clone(), classes: BTreeSet::new(), users: Default::default() };
        let number = self.slots.insert(peer);
        for class in &matched {
            let peers = &mut classes.slots[*class].peers;
            let place = peers.partition_point(|other| *other < number);
            peers.insert(place, number);
        }
        self.slots[number].classes = matched;
        self.namespaced(&named).insert(number);
        self.numbers.insert(named, number);
        number
    }

    fn namespaced(&mut self, named: &Named) -> &mut BTreeSet<u32> {
        match named {
            Named::Pods(peer) => match &peer.namespaces {
                Namespaces::Named(namespace) => self.of_namespace.entry(namespace.clone()).or_default(),
                Namespaces::Selected(_) | Namespaces::Every => &mut self.of_any,
            },
            Named::Block(_) => &mut self.of_any,
        }
    }

    /// Looks for the peers that the class is, which has come or whose namespace is another now.
    pub(super) fn find(&mut self, number: u32, class: &mut Class, vocabulary: &Vocabulary, state: &ClusterState) {
        self.forget(number, class);
        let namespace = &class.namespace;
        let labels = state.namespace_labels(namespace);
        let candidates = self.of_namespace.get(namespace).into_iter().flatten().chain(&self.of_any);
        let is = |peer: &&u32| match &self.slots[**peer].named {
            Named::Pods(peer) => class.is_meant_by(peer, labels),
            Named::Block(block) => {
                vocabulary.block_id(block).is_some_and(|id| class.key.blocks.binary_search(&id).is_ok())
            }
        };
        let mut peers: Vec<u32> = candidates.filter(is).copied().collect();
        peers.sort_unstable();
        for peer in &peers {
            self.slots[*peer].classes.insert(number);
        }
        class.peers = peers;
        class.ordinary = labels.is_some() && !class.key.unreadable;
    }

    /// The class is none of the peers any more.
    pub(super) fn forget(&mut self, number: u32, class: &mut Class) {
        for peer in std::mem::take(&mut class.peers) {
            self.slots[peer].classes.remove(&number);
        }
    }

    /// Policies of one more class of the workload name the peer.
    pub(super) fn used(&mut self, peer: u32, direction: Direction, workload: u32) {
        *self.slots[peer].users[direction as usize].entry(workload).or_default() += 1;
    }

    pub(super) fn unused(&mut self, peer: u32, direction: Direction, workload: u32) {
        let users = &mut self.slots[peer].users[direction as usize];
        if let Some(count) = users.get_mut(&workload) {
            *count -= 1;
            if *count == 0 {
                users.remove(&workload);
            }
        }
    }

    /// Of these peers, drops those that nobody names any more.
    pub(super) fn sweep(&mut self, peers: BTreeSet<u32>, classes: &mut Classes) {
        for number in peers {
            if self.slots.get(number).is_none_or(|peer| peer.users.iter().any(|users| !users.is_empty())) {
                continue;
            }
            let Some(peer) = self.slots.remove(number) else { continue };
            for class in peer.classes {
                classes.slots[class].peers.retain(|other| *other != number);
            }
            self.numbers.remove(&peer.named);
            self.namespaced(&peer.named).remove(&number);
            if let Named::Pods(named) = &peer.named
                && let Namespaces::Named(namespace) = &named.namespaces
                && self.of_namespace.get(namespace).is_some_and(BTreeSet::is_empty)
            {
                self.of_namespace.remove(namespace);
            }
        }
    }

    pub(super) fn classes(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.slots[peer].classes.iter().copied()
    }

    /// Workloads whose policies name the peer in the direction.
    pub(super) fn users(&self, peer: u32, direction: Direction) -> impl Iterator<Item = u32> {
        self.slots[peer].users[direction as usize].keys().copied()
    }
}
