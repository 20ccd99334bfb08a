//! The store of cluster objects, and how changes are applied to it. Its indexes are in the folder beside this file.
//!
//! The state is a function of the last known objects, not of the order of events: any sequence of changes, with relists
//! and duplicates, results in the same state as a fresh start on the final objects.

mod address_owners;
pub(crate) mod btree_packing;
mod budget;
mod by_name;
pub(crate) mod delta;
mod directory;
mod enforcement_counts;
mod footprint;
mod interner;
mod learned;
pub(crate) mod nodes;
mod object_totals;
mod objects;
mod pods_by_labels;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nft::InterfaceName;

use crate::cluster_policy::ClusterPolicies;
use crate::remote::{LabelPrefix, RemoteChange, RemoteLabels, RemoteSet, RemoteSets};
use crate::{
    Attachment, AttachmentId, Change, ClusterRule, Diagnostic, DomainPattern, Enforcement, Kind, NamedPort, Namespace,
    Node, Object, ObjectName, Pod, Policy,
};
use budget::{Budgets, Switch};
use by_name::ByName;
use directory::Directory;
use enforcement_counts::Tally;
use learned::LearnedNames;
use nodes::range_of_pods;
use object_totals::Sums;
use pods_by_labels::PodsByLabels;

pub use btree_packing::pack_shared;
pub use delta::StateDelta;
pub use enforcement_counts::PolicyCounts;
pub use interner::Interner;
pub use learned::is_learnable;
pub use nodes::NodeRanges;

/// Namespaces, pods, policies, nodes and cluster policies, the directory of addresses, and the pods of other clusters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterState {
    namespaces: BTreeMap<Arc<str>, Arc<Namespace>>,
    pods: ByName<Pod>,
    pods_by_labels: PodsByLabels,
    policies: ByName<Policy>,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    cluster_policies: ClusterPolicies,
    addresses: Directory,
    remote: RemoteSets,
    learned: LearnedNames,
    default_enforcement: Enforcement,
    tally: Tally,
    sums: Sums,
    budgets: Budgets,
    /// Interfaces at whose ingress tc may redirect packets.
    redirecting: BTreeSet<InterfaceName>,
    /// Ports of bridges.
    bridge_ports: BTreeSet<InterfaceName>,
}

impl ClusterState {
    /// Without objects, with enforcement as the default.
    pub fn new() -> ClusterState {
        ClusterState::default()
    }

    /// Applies a change. Returns the delta.
    pub fn apply(&mut self, change: Change) -> StateDelta {
        let mut changed = StateDelta::default();
        match change {
            Change::Set(object) => self.set(object, &mut changed),
            Change::Remove(kind, name) => self.remove(kind, &name, &mut changed),
            Change::Replace(kind, objects) => {
                let kept: BTreeSet<&ObjectName> = objects.iter().map(Object::name).collect();
                let gone: Vec<ObjectName> = self.names(kind).filter(|n| !kept.contains(*n)).cloned().collect();
                for name in gone {
                    self.remove(kind, &name, &mut changed);
                }
                for object in objects.into_iter().filter(|o| o.kind() == kind) {
                    self.set(object, &mut changed);
                }
                if kind == Kind::Pod {
                    self.pack();
                }
            }
        }
        self.balance(&mut changed);
        changed
    }

    /// Denies policies that exceed their budget of elements.
    fn balance(&mut self, changed: &mut StateDelta) {
        if self.budgets.is_empty() {
            return;
        }
        let mut budgets = std::mem::take(&mut self.budgets);
        if !changed.relabelled.is_empty() {
            budgets.recount(self);
        }
        let switched = budgets.balance(self.pods.len());
        self.budgets = budgets;
        for Switch { name, effective } in switched {
            let Some(old) = self.policies.get(&name).cloned() else { continue };
            let in_namespace = self.enforcement_in(&name.namespace);
            self.tally.remove(&old, in_namespace);
            self.tally.add(&effective, in_namespace);
            let (old, new) = (Object::Policy(old), Object::Policy(effective.clone()));
            self.record(changed, Some(&old), Some(&new));
            self.sums.remove(&old);
            self.sums.add(&new);
            self.policies.insert(name, effective);
        }
    }

    #[cfg(test)]
    pub(crate) fn budgets_are_empty(&self) -> bool {
        self.budgets.is_empty()
    }

    /// Repacks B-trees after the initial sync: inserting in list order leaves their nodes half full.
    pub fn pack(&mut self) {
        self.pods.pack();
        self.pods_by_labels.pack();
        self.addresses.pack();
    }

    fn set(&mut self, object: Object, changed: &mut StateDelta) {
        let old = self.object(object.kind(), object.name());
        let is_written = match &object {
            Object::Policy(policy) => self.budgets.written(&policy.name) == Some(policy),
            Object::Namespace(_) | Object::Pod(_) | Object::Node(_) | Object::ClusterPolicy(_) => false,
        };
        if is_written || old.as_ref() == Some(&object) {
            return;
        }
        let differs_in_owner_alone = match (&old, &object) {
            (Some(Object::Pod(old)), Object::Pod(new)) => old.differs_in_owner_alone(new),
            (None, _)
            | (
                _,
                Object::Namespace(_) | Object::Pod(_) | Object::Policy(_) | Object::Node(_) | Object::ClusterPolicy(_),
            ) => false,
        };
        if !differs_in_owner_alone {
            self.record(changed, old.as_ref(), Some(&object));
        }
        if let Some(old) = &old {
            self.remove_object(old);
        }
        self.sums.add(&object);
        match object {
            Object::Namespace(new) => {
                let name = new.name.name.clone();
                let before = self.enforcement_in(&name);
                self.namespaces.insert(name.clone(), new);
                self.tally.change_enforcement(&name, before, self.enforcement_in(&name));
            }
            Object::Policy(new) => {
                self.tally.add(&new, self.enforcement_in(&new.name.namespace));
                let mut budgets = std::mem::take(&mut self.budgets);
                budgets.add(&new, self);
                self.budgets = budgets;
                self.policies.insert(new.name.clone(), new);
            }
            Object::Node(new) => {
                self.nodes.insert(new.name.name.clone(), new);
            }
            Object::ClusterPolicy(new) => self.cluster_policies.insert(new),
            Object::Pod(new) => {
                let labels = self.namespaces.get(&new.name.namespace).filter(|n| !n.unreadable).map(|n| &n.labels);
                self.budgets.add_pod(&new, labels);
                self.addresses.claim(&new);
                self.pods_by_labels.add(&new);
                self.pods.insert(new.name.clone(), new);
            }
        }
    }

    fn remove(&mut self, kind: Kind, name: &ObjectName, changed: &mut StateDelta) {
        if let Some(old) = self.object(kind, name) {
            self.record(changed, Some(&old), None);
            self.remove_object(&old);
        }
    }

    fn remove_object(&mut self, old: &Object) {
        self.sums.remove(old);
        let name = old.name();
        match old {
            Object::Namespace(_) => {
                let before = self.enforcement_in(&name.name);
                self.namespaces.remove(&name.name);
                self.tally.change_enforcement(&name.name, before, self.enforcement_in(&name.name));
            }
            Object::Policy(old) => {
                self.tally.remove(old, self.enforcement_in(&name.namespace));
                self.policies.remove(name);
                self.budgets.remove(old);
            }
            Object::Node(_) => {
                self.nodes.remove(&name.name);
            }
            Object::ClusterPolicy(_) => self.cluster_policies.remove(&name.name),
            Object::Pod(old) => {
                let labels = self.namespaces.get(&old.name.namespace).filter(|n| !n.unreadable).map(|n| &n.labels);
                self.budgets.remove_pod(old, labels);
                self.addresses.release(old);
                self.pods_by_labels.remove(old);
                self.pods.remove(name);
            }
        }
    }

    /// Records the delta of upserting or removing one object.
    fn record(&self, changed: &mut StateDelta, old: Option<&Object>, new: Option<&Object>) {
        changed.record_problems(old.into_iter().chain(new).any(|object| !object.problems().is_empty()));
        let namespace = |object: Option<&Object>| match object {
            Some(Object::Namespace(namespace)) => Some(namespace.clone()),
            Some(Object::Pod(_) | Object::Policy(_) | Object::Node(_) | Object::ClusterPolicy(_)) | None => None,
        };
        changed.record_namespace(namespace(old).as_deref(), namespace(new).as_deref());
        let node = |object: Option<&Object>| match object {
            Some(Object::Node(node)) => Some(node.clone()),
            Some(Object::Namespace(_) | Object::Pod(_) | Object::Policy(_) | Object::ClusterPolicy(_)) | None => None,
        };
        changed.record_node(node(old).as_deref(), node(new).as_deref());
        for object in old.into_iter().chain(new) {
            match object {
                Object::Policy(policy) => changed.policies.push(policy.clone()),
                Object::ClusterPolicy(policy) => changed.cluster_policies.push(policy.clone()),
                Object::Pod(pod) => {
                    let is_fresh = |address| {
                        self.contenders(address).next().is_none()
                            && self.labelled_remote_sets_with(address).next().is_none()
                    };
                    changed.record_pod(&pod.name, self.addresses.may_have(pod), is_fresh);
                }
                Object::Namespace(_) | Object::Node(_) => {}
            }
        }
    }

    fn object(&self, kind: Kind, name: &ObjectName) -> Option<Object> {
        match kind {
            Kind::Namespace => self.namespaces.get(&name.name).cloned().map(Object::Namespace),
            Kind::Pod => self.pods.get(name).cloned().map(Object::Pod),
            Kind::NetworkPolicy => self.policies.get(name).cloned().map(Object::Policy),
            Kind::Node => self.nodes.get(&name.name).cloned().map(Object::Node),
            Kind::ClusterNetworkPolicy => self.cluster_policies.get(&name.name).cloned().map(Object::ClusterPolicy),
        }
    }

    fn names(&self, kind: Kind) -> Box<dyn Iterator<Item = &ObjectName> + '_> {
        match kind {
            Kind::Namespace => Box::new(self.namespaces.values().map(|o| &o.name)),
            Kind::Pod => Box::new(self.pods.values().map(|o| &o.name)),
            Kind::NetworkPolicy => Box::new(self.policies.values().map(|o| &o.name)),
            Kind::Node => Box::new(self.nodes.values().map(|o| &o.name)),
            Kind::ClusterNetworkPolicy => Box::new(self.cluster_policies.iter().map(|o| &o.name)),
        }
    }

    /// Policies counted by enforcement.
    pub fn policy_counts(&self) -> PolicyCounts {
        self.tally.counts()
    }

    /// Estimated memory of the kind's objects in bytes, without what they share with others.
    pub fn footprint(&self, kind: Kind) -> usize {
        self.sums.footprint(kind)
    }

    /// Sets the enforcement of policies that neither their own nor their namespace's annotation decides.
    pub fn set_default_enforcement(&mut self, default: Enforcement) {
        let before = self.default_enforcement;
        self.default_enforcement = default;
        let namespaces: Vec<Arc<str>> = self.tally.silent_namespaces().cloned().collect();
        for namespace in namespaces {
            if self.annotated_enforcement(&namespace).is_none() {
                self.tally.change_enforcement(&namespace, before, default);
            }
        }
    }

    /// Whether the policy is enforced. The policy's own annotation takes precedence, then its namespace's, then the
    /// default.
    pub fn enforcement(&self, policy: &Policy) -> Enforcement {
        policy.enforcement.unwrap_or_else(|| self.enforcement_in(&policy.name.namespace))
    }

    /// The enforcement of the namespace's policies without their own annotation.
    pub fn enforcement_in(&self, namespace: &str) -> Enforcement {
        self.annotated_enforcement(namespace).unwrap_or(self.default_enforcement)
    }

    /// The namespace's own annotation.
    fn annotated_enforcement(&self, namespace: &str) -> Option<Enforcement> {
        self.namespaces.get(namespace)?.enforcement
    }

    /// Upserts the attachment of a pod to this node's network. Returns the delta.
    pub fn attach(&mut self, attachment: Attachment) -> StateDelta {
        let mut changed = StateDelta::default();
        let old = self.addresses.attachment(&attachment.id).cloned();
        if old.as_deref() != Some(&attachment) {
            changed.record_attachment(old.as_deref());
            changed.record_attachment(Some(&attachment));
            self.addresses.attach(attachment);
        }
        changed
    }

    /// Removes an attachment. Returns the delta.
    pub fn detach(&mut self, id: &AttachmentId) -> StateDelta {
        let mut changed = StateDelta::default();
        changed.record_attachment(self.addresses.detach(id).as_deref());
        changed
    }

    /// Replaces all attachments. Returns the delta.
    pub fn replace_attachments(&mut self, attachments: Vec<Attachment>) -> StateDelta {
        let mut changed = StateDelta::default();
        let kept: BTreeSet<&AttachmentId> = attachments.iter().map(|a| &a.id).collect();
        let gone: Vec<AttachmentId> =
            self.attachments().map(|a| &a.id).filter(|id| !kept.contains(id)).cloned().collect();
        for id in gone {
            changed.join(self.detach(&id));
        }
        for attachment in attachments {
            changed.join(self.attach(attachment));
        }
        changed
    }

    /// Sets the interfaces of this node at whose ingress tc may redirect packets, bypassing chains at the interface.
    /// Returns the delta.
    pub fn set_redirecting(&mut self, interfaces: BTreeSet<InterfaceName>) -> StateDelta {
        replace_interfaces(&mut self.redirecting, interfaces)
    }

    pub(crate) fn is_redirecting(&self, interface: InterfaceName) -> bool {
        self.redirecting.contains(&interface)
    }

    /// Sets the interfaces that are ports of bridges. Returns the delta. Attachments report the time of
    /// their ADD only: other programs may make an interface a port later.
    pub fn set_bridge_ports(&mut self, interfaces: BTreeSet<InterfaceName>) -> StateDelta {
        replace_interfaces(&mut self.bridge_ports, interfaces)
    }

    pub(crate) fn is_bridge_port(&self, interface: InterfaceName) -> bool {
        self.bridge_ports.contains(&interface)
    }

    /// The host sides of attached pods' interfaces at whose ingress tc may redirect packets.
    pub fn redirecting_ports(&self) -> impl Iterator<Item = InterfaceName> {
        self.attachments().filter_map(|a| a.host_interface).filter(|name| self.is_redirecting(*name))
    }

    /// Adds a learned address of a domain name, which is in lower case and without a final dot. Returns the delta.
    pub fn learn(&mut self, name: Arc<str>, address: IpAddr) -> StateDelta {
        let mut changed = StateDelta::default();
        if self.learned.insert(name, address) {
            changed.record_learned(address);
        }
        changed
    }

    /// Removes a learned address of a domain name. Returns the delta.
    pub fn remove_learned(&mut self, name: &str, address: IpAddr) -> StateDelta {
        let mut changed = StateDelta::default();
        if self.learned.remove(name, address) {
            changed.record_learned(address);
        }
        changed
    }

    /// Sets the domain whose names may have addresses of pods and nodes. Returns the delta.
    pub fn set_cluster_domain(&mut self, domain: Arc<str>) -> StateDelta {
        let mut changed = StateDelta::default();
        if self.learned.set_cluster_domain(domain) {
            self.learned.addresses().for_each(|address| changed.record_learned(address));
        }
        changed
    }

    /// The addresses that were learned for domain names, whether or not rules may match them.
    pub fn learned_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.learned.addresses()
    }

    /// The domain names that rules match for the address, sorted. An address of a pod or node only counts for names in
    /// the cluster's domain: others can be given any address by whoever has the domain.
    pub fn learned_names(&self, address: IpAddr) -> impl Iterator<Item = &Arc<str>> {
        let mut names = self.learned.names(address).peekable();
        let is_known = names.peek().is_some() && is_learnable(address);
        let is_inside = is_known && self.is_inside(address);
        names.filter(move |name| is_known && (!is_inside || self.learned.is_of_cluster(name)))
    }

    /// Whether the domain name is the cluster's domain or in it.
    pub(crate) fn is_of_cluster_domain(&self, name: &str) -> bool {
        self.learned.is_of_cluster(name)
    }

    /// Whether the address is that of a pod, in the status of a node, or in the range of a node's pods, which also has
    /// the addresses of pods that are not known yet, and of gateways.
    pub(crate) fn is_inside(&self, address: IpAddr) -> bool {
        self.holder(address).is_some() || self.nodes.values().any(|node| node.has(address))
    }

    /// Whether a node has the address, by its status or its annotations.
    pub(crate) fn is_of_node(&self, address: IpAddr) -> bool {
        self.nodes.values().any(|node| node.addresses.iter().any(|other| other == address))
    }

    /// Whether a pod that is not known yet may have the address: it is in the pod range of a node, and neither a known
    /// pod nor a node has it.
    pub(crate) fn may_be_unknown_pod(&self, address: IpAddr) -> bool {
        let mut ranges = self.nodes.values().flat_map(|node| &node.pod_ranges).map(range_of_pods);
        let mut is_in_range = || ranges.any(|(first, last)| first <= address && address <= last);
        self.holder(address).is_none() && is_in_range() && !self.is_of_node(address)
    }

    /// The domain names of egress rules of all cluster policies.
    pub fn domain_names(&self) -> impl Iterator<Item = &DomainPattern> {
        self.cluster_policies.iter().flat_map(|policy| &policy.egress).flat_map(ClusterRule::domain_names)
    }

    /// Applies a change of remote sets. Returns the delta.
    pub fn apply_remote(&mut self, change: RemoteChange) -> StateDelta {
        let mut changed = StateDelta::default();
        changed.record_remote(self.remote.apply(change));
        changed
    }

    /// Sets the label prefixes by which policies select remote sets, the one for suggestions first. The initial value
    /// is [`LabelPrefix::defaults`]. Returns the delta.
    pub fn set_remote_prefixes(&mut self, prefixes: Vec<LabelPrefix>) -> StateDelta {
        let mut changed = StateDelta::default();
        if self.remote.set_prefixes(prefixes) {
            changed.record_families(self.remote.addresses());
        }
        changed
    }

    /// In the order of [`Self::set_remote_prefixes`].
    pub fn remote_prefixes(&self) -> impl Iterator<Item = &LabelPrefix> {
        self.remote.prefixes()
    }

    /// The remote sets with their addresses, sorted by name. The addresses include those that a pod of this cluster
    /// has.
    pub fn remote_sets(&self) -> impl Iterator<Item = (&RemoteSet, &BTreeSet<IpAddr>)> {
        self.remote.iter().map(|(set, _, addresses)| (set, addresses))
    }

    /// Remote sets with at least one address.
    pub fn remote_set_count(&self) -> usize {
        self.remote.len()
    }

    /// Addresses in at least one remote set.
    pub fn remote_address_count(&self) -> usize {
        self.remote.address_count()
    }

    /// The remote sets that contain the address, sorted by name; none while a pod of this cluster has the address.
    pub fn remote_sets_with(&self, address: IpAddr) -> impl Iterator<Item = &RemoteSet> {
        self.labelled_remote_sets_with(address).map(|(set, _)| set)
    }

    /// [`Self::remote_sets_with`], each with the labels that selectors match.
    pub(crate) fn labelled_remote_sets_with(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (&RemoteSet, &RemoteLabels)> {
        // Most addresses are in no set, and that lookup is cheaper than the one for the holder.
        self.remote.with(address).filter(move |_| self.holder(address).is_none())
    }

    /// The addresses of the set that no pod of this cluster has; `None` if the set is unknown.
    pub fn remote_addresses_of(&self, set: &RemoteSet) -> Option<impl Iterator<Item = IpAddr>> {
        let addresses = self.remote.addresses_of(set)?;
        Some(addresses.iter().copied().filter(|address| self.holder(*address).is_none()))
    }

    pub(crate) fn remote(&self) -> &RemoteSets {
        &self.remote
    }

    /// Problems found in the objects, most severe first.
    pub fn problems(&self) -> Vec<Diagnostic> {
        let with_problems = self.sums.with_problems().filter_map(|(kind, name)| self.object(*kind, name));
        let mut found: Vec<Diagnostic> = with_problems.flat_map(|object| object.problems().to_vec()).collect();
        found.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.cmp(b)));
        found
    }
}

/// Replaces a set of interfaces that rules depend on. Returns the delta.
fn replace_interfaces(known: &mut BTreeSet<InterfaceName>, interfaces: BTreeSet<InterfaceName>) -> StateDelta {
    let mut changed = StateDelta::default();
    if *known != interfaces {
        changed.record_interfaces();
        *known = interfaces;
    }
    changed
}

impl Pod {
    /// Whether the pods are unequal but result in the same rules.
    fn differs_in_owner_alone(&self, other: &Pod) -> bool {
        self.owner != other.owner && Pod { owner: other.owner.clone(), ..self.clone() } == *other
    }

    /// The number of a named port, if the pod has one of that name and protocol.
    pub fn resolve(&self, name: &str, protocol: nft::Protocol) -> Option<u16> {
        NamedPort::find(&self.ports, name, protocol)
    }
}

impl NamedPort {
    /// The number of the port with that name and protocol, if there is one.
    pub(crate) fn find(ports: &[NamedPort], name: &str, protocol: nft::Protocol) -> Option<u16> {
        let called = |p: &&NamedPort| *p.name == *name && p.protocol == protocol;
        ports.iter().find(called).map(|p| p.number)
    }
}
