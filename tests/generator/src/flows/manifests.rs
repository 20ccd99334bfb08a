//! Objects of a generated cluster: policies by which its flows have their verdicts, and declare some that never happen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use flow::{EndpointKind, FlowVerdict, TraceVerdict};
use serde_json::{Value, json};

use super::{Edge, End, GeneratedCluster, UDP};

/// Ports by protocol and number, each with the peers to which it is open.
type Rules = BTreeMap<(u8, u16), BTreeSet<String>>;

/// The namespace and the name of a policy, and whether its rules are about egress.
type PolicyKey = (String, String, bool);

/// The rules of one policy for each workload, and whether they are audited.
type Workloads = BTreeMap<String, (Rules, bool)>;

/// Workloads with the same rules of one policy.
#[derive(Default)]
struct Group {
    workloads: BTreeSet<String>,
    is_audited: bool,
}

impl GeneratedCluster {
    /// A List of the namespaces, nodes, pods and NetworkPolicies.
    pub fn manifests(&self) -> Value {
        let ends = self.edges.iter().flat_map(|edge| [&edge.source, &edge.destination]);
        let pods: BTreeMap<String, Value> = ends.filter_map(pod_object).map(|pod| (pod.to_string(), pod)).collect();
        let namespaces: BTreeSet<&str> =
            pods.values().filter_map(|pod| pod["metadata"]["namespace"].as_str()).collect();
        let namespace = |name: &&str| {
            json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}})
        };
        let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let mut items: Vec<Value> = namespaces.iter().map(namespace).collect();
        let nodes: BTreeSet<&str> = pods.values().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        items.extend(nodes.iter().map(|name| node(name)));
        items.extend(pods.values().cloned());
        items.extend(self.policies());
        json!({"apiVersion": "v1", "kind": "List", "items": items})
    }

    fn policies(&self) -> Vec<Value> {
        let mut by_policy: BTreeMap<PolicyKey, Workloads> = BTreeMap::new();
        for edge in self.edges.iter().filter(|edge| !edge.is_late) {
            let Edge { source, destination, protocol, port, ingress, egress, .. } = edge;
            for hit in &ingress.enforced {
                let of_policy = by_policy.entry((hit.namespace.to_string(), hit.name.to_string(), false)).or_default();
                let (rules, _) = of_policy.entry(name(destination).to_owned()).or_default();
                if ingress.verdict == TraceVerdict::Allowed {
                    rules.entry((*protocol, *port)).or_default().insert(peer(source).to_string());
                }
            }
            for hit in &egress.pending {
                let of_policy = by_policy.entry((hit.namespace.to_string(), hit.name.to_string(), true)).or_default();
                of_policy.entry(name(source).to_owned()).or_insert_with(|| (self.passing_egress(source), true));
            }
        }
        by_policy.into_iter().flat_map(|(policy, workloads)| policies_of(&policy, workloads)).collect()
    }

    /// Rules for the flows of a workload that no policy would deny.
    fn passing_egress(&self, source: &End) -> Rules {
        let mut rules = Rules::new();
        let passing = self.edges.iter().filter(|edge| edge.verdict == FlowVerdict::Allowed);
        for edge in passing.filter(|edge| edge.source.endpoint == source.endpoint) {
            rules.entry((edge.protocol, edge.port)).or_default().insert(peer(&edge.destination).to_string());
        }
        rules
    }
}

fn name(end: &End) -> &str {
    end.endpoint.name.as_deref().unwrap_or_default()
}

fn pod_object(end: &End) -> Option<Value> {
    let (namespace, name, node) = (end.endpoint.namespace.as_ref()?, end.endpoint.name.as_ref()?, end.node?);
    Some(pod_of_deployment(namespace, name, node, end.address))
}

/// The pod of a Deployment of this name.
pub fn pod_of_deployment(namespace: &str, name: &str, node: &str, address: IpAddr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": namespace, "name": format!("{name}-7d4b9c-x2k4p"),
            "labels": {"app": name, "pod-template-hash": "7d4b9c"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
                "name": format!("{name}-7d4b9c"), "uid": "1"}],
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]},
    })
}

fn peer(end: &End) -> Value {
    match (end.endpoint.kind, &end.endpoint.namespace, &end.endpoint.name) {
        (EndpointKind::Pod, Some(namespace), Some(name)) => json!({
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "podSelector": {"matchLabels": {"app": name}},
        }),
        _ => json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}),
    }
}

/// One policy for each group of workloads with the same rules; only the first has the plain name.
fn policies_of((namespace, policy, egress): &PolicyKey, workloads: Workloads) -> Vec<Value> {
    let mut groups: BTreeMap<Rules, Group> = BTreeMap::new();
    for (workload, (rules, is_audited)) in workloads {
        let group = groups.entry(rules).or_default();
        group.workloads.insert(workload);
        group.is_audited |= is_audited;
    }
    let (direction, policy_type, end) =
        if *egress { ("egress", "Egress", "to") } else { ("ingress", "Ingress", "from") };
    let object = |(at, (rules, group)): (usize, (Rules, Group))| {
        let first = group.workloads.first().map_or("", String::as_str);
        let name = if at == 0 { policy.clone() } else { format!("{policy}-{first}") };
        let rule = |((protocol, port), peers): (&(u8, u16), &BTreeSet<String>)| {
            let peers: Vec<Value> = peers.iter().filter_map(|peer| serde_json::from_str(peer).ok()).collect();
            let protocol = if *protocol == UDP { "UDP" } else { "TCP" };
            json!({end: peers, "ports": [{"protocol": protocol, "port": port}]})
        };
        let rules: Vec<Value> = rules.iter().map(rule).collect();
        let annotations = if group.is_audited { json!({"ringfence.io/enforcement": "audit"}) } else { json!({}) };
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
            "spec": {
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": group.workloads}]},
                "policyTypes": [policy_type],
                direction: rules,
            },
        })
    };
    groups.into_iter().enumerate().map(object).collect()
}
