use flow::{EndSample, ServicePort};
use serde_json::json;

use super::*;
use crate::testing::{edge, node, pod, state_of, world};

/// A shop whose pods carry the service identity beside an app label, DNS, and two nodes.
const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {kubernetes.io/metadata.name: shop}}
---
apiVersion: v1
kind: Namespace
metadata: {name: kube-system, labels: {kubernetes.io/metadata.name: kube-system}}
---
apiVersion: v1
kind: Node
metadata: {name: worker-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: worker-2}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: v1
kind: Pod
metadata:
  namespace: shop
  name: web-7d4b9c-x2k4p
  labels: {app: web, service-identity: storefront, pod-template-hash: 7d4b9c}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-7d4b9c, uid: a, controller: true}]
spec: {nodeName: worker-1}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}
---
apiVersion: v1
kind: Pod
metadata:
  namespace: shop
  name: api-5f6d8b-q8w2z
  labels: {app: api, app.kubernetes.io/name: api, pod-template-hash: 5f6d8b}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: api-5f6d8b, uid: b, controller: true}]
spec: {nodeName: worker-1}
status: {phase: Running, podIPs: [{ip: 10.0.0.2}]}
---
apiVersion: v1
kind: Pod
metadata:
  namespace: shop
  name: worker-6c9f7d-m3n5v
  labels: {app: worker, app.kubernetes.io/name: api, service-identity: jobs, pod-template-hash: 6c9f7d}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: worker-6c9f7d, uid: c, controller: true}]
spec: {nodeName: worker-2}
status: {phase: Running, podIPs: [{ip: 10.0.0.3}]}
---
apiVersion: v1
kind: Pod
metadata:
  namespace: kube-system
  name: coredns-59b4f5-h7j9k
  labels: {k8s-app: kube-dns, pod-template-hash: 59b4f5}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: coredns-59b4f5, uid: d, controller: true}]
spec: {nodeName: worker-2}
status: {phase: Running, podIPs: [{ip: 10.0.0.4}]}
";

const UDP: u8 = 17;

fn suggested(edges: &[ObservedEdge]) -> Suggestions {
    let scope = SuggestionScope {
        namespaces: NamespaceChoice::Named(["shop".to_owned()].into()),
        directions: [Direction::Egress, Direction::Ingress].into(),
        audit: false,
    };
    suggest(&state_of(CLUSTER), &scope, edges)
}

#[track_caller]
fn only_policy(suggestions: &Suggestions) -> &SuggestedPolicy {
    let [policy] = &*suggestions.policies else { panic!("{suggestions:#?}") };
    policy
}

fn over_udp(edge: ObservedEdge) -> ObservedEdge {
    ObservedEdge { protocol: UDP, ..edge }
}

/// The edge of a kubelet that probes pods of its own node.
fn probe(node_name: &str, workload: &str, port: u16, of_nodes: &[&str]) -> ObservedEdge {
    let mut edge = edge(node(node_name), pod(workload), Some(port), &["192.0.2.1"]);
    edge.destinations = EndSample { nodes: of_nodes.iter().map(|name| (*name).into()).collect(), ..edge.destinations };
    edge
}

#[test]
fn dns_is_allowed_over_both_protocols() {
    let dns = over_udp(edge(pod("shop/web"), pod("kube-system/coredns"), Some(53), &[]));
    let found = suggested(&[dns]);
    let policy = only_policy(&found);
    let peer = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    });
    let ports = json!([{"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}]);
    assert_eq!(policy.policy["spec"]["egress"], json!([{"to": [peer], "ports": ports}]));
    let comment = "DNS: port 53 of kube-system/coredns is allowed over both UDP and TCP";
    assert_eq!(policy.comments, [comment]);
    assert!(policy.yaml.starts_with(&format!("# {comment}\n")), "{}", policy.yaml);
}

/// The pods of DNS may listen at another port than that of their Service.
#[test]
fn dns_is_known_by_port_of_service() {
    let service =
        ServicePort { namespace: "kube-system".into(), name: "kube-dns".into(), port_name: None, port: DNS_PORT };
    let mut dns = over_udp(edge(pod("shop/web"), pod("kube-system/coredns"), Some(1053), &[]));
    dns.services = [service].into();
    let found = suggested(&[dns]);
    let rules = &only_policy(&found).policy["spec"]["egress"];
    assert_eq!(rules[0]["ports"], json!([{"protocol": "TCP", "port": 1053}, {"protocol": "UDP", "port": 1053}]));
}

/// Neither the server's side of DNS nor a workload that asked for no name gets a rule that was not needed.
#[test]
fn workload_without_dns_flow_gets_no_dns_rule() {
    let found = suggested(&[edge(pod("shop/web"), pod("shop/api"), Some(8080), &[])]);
    assert_eq!(found.policies.len(), 2);
    for policy in &found.policies {
        assert!(!policy.yaml.contains("53") && policy.comments.is_empty(), "{}", policy.yaml);
    }
    let served = over_udp(edge(pod("shop/web"), pod("shop/api"), Some(53), &[]));
    let found = suggested(&[served]);
    let api = found.policies.iter().find(|policy| policy.name.ends_with("-api")).unwrap();
    assert_eq!(api.policy["spec"]["ingress"][0]["ports"], json!([{"protocol": "UDP", "port": 53}]));
}

#[test]
fn probe_of_own_node_needs_no_rule() {
    let note =
        "traffic between pods and their own node, such as the kubelet's probes, is always allowed and needs no rule";
    let found = suggested(&[probe("worker-1", "shop/api", 8081, &["worker-1"])]);
    assert_eq!((found.policies.len(), found.without_rule.len(), found.edges), (0, 0, 1));
    assert_eq!(found.notes, [note]);

    // The policy for other flows has no rule for the probes.
    let flow = edge(pod("shop/web"), pod("shop/api"), Some(8080), &[]);
    let found = suggested(&[flow, probe("worker-1", "shop/api", 8081, &["worker-1"])]);
    let api = found.policies.iter().find(|policy| policy.name.ends_with("-api")).unwrap();
    assert_eq!(api.policy["spec"]["ingress"].as_array().unwrap().len(), 1);
    assert!(!api.yaml.contains("8081") && found.notes == [note], "{}", api.yaml);
}

/// A policy does apply to a node that is not the pod's own, whose flows are no probes.
#[test]
fn flow_of_other_node_gets_rule() {
    for of_nodes in [&["worker-2"][..], &["worker-1", "worker-2"]] {
        let found = suggested(&[probe("worker-1", "shop/worker", 8081, of_nodes)]);
        let policy = only_policy(&found);
        let rule = json!([{
            "from": [{"ipBlock": {"cidr": "192.0.2.1/32"}}],
            "ports": [{"protocol": "TCP", "port": 8081}],
        }]);
        assert_eq!(policy.policy["spec"]["ingress"], rule, "{of_nodes:?}");
        assert_eq!(
            policy.comments,
            ["node/worker-1 is named by its addresses, which change when it is replaced"],
            "{of_nodes:?}"
        );
        assert_eq!(found.notes, [] as [&str; 0]);
    }
}

/// Nine addresses are one more than are listed one by one.
#[test]
fn wider_block_is_stated_in_comment() {
    let addresses: Vec<String> = (1..=9).map(|number| format!("203.0.113.{}", 2 * number)).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let found = suggested(&[edge(pod("shop/web"), world(), Some(443), &addresses)]);
    let policy = only_policy(&found);
    let peers = policy.policy["spec"]["egress"][0]["to"].as_array().unwrap();
    assert_eq!((peers.len(), &peers[7]), (8, &json!({"ipBlock": {"cidr": "203.0.113.16/30"}})));
    let comment =
        "wider than the observed addresses, to port 443/tcp: 203.0.113.16/30 has 4 addresses, of which 2 were seen";
    assert_eq!(policy.comments, [comment]);
    assert!(policy.yaml.starts_with(&format!("# {comment}\n")), "{}", policy.yaml);

    let found = suggested(&[edge(pod("shop/web"), world(), Some(443), &addresses[..8])]);
    assert_eq!(only_policy(&found).comments, [] as [&str; 0], "each address is a block");
}

#[test]
fn service_identity_is_preferred_to_app_label() {
    let found = suggested(&[edge(pod("shop/web"), pod("shop/worker"), Some(8080), &[])]);
    let [web, worker] = &*found.policies else { panic!("{found:#?}") };
    assert_eq!(web.policy["spec"]["podSelector"], json!({"matchLabels": {"service-identity": "storefront"}}));
    assert_eq!(
        web.policy["spec"]["egress"][0]["to"],
        json!([{"podSelector": {"matchLabels": {"service-identity": "jobs"}}}])
    );
    assert_eq!(worker.policy["spec"]["podSelector"], json!({"matchLabels": {"service-identity": "jobs"}}));
    assert_eq!(
        worker.policy["spec"]["ingress"][0]["from"],
        json!([{"podSelector": {"matchLabels": {"service-identity": "storefront"}}}])
    );
    assert_eq!(
        (web.name.as_str(), worker.name.as_str()),
        ("ringfence-suggested-web", "ringfence-suggested-worker"),
        "policies are named after workloads"
    );
}

/// `app.kubernetes.io/name: api` is also that of the worker.
#[test]
fn app_label_selects_workload_without_identity() {
    let found = suggested(&[edge(world(), pod("shop/api"), Some(443), &["198.51.100.7"])]);
    let policy = only_policy(&found);
    assert_eq!(policy.policy["spec"]["podSelector"], json!({"matchLabels": {"app": "api"}}));
    assert_eq!(policy.policy["spec"]["policyTypes"], json!(["Ingress"]));
}

/// The next label distinguishes two workloads with one service identity.
#[test]
fn shared_service_identity_is_not_enough() {
    let canary = CLUSTER.replace(
        "app: worker, app.kubernetes.io/name: api, service-identity: jobs",
        "app: canary, service-identity: storefront",
    );
    let scope = SuggestionScope {
        namespaces: NamespaceChoice::Named(["shop".to_owned()].into()),
        directions: [Direction::Ingress].into(),
        audit: true,
    };
    let found = suggest(&state_of(&canary), &scope, &[edge(pod("shop/api"), pod("shop/web"), Some(8080), &[])]);
    let policy = only_policy(&found);
    assert_eq!(policy.policy["spec"]["podSelector"], json!({"matchLabels": {"app": "web"}}));
    assert_eq!(policy.policy["metadata"]["annotations"], json!({"ringfence.io/enforcement": "audit"}));
}
