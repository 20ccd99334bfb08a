//! What is different after changes: enough for whoever keeps something that was made from the state to bring it up to
//! date without looking at the rest.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::remote::{Moved, RemoteSet};
use crate::{Attachment, Namespace, Node, ObjectName, Policy, nodes};

/// What [`crate::ClusterState::apply`] and its like have altered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changed {
    /// Something is different, be it of no meaning for any of what follows.
    any: bool,
    /// Pods whose objects or attachments are others now, or came, or went.
    pub(crate) pods: BTreeSet<ObjectName>,
    /// Policies as they were and as they are.
    pub(crate) policies: Vec<Arc<Policy>>,
    /// Namespaces that other selectors may match now.
    pub(crate) relabelled: BTreeSet<Arc<str>>,
    /// Namespaces that say something else now of what becomes of their policies.
    pub(crate) enforcement: BTreeSet<Arc<str>>,
    /// Addresses whose holder may be another or may have other labels.
    pub(crate) addresses: Vec<Noted>,
    /// Addresses that are in other remote sets now, or whose remote sets have other labels.
    pub(crate) remote: BTreeSet<IpAddr>,
    /// Remote sets that have other addresses now.
    pub(crate) remote_sets: BTreeSet<RemoteSet>,
    /// Remote sets have other labels now.
    pub(crate) families: bool,
    pub(crate) attachments: bool,
    /// The addresses of nodes may differ, so [`crate::ClusterState::node_ranges`] may too.
    pub(crate) nodes: bool,
    /// Objects with something that was not understood came or went.
    pub(crate) problems: bool,
}

/// An address that a change is about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Noted {
    pub(crate) address: IpAddr,
    /// Of a pod that has or had to do with it.
    pub(crate) namespace: Arc<str>,
    /// Nobody had to do with it before this was noted.
    pub(crate) fresh: bool,
}

impl Changed {
    /// Whether other attachments are known.
    pub fn attachments(&self) -> bool {
        self.attachments
    }

    /// Addresses that are in other remote sets than before, or whose remote sets have other labels.
    pub fn remote_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.remote.iter().copied()
    }

    /// Whether anything is different.
    pub fn any(&self) -> bool {
        self.any
    }

    /// Takes in what changed after this.
    pub fn join(&mut self, later: Changed) {
        let Changed {
            any,
            pods,
            policies,
            relabelled,
            enforcement,
            addresses,
            remote,
            remote_sets,
            families,
            attachments,
            nodes,
            problems,
        } = later;
        self.any |= any;
        self.pods.extend(pods);
        self.policies.extend(policies);
        self.relabelled.extend(relabelled);
        self.enforcement.extend(enforcement);
        self.addresses.extend(addresses);
        self.remote.extend(remote);
        self.remote_sets.extend(remote_sets);
        self.families |= families;
        self.attachments |= attachments;
        self.nodes |= nodes;
        self.problems |= problems;
    }

    pub(crate) fn note_namespace(&mut self, old: Option<&Namespace>, new: Option<&Namespace>) {
        let Some(Namespace { name, .. }) = new.or(old) else { return };
        let matched = |n: &Namespace| (!n.unreadable).then(|| n.labels.clone());
        if old.and_then(matched) != new.and_then(matched) {
            self.relabelled.insert(name.name.clone());
        }
        if old.and_then(|n| n.enforcement) != new.and_then(|n| n.enforcement) {
            self.enforcement.insert(name.name.clone());
        }
    }

    pub(crate) fn note_node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        self.nodes |= nodes::differ(old, new);
    }

    /// An object is another now, or has come or gone; it has or had something that was not understood.
    pub(crate) fn note_problems(&mut self, problems: bool) {
        self.any = true;
        self.problems |= problems;
    }

    /// Addresses are in other remote sets now.
    pub(crate) fn note_remote(&mut self, moved: Moved) {
        let Moved { addresses, sets } = moved;
        self.any |= !addresses.is_empty();
        self.remote.extend(addresses);
        self.remote_sets.extend(sets);
    }

    /// Remote sets, which have the addresses, have other labels now.
    pub(crate) fn note_families(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        (self.any, self.families) = (true, true);
        self.remote.extend(addresses);
    }

    /// Something else is known of the interfaces of pods.
    pub(crate) fn note_interfaces(&mut self) {
        (self.any, self.attachments) = (true, true);
    }

    pub(crate) fn note_attachment(&mut self, attachment: Option<&Attachment>) {
        if let Some(attachment) = attachment {
            self.attachments = true;
            self.note_pod(&attachment.pod, attachment.addresses.iter().copied(), |_| false);
        }
    }

    /// The pod has or had the addresses. `is_fresh` says of which nobody had anything to do with it before.
    pub(crate) fn note_pod(
        &mut self,
        pod: &ObjectName,
        addresses: impl IntoIterator<Item = IpAddr>,
        is_fresh: impl Fn(IpAddr) -> bool,
    ) {
        self.any = true;
        self.pods.insert(pod.clone());
        let noted = |address| Noted { address, namespace: pod.namespace.clone(), fresh: is_fresh(address) };
        self.addresses.extend(addresses.into_iter().map(noted));
    }
}
