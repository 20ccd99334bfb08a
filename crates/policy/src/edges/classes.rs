//! Classes of pods that are the same to every policy, each with one family of addresses.
//!
//! How fine the classes are is of no meaning for what is declared, as long as no two pods of one differ to a policy: so
//! a class stays when policies stop to look at what tells it from another.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use nft::Family;

use super::slots::Slots;
use super::terms::Terms;
use super::vocabulary::{BlockId, Vocabulary};
use crate::peers::PodPeer;
use crate::{Addresses, ClusterState, Direction, Labels, Moment, NamedPort, ObjectName, Pod, Problems, Uid};

/// What the pods of a class have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClassKey {
    pub(super) workload: u32,
    /// Those that selectors look at.
    pub(super) labels: Labels,
    pub(super) ports: Arc<[NamedPort]>,
    pub(super) unreadable: bool,
    pub(super) family: Family,
    /// The blocks that the addresses are in.
    pub(super) blocks: Box<[BlockId]>,
}

#[derive(Debug, Clone)]
pub(super) struct Class {
    pub(super) key: Arc<ClassKey>,
    pub(super) namespace: Arc<str>,
    members: u32,
    /// By direction; none where no policy selects them.
    pub(super) terms: [Option<Arc<Terms>>; 2],
    /// The peers of rules that they are, in order.
    pub(super) peers: Vec<u32>,
    /// They are understood and their namespace is known: a rule for all pods of all namespaces means them.
    pub(super) ordinary: bool,
}

impl Class {
    pub(super) fn is_matched_by(&self, peer: u32) -> bool {
        self.peers.binary_search(&peer).is_ok()
    }

    /// What any of them is to a policy: of their labels it has those that are looked at.
    pub(super) fn pod(&self) -> Pod {
        let ClassKey { labels, ports, unreadable, workload: _, family: _, blocks: _ } = &*self.key;
        Pod {
            name: ObjectName { namespace: self.namespace.clone(), name: Arc::default() },
            uid: Uid::from(""),
            mirror_of: None,
            labels: labels.clone(),
            owner: None,
            node: None,
            addresses: Addresses::default(),
            host_network: false,
            finished: false,
            terminating: false,
            started: Moment::UNKNOWN,
            created: Moment::UNKNOWN,
            ports: ports.clone(),
            unreadable: *unreadable,
            problems: Problems::default(),
        }
    }

    /// Whether the peer stands for them; their namespace has these labels, as far as they are known.
    pub(super) fn is_meant_by(&self, peer: &PodPeer, of_namespace: Option<&Labels>) -> bool {
        !self.key.unreadable && peer.means(&self.namespace, &self.key.labels, of_namespace)
    }

    pub(super) fn terms(&self, direction: Direction) -> Option<&Arc<Terms>> {
        self.terms[direction as usize].as_ref()
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Classes {
    numbers: HashMap<Arc<ClassKey>, u32>,
    pub(super) slots: Slots<Class>,
    /// None is empty.
    namespaces: HashMap<Arc<str>, BTreeSet<u32>>,
}

impl Classes {
    /// The classes that the pod is of at present, by their keys.
    pub(super) fn keys(state: &ClusterState, vocabulary: &mut Vocabulary, pod: &Pod, workload: u32) -> Vec<ClassKey> {
        let labels = vocabulary.labels(&pod.labels);
        let key = |address| ClassKey {
            workload,
            labels: labels.clone(),
            ports: pod.ports.clone(),
            unreadable: pod.unreadable,
            family: Family::of(address),
            blocks: vocabulary.blocks_around(address),
        };
        let mut keys: Vec<ClassKey> = Vec::new();
        for key in state.addresses_of(pod).map(key) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// One more pod is of the class. Says whether the class is new.
    pub(super) fn join(&mut self, key: ClassKey, pod: &Pod) -> (u32, bool) {
        if let Some(number) = self.numbers.get(&key) {
            self.slots[*number].members += 1;
            return (*number, false);
        }
        let key = Arc::new(key);
        let class = Class {
            key: key.clone(),
            namespace: pod.name.namespace.clone(),
            members: 1,
            terms: [None, None],
            peers: Vec::new(),
            ordinary: false,
        };
        let number = self.slots.insert(class);
        self.numbers.insert(key, number);
        self.namespaces.entry(pod.name.namespace.clone()).or_default().insert(number);
        (number, true)
    }

    /// One pod less is of the class. Says whether none is left; the class stays until it is removed.
    pub(super) fn leave(&mut self, number: u32) -> bool {
        let class = &mut self.slots[number];
        class.members -= 1;
        class.members == 0
    }

    pub(super) fn is_empty(&self, number: u32) -> bool {
        self.slots.get(number).is_some_and(|class| class.members == 0)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Class> {
        let class = self.slots.remove(number)?;
        self.numbers.remove(&class.key);
        let namespace = &class.namespace;
        if let Some(of_namespace) = self.namespaces.get_mut(namespace) {
            of_namespace.remove(&number);
            if of_namespace.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
        Some(class)
    }

    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = u32> {
        self.namespaces.get(namespace).into_iter().flatten().copied()
    }
}
