use kit::oracle::{Remote, RemoteSet};

use super::*;

const PREFIX: &str = "semaphore.uw.systems";

/// The pod `api` of the namespace `back` in the cluster `east`.
const REMOTE: &str = "10.9.0.1";

fn connected(policies: impl IntoIterator<Item = Value>) -> World {
    let set = |name: &str, addresses: &[&str]| RemoteSet {
        cluster: "east".into(),
        namespace: "back".into(),
        name: name.into(),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
    };
    let prefixes = vec![PREFIX.into(), "policy.semaphore.uw.io".into()];
    let sets = vec![set("api", &[REMOTE, "fd00:9::1", CACHE]), set("web", &["10.9.0.2"])];
    World { remote: Some(Remote { prefixes, sets }), ..world(policies) }
}

fn by_labels(prefix: &str, labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| (format!("{prefix}/{key}"), (*value).into())).collect();
    json!({"matchLabels": labels})
}

fn by_expression(key: &str, operator: &str, values: Value) -> Value {
    json!({"matchExpressions": [{"key": format!("{PREFIX}/{key}"), "operator": operator, "values": values}]})
}

/// Whether a peer with this namespaceSelector admits the remote pods `api` and `web`.
fn lets_in(peer: &Value) -> [bool; 2] {
    let world = connected([ingress(json!([{"from": [peer]}]))]);
    [REMOTE, "10.9.0.2"].map(|source| from(&world, source) == Allowed)
}

#[test]
fn remote_pods_match_by_labels_of_their_set() {
    let api = by_labels(PREFIX, &[("name", "api")]);
    let east_back = by_labels(PREFIX, &[("cluster", "east"), ("namespace", "back")]);
    assert_eq!(lets_in(&json!({"namespaceSelector": east_back, "podSelector": api})), [true, false]);
    assert_eq!(lets_in(&json!({"namespaceSelector": east_back})), [true, true]);
    assert_eq!(lets_in(&json!({"namespaceSelector": east_back, "podSelector": {}})), [true, true]);
    let all_three = by_labels(PREFIX, &[("cluster", "east"), ("namespace", "back"), ("name", "web")]);
    assert_eq!(lets_in(&json!({"namespaceSelector": east_back, "podSelector": all_three})), [false, true]);
    assert_eq!(lets_in(&json!({"namespaceSelector": all_three})), [false, false]);
    let newer = by_labels("policy.semaphore.uw.io", &[("cluster", "east")]);
    assert_eq!(lets_in(&json!({"namespaceSelector": newer, "podSelector": api})), [true, false]);
    assert_eq!(
        lets_in(&json!({"namespaceSelector": by_labels("example.com", &[("cluster", "east")])})),
        [false, false]
    );
}

#[test]
fn remote_pods_match_only_selectors_requiring_cluster_label() {
    for (selector, reaches) in [
        (by_labels(PREFIX, &[("cluster", "east")]), true),
        (by_expression("cluster", "In", json!(["west", "east"])), true),
        (by_expression("cluster", "Exists", json!([])), true),
        (by_expression("cluster", "In", json!(["west"])), false),
        (by_expression("cluster", "NotIn", json!(["west"])), false),
        (by_expression("cluster", "DoesNotExist", json!([])), false),
        (by_expression("namespace", "Exists", json!([])), false),
        (by_labels(PREFIX, &[("namespace", "back")]), false),
        (json!({}), false),
        (json!({"matchLabels": {"kubernetes.io/metadata.name": "back"}}), false),
    ] {
        assert_eq!(lets_in(&json!({"namespaceSelector": selector})), [reaches, reaches], "{selector}");
    }
    let api = by_labels(PREFIX, &[("name", "api"), ("cluster", "east")]);
    assert_eq!(lets_in(&json!({"podSelector": api})), [false, false]);
    let east = by_labels(PREFIX, &[("cluster", "east")]);
    assert_eq!(lets_in(&json!({"namespaceSelector": east, "podSelector": {"matchNames": []}})), [false, false]);
}

#[test]
fn local_pod_address_overrides_remote_set() {
    let east = by_labels(PREFIX, &[("cluster", "east")]);
    let mut world = connected([ingress(json!([{"from": [{"namespaceSelector": east}]}]))]);
    assert_eq!([from(&world, CACHE), from(&world, REMOTE)], [Denied, Allowed]);
    world.pods.retain(|pod| pod.metadata.name.as_deref() != Some("cache"));
    assert_eq!(from(&world, CACHE), Allowed);
}

#[test]
fn remote_pod_matches_in_both_families() {
    let east = by_labels(PREFIX, &[("cluster", "east")]);
    let world = connected([ingress(json!([{"from": [{"namespaceSelector": east}]}]))]);
    let v6 = |source: &str| judge_flow(&world, source, "fd00::1", TCP, 80).ingress;
    assert_eq!([v6("fd00:9::1"), v6("fd00:9::2"), from(&world, "10.9.0.3")], [Allowed, Denied, Denied]);
}

#[test]
fn named_port_does_not_resolve_on_remote_pod() {
    let east = by_labels(PREFIX, &[("cluster", "east")]);
    let rule = |ports: Value| egress(json!([{"to": [{"namespaceSelector": east}], "ports": ports}]));
    assert_eq!(to(&connected([rule(json!([{"port": "http"}]))]), REMOTE), Denied);
    assert_eq!(to(&connected([rule(json!([{"port": 80}]))]), REMOTE), Allowed);
}
