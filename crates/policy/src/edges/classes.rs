//! Classes of pods that no policy distinguishes, each with one address family.
//!
//! Finer classes result in the same edges, as long as no policy distinguishes two pods of one class. So classes are not
//! merged when policies stop selecting by the labels that distinguish them.

pub(super) mod peer_index;

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use nft::Family;

use super::terms::{ClassTerms, OtherEnd, PodEnd};
use super::vocabulary::{BlockId, NodeIndex, NodeLabels, Vocabulary};
use crate::peers::PodPeer;
use crate::slab::{Numbers, Slots};
use crate::{
    Addresses, ClusterState, Direction, Labels, Moment, NamedPort, ObjectName, Pod, PodScope, Problems, Selection, Uid,
};

/// The common properties of a class's pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClassKey {
    pub(super) workload: u32,
    /// The labels that selectors use.
    pub(super) labels: Labels,
    pub(super) ports: Arc<[NamedPort]>,
    pub(super) unreadable: bool,
    pub(super) family: Family,
    /// The blocks that contain the addresses.
    pub(super) blocks: Box<[BlockId]>,
    /// The labels of the nodes that have the addresses, too; usually empty.
    pub(super) nodes: Box<[NodeLabels]>,
}

#[derive(Debug, Clone)]
pub(super) struct Class {
    pub(super) key: Arc<ClassKey>,
    pub(super) namespace: Arc<str>,
    members: u32,
    /// By direction; `None` if no policy selects the class.
    pub(super) terms: [Option<Arc<ClassTerms>>; 2],
    /// The peers of rules that select the class, sorted.
    pub(super) peers: Vec<u32>,
    /// The pods are readable and their namespace is known, so a rule for all pods of all namespaces selects them.
    pub(super) ordinary: bool,
}

impl Class {
    /// The class as the other end of a flow.
    pub(super) fn as_other_end(&self) -> OtherEnd<'_> {
        OtherEnd::Pods(PodEnd {
            peers: &self.peers,
            ordinary: self.ordinary,
            unreadable: self.key.unreadable,
            ports: &self.key.ports,
        })
    }

    /// A representative pod, with only the labels that selectors use.
    pub(super) fn pod(&self) -> Pod {
        let ClassKey { labels, ports, unreadable, workload: _, family: _, blocks: _, nodes: _ } = &*self.key;
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

    /// Whether the peer selects the class. `of_namespace` are the labels of its namespace, if known.
    pub(super) fn is_meant_by(&self, peer: &PodPeer, of_namespace: Option<&Labels>) -> bool {
        !self.key.unreadable && peer.means(&self.namespace, &self.key.labels, of_namespace)
    }

    /// Whether the scope selects the class. `of_namespace` are the labels of its namespace, if known.
    pub(super) fn selection(&self, scope: &PodScope, of_namespace: Option<&Labels>) -> Selection {
        let labels = (!self.key.unreadable).then_some(&self.key.labels);
        Selection::of(&scope.namespaces, of_namespace).and(Selection::of(&scope.pods, labels))
    }

    pub(super) fn terms(&self, direction: Direction) -> Option<&Arc<ClassTerms>> {
        self.terms[direction as usize].as_ref()
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Classes {
    numbers: HashMap<Arc<ClassKey>, u32>,
    pub(super) slots: Slots<Class>,
    /// The sets are never empty.
    namespaces: HashMap<Arc<str>, BTreeSet<u32>>,
}

impl Classes {
    /// The keys of the classes that the pod is currently in.
    pub(super) fn keys(
        state: &ClusterState,
        vocabulary: &mut Vocabulary,
        nodes: &NodeIndex,
        pod: &Pod,
        workload: u32,
    ) -> Vec<ClassKey> {
        let labels = vocabulary.labels(&pod.labels);
        let key = |address| ClassKey {
            workload,
            labels: labels.clone(),
            ports: pod.ports.clone(),
            unreadable: pod.unreadable,
            family: Family::of(address),
            blocks: vocabulary.blocks_around(address),
            nodes: nodes.labels_at(address).collect(),
        };
        let mut keys: Vec<ClassKey> = Vec::new();
        for key in state.addresses_of(pod).map(key) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// Adds a pod to the class. Returns the class's number, and whether it is new.
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

    /// Removes a pod from the class. Returns whether the class is empty; the caller removes it.
    pub(super) fn remove_member(&mut self, number: u32) -> bool {
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

    pub(super) fn namespaces(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeSet<u32>)> {
        self.namespaces.iter()
    }

    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = u32> {
        self.namespaces.get(namespace).into_iter().flatten().copied()
    }
}

/// Index from pods to their classes, by name. The names are those inside the pods, so that each is stored once.
#[derive(Debug, Clone, Default)]
pub(super) struct Pods(HashSet<ClassifiedPod>);

/// A pod, hashed by its name, and its classes, one per family of its addresses.
#[derive(Debug, Clone)]
struct ClassifiedPod {
    pod: Arc<Pod>,
    classes: Numbers,
}

impl Pods {
    /// Returns the previous classes.
    pub(super) fn upsert(&mut self, pod: Arc<Pod>, classes: Numbers) -> Option<Numbers> {
        self.0.replace(ClassifiedPod { pod, classes }).map(|before| before.classes)
    }

    pub(super) fn remove(&mut self, name: &ObjectName) -> Option<Numbers> {
        self.0.take(name).map(|before| before.classes)
    }
}

impl Borrow<ObjectName> for ClassifiedPod {
    fn borrow(&self) -> &ObjectName {
        &self.pod.name
    }
}

impl Hash for ClassifiedPod {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pod.name.hash(state);
    }
}

impl PartialEq for ClassifiedPod {
    fn eq(&self, other: &ClassifiedPod) -> bool {
        self.pod.name == other.pod.name
    }
}

impl Eq for ClassifiedPod {}
