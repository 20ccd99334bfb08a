//! The other end of a flow, which the peers of rules match: an address, and the pod or the nodes that have it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use nft::Protocol;

use crate::{ClusterState, Holder, Labels, Selection, Selector};

/// The other end of a flow: an address, with the pod or the nodes that own it.
#[derive(Debug, Clone)]
pub(in crate::translate) struct PeerEnd<'a> {
    pub(in crate::translate) address: IpAddr,
    holder: Option<Holder<'a>>,
    /// The labels of the holder's namespace.
    namespace: Option<&'a Labels>,
    /// The labels of the nodes that have the address; `None` if they are unknown.
    nodes: Vec<Option<&'a Labels>>,
    /// The learned domain names of the address.
    pub(super) names: Vec<LearnedName<'a>>,
}

#[derive(Debug, Clone)]
pub(super) struct LearnedName<'a> {
    pub(super) name: &'a Arc<str>,
    /// True if the name is in the cluster's domain.
    pub(super) of_cluster: bool,
}

impl<'a> PeerEnd<'a> {
    /// An address that no pod and no node has.
    pub(in crate::translate) fn outside(address: IpAddr) -> PeerEnd<'static> {
        PeerEnd { address, holder: None, namespace: None, nodes: vec![], names: vec![] }
    }

    pub(in crate::translate) fn of(
        state: &'a ClusterState,
        address: IpAddr,
        nodes: &NodesByAddress<'a>,
    ) -> PeerEnd<'a> {
        let holder = state.holder(address);
        let namespace = holder.map(|holder| match holder {
            Holder::Pod(pod) => &pod.name.namespace,
            Holder::Unknown(attachment) => &attachment.pod.namespace,
        });
        PeerEnd {
            address,
            holder,
            namespace: namespace.and_then(|namespace| state.namespace_labels(namespace)),
            nodes: nodes.get(&address).cloned().unwrap_or_default(),
            names: state
                .learned_names(address)
                .map(|name| LearnedName { name, of_cluster: state.is_of_cluster_domain(name) })
                .collect(),
        }
    }

    /// The end as if no domain name were learned for it.
    pub(in crate::translate) fn unnamed(&self) -> PeerEnd<'a> {
        PeerEnd { names: vec![], ..self.clone() }
    }

    pub(in crate::translate) fn is_named(&self) -> bool {
        !self.names.is_empty()
    }

    pub(super) fn selection_of_pod(&self, namespaces: &Selector, pods: &Selector) -> Selection {
        match self.holder {
            None => Selection::No,
            Some(Holder::Pod(pod)) if pod.host_network => Selection::No,
            Some(Holder::Pod(pod)) => {
                let labels = (!pod.unreadable).then_some(&pod.labels);
                Selection::of(namespaces, self.namespace).and(Selection::of(pods, labels))
            }
            Some(Holder::Unknown(_)) => Selection::of(namespaces, self.namespace).and(Selection::Unknown),
        }
    }

    pub(super) fn selection_of_nodes(&self, selector: &Selector) -> Selection {
        self.nodes.iter().map(|labels| Selection::of(selector, *labels)).fold(Selection::No, Selection::or)
    }

    /// Whether the pod has a container port with this name and protocol, and the port is that one.
    pub(super) fn selection_by_port(&self, name: &str, protocol: Protocol, port: Option<(Protocol, u16)>) -> Selection {
        match self.holder {
            None => Selection::No,
            Some(Holder::Unknown(_)) => Selection::Unknown,
            Some(Holder::Pod(pod)) if pod.unreadable => Selection::Unknown,
            Some(Holder::Pod(pod)) => {
                let resolved = pod.resolve(name, protocol).map(|number| (protocol, number));
                Selection::from(resolved.is_some() && resolved == port)
            }
        }
    }

    pub(super) fn resolve(&self, name: &str, protocol: Protocol) -> Option<u16> {
        self.holder.and_then(Holder::pod).filter(|pod| !pod.unreadable)?.resolve(name, protocol)
    }
}

/// The labels of the nodes by the addresses of their status.
pub(in crate::translate) type NodesByAddress<'a> = BTreeMap<IpAddr, Vec<Option<&'a Labels>>>;

pub(in crate::translate) fn nodes_by_address(state: &ClusterState) -> NodesByAddress<'_> {
    let mut found = NodesByAddress::new();
    for node in state.nodes() {
        let labels = (!node.unlabelled).then_some(&node.labels);
        for address in node.status_addresses.iter() {
            found.entry(address).or_default().push(labels);
        }
    }
    found
}
