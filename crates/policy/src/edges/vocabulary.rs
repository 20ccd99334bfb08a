//! The properties by which policies distinguish pods: the vocabulary of all policies, and the labels of the nodes that
//! have the address of a pod. Pods that do not differ in them are the same to every policy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::peers::block_contains;
use crate::{
    Block, ClusterPeer, ClusterPeers, ClusterPolicy, ClusterState, Direction, Interner, Labels, NamespaceScope, Node,
    ObjectName, Peer, Peers, Policy, Selection, Selector,
};

/// A block that some policy names. Numbers are never reused.
pub(super) type BlockId = u32;

/// The label keys in the selectors of all policies, and the blocks that may contain addresses.
#[derive(Debug, Clone, Default)]
pub(super) struct Vocabulary {
    policies: BTreeMap<ObjectName, Arc<Policy>>,
    cluster_policies: BTreeMap<ObjectName, Arc<ClusterPolicy>>,
    /// Reference counts by policies, as in the maps below.
    keys: BTreeMap<Arc<str>, usize>,
    blocks: BTreeMap<IpNet, BTreeMap<Block, (BlockId, usize)>>,
    /// The prefix lengths of blocks, per family (true for IPv6): an address is looked up once per length.
    lengths: BTreeMap<(bool, u8), usize>,
    given: BlockId,
    /// Shares label sets, since pods of many workloads have the same labels in the vocabulary.
    held: Interner,
}

/// The delta of the policies.
#[derive(Debug, Default)]
pub(super) struct VocabularyDelta {
    /// The old and new versions of changed policies.
    pub(super) policies: Vec<Arc<Policy>>,
    pub(super) cluster_policies: Vec<Arc<ClusterPolicy>>,
    /// Label keys that no policy used before.
    pub(super) keys: BTreeSet<Arc<str>>,
    pub(super) blocks: Vec<Block>,
}

impl Vocabulary {
    /// Updates the vocabulary for the policies and cluster policies of these names.
    pub(super) fn update<'a>(
        &mut self,
        state: &ClusterState,
        names: impl IntoIterator<Item = &'a ObjectName>,
        names_of_cluster: impl IntoIterator<Item = &'a ObjectName>,
    ) -> VocabularyDelta {
        let mut vocabulary_delta = VocabularyDelta::default();
        for name in names {
            let (old, new) = (self.policies.get(name).cloned(), state.policy(name).cloned());
            if old == new {
                continue;
            }
            // Add the new version first, so that keys and blocks of both versions do not count as new.
            if let Some(policy) = &new {
                self.add(selectors(policy), blocks(policy).cloned(), &mut vocabulary_delta);
                self.policies.insert(name.clone(), policy.clone());
            }
            if let Some(policy) = &old {
                self.remove(selectors(policy), blocks(policy).cloned());
                if new.is_none() {
                    self.policies.remove(name);
                }
            }
            vocabulary_delta.policies.extend(old.into_iter().chain(new));
        }
        for name in names_of_cluster {
            let (old, new) = (self.cluster_policies.get(name).cloned(), state.cluster_policy(&name.name).cloned());
            if old == new {
                continue;
            }
            if let Some(policy) = &new {
                self.add(selectors_of_cluster(policy), networks(policy), &mut vocabulary_delta);
                self.cluster_policies.insert(name.clone(), policy.clone());
            }
            if let Some(policy) = &old {
                self.remove(selectors_of_cluster(policy), networks(policy));
                if new.is_none() {
                    self.cluster_policies.remove(name);
                }
            }
            vocabulary_delta.cluster_policies.extend(old.into_iter().chain(new));
        }
        vocabulary_delta
    }

    fn add<'a>(
        &mut self,
        selectors: impl Iterator<Item = &'a Selector>,
        blocks: impl Iterator<Item = Block>,
        vocabulary_delta: &mut VocabularyDelta,
    ) {
        for selector in selectors {
            for requirement in selector.requirements() {
                let uses = self.keys.entry(requirement.key.clone()).or_default();
                *uses += 1;
                if *uses == 1 {
                    vocabulary_delta.keys.insert(requirement.key.clone());
                }
            }
        }
        for block in blocks {
            let of_net = self.blocks.entry(block.cidr).or_default();
            let (_, uses) = of_net.entry(block.clone()).or_insert_with(|| {
                self.given += 1;
                *self.lengths.entry(length(&block.cidr)).or_default() += 1;
                vocabulary_delta.blocks.push(block.clone());
                (self.given, 0)
            });
            *uses += 1;
        }
    }

    fn remove<'a>(&mut self, selectors: impl Iterator<Item = &'a Selector>, blocks: impl Iterator<Item = Block>) {
        for selector in selectors {
            for requirement in selector.requirements() {
                one_less(&mut self.keys, &requirement.key);
            }
        }
        for block in blocks {
            let Some(of_net) = self.blocks.get_mut(&block.cidr) else { continue };
            let Some((_, uses)) = of_net.get_mut(&block) else { continue };
            *uses -= 1;
            if *uses == 0 {
                of_net.remove(&block);
                if of_net.is_empty() {
                    self.blocks.remove(&block.cidr);
                }
                one_less(&mut self.lengths, &length(&block.cidr));
            }
        }
    }

    /// The labels whose keys selectors use.
    pub(super) fn labels(&mut self, labels: &Labels) -> Labels {
        if labels.keys().all(|key| self.keys.contains_key(key)) {
            return labels.clone();
        }
        self.held.part_of(labels, |key| self.keys.contains_key(key))
    }

    /// The blocks that contain the address, sorted.
    pub(super) fn blocks_around(&self, address: IpAddr) -> Box<[BlockId]> {
        let mut found = Vec::new();
        for (_, bits) in self.lengths.keys().filter(|(v6, _)| *v6 == address.is_ipv6()) {
            let Ok(net) = IpNet::new(address, *bits) else { continue };
            let of_net = self.blocks.get(&net.trunc()).into_iter().flatten();
            found.extend(of_net.filter(|(block, _)| block_contains(block, address)).map(|(_, (id, _))| *id));
        }
        found.sort_unstable();
        found.into()
    }

    pub(super) fn block_id(&self, block: &Block) -> Option<BlockId> {
        self.blocks.get(&block.cidr)?.get(block).map(|(id, _)| *id)
    }
}

fn length(net: &IpNet) -> (bool, u8) {
    (net.addr().is_ipv6(), net.prefix_len())
}

fn one_less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn peers(policy: &Policy) -> impl Iterator<Item = &Peer> {
    let rules = Direction::BOTH.into_iter().flat_map(|direction| policy.rules(direction).unwrap_or(&[]));
    rules.flat_map(|rule| match &rule.peers {
        Peers::Any => &[][..],
        Peers::Of(peers) => peers,
    })
}

/// The selectors of pods.
fn selectors(policy: &Policy) -> impl Iterator<Item = &Selector> {
    let of_peer = |peer| match peer {
        &Peer::Pods { namespaces: NamespaceScope::Own | NamespaceScope::Selected(_), ref pods } => Some(pods),
        Peer::Block(_) => None,
    };
    peers(policy).filter_map(of_peer).chain([&policy.selector])
}

fn blocks(policy: &Policy) -> impl Iterator<Item = &Block> {
    peers(policy).filter_map(|peer| match peer {
        Peer::Pods { .. } => None,
        Peer::Block(block) => Some(block),
    })
}

fn cluster_peers(policy: &ClusterPolicy) -> impl Iterator<Item = &ClusterPeer> {
    let rules = Direction::BOTH.into_iter().flat_map(|direction| policy.rules(direction));
    rules.flat_map(|rule| match &rule.peers {
        ClusterPeers::Any => &[][..],
        ClusterPeers::Of(peers) => peers,
    })
}

/// The selectors of pods.
fn selectors_of_cluster(policy: &ClusterPolicy) -> impl Iterator<Item = &Selector> {
    let peers = cluster_peers(policy).filter_map(|peer| match peer {
        ClusterPeer::Pods(scope) => Some(&scope.pods),
        ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) | ClusterPeer::DomainNames(_) => None,
    });
    peers.chain([&policy.subject.pods])
}

fn networks(policy: &ClusterPolicy) -> impl Iterator<Item = Block> {
    let of_peer = |peer: &ClusterPeer| match peer {
        ClusterPeer::Networks(networks) => networks.clone(),
        ClusterPeer::Pods(_) | ClusterPeer::Nodes(_) | ClusterPeer::DomainNames(_) => vec![],
    };
    cluster_peers(policy).flat_map(of_peer).map(|cidr| Block { cidr, except: vec![] })
}

/// Index of the addresses in the status of nodes, which `nodes` peers of ClusterNetworkPolicies select.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeIndex {
    by_name: BTreeMap<Arc<str>, Arc<Node>>,
    /// The names of nodes with the address; the sets are never empty.
    with: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
}

/// The labels of a node; `None` if they are unknown.
pub(super) type NodeLabels = Option<Labels>;

impl NodeIndex {
    /// Updates the nodes of these names. Returns the previous and the current addresses of those that differ.
    pub(super) fn update<'a>(
        &mut self,
        state: &ClusterState,
        names: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> BTreeSet<IpAddr> {
        let mut touched = BTreeSet::new();
        for name in names {
            let now = state.node(name).cloned();
            let before = self.by_name.remove(name);
            for address in before.iter().flat_map(|node| node.status_addresses.iter()) {
                touched.insert(address);
                if let Some(names) = self.with.get_mut(&address) {
                    names.remove(name);
                    if names.is_empty() {
                        self.with.remove(&address);
                    }
                }
            }
            if let Some(node) = now {
                for address in node.status_addresses.iter() {
                    touched.insert(address);
                    self.with.entry(address).or_default().insert(name.clone());
                }
                self.by_name.insert(name.clone(), node);
            }
        }
        touched
    }

    /// The labels of the nodes with the address.
    pub(super) fn labels_at(&self, address: IpAddr) -> impl Iterator<Item = NodeLabels> {
        let names = self.with.get(&address).into_iter().flatten();
        let nodes = names.filter_map(|name| self.by_name.get(name));
        nodes.map(|node| (!node.unlabelled).then(|| node.labels.clone()))
    }

    /// Addresses of nodes that the selector selects, or may.
    pub(super) fn addresses<'a>(&'a self, selector: &'a Selector) -> impl Iterator<Item = IpAddr> {
        let is_meant = |node: &&Arc<Node>| node.unlabelled || selector.matches(&node.labels);
        self.by_name.values().filter(is_meant).flat_map(|node| node.status_addresses.iter())
    }

    /// Whether the selector selects a node with the address. A range of several addresses is that of no node.
    pub(super) fn selection(&self, selector: &Selector, addresses: &IpNet) -> Selection {
        if addresses.prefix_len() != addresses.max_prefix_len() {
            return Selection::No;
        }
        selection_of_nodes(selector, self.labels_at(addresses.addr()))
    }
}

/// Whether the selector selects one of the nodes with these labels.
pub(super) fn selection_of_nodes(selector: &Selector, nodes: impl IntoIterator<Item = NodeLabels>) -> Selection {
    let of_node = |labels: NodeLabels| Selection::of(selector, labels.as_ref());
    nodes.into_iter().map(of_node).fold(Selection::No, Selection::or)
}
