use policy::{Change, ClusterState, Edges, Enforcement, Kind, Protocol, lower};
use serde_json::{Value, json};

use super::*;
use crate::testing::{edge, pod, world};

/// Pods `shop/web`, `shop/api`, `data/db` and `ops/agent` with addresses, and policies of `shop`.
fn state() -> ClusterState {
    state_with(&json!({}))
}

/// As [`state`], with annotations of the policies.
fn state_with(annotations: &Value) -> ClusterState {
    let pod = |namespace: &str, name: &str, address: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
            "status": {"phase": "Running", "podIPs": [{"ip": address}]}})
    };
    let policy = |name: &str, spec: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name, "annotations": annotations}, "spec": spec})
    };
    let from = |labels: Value| json!({"podSelector": {"matchLabels": labels}});
    let api = json!({"podSelector": {"matchLabels": {"app": "api"}}, "ingress": [
        {"from": [from(json!({"app": "web"}))], "ports": [{"port": 8080}, {"port": 9000, "endPort": 9010}]},
        {"from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}], "ports": [{"port": 443}]}]});
    let web = json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": [
        {"to": [from(json!({"app": "api"}))]}]});
    let mut state = ClusterState::new();
    let objects = [
        (Kind::Pod, pod("shop", "web", "10.0.0.1")),
        (Kind::Pod, pod("shop", "api", "10.0.0.2")),
        (Kind::Pod, pod("data", "db", "10.0.0.3")),
        (Kind::Pod, pod("ops", "agent", "10.0.0.4")),
        (Kind::NetworkPolicy, policy("api", api)),
        (Kind::NetworkPolicy, policy("web", web)),
    ];
    for (kind, object) in objects {
        state.apply(Change::Set(lower(kind, &object).unwrap()));
    }
    state
}

fn declared(state: &ClusterState) -> DeclaredEdges {
    let mut edges = Edges::new();
    edges.update(state, &policy::StateDelta::default(), &|pod| pod.name.name.clone(), &BTreeSet::new());
    DeclaredEdges::new(edges.snapshot(), edges.withheld())
}

const DECLARED: Declaration = Declaration::Declared { partial: false };

#[test]
fn edges_between_workloads_are_declared_by_both_sides() {
    let state = state();
    let edges = declared(&state);
    let said = |source: &str, destination: &str, port| {
        edges.declaration(&edge(pod(source), pod(destination), port, &[]), &state)
    };
    for (source, destination, port, expected) in [
        ("shop/web", "shop/api", Some(8080), DECLARED),
        ("shop/web", "shop/api", Some(9005), DECLARED),
        ("shop/web", "shop/api", Some(80), Declaration::Undeclared),
        ("shop/web", "shop/api", None, Declaration::Unknown),
        ("ops/agent", "shop/api", Some(8080), Declaration::Undeclared),
        ("shop/web", "data/db", Some(5432), Declaration::Undeclared),
        ("shop/api", "data/db", Some(5432), Declaration::NotGoverned),
    ] {
        assert_eq!(said(source, destination, port), expected, "{source} > {destination} : {port:?}");
    }
}

#[test]
fn address_that_may_have_domain_name_is_unknown() {
    let mut state = state();
    let https = json!([{"tcp": {"destinationPort": {"number": 443}}}]);
    let policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "names"},
        "spec": {
            "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [
                {"action": "Accept", "to": [{"domainNames": ["*.example.org"]}], "protocols": https},
                {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]},
            ],
        },
    });
    // An Accept rule decides for no pod of a namespace whose labels are unknown.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "data"}});
    for (kind, object) in [(Kind::Namespace, namespace), (Kind::ClusterNetworkPolicy, policy)] {
        state.apply(Change::Set(lower(kind, &object).unwrap()));
    }
    let edges = declared(&state);
    let said = |port| edges.declaration(&edge(pod("data/db"), world(), Some(port), &["198.51.100.1"]), &state);
    assert_eq!((said(443), said(80)), (Declaration::Unknown, Declaration::Undeclared));
}

#[test]
fn addresses_outside_are_declared_by_blocks() {
    let state = state();
    let edges = declared(&state);
    let said =
        |addresses: &[&str], port| edges.declaration(&edge(world(), pod("shop/api"), Some(port), addresses), &state);
    assert_eq!(said(&["192.0.2.1", "192.0.2.7"], 443), DECLARED);
    assert_eq!(said(&["192.0.2.1"], 444), Declaration::Undeclared);
    assert_eq!(said(&["192.0.2.1", "192.0.2.129"], 443), Declaration::Undeclared);
    assert_eq!(said(&[], 443), Declaration::Unknown);
    let seen = edge(world(), pod("data/db"), Some(1), &["192.0.2.1"]);
    assert_eq!(edges.declaration(&seen, &state), Declaration::NotGoverned);
}

#[test]
fn declarations_equal_explanations_of_pods() {
    let state = state();
    let edges = declared(&state);
    let pods: Vec<_> = state.pods().map(|pod| (pod.name.clone(), state.addresses_of(pod).next().unwrap())).collect();
    let mut found = BTreeSet::new();
    for (source, from) in &pods {
        for (destination, to) in pods.iter().filter(|(name, _)| name != source) {
            for port in [80, 443, 8080, 9000, 9010, 9011] {
                let traffic = Traffic::Port(Protocol::Tcp, port);
                let explained = policy::explain(&state, *from, *to, traffic);
                let declaration = edges.between(source, destination, traffic);
                assert_eq!(
                    explained.allowed,
                    declaration != Declaration::Undeclared,
                    "{source} > {destination} : {port}"
                );
                found.insert(format!("{declaration:?}"));
            }
        }
    }
    assert_eq!(found.len(), 3, "{found:?}");
}

fn ledger_of(edges: Vec<ObservedEdge>) -> EdgeLedger {
    crate::edge_ledger::testing::ledger_of(edges)
}

#[test]
fn unseen_edges_are_those_without_a_flow() {
    let state = state();
    let edges = declared(&state);
    let unseen = |seen: Vec<ObservedEdge>| {
        let found = edges.unseen(&ledger_of(seen), &state).into_iter();
        let spans = |ports: &FlowPorts| ports.spans().map_or(0, <[PortSpan]>::len);
        found.map(|edge| (format!("{:?}", edge.source), spans(&edge.ports))).collect::<Vec<_>>()
    };
    let none = unseen(vec![]);
    assert_eq!(none.iter().map(|(_, spans)| spans).sum::<usize>(), 3, "8080, 9000-9010, 443: {none:?}");
    let web = |port| edge(pod("shop/web"), pod("shop/api"), Some(port), &[]);
    assert_eq!(unseen(vec![web(9003)]).iter().map(|(_, spans)| spans).sum::<usize>(), 2);
    let outside = edge(world(), pod("shop/api"), Some(443), &["192.0.2.9"]);
    assert_eq!(unseen(vec![web(9003), web(8080), outside]), []);
}

#[test]
fn violation_is_undeclared_or_denied_last() {
    let seen = edge(pod("shop/web"), pod("shop/api"), Some(80), &[]);
    let mut ledger_edge = ledger_of(vec![seen]).edges().next().unwrap().clone();
    assert!(is_violation(&ledger_edge, Declaration::Undeclared));
    assert!(!is_violation(&ledger_edge, Declaration::NotGoverned) && !is_violation(&ledger_edge, DECLARED));
    ledger_edge.exempt = true;
    assert!(!is_violation(&ledger_edge, Declaration::Undeclared));
    ledger_edge.last_denied = Some(ledger_edge.observed.last);
    assert!(is_violation(&ledger_edge, DECLARED));
}

/// By their own annotation, or by the default of the agents.
#[test]
fn audited_policies_declare_as_enforced_ones_do() {
    let audited_by_annotation = state_with(&json!({"ringfence.io/enforcement": "audit"}));
    let mut audited_by_default = state();
    audited_by_default.set_default_enforcement(Enforcement::Audit);
    for state in [audited_by_annotation, audited_by_default] {
        assert!(state.policies().all(|policy| state.enforcement(policy) == Enforcement::Audit));
        let edges = declared(&state);
        let judged = |source: Endpoint, destination: Endpoint, port, outside: &[&str]| {
            let seen = edge(source, destination, Some(port), outside);
            let declaration = edges.declaration(&seen, &state);
            let ledger = ledger_of(vec![seen]);
            (declaration.is_declared(), is_violation(ledger.edges().next().unwrap(), declaration))
        };
        for (source, destination, port, expected) in [
            ("shop/web", "shop/api", 8080, (Some(true), false)),
            ("shop/web", "shop/api", 80, (Some(false), true)),
            ("ops/agent", "shop/api", 8080, (Some(false), true)),
            ("shop/web", "data/db", 5432, (Some(false), true)),
            ("shop/api", "data/db", 5432, (Some(false), false)),
        ] {
            assert_eq!(judged(pod(source), pod(destination), port, &[]), expected, "{source} > {destination} : {port}");
        }
        assert_eq!(judged(world(), pod("shop/api"), 443, &["192.0.2.1"]), (Some(true), false));
        assert_eq!(judged(world(), pod("shop/api"), 443, &["198.51.100.1"]), (Some(false), true));
        let unseen = edges.unseen(&ledger_of(vec![]), &state);
        assert_eq!(unseen.len(), declared(&self::state()).unseen(&ledger_of(vec![]), &state).len());
    }
}
