//! Index of the addresses in the status of nodes, which `nodes` peers of ClusterNetworkPolicies select.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::{ClusterState, Labels, Node, Selection, Selector};

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
    pub(super) fn follow<'a>(
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

    /// Whether the selector selects a node that has the addresses, which are a single one.
    pub(super) fn selection(&self, selector: &Selector, addresses: &IpNet) -> Selection {
        if addresses.prefix_len() != addresses.max_prefix_len() {
            return Selection::No;
        }
        selection(selector, self.labels_at(addresses.addr()))
    }
}

/// Whether the selector selects one of the nodes with these labels.
pub(super) fn selection(selector: &Selector, nodes: impl IntoIterator<Item = NodeLabels>) -> Selection {
    let of_node = |labels: NodeLabels| Selection::of(selector, labels.as_ref());
    nodes.into_iter().map(of_node).fold(Selection::No, Selection::or)
}
