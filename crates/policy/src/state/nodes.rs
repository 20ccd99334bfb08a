//! The addresses of all nodes together.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::Node;

/// Ranges that contain every known address of a node, and every address that its pods, gateways and tunnel devices may
/// have. The ranges of each family are disjoint, sorted and minimal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRanges {
    /// IPv4 ranges.
    pub v4: Vec<Ipv4Net>,
    /// IPv6 ranges.
    pub v6: Vec<Ipv6Net>,
}

impl NodeRanges {
    /// `None` if there are no nodes, or one of them is unreadable.
    pub(crate) fn of<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Option<NodeRanges> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        let mut is_empty = true;
        for node in nodes {
            if node.unreadable {
                return None;
            }
            is_empty = false;
            for range in node.addresses.iter().map(IpNet::from).chain(node.pod_ranges.iter().copied()) {
                match range {
                    IpNet::V4(range) => v4.push(range),
                    IpNet::V6(range) => v6.push(range),
                }
            }
        }
        (!is_empty).then(|| NodeRanges { v4: Ipv4Net::aggregate(&v4), v6: Ipv6Net::aggregate(&v6) })
    }
}

/// Whether rules that depend on node addresses may differ between the two.
pub(crate) fn differ(old: Option<&Node>, new: Option<&Node>) -> bool {
    let parts = |node: &Node| (node.addresses.clone(), node.pod_ranges.clone(), node.unreadable);
    old.map(parts) != new.map(parts)
}

/// Whether selectors of nodes, or domain names, may match other addresses.
pub(crate) fn differ_as_peers(old: Option<&Node>, new: Option<&Node>) -> bool {
    let parts = |node: &Node| {
        let Node { labels, unlabelled, status_addresses, pod_ranges, unreadable, .. } = node;
        (labels.clone(), *unlabelled, status_addresses.clone(), pod_ranges.clone(), *unreadable)
    };
    old.map(parts) != new.map(parts)
}

impl Node {
    /// Whether the address is in its status, or in the range of its pods.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.status_addresses.iter().any(|other| other == address)
            || self.pod_ranges.iter().any(|range| range.contains(&address))
    }
}

/// The first and last address of the range that its pods may have. The first two of a range of four or more are those of
/// the network and of the gateway or tunnel device (flannel, and the `bridge`, `ptp` and `host-local` plugins), the last one
/// of IPv4 is for broadcasts.
pub(crate) fn range_of_pods(range: &IpNet) -> (IpAddr, IpAddr) {
    let (first, last) = (range.network(), range.broadcast());
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) if range.prefix_len() <= 30 => {
            (Ipv4Addr::from(u32::from(first) + 2).into(), Ipv4Addr::from(u32::from(last) - 1).into())
        }
        (IpAddr::V6(first), IpAddr::V6(_)) if range.prefix_len() <= 126 => {
            (Ipv6Addr::from(u128::from(first) + 2).into(), last)
        }
        _ => (first, last),
    }
}

/// Addresses at which several pods may receive: multicast and broadcast ones, those of the node's pod ranges included.
/// The ports of a bridge that its pods are on receive what is sent there.
pub(crate) fn group_addresses(node: Option<&Node>) -> Vec<IpNet> {
    let everywhere = [
        Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4).into(),
        Ipv4Net::from(Ipv4Addr::BROADCAST).into(),
        Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8).into(),
    ];
    let broadcast = |range: &IpNet| match range {
        // Shorter ranges have no broadcast address (RFC 3021).
        IpNet::V4(range) if range.prefix_len() <= 30 => Some(IpNet::from(IpAddr::from(range.broadcast()))),
        IpNet::V4(_) | IpNet::V6(_) => None,
    };
    let of_node = node.into_iter().flat_map(|node| &node.pod_ranges).filter_map(broadcast);
    everywhere.into_iter().chain(of_node).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{Change, ClusterState, Kind, NodeRanges, ObjectName, lower};

    fn node(name: &str, address: &str, range: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {"podCIDR": range},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        })
    }

    fn set(state: &mut ClusterState, object: &Value) -> crate::StateDelta {
        state.apply(Change::Set(lower(Kind::Node, object).unwrap()))
    }

    fn ranges(v4: &[&str], v6: &[&str]) -> Option<NodeRanges> {
        let v4 = v4.iter().map(|range| range.parse().unwrap()).collect();
        Some(NodeRanges { v4, v6: v6.iter().map(|range| range.parse().unwrap()).collect() })
    }

    #[test]
    fn state_merges_the_ranges_of_all_nodes() {
        let mut state = ClusterState::new();
        assert_eq!(state.node_ranges(), None);
        assert!(set(&mut state, &node("a", "192.0.2.0", "10.1.0.0/24")).nodes);
        assert!(set(&mut state, &node("b", "192.0.2.1", "10.1.0.0/16")).nodes);
        assert!(set(&mut state, &node("c", "2001:db8::1", "")).nodes);
        assert_eq!(state.node_ranges(), ranges(&["10.1.0.0/16", "192.0.2.0/31"], &["2001:db8::1/128"]));
        assert!(state.apply(Change::Remove(Kind::Node, ObjectName::new("", "b"))).nodes);
        assert_eq!(state.node_ranges(), ranges(&["10.1.0.0/24", "192.0.2.0/32"], &["2001:db8::1/128"]));
        state.apply(Change::Replace(Kind::Node, vec![]));
        assert_eq!(state, ClusterState::new());
    }

    #[test]
    fn node_ranges_are_none_while_node_is_unreadable() {
        let mut state = ClusterState::new();
        set(&mut state, &node("a", "192.0.2.1", "10.1.0.0/24"));
        assert!(set(&mut state, &node("b", "not an address", "")).nodes);
        assert_eq!(state.node_ranges(), None);
        assert_eq!(state.problems().len(), 1);
        assert!(set(&mut state, &node("b", "192.0.2.2", "")).nodes);
        assert_eq!(state.node_ranges(), ranges(&["10.1.0.0/24", "192.0.2.1/32", "192.0.2.2/32"], &[]));
    }

    #[test]
    fn heartbeat_of_a_node_changes_nothing() {
        let mut state = ClusterState::new();
        let mut object = node("a", "192.0.2.1", "10.1.0.0/24");
        set(&mut state, &object);
        object["metadata"]["resourceVersion"] = "8".into();
        object["status"]["conditions"] = json!([{"type": "Ready", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}]);
        assert!(!set(&mut state, &object).any());
    }
}
