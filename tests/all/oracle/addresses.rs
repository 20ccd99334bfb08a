use kit::oracle::owner;

use super::*;

fn owner_of(pods: impl IntoIterator<Item = k8s_openapi::api::core::v1::Pod>) -> Option<String> {
    let world = World { pods: pods.into_iter().collect(), ..World::default() };
    owner(&world, "10.0.0.9".parse().unwrap()).and_then(|pod| pod.metadata.name.clone())
}

// Semantics 5.

#[test]
fn finished_pods_lose_addresses_and_terminating_keep_them() {
    for (phase, expected) in [("Succeeded", None), ("Failed", None), ("Pending", Some("a")), ("Unknown", Some("a"))] {
        assert_eq!(owner_of([pod("a", json!({}), json!({}), json!({"phase": phase}))]).as_deref(), expected);
    }
    let terminating = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(owner_of([pod("a", terminating, json!({}), json!({}))]).as_deref(), Some("a"));
}

#[test]
fn newest_live_pod_wins_a_duplicate_address() {
    let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"];
    let metadata = |value: Value| pod("a", value, json!({}), json!({"startTime": early}));
    let rivals = [
        ("not deleted", metadata(json!({"deletionTimestamp": late})), json!({"uid": "0"}), Value::Null),
        ("started later", metadata(json!({"creationTimestamp": late})), json!({"uid": "0"}), json!(late)),
        (
            "created later",
            metadata(json!({"creationTimestamp": early})),
            json!({"creationTimestamp": late}),
            json!(early),
        ),
        ("created at all", metadata(json!({})), json!({"creationTimestamp": early, "uid": "0"}), json!(early)),
        ("of greater uid", metadata(json!({"uid": "1"})), json!({"uid": "2", "name": "Z"}), json!(early)),
        ("of greater name", metadata(json!({"uid": null})), json!({"uid": null}), json!(early)),
        (
            "of greater namespace",
            metadata(json!({"uid": null})),
            json!({"uid": null, "namespace": "z", "name": "A"}),
            json!(early),
        ),
    ];
    for (reason, loser, winner, started) in rivals {
        let winner = pod("b", winner, json!({}), json!({"startTime": started}));
        let expected = winner.metadata.name.clone();
        assert_eq!(owner_of([loser.clone(), winner.clone()]), expected, "{reason}");
        assert_eq!(owner_of([winner, loser]), expected, "{reason}");
    }
    let [none, some] = [json!({}), json!({"startTime": early})].map(|status| pod("x", json!({}), json!({}), status));
    let some = {
        let mut some = some;
        some.metadata.name = Some("started".into());
        some
    };
    assert_eq!(owner_of([some, none]).as_deref(), Some("started"));
}

#[test]
fn address_loser_is_neither_isolated_nor_peer() {
    let mut world = world([ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": "old"}}}]}]))]);
    let started = json!({"podIP": "10.0.0.9", "startTime": "2026-01-01T00:00:00Z"});
    world.pods.push(pod("old", json!({"labels": {"app": "old"}}), json!({}), json!({})));
    assert_eq!(from(&world, "10.0.0.9"), Allowed);
    world.pods.push(pod("new", json!({"labels": {"app": "new"}}), json!({"nodeName": "there"}), started));
    assert_eq!(from(&world, "10.0.0.9"), Denied);
    assert_eq!(judge_flow(&world, "10.0.0.9", OUTSIDE, TCP, 80).egress, NotLocal);
}

// Semantics 6.

#[test]
fn host_network_pods_are_neither_selected_nor_peers() {
    let deny_all = policy(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}}]}]}));
    let mut world = world([deny_all]);
    world.pods.push(pod("agent", json!({}), json!({"hostNetwork": true}), json!({})));
    assert_eq!(judge_flow(&world, OUTSIDE, "10.0.0.9", TCP, 80).ingress, NotLocal);
    assert_eq!(from(&world, "10.0.0.9"), Denied);
    assert_eq!(from(&world, CACHE), Allowed);
}

// Semantics 7.

#[test]
fn both_families_of_a_pod_are_policed_alike() {
    let world = world([ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]))]);
    assert_eq!(judge_flow(&world, "fd00::3", "fd00::1", TCP, 80).ingress, Allowed);
    assert_eq!(judge_flow(&world, "fd00::2", "fd00::1", TCP, 80).ingress, Denied);
}

// Semantics 8.

#[test]
fn a_pod_always_reaches_itself() {
    let world = world([policy(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))]);
    let judgement = judge_flow(&world, WEB, WEB, TCP, 80);
    assert_eq!(judgement, Judgement { egress: Allowed, ingress: Allowed, itself: true });
    assert!(judgement.passes());
    assert!(!judge_flow(&world, OUTSIDE, OUTSIDE, TCP, 80).itself);
}
