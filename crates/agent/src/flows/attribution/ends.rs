//! Names of the ends of connections.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use flow::{Endpoint, EndpointKind, Member, Network};
use identity::{ClusterScheme, EndIdentity, Workload, service_identity};
use policy::{Holder, Interner, Pod};

use crate::api::drops::{DropEnd, EndKind};
use crate::flows::replica::Replica;
use crate::own_subnets::own_addresses;
use crate::reports::{AddressContext, Ends};

/// Inputs of the names other than the cluster state.
pub(crate) struct NameInputs {
    place: AddressContext,
    identities: ClusterScheme,
    /// Namespaces in which a label may set the pods' service identity; `*` means all.
    service_namespaces: BTreeSet<String>,
    /// Keys of the labels that records include.
    labels: Vec<String>,
    /// Addresses of this node's interfaces that may be in no object, such as a bridge's.
    own_addresses: BTreeSet<IpAddr>,
    node: Arc<str>,
    /// The revision of the cluster state of the identities.
    followed: Option<u64>,
}

/// The role of an address in a flow.
#[derive(Debug, Clone, Copy)]
pub(super) enum EndRole {
    Source,
    Destination {
        /// The client asked for the Service `default/kubernetes`.
        of_api_service: bool,
    },
}

/// A named end.
pub(super) struct NamedEnd {
    pub(super) endpoint: Endpoint,
    pub(super) member: Member,
    /// Whether the end is a pod of this node.
    pub(super) is_local: bool,
}

impl NameInputs {
    pub(crate) fn new(
        place: AddressContext,
        identities: ClusterScheme,
        service_namespaces: BTreeSet<String>,
        labels: Vec<String>,
    ) -> NameInputs {
        let node = place.node.as_str().into();
        let own_addresses = BTreeSet::new();
        let mut naming =
            NameInputs { place, identities, service_namespaces, labels, own_addresses, node, followed: None };
        naming.read_own_addresses();
        naming
    }

    /// Reads the addresses of the node's interfaces. Returns whether they have changed.
    pub(super) fn read_own_addresses(&mut self) -> bool {
        match own_addresses() {
            Ok(addresses) => {
                let changed = self.own_addresses != addresses;
                self.own_addresses = addresses;
                changed
            }
            Err(error) => {
                tracing::debug!("cannot read the addresses of this node's interfaces (getifaddrs): {error}");
                false
            }
        }
    }

    /// Updates the inputs of identities from the replica.
    pub(super) fn update(&mut self, replica: &Replica) {
        if self.followed != Some(replica.revision()) {
            self.identities.update(replica.state());
            self.followed = Some(replica.revision());
        }
    }

    pub(super) fn is_node(&self, replica: &Replica, address: IpAddr) -> bool {
        self.own_addresses.contains(&address)
            || replica.node_with(address).is_some()
            || replica.state().nodes_with(address).next().is_some()
    }

    /// Whether the end is this node, by any of its addresses.
    pub(super) fn is_own_node(&self, named: &NamedEnd) -> bool {
        let is_node = matches!(named.endpoint.kind, EndpointKind::Node | EndpointKind::KubeApiserver);
        is_node && named.member.node.as_ref() == Some(&self.node)
    }

    /// Names the holder of the address at this end of a flow.
    pub(super) fn end(&self, replica: &Replica, address: IpAddr, role: EndRole) -> NamedEnd {
        match replica.state().holder(address) {
            Some(Holder::Pod(pod)) => self.pod(replica, pod, address),
            Some(Holder::Unknown(attachment)) => {
                let pod = attachment.pod.clone();
                let endpoint = Endpoint {
                    namespace: Some(pod.namespace.clone()),
                    name: Some(pod.name.clone()),
                    ..bare(EndpointKind::UnknownPod)
                };
                let member = Member {
                    pod: Some(pod.to_string().into()),
                    node: Some(self.node.clone()),
                    ..self.member(replica, address, EndKind::UnknownPod)
                };
                NamedEnd { endpoint, member, is_local: true }
            }
            None => self.no_pod(replica, address, role),
        }
    }

    fn pod(&self, replica: &Replica, pod: &Arc<Pod>, address: IpAddr) -> NamedEnd {
        let state = replica.state();
        let namespace = &pod.name.namespace;
        let service: Arc<str> = match self.has_service_label(namespace) {
            true => service_identity(namespace, &pod.labels).into(),
            false => namespace.clone(),
        };
        let endpoint = Endpoint {
            namespace: Some(namespace.clone()),
            name: Some(Workload::of(pod, &mut Interner::default()).name),
            service: Some(service.clone()),
            ..bare(EndpointKind::Pod)
        };
        let listed = |key: &String| pod.labels.get(key.as_str()).map(|value| (key.as_str().into(), value.clone()));
        let identity = self.identities.scheme().map(|scheme| {
            let identity = scheme.of_pod(state, pod);
            EndIdentity { service: identity.service.as_ref().map(|_| service.to_string()), ..identity }
        });
        let member = Member {
            address,
            pod: Some(pod.name.to_string().into()),
            node: pod.node.clone(),
            labels: self.labels.iter().filter_map(listed).collect(),
            identity,
        };
        let is_local = pod.node.as_ref() == Some(&self.node) || state.is_attached(pod);
        NamedEnd { endpoint, member, is_local }
    }

    fn no_pod(&self, replica: &Replica, address: IpAddr, role: EndRole) -> NamedEnd {
        let end =
            Ends { state: replica.state(), place: &self.place, scheme: self.identities.scheme() }.of_address(address);
        let node = match self.own_addresses.contains(&address) {
            true => Some(self.node.clone()),
            false => replica.node_with(address).cloned(),
        };
        let node = node.or_else(|| end.node.as_deref().filter(|_| end.kind == EndKind::Node).map(Arc::from));
        // A node that runs an API server has other ports too.
        let is_api_server = match role {
            EndRole::Source => false,
            EndRole::Destination { of_api_service } => {
                replica.services().is_api_server(address) && (of_api_service || node.is_none())
            }
        };
        let endpoint = match (&node, end.kind) {
            _ if is_api_server => bare(EndpointKind::KubeApiserver),
            (Some(node), _) => Endpoint { name: Some(node.clone()), ..bare(EndpointKind::Node) },
            (None, EndKind::RemoteCluster) => {
                let set = end.set.as_deref().and_then(|set| set.split_once('/'));
                Endpoint {
                    namespace: set.map(|(namespace, _)| namespace.into()),
                    name: set.map(|(_, name)| name.into()),
                    cluster: end.cluster.as_deref().map(Arc::from),
                    ..bare(EndpointKind::RemoteCluster)
                }
            }
            (None, EndKind::UnknownPod) => bare(EndpointKind::UnknownPod),
            (None, EndKind::Pod | EndKind::Node | EndKind::World | EndKind::Unknown) => {
                Endpoint { network: Some(network(address)), ..bare(EndpointKind::World) }
            }
        };
        let kind = if node.is_some() { EndKind::Node } else { end.kind };
        NamedEnd { endpoint, member: Member { node, ..self.member(replica, address, kind) }, is_local: false }
    }

    /// Corrects the source of packets with a forged address to the pod that the drop event names.
    pub(super) fn corrected(&self, replica: &Replica, named: NamedEnd, end: &DropEnd) -> NamedEnd {
        let pod = end.pod.as_deref().and_then(|name| replica.state().pod(&name.parse().ok()?));
        match pod {
            Some(pod) if named.member.pod.as_deref() != end.pod.as_deref() => {
                self.pod(replica, pod, named.member.address)
            }
            Some(_) | None => named,
        }
    }

    /// An address without a pod, with its reserved identity.
    fn member(&self, replica: &Replica, address: IpAddr, kind: EndKind) -> Member {
        let end = DropEnd { address: Some(address), kind, pod: None, node: None, cluster: None, set: None };
        let ends = Ends { state: replica.state(), place: &self.place, scheme: self.identities.scheme() };
        Member { address, pod: None, node: None, labels: [].into(), identity: ends.identity(&end) }
    }

    fn has_service_label(&self, namespace: &str) -> bool {
        self.service_namespaces.contains("*") || self.service_namespaces.contains(namespace)
    }
}

fn bare(kind: EndpointKind) -> Endpoint {
    Endpoint { kind, namespace: None, name: None, service: None, cluster: None, network: None }
}

/// By the registries of special-purpose addresses: RFC 6890, with shared addresses (RFC 6598) and unique local
/// addresses (RFC 4193).
fn network(address: IpAddr) -> Network {
    let private = match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            let shared = first == 100 && second & 0xc0 == 64;
            v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
                || shared
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_multicast(),
    };
    if private { Network::Private } else { Network::Public }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_outside_are_private_or_public() {
        for (address, expected) in [
            ("10.1.2.3", Network::Private),
            ("172.31.255.1", Network::Private),
            ("100.64.0.1", Network::Private),
            ("100.128.0.1", Network::Public),
            ("169.254.1.1", Network::Private),
            ("224.0.0.251", Network::Private),
            ("1.1.1.1", Network::Public),
            ("fd00::1", Network::Private),
            ("fe80::1", Network::Private),
            ("2001:db8::1", Network::Public),
        ] {
            assert_eq!(network(address.parse().unwrap()), expected, "{address}");
        }
    }
}
