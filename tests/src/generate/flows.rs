//! Generated probes: the addresses and ports at which a world's verdicts change, and adjacent ones.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

use kit::oracle::{Probe, World};

const OUTSIDE: [&str; 7] =
    ["192.0.2.1", "192.0.2.127", "192.0.2.128", "198.51.100.7", "203.0.113.9", "2001:db8::1", "2001:db8::8"];

/// Addresses in pod ranges of generated nodes, at their start and elsewhere.
const OF_NO_POD: [&str; 6] = ["10.1.0.1", "10.1.0.200", "10.2.0.255", "10.2.0.77", "fd00:1::1", "fd00:1::77"];

/// Protocols without ports: ESP, and an experimental one.
const OTHER_PROTOCOLS: [u8; 2] = [50, 253];

pub(super) fn probe(world: &World) -> BoxedStrategy<Probe> {
    let documents = world.documents();
    let pods = pod_addresses(world);
    let mut others: BTreeSet<IpAddr> = OUTSIDE.iter().chain(&OF_NO_POD).filter_map(|text| text.parse().ok()).collect();
    documents.iter().for_each(|document| collect_edges(document, &mut others));
    let remote = world.remote.iter().flat_map(|remote| &remote.sets).flat_map(|set| set.addresses.iter().copied());
    let remote: BTreeSet<IpAddr> = remote.chain(node_addresses(world)).collect();
    let mut ports = BTreeSet::new();
    documents.iter().for_each(|document| collect_ports(document, &mut ports));
    ports.extend([1, 79, 65535]);
    let ports: Vec<u16> = ports.into_iter().collect();

    let family = |v4: bool| {
        let of_family = |all: &BTreeSet<IpAddr>| all.iter().copied().filter(|a| a.is_ipv4() == v4).collect::<Vec<_>>();
        let (pods, others, remote) = (of_family(&pods), of_family(&others), of_family(&remote));
        let pod = select(if pods.is_empty() { others.clone() } else { pods });
        let outside = select(others).boxed();
        let other = match remote.is_empty() {
            true => outside,
            false => prop_oneof![2 => select(remote), 1 => outside].boxed(),
        };
        // Mostly pods; one of the two ends is a pod if the family has any.
        let ends = prop_oneof![
            5 => (pod.clone(), pod.clone()),
            3 => (pod.clone(), other.clone()),
            3 => (other, pod.clone()),
            1 => pod.prop_map(|pod| (pod, pod)),
        ];
        let port = prop_oneof![9 => select(ports.clone()), 1 => 1..=u16::MAX].prop_map(Some).boxed();
        // Tunnels to nodes are denied regardless of policies, but the oracle evaluates only policies. So UDP probes
        // avoid the ports of tunnels, also those that policies name.
        let not_of_tunnels = |port: &Option<u16>| port.is_none_or(|port| !policy::TUNNEL_PORTS.contains(&port));
        let udp_port = port.clone().prop_filter("a port of tunnels", not_of_tunnels);
        let control = if v4 { Probe::ICMP } else { Probe::ICMPV6 };
        let what = prop_oneof![
            8 => (Just(Probe::TCP), port.clone()),
            4 => (Just(Probe::UDP), udp_port),
            3 => (Just(Probe::SCTP), port),
            2 => Just((control, None)),
            1 => select(&OTHER_PROTOCOLS[..]).prop_map(|protocol| (protocol, None)),
        ];
        (ends, what).prop_map(|((source, destination), (protocol, port))| Probe { source, destination, protocol, port })
    };
    prop_oneof![2 => family(true), 1 => family(false)].boxed()
}

/// Every address in a pod's status, even if it has been released.
fn pod_addresses(world: &World) -> BTreeSet<IpAddr> {
    let statuses = world.pods.iter().filter_map(|pod| pod.status.as_ref());
    let texts = statuses.flat_map(|status| {
        status.pod_ips.iter().flatten().map(|entry| entry.ip.as_str()).chain(status.pod_ip.as_deref())
    });
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// The addresses in the status of every Node; empty without cluster policies, since only these select nodes.
fn node_addresses(world: &World) -> impl Iterator<Item = IpAddr> {
    let nodes = if world.cluster_policies.is_empty() { &[][..] } else { &world.nodes };
    let statuses = nodes.iter().filter_map(|node| node.status.as_ref());
    statuses.flat_map(|status| status.addresses.iter().flatten()).filter_map(|entry| entry.address.parse().ok())
}

/// The first and last addresses of every block, and those just outside.
fn collect_edges(value: &Value, into: &mut BTreeSet<IpAddr>) {
    match value {
        Value::Object(members) => members.values().for_each(|member| collect_edges(member, into)),
        Value::Array(items) => items.iter().for_each(|item| collect_edges(item, into)),
        Value::String(text) => {
            if let Ok(block) = text.parse::<IpNet>() {
                let edges = match block.trunc() {
                    IpNet::V4(block) => {
                        let (first, last) = (block.network().to_bits(), block.broadcast().to_bits());
                        [first.wrapping_sub(1), first, last, last.wrapping_add(1)]
                            .map(|a| Ipv4Addr::from_bits(a).into())
                    }
                    IpNet::V6(block) => {
                        let (first, last) = (block.network().to_bits(), block.broadcast().to_bits());
                        [first.wrapping_sub(1), first, last, last.wrapping_add(1)]
                            .map(|a| Ipv6Addr::from_bits(a).into())
                    }
                };
                into.extend(edges.into_iter().filter(is_host));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a host can have the address and send from it to any other.
fn is_host(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let first = address.octets()[0];
            (1..224).contains(&first) && first != 127 && !address.is_link_local()
        }
        IpAddr::V6(address) => matches!(address.segments()[0], 0x2000..=0x3fff | 0xfc00..=0xfdff),
    }
}

/// The ports in objects, and the adjacent ones.
fn collect_ports(value: &Value, into: &mut BTreeSet<u16>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if matches!(name.as_str(), "port" | "endPort" | "containerPort" | "number" | "start" | "end")
                    && let Some(port) = member.as_u64()
                {
                    let around = [port.saturating_sub(1), port, port.saturating_add(1)];
                    into.extend(
                        around.into_iter().filter_map(|port| u16::try_from(port).ok()).filter(|port| *port > 0),
                    );
                }
                collect_ports(member, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_ports(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::draw_probes;

    /// A world whose policy has a port range that ends at a tunnel port, and one tunnel port.
    fn world_with_tunnel_ports() -> World {
        let ports = serde_json::json!([{"protocol": "UDP", "port": 8080, "endPort": 8285}, {"port": 4789}]);
        let policy = serde_json::json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "tunnels"},
            "spec": {"podSelector": {}, "ingress": [{"ports": ports}]},
        });
        World { policies: vec![policy], ..World::default() }
    }

    #[test]
    fn probes_avoid_tunnel_ports_over_udp_only() {
        let probes = draw_probes(&world_with_tunnel_ports(), 5_000);
        let to_tunnels = |protocol: u8| {
            let of_tunnels = |probe: &&Probe| probe.port.is_some_and(|port| policy::TUNNEL_PORTS.contains(&port));
            probes.iter().filter(|probe| probe.protocol == protocol).filter(of_tunnels).count()
        };
        assert_eq!(to_tunnels(Probe::UDP), 0);
        assert!(to_tunnels(Probe::TCP) > 0 && to_tunnels(Probe::SCTP) > 0);
        assert!(probes.iter().any(|probe| probe.protocol == Probe::UDP && probe.port == Some(8080)));
    }
}
