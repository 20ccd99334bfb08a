use policy::{Change, Kind, lower};
use serde_json::json;

use super::*;
use crate::testing::{at, would_deny};

fn state(port: u16, mode: &str) -> ClusterState {
    let mut state = ClusterState::new();
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "api", "annotations": {"ringfence.io/enforcement": mode}},
        "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]}});
    let tenants = json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "tenants", "annotations": {"ringfence.io/enforcement": mode}},
        "spec": {"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}, "ingress": []}});
    for (kind, object) in [(Kind::NetworkPolicy, policy), (Kind::ClusterNetworkPolicy, tenants)] {
        state.apply(Change::Set(lower(kind, &object).unwrap()));
    }
    state
}

fn names(evidence: &AuditEvidence) -> Vec<(String, i64, u64)> {
    let since = |evidence: &PolicyEvidence| evidence.since.as_second() - at(0).as_second();
    evidence.policies().map(|(policy, of)| (policy.to_string(), since(of), of.records)).collect()
}

#[test]
fn flow_that_both_sides_would_deny_counts_once() {
    let mut evidence = AuditEvidence::default();
    evidence.update(&state(80, "audit"), at(0));
    evidence.add(&would_deny("n1", 30));
    let tenants = ("ClusterNetworkPolicy tenants".to_owned(), 0, 1);
    assert_eq!(names(&evidence), [tenants, ("shop/api".to_owned(), 0, 1)]);
    let (_, api) = evidence.policies().last().unwrap();
    assert_eq!((api.connections, api.packets), (2, 3));
    let last = api.last.as_ref().unwrap();
    assert_eq!((last.at, last.port, &*last.source_pods), (at(30), Some(81), &["shop/web-1".into()][..]));
}

#[test]
fn evidence_starts_anew_with_other_rules() {
    let mut evidence = AuditEvidence::default();
    evidence.update(&state(80, "audit"), at(0));
    evidence.add(&would_deny("n1", 30));
    let text = serde_json::to_string(&evidence.save()).unwrap();
    evidence = AuditEvidence::restore(serde_json::from_str(&text).unwrap());
    evidence.update(&state(80, "audit"), at(60));
    assert_eq!(names(&evidence)[1], ("shop/api".to_owned(), 0, 1));
    evidence.update(&state(81, "audit"), at(60));
    evidence.add(&would_deny("n1", 45));
    assert_eq!(names(&evidence)[1], ("shop/api".to_owned(), 60, 0), "a record of the earlier rules");
    evidence.update(&state(81, "enforce"), at(90));
    assert_eq!(names(&evidence), []);
}
