//! The owner of an address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Pod};

use super::{Probe, World};

/// The node a pod is bound to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The pod that owns the address. Of several pods with it in their status, a pod that is not being deleted has
/// precedence, then the later start time (a missing one is the earliest), then the later creation time (likewise), then
/// the greater uid, then the greater namespace and name.
pub fn owner(world: &World, address: IpAddr) -> Option<&Pod> {
    world.pods.iter().filter(|pod| claims(pod).contains(&address)).max_by_key(|pod| {
        let metadata = &pod.metadata;
        let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        (
            metadata.deletion_timestamp.is_none(),
            started.map(|time| time.0),
            metadata.creation_timestamp.as_ref().map(|time| time.0),
            metadata.uid.as_deref().unwrap_or(""),
            namespace_of(pod),
            metadata.name.as_deref().unwrap_or(""),
        )
    })
}

/// Every address that a pod has, with its owner.
pub fn owned_addresses(world: &World) -> BTreeMap<IpAddr, &Pod> {
    let claimed: BTreeSet<IpAddr> = world.pods.iter().flat_map(claims).collect();
    claimed.into_iter().filter_map(|address| Some((address, owner(world, address)?))).collect()
}

/// The nodes with the address: those of host-network pods whose status has it. Empty if a pod owns it.
pub fn nodes_with(world: &World, address: IpAddr) -> BTreeSet<&str> {
    let pods = world.pods.iter().filter(|pod| owner(world, address).is_none() && is_on_host(pod));
    pods.filter(|pod| status_addresses(pod).contains(&address)).filter_map(node_of).collect()
}

/// Whether the flow is between a node and a pod that runs on it. No node forwards its packets, so there is no verdict.
pub fn stays_on_node(world: &World, probe: &Probe) -> bool {
    let between = |host, pod| {
        let node = owner(world, pod).and_then(node_of);
        node.is_some_and(|node| nodes_with(world, host).contains(node))
    };
    between(probe.source, probe.destination) || between(probe.destination, probe.source)
}

fn is_on_host(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
}

/// The addresses that a pod may have. The address of a pod in the host's network is its node's.
fn claims(pod: &Pod) -> BTreeSet<IpAddr> {
    if is_on_host(pod) { BTreeSet::new() } else { status_addresses(pod) }
}

/// The addresses of a pod's status, `podIPs` and `podIP`. A pod that has finished has released its addresses.
fn status_addresses(pod: &Pod) -> BTreeSet<IpAddr> {
    let Some(status) = &pod.status else { return BTreeSet::new() };
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return BTreeSet::new();
    }
    let listed = status.pod_ips.iter().flatten().map(|entry| entry.ip.as_str());
    listed.chain(status.pod_ip.as_deref()).filter_map(|text| text.parse().ok()).collect()
}

/// The namespace of a pod; `default` if the manifest has none, as with kubectl.
pub(super) fn namespace_of(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// Whether a pod that the API server has not shown yet may have the address: it is in the pod range of a node, and
/// neither a pod nor a node has it. The first two addresses of such a range are those of the network and of
/// the gateway or tunnel device, and the last one of IPv4 is for broadcasts.
pub fn may_be_unknown_pod(world: &World, address: IpAddr) -> bool {
    let of_nodes = world.nodes.iter().filter_map(|node| node.spec.as_ref()?.pod_cidrs.as_ref()).flatten();
    let mut ranges = of_nodes.filter_map(|range| range.parse::<ipnet::IpNet>().ok());
    let is_assigned_to_pods = |range: ipnet::IpNet| {
        let large = range.max_prefix_len() - range.prefix_len() >= 2;
        let reserved = match range {
            ipnet::IpNet::V4(range) => {
                let mut addresses = range.trunc().hosts();
                address == range.network()
                    || Some(address) == addresses.next().map(IpAddr::V4)
                    || address == range.broadcast()
            }
            ipnet::IpNet::V6(range) => range.trunc().hosts().take(2).any(|of_range| address == of_range),
        };
        range.contains(&address) && !(large && reserved)
    };
    let is_of_node = world.nodes.iter().any(|node| has_status_address(node, address));
    owner(world, address).is_none() && !is_of_node && ranges.any(is_assigned_to_pods)
}

/// Whether `status.addresses` of the node has the address. Entries that are names are not IPs, whatever their type says.
pub(super) fn has_status_address(node: &Node, address: IpAddr) -> bool {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.into_iter().any(|entry| entry.address.parse() == Ok(address))
}
