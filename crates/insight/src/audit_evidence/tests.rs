use flow::{Connections, EndSample, EndpointKind, FlowKey, FlowRecord, PolicyHit, SeenBy, TraceVerdict, Verdict};
use policy::{Change, Kind, lower};
use serde_json::json;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_777_896_000 + seconds).unwrap()
}

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

fn record(seconds: i64) -> ClusterRecord {
    let end = |name: &str| Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some("shop".into()),
        name: Some(name.into()),
        service: None,
        cluster: None,
        network: None,
    };
    let side = |pending: Vec<PolicyHit>| SideTrace {
        verdict: TraceVerdict::WouldDeny,
        enforced_here: true,
        enforced: vec![],
        pending,
        passed_by: vec![],
    };
    let of_cluster = PolicyHit { kind: "ClusterNetworkPolicy".into(), ..PolicyHit::isolation("", "tenants") };
    let hits = vec![PolicyHit::isolation("shop", "api"), of_cluster];
    let key = FlowKey {
        source: end("web"),
        destination: end("api"),
        protocol: 6,
        port: Some(81),
        icmp_type: None,
        service: None,
        verdict: Verdict::WouldDeny,
        drop_cause: None,
        egress: side(vec![PolicyHit::isolation("shop", "api")]),
        ingress: side(hits),
    };
    let record = FlowRecord {
        window: at(seconds - seconds.rem_euclid(15)),
        node: "n1".into(),
        key: Arc::new(key),
        sources: Arc::new(EndSample { pods: ["shop/web-1".into()].into(), ..EndSample::default() }),
        destinations: Arc::default(),
        connections: Connections { started: 2, ..Connections::default() },
        sent: None,
        received: None,
        unknown_volume: 0,
        denied_packets: 3,
        generation: None,
        first: at(seconds),
        last: at(seconds),
    };
    ClusterRecord { record, source_verdict: None, destination_verdict: None, seen_by: SeenBy::default().into() }
}

fn names(evidence: &AuditEvidence) -> Vec<(String, i64, u64)> {
    let since = |evidence: &PolicyEvidence| evidence.since.as_second() - at(0).as_second();
    evidence.policies().map(|(policy, of)| (policy.to_string(), since(of), of.records)).collect()
}

#[test]
fn flow_that_both_sides_would_deny_counts_once() {
    let mut evidence = AuditEvidence::default();
    evidence.follow(&state(80, "audit"), at(0));
    evidence.add(&record(30));
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
    evidence.follow(&state(80, "audit"), at(0));
    evidence.add(&record(30));
    let text = serde_json::to_string(&evidence.save()).unwrap();
    evidence = AuditEvidence::restore(serde_json::from_str(&text).unwrap());
    evidence.follow(&state(80, "audit"), at(60));
    assert_eq!(names(&evidence)[1], ("shop/api".to_owned(), 0, 1));
    evidence.follow(&state(81, "audit"), at(60));
    evidence.add(&record(45));
    assert_eq!(names(&evidence)[1], ("shop/api".to_owned(), 60, 0), "a record of the earlier rules");
    evidence.follow(&state(81, "enforce"), at(90));
    assert_eq!(names(&evidence), []);
}
