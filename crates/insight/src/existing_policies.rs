//! Existing policies as manifests, as far as the model has them.

use std::sync::Arc;

use policy::{
    Block, ClusterState, ENFORCEMENT_ANNOTATION, Enforcement, NamespaceScope, ObjectName, Operator, Peer, Peers, Pod,
    Policy, PolicyRule, PortRange, Ports, Protocol, Selector, Values,
};
use serde_json::{Value, json};

/// The policy of this name or, if there is none, the only one of the namespace that selects exactly these pods. With its
/// name.
pub(crate) fn existing_policy<'a>(
    state: &'a ClusterState,
    namespace: &'a str,
    name: &str,
    pods: &[&'a Arc<Pod>],
) -> Option<(String, Value)> {
    let selects_them = |policy: &&Arc<Policy>| {
        let is_ours = |pod: &Pod| pods.iter().any(|ours| ours.name == pod.name);
        let mut all = state.pods_in(namespace).filter(|pod| !pod.host_network && !pod.finished);
        all.all(|pod| policy.selector.matches(&pod.labels) == is_ours(pod))
    };
    let policy = state.policy(&ObjectName::new(namespace, name)).or_else(|| {
        let mut found = state.policies_in(namespace).filter(selects_them);
        found.next().filter(|_| found.next().is_none())
    })?;
    Some((policy.name.to_string(), manifest(policy)))
}

fn manifest(policy: &Policy) -> Value {
    let Policy { name, selector: selected, ingress, egress, enforcement, problems: _ } = policy;
    let mut metadata = json!({"namespace": &*name.namespace, "name": &*name.name});
    if let Some(enforcement) = enforcement {
        let word = match enforcement {
            Enforcement::Enforce => "enforce",
            Enforcement::Audit => "audit",
        };
        metadata["annotations"] = json!({ENFORCEMENT_ANNOTATION: word});
    }
    let mut spec = json!({"podSelector": selector(selected)});
    let mut types = Vec::new();
    for (kind, field, peers, rules) in [("Ingress", "ingress", "from", ingress), ("Egress", "egress", "to", egress)] {
        if let Some(rules) = rules {
            types.push(Value::from(kind));
            spec[field] = rules.iter().map(|written| rule(written, peers)).collect();
        }
    }
    spec["policyTypes"] = types.into();
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec})
}

fn rule(PolicyRule { index: _, peers, ports }: &PolicyRule, field: &str) -> Value {
    let mut written = json!({});
    match peers {
        Peers::Any => {}
        Peers::Of(peers) => written[field] = peers.iter().map(peer).collect(),
    }
    match ports {
        Ports::Any => {}
        Ports::Of(ports) => {
            written["ports"] = ports.iter().map(|port| port_value(port.protocol, &port.range)).collect();
        }
    }
    written
}

fn peer(peer: &Peer) -> Value {
    match peer {
        Peer::Pods { namespaces: NamespaceScope::Own, pods } => json!({"podSelector": selector(pods)}),
        Peer::Pods { namespaces: NamespaceScope::Selected(namespaces), pods } => {
            json!({"namespaceSelector": selector(namespaces), "podSelector": selector(pods)})
        }
        Peer::Block(Block { cidr, except }) => {
            let mut block = json!({"cidr": cidr.to_string()});
            if !except.is_empty() {
                block["except"] = except.iter().map(ToString::to_string).collect();
            }
            json!({"ipBlock": block})
        }
    }
}

fn port_value(protocol: Protocol, range: &PortRange) -> Value {
    let protocol = protocol_name(protocol);
    match range {
        PortRange::All => json!({"protocol": protocol}),
        PortRange::Numbers(first, last) if first == last => json!({"protocol": protocol, "port": first}),
        PortRange::Numbers(first, last) => json!({"protocol": protocol, "port": first, "endPort": last}),
        PortRange::Named(name) => json!({"protocol": protocol, "port": &**name}),
    }
}

pub(crate) fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

fn selector(selector: &Selector) -> Value {
    let texts = |values: &Values| values.iter().map(|value| Value::from(&**value)).collect::<Vec<Value>>();
    let (mut labels, mut expressions) = (serde_json::Map::new(), Vec::new());
    for requirement in selector.requirements() {
        let key = &*requirement.key;
        match &requirement.operator {
            Operator::In(values) if values.len() == 1 && !labels.contains_key(key) => {
                labels.insert(key.to_owned(), Value::from(&*values[0]));
            }
            Operator::In(values) => expressions.push(json!({"key": key, "operator": "In", "values": texts(values)})),
            Operator::NotIn(values) => {
                expressions.push(json!({"key": key, "operator": "NotIn", "values": texts(values)}));
            }
            Operator::Exists => expressions.push(json!({"key": key, "operator": "Exists"})),
            Operator::DoesNotExist => expressions.push(json!({"key": key, "operator": "DoesNotExist"})),
        }
    }
    let mut written = json!({});
    if !labels.is_empty() {
        written["matchLabels"] = labels.into();
    }
    if !expressions.is_empty() {
        written["matchExpressions"] = expressions.into();
    }
    written
}
