//! Lookup of the objects in the state: by name, by namespace and by selector.

use std::sync::Arc;

use super::ClusterState;
use crate::{
    ClusterPolicy, Direction, Enforcement, Labels, Namespace, Node, NodeRanges, ObjectName, Pod, Policy, Selection,
    Selector, Tier,
};

impl ClusterState {
    /// Namespaces whose objects are known.
    pub fn namespace_count(&self) -> usize {
        self.namespaces.len()
    }

    /// All pods of the cluster, finished ones included.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// NetworkPolicies, enforced or audited.
    pub fn policy_count(&self) -> usize {
        self.policies.len()
    }

    /// Nodes whose objects are known.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Sorted by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// The labels of the node; `None` if they are unknown.
    pub(crate) fn node_labels(&self, name: &str) -> Option<&Labels> {
        self.nodes.get(name).filter(|node| !node.unlabelled).map(|node| &node.labels)
    }

    /// The address ranges of all nodes; `None` while no Node object is known, or one of them is unreadable.
    pub fn node_ranges(&self) -> Option<NodeRanges> {
        NodeRanges::of(self.nodes.values().map(|node| &**node))
    }

    /// Sorted by namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    /// Finished pods and pods on the host network included.
    pub fn pod(&self, name: &ObjectName) -> Option<&Arc<Pod>> {
        self.pods.get(name)
    }

    /// NetworkPolicies, sorted by namespace and name; one beyond its budget as the denial that replaces it.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    /// The NetworkPolicy; one beyond its budget as the denial that replaces it.
    pub fn policy(&self, name: &ObjectName) -> Option<&Arc<Policy>> {
        self.policies.get(name)
    }

    /// Sorted by name.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.namespaces.values()
    }

    /// `None` while its object is unknown.
    pub fn namespace(&self, name: &str) -> Option<&Arc<Namespace>> {
        self.namespaces.get(name)
    }

    /// The labels of a namespace for selectors; `None` while its object is unknown or unreadable.
    pub fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace).filter(|n| !n.unreadable).map(|n| &n.labels)
    }

    /// ClusterNetworkPolicies of both tiers.
    pub fn cluster_policy_count(&self) -> usize {
        self.cluster_policies.len()
    }

    /// All cluster policies, in the order of evaluation.
    pub fn cluster_policies(&self) -> impl Iterator<Item = &Arc<ClusterPolicy>> {
        self.cluster_policies.iter()
    }

    /// The ClusterNetworkPolicy.
    pub fn cluster_policy(&self, name: &str) -> Option<&Arc<ClusterPolicy>> {
        self.cluster_policies.get(name)
    }

    /// The cluster policies of a tier, in the order of evaluation.
    pub fn cluster_policies_of(&self, tier: Tier) -> impl Iterator<Item = &Arc<ClusterPolicy>> {
        self.cluster_policies.of_tier(tier)
    }

    /// The cluster policies of a tier that have rules for the direction and select the pod, or may, in the order of
    /// evaluation.
    pub fn cluster_policies_for<'a>(
        &'a self,
        pod: &'a Pod,
        tier: Tier,
        direction: Direction,
    ) -> impl Iterator<Item = (&'a Arc<ClusterPolicy>, Selection)> {
        let namespace = self.namespace_labels(&pod.name.namespace);
        let with_rules = self.cluster_policies.of_tier(tier).filter(move |p| !p.rules(direction).is_empty());
        let selecting = with_rules.map(move |policy| (policy, policy.subject.selects(pod, namespace)));
        selecting.filter(|(_, selection)| *selection != Selection::No)
    }

    /// Whether any cluster policy is enforced.
    pub fn has_enforced_cluster_policies(&self) -> bool {
        let mut all = Tier::BOTH.into_iter().flat_map(|tier| self.cluster_policies_of(tier));
        all.any(|policy| self.cluster_enforcement(policy) == Enforcement::Enforce)
    }

    /// Whether an enforced cluster policy selects the pod, or may, and has rules for the direction.
    pub(crate) fn may_be_judged_by_cluster_policies(&self, pod: &Pod, direction: Direction) -> bool {
        let mut all = Tier::BOTH.into_iter().flat_map(|tier| self.cluster_policies_for(pod, tier, direction));
        all.any(|(policy, _)| self.cluster_enforcement(policy) == Enforcement::Enforce)
    }

    /// Whether the cluster policy is enforced. Its own annotation takes precedence over the default.
    pub fn cluster_enforcement(&self, policy: &ClusterPolicy) -> Enforcement {
        policy.enforcement.unwrap_or(self.default_enforcement)
    }

    /// The pods of a namespace.
    pub fn pods_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.pods.in_namespace(namespace)
    }

    /// The pods of these namespaces that the selector matches, unordered.
    pub(crate) fn pods_selected<'a>(
        &'a self,
        namespaces: impl IntoIterator<Item = &'a Arc<str>>,
        pods: &'a Selector,
    ) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.pods_by_labels.selected(namespaces.into_iter(), pods)
    }

    /// The pods of the cluster that the selector matches, unordered.
    pub(crate) fn pods_selected_anywhere<'a>(&'a self, pods: &'a Selector) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.pods_by_labels.selected_anywhere(pods)
    }

    /// The policies of a namespace.
    pub fn policies_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Policy>> {
        self.policies.in_namespace(namespace)
    }

    /// Namespaces whose labels a namespaceSelector matches.
    pub fn namespaces_matching<'a>(&'a self, selector: &'a Selector) -> impl Iterator<Item = &'a ObjectName> {
        self.namespaces.values().filter(|n| !n.unreadable && selector.matches(&n.labels)).map(|n| &n.name)
    }
}
