//! Which pod or node has an address: attachments take precedence over pod objects, and these are ranked.

use std::net::IpAddr;
use std::sync::Arc;

use super::ClusterState;
use crate::{Attachment, AttachmentId, Holder, ObjectName, Pod};

impl ClusterState {
    /// The attachment, while its DEL has not been reported.
    pub fn attachment(&self, id: &AttachmentId) -> Option<&Arc<Attachment>> {
        self.addresses.attachment(id)
    }

    /// All attachments of the node, whatever is known of their pods.
    pub fn attachments(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        self.addresses.attachments()
    }

    /// The latest attachment with the address.
    pub(crate) fn attached(&self, address: IpAddr) -> Option<&Arc<Attachment>> {
        self.addresses.attached(address)
    }

    /// The owner of the address. Attachments to this node take precedence over pod objects, later attachments over
    /// earlier ones, and among several pods that claim the address the one of the greatest [`ClaimRank`](crate::ClaimRank).
    pub fn holder(&self, address: IpAddr) -> Option<Holder<'_>> {
        if let Some(attachment) = self.addresses.attached(address) {
            let pod = self.pods.get(&attachment.pod).filter(|pod| attachment.is_of(pod));
            return Some(pod.map_or(Holder::Unknown(attachment), Holder::Pod));
        }
        self.addresses.claimants(address).first().map(Holder::Pod)
    }

    /// The pod that has the address, if its object is known.
    pub fn owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.holder(address)?.pod()
    }

    /// The nodes that have the address according to their host-network pods; none if a pod has it. There is more than
    /// one node only while objects contradict each other.
    pub fn nodes_with(&self, address: IpAddr) -> impl Iterator<Item = &Arc<str>> {
        let on_host = self.addresses.on_host(address).iter().filter(move |_| self.holder(address).is_none());
        on_host.filter_map(|pod| pod.node.as_ref())
    }

    /// Every pod whose object has the address, on the host network or not, unordered.
    pub fn claimants(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Pod>> {
        self.addresses.claimants(address).iter().chain(self.addresses.on_host(address))
    }

    /// The addresses that the pod owns, not merely claims.
    pub fn addresses_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = IpAddr> + 'a {
        self.addresses.of(pod).filter(|address| self.owns(pod, *address))
    }

    fn owns(&self, pod: &Pod, address: IpAddr) -> bool {
        self.owner(address).is_some_and(|owner| std::ptr::eq(&**owner, pod) || owner.name == pod.name)
    }

    /// Like [`ClusterState::addresses_of`], for a pod from this state: almost every address is undisputed, which saves
    /// the lookup of its owner.
    pub(crate) fn addresses_of_known<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = IpAddr> + 'a {
        let has = |address: &IpAddr| self.addresses.is_undisputed(*address) || self.owns(pod, *address);
        self.addresses.of(pod).filter(has)
    }

    /// Every pod whose object or attachment has the address, whoever owns it.
    pub(crate) fn contenders(&self, address: IpAddr) -> impl Iterator<Item = &ObjectName> {
        let attached = self.addresses.attached_with(address).map(|attachment| &attachment.pod);
        self.addresses.claimants(address).iter().map(|pod| &pod.name).chain(attached)
    }

    /// Whether the attachment is the one that owns the address.
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
}
