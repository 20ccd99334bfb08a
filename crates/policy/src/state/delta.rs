//! The delta of state changes: enough to update data derived from the state without reading the rest of it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::nodes;
use crate::remote::{MembershipDelta, RemoteSet};
use crate::{Attachment, ClusterPolicy, Namespace, Node, ObjectName, Policy};

/// The delta returned by [`crate::ClusterState::apply`] and similar methods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StateDelta {
    /// True if anything changed, even if no field below depends on it.
    any: bool,
    /// Pods whose objects or attachments were added, changed or removed.
    pub(crate) pods: BTreeSet<ObjectName>,
    /// The old and new versions of changed policies.
    pub(crate) policies: Vec<Arc<Policy>>,
    /// The old and new versions of changed cluster policies.
    pub(crate) cluster_policies: Vec<Arc<ClusterPolicy>>,
    /// Namespaces that other selectors may now match.
    pub(crate) relabelled: BTreeSet<Arc<str>>,
    /// Namespaces whose enforcement annotation changed.
    pub(crate) enforcement: BTreeSet<Arc<str>>,
    /// Addresses whose owner, or whose owner's labels, may have changed.
    pub(crate) addresses: Vec<ChangedAddress>,
    /// Addresses whose remote sets, or the labels of these, changed.
    pub(crate) remote: BTreeSet<IpAddr>,
    /// Remote sets whose addresses changed.
    pub(crate) remote_sets: BTreeSet<RemoteSet>,
    /// The labels of remote sets changed.
    pub(crate) families: bool,
    pub(crate) attachments: bool,
    /// Addresses whose learned names changed.
    pub(crate) learned: BTreeSet<IpAddr>,
    /// The addresses of nodes may differ, so [`crate::ClusterState::node_ranges`] may too.
    pub(crate) nodes: bool,
    /// Nodes whose addresses or labels changed, so that selectors of nodes may match other addresses.
    pub(crate) node_peers: BTreeSet<Arc<str>>,
    /// Objects with problems were added, changed or removed.
    pub(crate) problems: bool,
}

/// An address affected by a change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChangedAddress {
    pub(crate) address: IpAddr,
    /// The namespace of a pod that owned or claimed the address, before or after the change.
    pub(crate) namespace: Arc<str>,
    /// No pod owned or claimed the address before this change.
    pub(crate) fresh: bool,
}

impl StateDelta {
    /// Whether attachments changed.
    pub fn attachments(&self) -> bool {
        self.attachments
    }

    /// Addresses whose remote sets, or the labels of these, changed.
    pub fn remote_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.remote.iter().copied()
    }

    /// Whether anything changed.
    pub fn any(&self) -> bool {
        self.any
    }

    /// Merges a later delta into this one.
    pub fn join(&mut self, later: StateDelta) {
        let StateDelta {
            any,
            pods,
            policies,
            cluster_policies,
            relabelled,
            enforcement,
            addresses,
            remote,
            remote_sets,
            families,
            attachments,
            learned,
            nodes,
            node_peers,
            problems,
        } = later;
        self.any |= any;
        self.pods.extend(pods);
        self.policies.extend(policies);
        self.cluster_policies.extend(cluster_policies);
        self.relabelled.extend(relabelled);
        self.enforcement.extend(enforcement);
        self.addresses.extend(addresses);
        self.remote.extend(remote);
        self.remote_sets.extend(remote_sets);
        self.families |= families;
        self.attachments |= attachments;
        self.learned.extend(learned);
        self.nodes |= nodes;
        self.node_peers.extend(node_peers);
        self.problems |= problems;
    }

    pub(crate) fn record_namespace(&mut self, old: Option<&Namespace>, new: Option<&Namespace>) {
        let Some(Namespace { name, .. }) = new.or(old) else { return };
        let matched = |n: &Namespace| (!n.unreadable).then(|| n.labels.clone());
        if old.and_then(matched) != new.and_then(matched) {
            self.relabelled.insert(name.name.clone());
        }
        if old.and_then(|n| n.enforcement) != new.and_then(|n| n.enforcement) {
            self.enforcement.insert(name.name.clone());
        }
    }

    pub(crate) fn record_node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        self.nodes |= nodes::differ(old, new);
        let Some(Node { name, .. }) = new.or(old) else { return };
        if nodes::differ_as_peers(old, new) {
            self.node_peers.insert(name.name.clone());
        }
    }

    /// Records a changed object. `problems` is true if it has or had problems.
    pub(crate) fn record_problems(&mut self, problems: bool) {
        self.any = true;
        self.problems |= problems;
    }

    /// Records changed addresses of remote sets.
    pub(crate) fn record_remote(&mut self, moved: MembershipDelta) {
        let MembershipDelta { addresses, sets } = moved;
        self.any |= !addresses.is_empty();
        self.remote.extend(addresses);
        self.remote_sets.extend(sets);
    }

    /// Records changed labels of remote sets, which contain these addresses.
    pub(crate) fn record_families(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        (self.any, self.families) = (true, true);
        self.remote.extend(addresses);
    }

    /// Records changed names of the address.
    pub(crate) fn record_learned(&mut self, address: IpAddr) {
        self.any = true;
        self.learned.insert(address);
    }

    /// Records changed interfaces of pods.
    pub(crate) fn record_interfaces(&mut self) {
        (self.any, self.attachments) = (true, true);
    }

    pub(crate) fn record_attachment(&mut self, attachment: Option<&Attachment>) {
        if let Some(attachment) = attachment {
            self.attachments = true;
            self.record_pod(&attachment.pod, attachment.addresses.iter().copied(), |_| false);
        }
    }

    /// Records that the pod owns or owned the addresses. `is_fresh` returns whether no pod owned or claimed an address
    /// before.
    pub(crate) fn record_pod(
        &mut self,
        pod: &ObjectName,
        addresses: impl IntoIterator<Item = IpAddr>,
        is_fresh: impl Fn(IpAddr) -> bool,
    ) {
        self.any = true;
        self.pods.insert(pod.clone());
        let noted = |address| ChangedAddress { address, namespace: pod.namespace.clone(), fresh: is_fresh(address) };
        self.addresses.extend(addresses.into_iter().map(noted));
    }
}
