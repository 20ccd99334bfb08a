//! A NetworkPolicy that allows what was seen of one workload.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nft::Protocol;
use serde_json::{Value, json};

use super::SeenPeer;
use super::workload::{Workload, short_names};
use crate::lower::NAME_LABEL;
use crate::{ClusterState, Direction, ENFORCEMENT_ANNOTATION, Enforcement, ObjectName};

const NAME_PREFIX: &str = "ringfence-suggested-";

/// The peers and their ports, by direction.
#[derive(Debug, Default)]
pub(super) struct Allowances {
    by_direction: BTreeMap<Direction, BTreeMap<SeenPeer, BTreeSet<(Protocol, u16)>>>,
}

impl Allowances {
    pub(super) fn add(&mut self, direction: Direction, peer: SeenPeer, port: (Protocol, u16)) {
        self.by_direction.entry(direction).or_default().entry(peer).or_default().insert(port);
    }
}

/// The document, after its name.
pub(super) fn policy(state: &ClusterState, workload: &Workload, allowances: &Allowances) -> (String, Value) {
    let namespace = &*workload.namespace;
    let name = free_name(state, workload);
    let mut metadata = json!({"namespace": namespace, "name": name});
    match state.enforcement_in(namespace) {
        Enforcement::Enforce => metadata["annotations"] = json!({ENFORCEMENT_ANNOTATION: "audit"}),
        Enforcement::Audit => {}
    }
    let mut spec = json!({"podSelector": workload.selector(state), "policyTypes": []});
    for (direction, peers) in allowances.by_direction.iter().rev() {
        let (kind, field) = match direction {
            Direction::Ingress => ("Ingress", "from"),
            Direction::Egress => ("Egress", "to"),
        };
        let rule = |(seen, ports): (&SeenPeer, &BTreeSet<(Protocol, u16)>)| {
            let ports: Vec<Value> = ports.iter().map(port).collect();
            json!({field: [peer(state, workload, seen)], "ports": ports})
        };
        if let Value::Array(types) = &mut spec["policyTypes"] {
            types.push(kind.into());
        }
        spec[direction.word()] = peers.iter().map(rule).collect();
    }
    let document =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec});
    (name, document)
}

/// An earlier suggestion that was applied stays as it is, and this one adds to it: to apply it under the same name would
/// take away what that one allows.
fn free_name(state: &ClusterState, workload: &Workload) -> String {
    let names = short_names(state, &workload.namespace);
    let Some(short) = names.get(workload) else { unreachable!("a pod of the state has brought the workload") };
    let first = format!("{NAME_PREFIX}{short}");
    let is_free = |name: &String| state.policy(&ObjectName::new(&workload.namespace, name)).is_none();
    let numbered = (2_usize..).map(|number| format!("{first}-{number}"));
    let mut candidates = std::iter::once(first.clone()).chain(numbered);
    candidates.find(is_free).unwrap_or(first)
}

fn peer(state: &ClusterState, workload: &Workload, seen: &SeenPeer) -> Value {
    match seen {
        SeenPeer::Workload(other) if other.namespace == workload.namespace => {
            json!({"podSelector": other.selector(state)})
        }
        SeenPeer::Workload(other) => json!({
            "namespaceSelector": {"matchLabels": {NAME_LABEL: &*other.namespace}},
            "podSelector": other.selector(state),
        }),
        SeenPeer::Address(address @ IpAddr::V4(_)) => json!({"ipBlock": {"cidr": format!("{address}/32")}}),
        SeenPeer::Address(address @ IpAddr::V6(_)) => json!({"ipBlock": {"cidr": format!("{address}/128")}}),
    }
}

fn port((protocol, number): &(Protocol, u16)) -> Value {
    let protocol = match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    };
    json!({"protocol": protocol, "port": number})
}
