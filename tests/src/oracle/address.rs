//! Whose an address is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;

use super::World;

/// The node a pod is bound to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The pod that has the address. When several claim it: one that is not being deleted before one that is, then the
/// one that started later (no start time is the earliest), then the one created later (no creation time is the
/// earliest), then the greater uid, then the greater namespace and name. The others do not have the address.
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

/// The addresses of a pod's status, `podIPs` and `podIP`. A pod that has finished has none any more; the address of
/// a pod in the host's network is its node's.
fn claims(pod: &Pod) -> BTreeSet<IpAddr> {
    let Some(status) = &pod.status else { return BTreeSet::new() };
    let finished = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    if finished || host_network {
        return BTreeSet::new();
    }
    let listed = status.pod_ips.iter().flatten().map(|entry| entry.ip.as_str());
    listed.chain(status.pod_ip.as_deref()).filter_map(|text| text.parse().ok()).collect()
}

/// The namespace of a pod; `default` where it names none, as kubectl has it.
pub(super) fn namespace_of(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}
