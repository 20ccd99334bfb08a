//! What is known of the cluster, and how a change alters it.
//!
//! The state is a function of the objects that are known last, not of the order in which they came: any sequence of
//! changes, with relists and duplicates, ends in the same state as a fresh start on the final objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::directory::Directory;
use crate::{
    Attachment, AttachmentId, Change, Changed, Diagnostic, Enforcement, Holder, Kind, Labels, NamedPort, Namespace,
    Object, ObjectName, Pod, Policy, Selector,
};

/// Namespaces, pods and policies, and the directory of addresses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterState {
    namespaces: BTreeMap<ObjectName, Arc<Namespace>>,
    pods: BTreeMap<ObjectName, Arc<Pod>>,
    policies: BTreeMap<ObjectName, Arc<Policy>>,
    addresses: Directory,
    default_enforcement: Enforcement,
}

impl ClusterState {
    pub fn new() -> ClusterState {
        ClusterState::default()
    }

    /// Takes a change in; says what is different now.
    pub fn apply(&mut self, change: Change) -> Changed {
        let mut changed = Changed::default();
        match change {
            Change::Set(object) => self.set(object, &mut changed),
            Change::Remove(kind, name) => self.remove(kind, &name, &mut changed),
            Change::Replace(kind, objects) => {
                let kept: BTreeSet<ObjectName> = objects.iter().map(|o| o.name().clone()).collect();
                let gone: Vec<ObjectName> = self.names(kind).filter(|n| !kept.contains(*n)).cloned().collect();
                for name in gone {
                    self.remove(kind, &name, &mut changed);
                }
                for object in objects.into_iter().filter(|o| o.kind() == kind) {
                    self.set(object, &mut changed);
                }
            }
        }
        changed
    }

    fn set(&mut self, object: Object, changed: &mut Changed) {
        match object {
            Object::Namespace(new) => {
                let old = self.namespaces.get(&new.name);
                if old.is_some_and(|old| **old == new) {
                    return;
                }
                changed.note_namespace(old.map(|old| &**old), Some(&new));
                self.namespaces.insert(new.name.clone(), Arc::new(new));
            }
            Object::Policy(new) => {
                let new = Arc::new(new);
                let old = self.policies.get(&new.name);
                if old.is_some_and(|old| **old == *new) {
                    return;
                }
                changed.note_policy(old, Some(&new));
                self.policies.insert(new.name.clone(), new);
            }
            Object::Pod(new) => {
                if self.pods.get(&new.name).is_some_and(|old| **old == new) {
                    return;
                }
                self.remove(Kind::Pod, &new.name, changed);
                changed.note_pod(&new.name, self.addresses.may_have(&new));
                changed.problems |= !new.problems.is_empty();
                self.addresses.claim(&new);
                self.pods.insert(new.name.clone(), Arc::new(new));
            }
        }
    }

    fn remove(&mut self, kind: Kind, name: &ObjectName, changed: &mut Changed) {
        match kind {
            Kind::Namespace => {
                if let Some(old) = self.namespaces.remove(name) {
                    changed.note_namespace(Some(&old), None);
                }
            }
            Kind::NetworkPolicy => {
                if let Some(old) = self.policies.remove(name) {
                    changed.note_policy(Some(&old), None);
                }
            }
            Kind::Pod => {
                if let Some(old) = self.pods.remove(name) {
                    changed.note_pod(name, self.addresses.may_have(&old));
                    changed.problems |= !old.problems.is_empty();
                    self.addresses.release(&old);
                }
            }
        }
    }

    fn names(&self, kind: Kind) -> Box<dyn Iterator<Item = &ObjectName> + '_> {
        match kind {
            Kind::Namespace => Box::new(self.namespaces.keys()),
            Kind::Pod => Box::new(self.pods.keys()),
            Kind::NetworkPolicy => Box::new(self.policies.keys()),
        }
    }

    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    pub fn pod(&self, name: &ObjectName) -> Option<&Arc<Pod>> {
        self.pods.get(name)
    }

    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    pub fn policy(&self, name: &ObjectName) -> Option<&Arc<Policy>> {
        self.policies.get(name)
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.namespaces.values()
    }

    /// The labels of a namespace that selectors may look at; none while its object is unknown or unreadable.
    pub fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(&ObjectName::new("", namespace)).filter(|n| !n.unreadable).map(|n| &n.labels)
    }

    /// What becomes of policies that neither they nor their namespaces say anything of.
    pub fn set_default_enforcement(&mut self, default: Enforcement) {
        self.default_enforcement = default;
    }

    /// Whether the policy is enforced. The nearest word counts: the policy's own, then its namespace's, then the default.
    pub fn enforcement(&self, policy: &Policy) -> Enforcement {
        policy.enforcement.unwrap_or_else(|| self.enforcement_in(&policy.name.namespace))
    }

    /// What becomes of policies of the namespace that say nothing of their own.
    pub fn enforcement_in(&self, namespace: &str) -> Enforcement {
        let said = self.namespaces.get(&ObjectName::new("", namespace)).and_then(|n| n.enforcement);
        said.unwrap_or(self.default_enforcement)
    }

    /// The pods of a namespace.
    pub fn pods_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Pod>> {
        in_namespace(&self.pods, namespace)
    }

    /// The policies of a namespace.
    pub fn policies_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Policy>> {
        in_namespace(&self.policies, namespace)
    }

    /// Namespaces whose labels a namespaceSelector matches.
    pub fn namespaces_matching<'a>(&'a self, selector: &'a Selector) -> impl Iterator<Item = &'a ObjectName> {
        self.namespaces.iter().filter(|(_, n)| !n.unreadable && selector.matches(&n.labels)).map(|(name, _)| name)
    }

    /// A pod was attached to this node's network. Says what is different now.
    pub fn attach(&mut self, attachment: Attachment) -> Changed {
        let mut changed = Changed::default();
        let old = self.addresses.attachment(&attachment.id).cloned();
        if old.as_deref() != Some(&attachment) {
            changed.note_attachment(old.as_deref());
            changed.note_attachment(Some(&attachment));
            self.addresses.attach(attachment);
        }
        changed
    }

    /// The attachment has ended. Says what is different now.
    pub fn detach(&mut self, id: &AttachmentId) -> Changed {
        let mut changed = Changed::default();
        changed.note_attachment(self.addresses.detach(id).as_deref());
        changed
    }

    /// These are all the attachments there are. Says what is different now.
    pub fn replace_attachments(&mut self, attachments: Vec<Attachment>) -> Changed {
        let mut changed = Changed::default();
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

    pub fn attachment(&self, id: &AttachmentId) -> Option<&Arc<Attachment>> {
        self.addresses.attachment(id)
    }

    pub fn attachments(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        self.addresses.attachments()
    }

    /// Who has the address. What is attached to this node counts more than what pods say of themselves, the later
    /// attachment more than the earlier one. When several pods claim the address: one that is not terminating before
    /// one that is, then the later start, the later creation, the greater UID, the greater name.
    pub fn holder(&self, address: IpAddr) -> Option<Holder<'_>> {
        if let Some(attachment) = self.addresses.attached(address) {
            let pod = self.pods.get(&attachment.pod).filter(|pod| attachment.is_of(pod));
            return Some(pod.map_or(Holder::Unknown(attachment), Holder::Pod));
        }
        let claimants = self.addresses.claimants(address).filter_map(|name| self.pods.get(name));
        claimants.max_by(|a, b| seniority(a).cmp(&seniority(b))).map(Holder::Pod)
    }

    /// The pod that has the address, if its object is known.
    pub fn owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.holder(address)?.pod()
    }

    /// The nodes that have the address, as their pods on the host network say; none if a pod has it. It is one node, but
    /// for what the objects of two of them say at the same time.
    pub fn nodes_with(&self, address: IpAddr) -> impl Iterator<Item = &Arc<str>> {
        let on_host = self.addresses.on_host(address).filter(move |_| self.holder(address).is_none());
        on_host.filter_map(|name| self.pods.get(name)?.node.as_ref())
    }

    /// The addresses that the pod has, rather than claims.
    pub fn addresses_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = IpAddr> + 'a {
        let claimed = self.addresses.of(pod);
        claimed.into_iter().filter(|a| self.owner(*a).is_some_and(|owner| owner.name == pod.name))
    }

    /// Every pod that says it has the address or was attached with it, whoever has it.
    pub(crate) fn contenders(&self, address: IpAddr) -> impl Iterator<Item = &ObjectName> {
        let attached = self.addresses.attached_with(address).map(|attachment| &attachment.pod);
        self.addresses.claimants(address).chain(attached)
    }

    /// Whether the attachment is the one that has the address.
    pub fn is_attached_as(&self, attachment: &Attachment, address: IpAddr) -> bool {
        self.addresses.attached(address).is_some_and(|latest| latest.id == attachment.id)
    }

    /// Whether the object describes a pod that is attached here.
    pub fn is_attached(&self, pod: &Pod) -> bool {
        self.addresses.attachments_of(&pod.name).any(|a| a.is_of(pod))
    }

    /// Whether the pod runs on the node: it is bound to it, or attached here.
    pub(crate) fn is_local(&self, pod: &Pod, node: &str) -> bool {
        pod.node.as_deref() == Some(node) || self.is_attached(pod)
    }

    /// What was found wrong with the objects, worst first.
    pub fn problems(&self) -> Vec<Diagnostic> {
        let namespaces = self.namespaces.values().flat_map(|o| &o.problems);
        let pods = self.pods.values().flat_map(|o| &o.problems);
        let policies = self.policies.values().flat_map(|o| &o.problems);
        let mut found: Vec<Diagnostic> = namespaces.chain(pods).chain(policies).cloned().collect();
        found.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.cmp(b)));
        found
    }
}

impl Pod {
    /// The number of a named port, if the pod has one of that name and protocol.
    pub fn resolve(&self, name: &str, protocol: nft::Protocol) -> Option<u16> {
        let called = |p: &&NamedPort| *p.name == *name && p.protocol == protocol;
        self.ports.iter().find(called).map(|p| p.number)
    }
}

fn seniority(pod: &Pod) -> (bool, Option<i64>, Option<i64>, &str, &ObjectName) {
    (!pod.terminating, pod.started, pod.created, &pod.uid, &pod.name)
}

fn in_namespace<'a, T>(map: &'a BTreeMap<ObjectName, Arc<T>>, namespace: &'a str) -> impl Iterator<Item = &'a Arc<T>> {
    let first = ObjectName::new(namespace, "");
    map.range(first..).take_while(move |(name, _)| *name.namespace == *namespace).map(|(_, object)| object)
}
