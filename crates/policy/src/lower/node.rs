//! Lowers nodes: the addresses at which they receive packets, and their pod ranges.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::FieldError;
use super::json::{JsonObject, field, labels, list, object, text};
use crate::{Interner, Kind, Labels, Node, ObjectName};

/// Annotations in which flannel and kubelet record further addresses of a node, comma-separated.
pub(crate) const ADDRESS_ANNOTATIONS: [&str; 3] = [
    "flannel.alpha.coreos.com/public-ip",
    "flannel.alpha.coreos.com/public-ipv6",
    "alpha.kubernetes.io/provided-node-ip",
];

const CONSEQUENCE: &str = "the addresses of nodes are incomplete, so every address counts as the address of a node";

const UNLABELLED: &str =
    "no Accept rule of a ClusterNetworkPolicy matches the node, and Deny and Pass rules for nodes deny it";

pub(super) fn lower(name: ObjectName, whole: &Value, interner: &mut Interner) -> Node {
    let mut errors = Vec::new();
    let mut addresses = Vec::new();
    let mut pod_ranges = Vec::new();
    if let Err(e) = read_status(whole, &mut addresses) {
        errors.push(e);
    }
    let status_addresses = sorted(listed_addresses(whole));
    read_annotations(whole, &mut addresses);
    if let Err(e) = read_spec(whole, &mut pod_ranges) {
        errors.push(e);
    }
    let unreadable = !errors.is_empty();
    let labels = labels(&whole["metadata"], "metadata").map(|labels| interner.labels(labels));
    let (labels, unlabelled) = match labels {
        Ok(labels) => (labels, None),
        Err(e) => (Labels::new(), Some(e)),
    };
    let mut problems: Vec<_> = errors.into_iter().map(|e| e.diagnose(Kind::Node, &name, CONSEQUENCE)).collect();
    let is_unlabelled = unlabelled.is_some();
    problems.extend(unlabelled.map(|e| e.diagnose(Kind::Node, &name, UNLABELLED)));
    Node {
        labels,
        unlabelled: is_unlabelled,
        addresses: sorted(addresses).into_iter().collect(),
        status_addresses: status_addresses.into_iter().collect(),
        pod_ranges: sorted(pod_ranges).into(),
        unreadable,
        problems: problems.into_iter().collect(),
        name,
    }
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort();
    values.dedup();
    values
}

/// A part of the object; `None` if absent.
fn part<'a>(whole: &'a Value, name: &str) -> Result<Option<&'a JsonObject>, FieldError> {
    whole.get(name).filter(|value| !value.is_null()).map(|value| object(value, name)).transpose()
}

/// `status.addresses`. Names (Hostname, InternalDNS, ExternalDNS) are ignored. An invalid entry leaves the others.
fn read_status(whole: &Value, found: &mut Vec<IpAddr>) -> Result<(), FieldError> {
    let Some(entries) = part(whole, "status")?.and_then(|status| field(status, "addresses")) else { return Ok(()) };
    let mut result = Ok(());
    for (i, entry) in list(entries, "status.addresses")?.iter().enumerate() {
        match address(entry, &format!("status.addresses[{i}]")) {
            Ok(address) => found.extend(address),
            Err(e) => result = result.and(Err(e)),
        }
    }
    result
}

/// The address of an entry; `None` if it is a name.
fn address(entry: &Value, path: &str) -> Result<Option<IpAddr>, FieldError> {
    let entry = object(entry, path)?;
    let sort = field(entry, "type").map(|sort| text(sort, &format!("{path}.type"))).transpose()?;
    if !matches!(sort, Some("InternalIP" | "ExternalIP")) {
        return Ok(None);
    }
    let path = format!("{path}.address");
    let Some(address) = field(entry, "address") else { return Err(FieldError::new(path, "missing")) };
    let written = text(address, &path)?;
    match written.parse::<IpAddr>() {
        Ok(address) => Ok(Some(address.to_canonical())),
        Err(_) => Err(FieldError::new(path, format!("invalid IP address '{written}'"))),
    }
}

/// Every IP address in `status.addresses`, of whatever type, which is what rules for nodes match.
fn listed_addresses(whole: &Value) -> Vec<IpAddr> {
    let entries = whole["status"]["addresses"].as_array().into_iter().flatten();
    let parsed = entries.filter_map(|entry| entry["address"].as_str()?.parse::<IpAddr>().ok());
    parsed.map(|address| address.to_canonical()).collect()
}

/// Annotations are free text, so text other than an address is ignored.
fn read_annotations(whole: &Value, found: &mut Vec<IpAddr>) {
    let annotations = &whole["metadata"]["annotations"];
    let written = ADDRESS_ANNOTATIONS.iter().filter_map(|key| annotations[key].as_str());
    let addresses = written.flat_map(|text| text.split(',')).filter_map(|text| text.trim().parse::<IpAddr>().ok());
    found.extend(addresses.map(|address| address.to_canonical()));
}

/// `spec.podCIDRs`, and `spec.podCIDR`, which equals its first entry.
fn read_spec(whole: &Value, found: &mut Vec<IpNet>) -> Result<(), FieldError> {
    let Some(spec) = part(whole, "spec")? else { return Ok(()) };
    if let Some(ranges) = field(spec, "podCIDRs") {
        for (i, range) in list(ranges, "spec.podCIDRs")?.iter().enumerate() {
            found.extend(read_range(range, &format!("spec.podCIDRs[{i}]"))?);
        }
    }
    if let Some(range) = field(spec, "podCIDR") {
        found.extend(read_range(range, "spec.podCIDR")?);
    }
    Ok(())
}

/// `None` if it is empty, as on nodes without an assigned range.
fn read_range(value: &Value, path: &str) -> Result<Option<IpNet>, FieldError> {
    match text(value, path)? {
        "" => Ok(None),
        written => match written.parse::<IpNet>() {
            Ok(range) => Ok(Some(range.trunc())),
            Err(_) => Err(FieldError::new(path, format!("invalid CIDR block '{written}'"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Object, lower as lower_object};

    fn node(object: &Value) -> Node {
        let Ok(Object::Node(node)) = lower_object(Kind::Node, object) else { panic!("{object}") };
        (*node).clone()
    }

    fn texts(node: &Node) -> Vec<String> {
        let addresses = node.addresses.iter().map(|address| address.to_string());
        addresses.chain(node.pod_ranges.iter().map(ToString::to_string)).collect()
    }

    #[test]
    fn node_has_addresses_of_status_annotations_and_spec() {
        let object = json!({
            "metadata": {"name": "node-a", "annotations": {
                "flannel.alpha.coreos.com/public-ip": "198.51.100.7",
                "flannel.alpha.coreos.com/public-ipv6": "none",
                "alpha.kubernetes.io/provided-node-ip": "192.0.2.1, 2001:db8::9",
                "other": "203.0.113.1",
            }},
            "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "node-a"},
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "InternalIP", "address": "::ffff:192.0.2.2"},
                {"type": "ExternalIP", "address": "2001:db8::1"},
            ]},
        });
        let node = node(&object);
        let expected =
            ["192.0.2.1", "192.0.2.2", "198.51.100.7", "2001:db8::1", "2001:db8::9", "10.1.0.0/24", "fd00:1::/64"];
        assert_eq!(texts(&node), expected);
        assert!(!node.unreadable && node.problems.is_empty() && node.name.namespace.is_empty());
    }

    #[test]
    fn node_without_addresses_is_readable() {
        let node = node(&json!({"metadata": {"name": "new"}, "spec": {"podCIDR": ""}, "status": null}));
        assert!(!node.unreadable && texts(&node).is_empty());
    }

    #[test]
    fn node_with_invalid_address_is_unreadable() {
        let with = |place: &str, value: Value| {
            let mut object = json!({
                "metadata": {"name": "node-a"},
                "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
            });
            *object.pointer_mut(place).expect("a place of the object") = value;
            node(&object)
        };
        for (place, value) in [
            ("/status", json!("text")),
            ("/status/addresses", json!({})),
            ("/status/addresses/0", json!(7)),
            ("/status/addresses/0/type", json!(7)),
            ("/status/addresses/0/address", json!("192.0.2")),
            ("/status/addresses/0/address", json!(null)),
            ("/spec", json!([])),
            ("/spec/podCIDR", json!("10.1.0.0/33")),
            ("/spec/podCIDRs/0", json!(true)),
        ] {
            let node = with(place, value);
            assert!(node.unreadable && node.problems.len() == 1, "{place}: {node:?}");
        }
    }

    #[test]
    fn invalid_address_leaves_the_others() {
        let entry = |address: &str| json!({"type": "InternalIP", "address": address});
        let addresses = [entry("wrong"), entry("192.0.2.1"), json!({"type": "Hostname", "address": "192.0.2.2"})];
        let node = node(&json!({"metadata": {"name": "node-a"}, "status": {"addresses": addresses}}));
        assert!(node.unreadable && node.problems.len() == 1, "{node:?}");
        let texts = |addresses: &crate::Addresses| addresses.iter().map(|a| a.to_string()).collect::<Vec<_>>();
        assert_eq!(texts(&node.addresses), ["192.0.2.1"]);
        assert_eq!(texts(&node.status_addresses), ["192.0.2.1", "192.0.2.2"], "of whatever type");
    }
}
