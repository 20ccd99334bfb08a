//! The oracle's verdicts on every pair of pods, aggregated by workload.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kit::oracle::{
    self, Probe, Side, World, judge, judge_replicas, may_be_unknown_pod, nodes_with, owned_addresses, owner,
};
use nft::Protocol;
use policy::remote::RemoteSet;
use policy::{Block, ObjectName, Traffic};
use serde_json::json;

/// The share of the pairs of pods between which traffic is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PairedFamilies {
    None,
    Some,
    All,
}

impl PairedFamilies {
    fn join(self, other: PairedFamilies) -> PairedFamilies {
        if self == other { self } else { PairedFamilies::Some }
    }
}

/// The traffic of probes, and their outside addresses.
pub(super) struct Traffics {
    carried: BTreeSet<(u8, Option<u16>)>,
    addresses: BTreeSet<IpAddr>,
}

/// Bound on the kinds of traffic in one world, and on addresses outside.
const MOST: usize = 16;

impl Traffics {
    pub(super) fn of(probes: &[Probe]) -> Traffics {
        let carried = probes.iter().filter(|p| p.port.is_some() || p.protocol == Probe::ICMP);
        Traffics {
            carried: carried.map(|p| (p.protocol, p.port)).take(MOST).chain([(Probe::ICMP, None)]).collect(),
            addresses: probes.iter().flat_map(|p| [p.source, p.destination]).collect(),
        }
    }
}

pub(super) struct ExpectedEdges {
    pub(super) egress_governed: BTreeSet<ObjectName>,
    pub(super) ingress_governed: BTreeSet<ObjectName>,
    pub(super) pairs: BTreeMap<(ObjectName, ObjectName), BTreeMap<Traffic, PairedFamilies>>,
    /// Governed workloads with addresses outside, by whether the workload is the source.
    pub(super) outside: BTreeMap<(ObjectName, bool, IpAddr), BTreeMap<Traffic, PairedFamilies>>,
    /// The same with remote sets, over those of their addresses that no pod of this cluster has.
    pub(super) remote: BTreeMap<(ObjectName, bool, RemoteSet), BTreeMap<Traffic, PairedFamilies>>,
}

/// The node of all pods, so that it judges both sides of every flow.
pub(super) const NODE: &str = "the-node";

impl ExpectedEdges {
    pub(super) fn of(world: &World, traffics: Traffics, workload_of: &dyn Fn(&str) -> String) -> ExpectedEdges {
        let world = enforced_on_one_node(world);
        let addresses: Vec<(IpAddr, ObjectName)> = owned_addresses(&world)
            .into_iter()
            .map(|(address, pod)| {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
                let name = pod.metadata.name.as_deref().expect("pods have names");
                (address, ObjectName::new(namespace, &workload_of(name)))
            })
            .collect();
        let mut expected = ExpectedEdges {
            egress_governed: BTreeSet::new(),
            ingress_governed: BTreeSet::new(),
            pairs: BTreeMap::new(),
            outside: BTreeMap::new(),
            remote: BTreeMap::new(),
        };
        let remote: Vec<(IpAddr, &oracle::RemoteSet)> = remote_addresses(&world);
        // Declared edges leave out pods that the API server has not shown yet, and the addresses that these may have.
        let is_outside = |address: &&IpAddr| {
            owner(&world, **address).is_none()
                && nodes_with(&world, **address).is_empty()
                && !may_be_unknown_pod(&world, **address)
        };
        let outside: Vec<IpAddr> = traffics.addresses.iter().filter(is_outside).take(MOST).copied().collect();
        for (protocol, port) in &traffics.carried {
            let traffic = match (Protocol::from_number(*protocol), port) {
                (Some(protocol), Some(port)) => Traffic::Port(protocol, *port),
                _ => Traffic::Portless,
            };
            let ask = |source: IpAddr, destination: IpAddr| {
                judge(&world, NODE, &Probe { source, destination, protocol: *protocol, port: *port })
            };
            let over = |sides: [Side; 2]| {
                if sides.contains(&Side::Denied) { PairedFamilies::None } else { PairedFamilies::All }
            };
            for (source, from) in &addresses {
                for (destination, to) in addresses.iter().filter(|(d, _)| d.is_ipv4() == source.is_ipv4()) {
                    // An edge of a workload with itself is about two of its pods, not about a pod with itself.
                    let flow = Probe { source: *source, destination: *destination, protocol: *protocol, port: *port };
                    let judged = judge_replicas(&world, NODE, &flow);
                    if judged.egress != Side::NotIsolated {
                        expected.egress_governed.insert(from.clone());
                    }
                    if judged.ingress != Side::NotIsolated {
                        expected.ingress_governed.insert(to.clone());
                    }
                    let over = over([judged.egress, judged.ingress]);
                    let flows = expected.pairs.entry((from.clone(), to.clone())).or_default();
                    flows.entry(traffic).and_modify(|before| *before = before.join(over)).or_insert(over);
                }
            }
            for (address, workload) in &addresses {
                for other in outside.iter().filter(|other| other.is_ipv4() == address.is_ipv4()) {
                    for egress in [true, false] {
                        let judged = if egress { ask(*address, *other) } else { ask(*other, *address) };
                        let over = over([judged.egress, judged.ingress]);
                        let flows = expected.outside.entry((workload.clone(), egress, *other)).or_default();
                        flows.entry(traffic).and_modify(|before| *before = before.join(over)).or_insert(over);
                    }
                }
                for (other, set) in remote.iter().filter(|(other, _)| other.is_ipv4() == address.is_ipv4()) {
                    let set = RemoteSet::new(&set.cluster, &set.namespace, &set.name);
                    for egress in [true, false] {
                        let judged = if egress { ask(*address, *other) } else { ask(*other, *address) };
                        let over = over([judged.egress, judged.ingress]);
                        let flows = expected.remote.entry((workload.clone(), egress, set.clone())).or_default();
                        flows.entry(traffic).and_modify(|before| *before = before.join(over)).or_insert(over);
                    }
                }
            }
        }
        let ExpectedEdges { egress_governed, ingress_governed, outside, remote, .. } = &mut expected;
        let is_governed = |workload: &ObjectName, egress: bool| match egress {
            true => egress_governed.contains(workload),
            false => ingress_governed.contains(workload),
        };
        outside.retain(|(workload, egress, _), _| is_governed(workload, *egress));
        remote.retain(|(workload, egress, _), _| is_governed(workload, *egress));
        expected
    }
}

/// Addresses of remote sets that no pod of this cluster has.
pub(super) fn remote_addresses(world: &World) -> Vec<(IpAddr, &oracle::RemoteSet)> {
    let sets = world.remote.iter().flat_map(|remote| &remote.sets);
    let addresses = sets.flat_map(|set| set.addresses.iter().map(move |address| (*address, set)));
    let is_remote = |address| owner(world, address).is_none() && !may_be_unknown_pod(world, address);
    addresses.filter(|(address, _)| is_remote(*address)).collect()
}

pub(super) fn enforced_on_one_node(world: &World) -> World {
    let mut world = world.clone();
    for policy in world.policies.iter_mut().chain(&mut world.cluster_policies) {
        policy["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "enforce"});
    }
    for pod in &mut world.pods {
        // On the host network the node's address does not belong to a pod, on any node.
        if let Some(spec) = &mut pod.spec {
            spec.node_name = Some(NODE.into());
        }
    }
    world
}

pub(super) fn holds(block: &Block, address: IpAddr) -> bool {
    block.cidr.contains(&address) && !block.except.iter().any(|except| except.contains(&address))
}
