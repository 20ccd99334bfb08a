//! Estimates the memory of an object from its values.
//!
//! The footprint includes the object itself, its unshared texts and lists, and its entries in the maps of the state. A
//! map entry counts 1.5 times its key and value, since the nodes of a B-tree are two thirds full. Data shared through
//! an [`crate::Interner`] (label sets, selectors, names of namespaces, nodes and ports) is excluded, since its owner
//! changes with every other object; so is allocator overhead.

use std::net::Ipv6Addr;
use std::sync::Arc;

use crate::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, Diagnostic, Namespace, Node, Object, ObjectName, Peer,
    Peers, Pod, Policy, PolicyRule, PortMatch, Ports, Uid,
};

/// The two reference counts before a value in an `Arc`.
const ARC: usize = 2 * size_of::<usize>();

/// In bytes.
pub(crate) fn footprint(object: &Object) -> usize {
    match object {
        Object::Namespace(namespace) => {
            stored::<Namespace>() + namespace.uid.text_apart().map_or(0, text) + problems(&namespace.problems)
        }
        Object::Pod(pod) => stored::<Pod>() + text(&pod.name.name) + of_pod(pod),
        Object::Policy(policy) => stored::<Policy>() + text(&policy.name.name) + of_policy(policy),
        Object::Node(node) => stored::<Node>() + of_node(node),
        Object::ClusterPolicy(policy) => {
            stored::<ClusterPolicy>() + entry(size_of::<Arc<ClusterPolicy>>()) + of_cluster_policy(policy)
        }
    }
}

/// An object in its `Arc`, and its entry in the map of its kind.
fn stored<T>() -> usize {
    ARC + size_of::<T>() + entry(size_of::<Arc<str>>() + size_of::<Arc<T>>())
}

fn entry(bytes: usize) -> usize {
    bytes * 3 / 2
}

fn text(text: &Arc<str>) -> usize {
    ARC + text.len()
}

fn problems(problems: &[Diagnostic]) -> usize {
    let one = |p: &Diagnostic| size_of::<Diagnostic>() + p.field.len() + p.message.len();
    let index = if problems.is_empty() { 0 } else { entry(size_of::<ObjectName>()) };
    problems.iter().map(one).sum::<usize>() + index
}

/// Includes its entries in the directory of addresses.
fn of_pod(pod: &Pod) -> usize {
    let directory = entry(size_of::<Ipv6Addr>() + size_of::<Arc<Pod>>());
    let uids = [Some(&pod.uid), pod.mirror_of.as_deref()].into_iter().flatten();
    uids.filter_map(Uid::text_apart).map(text).sum::<usize>()
        + pod.addresses.bytes_apart()
        + pod.addresses.iter().count() * directory
        + problems(&pod.problems)
}

fn of_node(node: &Node) -> usize {
    node.addresses.bytes_apart()
        + node.status_addresses.bytes_apart()
        + size_of_val(&node.pod_ranges[..])
        + problems(&node.problems)
}

fn of_policy(policy: &Policy) -> usize {
    let rules = [&policy.ingress, &policy.egress].into_iter().flatten().flatten();
    rules.map(of_rule).sum::<usize>() + problems(&policy.problems)
}

fn of_cluster_policy(policy: &ClusterPolicy) -> usize {
    let rules = policy.ingress.iter().chain(&policy.egress);
    rules.map(of_cluster_rule).sum::<usize>() + problems(&policy.problems)
}

fn of_cluster_rule(rule: &ClusterRule) -> usize {
    let peers = match &rule.peers {
        ClusterPeers::Any => 0,
        ClusterPeers::Of(peers) => peers.iter().map(of_cluster_peer).sum(),
    };
    size_of::<ClusterRule>() + rule.name.as_ref().map_or(0, text) + peers + of_ports(&rule.ports)
}

fn of_cluster_peer(peer: &ClusterPeer) -> usize {
    size_of::<ClusterPeer>()
        + match peer {
            ClusterPeer::Pods(_) | ClusterPeer::Nodes(_) => 0,
            ClusterPeer::Networks(networks) => size_of_val(&networks[..]),
            ClusterPeer::DomainNames(names) => {
                size_of_val(&names[..]) + names.iter().map(|pattern| text(&pattern.name)).sum::<usize>()
            }
        }
}

fn of_rule(rule: &PolicyRule) -> usize {
    let peers = match &rule.peers {
        Peers::Any => 0,
        Peers::Of(peers) => peers.iter().map(of_peer).sum(),
    };
    size_of::<PolicyRule>() + peers + of_ports(&rule.ports)
}

fn of_ports(ports: &Ports) -> usize {
    match ports {
        Ports::Any => 0,
        Ports::Of(ports) => ports.len() * size_of::<PortMatch>(),
    }
}

fn of_peer(peer: &Peer) -> usize {
    size_of::<Peer>()
        + match peer {
            Peer::Pods { .. } => 0,
            Peer::Block(block) => size_of_val(&block.except[..]),
        }
}
