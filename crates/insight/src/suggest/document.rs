//! The NetworkPolicy of a unit.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use policy::remote::{LabelPrefix, RemoteSet};
use policy::{Direction, ENFORCEMENT_ANNOTATION};
use serde_json::{Value, json};

use super::blocks::{GatheredBlock, gather};
use super::units::Unit;
use super::{Allowances, Port, SeenPeer};
use crate::existing_policies::protocol_name;

const NAME_PREFIX: &str = "ringfence-suggested-";

/// The label that the API server sets on every namespace.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) fn name_of(unit: &Unit) -> String {
    format!("{NAME_PREFIX}{}", unit.name)
}

/// The policy, and its comments.
pub(super) fn policy(
    unit: &Unit,
    directions: &BTreeMap<Direction, Allowances>,
    (others, prefix): (&BTreeSet<IpAddr>, Option<&LabelPrefix>),
    audit: bool,
) -> (Value, Vec<String>) {
    let mut metadata = json!({"namespace": &*unit.namespace, "name": name_of(unit)});
    if audit {
        metadata["annotations"] = json!({ENFORCEMENT_ANNOTATION: "audit"});
    }
    let mut comments = BTreeSet::new();
    let mut types = Vec::new();
    let mut spec = json!({"podSelector": unit.selector()});
    for (direction, allowances) in directions {
        let (kind, field) = match direction {
            Direction::Ingress => ("Ingress", "from"),
            Direction::Egress => ("Egress", "to"),
        };
        types.push(Value::from(kind));
        comments.extend(allowances.comments.iter().cloned());
        let inner = inner_rules(unit, allowances, prefix, field);
        let outer = outer_rules(allowances, others, field, &mut comments);
        spec[direction.as_str()] = inner.into_iter().chain(outer).collect();
    }
    types.sort_by_key(|kind| kind != "Ingress");
    spec["policyTypes"] = types.into();
    let document =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec});
    (document, comments.into_iter().collect())
}

/// A rule for all peers with the same ports.
fn inner_rules(unit: &Unit, allowances: &Allowances, prefix: Option<&LabelPrefix>, field: &str) -> Vec<Value> {
    let mut by_ports: BTreeMap<&BTreeSet<Port>, Vec<Value>> = BTreeMap::new();
    for (seen, ports) in &allowances.peers {
        by_ports.entry(ports).or_default().extend(peer(unit, seen, prefix));
    }
    let rule = |(ports, peers): (&BTreeSet<Port>, Vec<Value>)| json!({field: peers, "ports": port_list(ports)});
    by_ports.into_iter().map(rule).collect()
}

/// A rule for all ports with the same blocks, so that no two rules allow the same flow.
fn outer_rules(
    allowances: &Allowances,
    others: &BTreeSet<IpAddr>,
    field: &str,
    comments: &mut BTreeSet<String>,
) -> Vec<Value> {
    let mut by_blocks: BTreeMap<Vec<String>, BTreeSet<Port>> = BTreeMap::new();
    for (port, addresses) in &allowances.outside {
        let blocks = gather(addresses, others);
        let (protocol, number) = port;
        let wider = blocks.iter().filter(|block| block.is_wider());
        comments.extend(
            wider.map(|block| format!("wider than the observed addresses, {field} port {number}/{protocol}: {block}")),
        );
        let texts = blocks.iter().map(|GatheredBlock { net, .. }| net.to_string()).collect();
        by_blocks.entry(texts).or_default().insert(*port);
    }
    let rule = |(blocks, ports): (Vec<String>, BTreeSet<Port>)| {
        let peers: Vec<Value> = blocks.iter().map(|cidr| json!({"ipBlock": {"cidr": cidr}})).collect();
        json!({field: peers, "ports": port_list(&ports)})
    };
    by_blocks.into_iter().map(rule).collect()
}

fn peer(unit: &Unit, seen: &SeenPeer, prefix: Option<&LabelPrefix>) -> Option<Value> {
    Some(match seen {
        SeenPeer::Unit(other) if other.namespace == unit.namespace => json!({"podSelector": other.selector()}),
        SeenPeer::Unit(other) => json!({
            "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: &*other.namespace}},
            "podSelector": other.selector(),
        }),
        SeenPeer::Remote(RemoteSet { cluster, namespace, name }) => {
            let prefix = prefix?;
            json!({
                "namespaceSelector": {"matchLabels": {
                    &*prefix.cluster_label(): &**cluster, &*prefix.namespace_label(): &**namespace,
                }},
                "podSelector": {"matchLabels": {&*prefix.name_label(): &**name}},
            })
        }
    })
}

fn port_list(ports: &BTreeSet<Port>) -> Vec<Value> {
    ports.iter().map(|(protocol, number)| json!({"protocol": protocol_name(*protocol), "port": number})).collect()
}
