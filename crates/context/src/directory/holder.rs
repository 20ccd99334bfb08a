//! Resolves the owner of an address: a pod of this cluster, an API server, a node, an Ingress or Gateway, or a pod of
//! another cluster, in this order of precedence. The owner is a function of the current state, so that conflicting
//! claims are resolved in the same way in any order of events.

use std::net::IpAddr;
use std::sync::Arc;

use ::identity::{API_SERVER, Component};
use policy::ClaimRank;
use policy::remote::RemoteSet;

use super::Directory;
use super::pods::PodEntry;
use crate::template::Template;

pub(super) enum AddressHolder {
    /// A pod that is not on the host network.
    Pod(PodEntry),
    ApiServer(ApiServer),
    /// A node; the pods on its host network have the same addresses.
    Node(Arc<str>),
    /// An address of Ingresses or Gateways.
    Ingress,
    /// The remote set with the address; if several contain it, the first by cluster, namespace and name.
    Remote(RemoteSet),
}

/// An API server of this cluster.
pub(super) struct ApiServer {
    /// The pod of the API server on the host network; if there are several, the first by name.
    pub(super) pod: Option<PodEntry>,
    /// The node that has the address.
    pub(super) node: Option<Arc<str>>,
}

impl Directory {
    /// The claim of a pod has priority: a pod's address belongs to that pod alone, and the status of another object
    /// must not override it.
    pub(super) fn holder(&self, address: IpAddr) -> Option<AddressHolder> {
        let claimants = || self.state.claimants(address).filter_map(|base| self.pods.get(&base.name));
        if let Some(pod) = senior(claimants().filter(|known| !known.pod.base.host_network)) {
            return Some(AddressHolder::Pod(pod.clone()));
        }
        // A pod on the host network is ignored while its node is unknown.
        let on_host = || claimants().filter(|known| known.pod.base.host_network && known.pod.base.node.is_some());
        let of_pods = senior(on_host()).and_then(|known| known.pod.base.node.as_ref());
        let node = self.nodes.with_address(address, of_pods).cloned();
        let pod = on_host().filter(|known| is_api_server(known)).min_by_key(|known| &known.pod.base.name).cloned();
        if pod.is_some() || self.api_servers.contains(&address) {
            return Some(AddressHolder::ApiServer(ApiServer { pod, node }));
        }
        let ingress = || self.exposures.has_address(address).then_some(AddressHolder::Ingress);
        let remote = || self.state.remote_sets_with(address).next().cloned().map(AddressHolder::Remote);
        node.map(AddressHolder::Node).or_else(ingress).or_else(remote)
    }
}

/// Whether the pod is an API server of this cluster.
fn is_api_server(known: &PodEntry) -> bool {
    let is = |template: &Template| template.component == Component::Own && *template.workload == *API_SERVER;
    known.template.as_deref().is_some_and(is)
}

/// The owner among pods that claim the same address.
fn senior<'a>(pods: impl Iterator<Item = &'a PodEntry>) -> Option<&'a PodEntry> {
    pods.max_by_key(|known| ClaimRank::of(&known.pod.base, known.pod.ready))
}
