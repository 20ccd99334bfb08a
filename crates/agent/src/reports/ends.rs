//! Resolves the endpoints of a flow against the current state: the pod of an address, a node, another cluster.

use std::net::IpAddr;
use std::sync::Arc;

use identity::{EndIdentity, ReservedIdentity, Scheme};
use ipnet::IpNet;
use policy::{Attachment, ClusterState, Holder, Pod};

use crate::api::drops::{DropEnd, EndKind};

/// Knowledge of addresses beyond the cluster's objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddressContext {
    pub(crate) node: String,
    /// CIDRs of other clusters, with the cluster names.
    pub(crate) remote: Vec<(String, IpNet)>,
    /// CIDRs of this node's pods.
    pub(crate) pod_cidrs: Vec<IpNet>,
}

/// Resolver of endpoints.
pub(crate) struct Ends<'a> {
    pub(crate) state: &'a ClusterState,
    pub(crate) place: &'a AddressContext,
    /// The scheme of identities; `None` while the name of the cluster is unknown.
    pub(crate) scheme: Option<&'a Scheme>,
}

impl Ends<'_> {
    pub(crate) fn of_address(&self, address: IpAddr) -> DropEnd {
        let none =
            DropEnd { address: Some(address), kind: EndKind::World, pod: None, node: None, cluster: None, set: None };
        match self.state.holder(address) {
            Some(Holder::Pod(pod)) => return DropEnd { address: Some(address), ..of_pod(pod) },
            Some(Holder::Unknown(attachment)) => {
                return DropEnd { address: Some(address), ..self.of_unknown(attachment) };
            }
            None => {}
        }
        if let Some(node) = self.state.nodes_with(address).next() {
            return DropEnd { kind: EndKind::Node, node: Some(node.to_string()), ..none };
        }
        // If several sets have the address, the first by name is used.
        if let Some(set) = self.state.remote_sets_with(address).next() {
            let (cluster, name) = (set.cluster.to_string(), set.object_name().to_string());
            return DropEnd { kind: EndKind::RemoteCluster, cluster: Some(cluster), set: Some(name), ..none };
        }
        let containing = self.place.remote.iter().filter(|(_, range)| range.contains(&address));
        if let Some((cluster, _)) = containing.max_by_key(|(_, range)| range.prefix_len()) {
            return DropEnd { kind: EndKind::RemoteCluster, cluster: Some(cluster.clone()), ..none };
        }
        if self.place.pod_cidrs.iter().any(|range| range.contains(&address)) {
            return DropEnd { kind: EndKind::UnknownPod, node: Some(self.place.node.clone()), ..none };
        }
        none
    }

    /// The pod of an interface of this node, for packets whose addresses may be forged.
    pub(super) fn of_interface(&self, interface: &str, address: Option<IpAddr>) -> Option<DropEnd> {
        let is_its = |a: &&Arc<Attachment>| a.host_interface.as_ref().is_some_and(|name| name.as_str() == interface);
        let attachment = self.state.attachments().filter(is_its).max_by_key(|a| a.since)?;
        let known = self.state.pod(&attachment.pod).filter(|pod| self.state.is_attached(pod));
        let end = known.map_or_else(|| self.of_unknown(attachment), |pod| of_pod(pod));
        Some(DropEnd { address, ..end })
    }

    /// The identity of an end; `None` if the end is unknown or identities cannot be computed yet.
    pub(crate) fn identity(&self, end: &DropEnd) -> Option<EndIdentity> {
        let scheme = self.scheme?;
        let reserved = match end.kind {
            EndKind::Pod => {
                let pod = end.pod.as_deref().and_then(|name| self.state.pod(&name.parse().ok()?));
                return pod.map(|pod| scheme.of_pod(self.state, pod));
            }
            EndKind::Node => ReservedIdentity::Host,
            EndKind::RemoteCluster => ReservedIdentity::Remote,
            // Its labels are unknown.
            EndKind::UnknownPod => ReservedIdentity::Init,
            EndKind::World => ReservedIdentity::World,
            EndKind::Unknown => return None,
        };
        Some(EndIdentity::reserved(reserved, None))
    }

    fn of_unknown(&self, attachment: &Attachment) -> DropEnd {
        let (pod, node) = (Some(attachment.pod.to_string()), Some(self.place.node.clone()));
        DropEnd { address: None, kind: EndKind::UnknownPod, pod, node, cluster: None, set: None }
    }
}

fn of_pod(pod: &Pod) -> DropEnd {
    let node = pod.node.as_ref().map(|node| node.to_string());
    DropEnd { address: None, kind: EndKind::Pod, pod: Some(pod.name.to_string()), node, cluster: None, set: None }
}

#[cfg(test)]
mod tests {
    use identity::LabelFilter;
    use policy::remote::{RemoteChange, RemoteSet};
    use policy::{AttachmentId, Change, Kind, ObjectName, lower};
    use serde_json::json;

    use super::*;

    fn state() -> ClusterState {
        let mut state = ClusterState::new();
        let mut add = |name: &str, address: &str, host: bool| {
            let spec = json!({"nodeName": "node-b", "hostNetwork": host});
            let object = json!({
                "metadata": {"namespace": "shop", "name": name, "uid": name}, "spec": spec,
                "status": {"phase": "Running", "podIP": address}
            });
            state.apply(Change::Set(lower(Kind::Pod, &object).unwrap()));
        };
        add("web", "10.1.0.1", false);
        add("proxy", "10.0.0.2", true);
        for (name, address, interface) in [("web", "10.1.0.1", "veth1"), ("new", "10.1.0.9", "veth2")] {
            state.attach(Attachment {
                id: AttachmentId { container: name.into(), interface: "eth0".into() },
                pod: ObjectName::new("shop", name),
                uid: Some(name.into()),
                addresses: vec![address.parse().unwrap()],
                host_interface: Some(interface.parse().unwrap()),
                bridged: false,
                input_interface: None,
                hardware_address: None,
                link_local: vec![],
                since: 1,
            });
        }
        for (set, address) in [("api", "10.9.0.2"), ("api", "192.0.2.2"), ("web", "192.0.2.2"), ("api", "10.1.0.1")] {
            let (set, adds) = (RemoteSet::new("north", "shop", set), vec![address.parse().unwrap()]);
            state.apply_remote(RemoteChange::Update { set, adds, removes: vec![] });
        }
        state
    }

    fn place() -> AddressContext {
        let range = |text: &str| text.parse().unwrap();
        AddressContext {
            node: "node-a".into(),
            remote: vec![("east".into(), range("10.8.0.0/13")), ("west".into(), range("10.9.0.0/16"))],
            pod_cidrs: vec![range("10.1.0.0/24")],
        }
    }

    #[test]
    fn address_resolves_to_pod_node_remote_or_world() {
        let (state, place) = (state(), place());
        let ends = Ends { state: &state, place: &place, scheme: None };
        for (address, expected) in [
            ("10.1.0.1", "shop/web (10.1.0.1)"),
            ("10.1.0.9", "unknown pod shop/new (10.1.0.9)"),
            ("10.1.0.7", "unknown pod (10.1.0.7)"),
            ("10.0.0.2", "node node-b (10.0.0.2)"),
            ("10.8.0.1", "cluster east (10.8.0.1)"),
            ("10.9.0.1", "cluster west (10.9.0.1)"),
            ("10.9.0.2", "cluster north shop/api (10.9.0.2)"),
            ("192.0.2.2", "cluster north shop/api (192.0.2.2)"),
            ("192.0.2.1", "world (192.0.2.1)"),
            ("2001:db8::1", "world (2001:db8::1)"),
        ] {
            assert_eq!(ends.of_address(address.parse().unwrap()).to_string(), expected);
        }
    }

    #[test]
    fn interface_resolves_to_its_attached_pod() {
        let (state, place) = (state(), place());
        let ends = Ends { state: &state, place: &place, scheme: None };
        let of = |interface: &str| ends.of_interface(interface, None).map(|end| end.to_string());
        assert_eq!(of("veth1").as_deref(), Some("shop/web"));
        assert_eq!(of("veth2").as_deref(), Some("unknown pod shop/new"));
        assert_eq!(of("eth0"), None);
    }

    #[test]
    fn every_known_end_has_an_identity() {
        let (mut state, place) = (state(), place());
        let scheme = Scheme { cluster: "c".into(), filter: LabelFilter::default() };
        let of = |state: &ClusterState, address: &str| {
            let ends = Ends { state, place: &place, scheme: Some(&scheme) };
            ends.identity(&ends.of_address(address.parse().unwrap())).unwrap().to_string()
        };
        assert_eq!(of(&state, "10.1.0.1"), "shop init", "the namespace is not known");
        let namespace = json!({"metadata": {"name": "shop"}});
        state.apply(Change::Set(lower(Kind::Namespace, &namespace).unwrap()));
        let pod = state.pod(&ObjectName::new("shop", "web")).unwrap();
        assert_eq!(of(&state, "10.1.0.1"), scheme.of_pod(&state, pod).to_string());
        for (address, expected) in [
            ("10.1.0.9", "init"),
            ("10.1.0.7", "init"),
            ("10.0.0.2", "host"),
            ("10.8.0.1", "remote"),
            ("192.0.2.2", "remote"),
            ("192.0.2.1", "world"),
        ] {
            assert_eq!(of(&state, address), expected, "{address}");
        }
        // The aggregator explains flows by the objects of the cluster alone.
        let objects = AddressContext::default();
        let ends = Ends { state: &state, place: &objects, scheme: Some(&scheme) };
        for address in ["10.1.0.1", "10.1.0.9", "10.1.0.7", "10.0.0.2", "10.8.0.1", "192.0.2.2", "192.0.2.1"] {
            let address = address.parse().unwrap();
            assert_eq!(ends.identity(&ends.of_address(address)), Some(scheme.of_address(&state, address)), "{address}");
        }
        let unknown = DropEnd {
            kind: EndKind::Unknown,
            ..Ends { state: &state, place: &place, scheme: None }.of_address("192.0.2.1".parse().unwrap())
        };
        assert_eq!(Ends { state: &state, place: &place, scheme: Some(&scheme) }.identity(&unknown), None);
    }
}
