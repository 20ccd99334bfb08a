use super::*;

// Section 1 of docs/semantics.md.

#[test]
fn absent_policy_types_isolate_egress_only_with_rules() {
    for types in [Value::Null, json!([])] {
        let of = |more: Value| {
            let mut spec = json!({"podSelector": {}, "policyTypes": types});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            both_sides(policy(spec))
        };
        assert_eq!(of(json!({})), [Denied, NotIsolated]);
        assert_eq!(of(json!({"egress": []})), [Denied, NotIsolated]);
        assert_eq!(of(json!({"egress": null})), [Denied, NotIsolated]);
        assert_eq!(of(json!({"egress": [{}]})), [Denied, Allowed]);
        assert_eq!(of(json!({"egress": [{"to": [{}]}], "ingress": [{}]})), [Allowed, Denied]);
    }
}

#[test]
fn policy_types_override_the_presence_of_rules() {
    let rules = |types: Value| json!({"podSelector": {}, "policyTypes": types, "ingress": [{}], "egress": [{}]});
    assert_eq!(both_sides(policy(rules(json!(["Ingress"])))), [Allowed, NotIsolated]);
    assert_eq!(both_sides(policy(rules(json!(["Egress"])))), [NotIsolated, Allowed]);
    assert_eq!(both_sides(policy(json!({"podSelector": {}, "policyTypes": ["Egress"]}))), [NotIsolated, Denied]);
}

// Section 2 of docs/semantics.md.

#[test]
fn connection_needs_egress_and_ingress_allowed() {
    let to_cache = json!([{"to": [{"podSelector": {"matchLabels": {"app": "cache"}}}]}]);
    let deny_cache = policy(json!({"podSelector": {"matchLabels": {"app": "cache"}}}));
    let judgement = judge_flow(&world([egress(to_cache), deny_cache]), WEB, CACHE, TCP, 80);
    assert_eq!(judgement, Judgement { egress: Allowed, ingress: Denied, itself: false });
    assert!(!judgement.passes());
}

#[test]
fn allowed_flows_are_the_union_of_selecting_policies() {
    let by = |app: &str| ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]));
    let world = world([by("cache"), by("db"), ingress(json!([]))]);
    assert_eq!([CACHE, DB, OTHER].map(|source| from(&world, source)), [Allowed, Allowed, Denied]);
}

#[test]
fn policy_selects_pods_of_own_namespace_only() {
    let deny_all = policy(json!({"podSelector": {}}));
    assert_eq!(judge_flow(&world([deny_all]), OUTSIDE, OTHER, TCP, 80).ingress, NotIsolated);
}

#[test]
fn policy_applies_in_namespace_without_an_object() {
    let mut deny = policy(json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}));
    deny["metadata"]["namespace"] = "ghost".into();
    let mut world = world([deny]);
    world.pods.push(pod("friend", json!({"namespace": "ghost"}), json!({}), json!({"podIP": "10.0.0.9"})));
    let probe = |source: &str| Probe {
        source: source.parse().unwrap(),
        destination: GHOST.parse().unwrap(),
        protocol: TCP,
        port: Some(80),
    };
    assert_eq!(judge(&world, "there", &probe("10.0.0.9")).ingress, Allowed);
    assert_eq!(judge(&world, "there", &probe(WEB)).ingress, Denied);
}

#[test]
fn node_judges_only_sides_of_local_pods() {
    let world = world([policy(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))]);
    assert_eq!(judge_flow(&world, DB, WEB, TCP, 80), Judgement { egress: NotLocal, ingress: Denied, itself: false });
    assert_eq!(judge_flow(&world, WEB, DB, TCP, 80), Judgement { egress: Denied, ingress: NotLocal, itself: false });
    assert_eq!(judge_flow(&world, WEB, CACHE, TCP, 80), Judgement { egress: Denied, ingress: Denied, itself: false });
    assert!(judge_flow(&world, DB, OUTSIDE, TCP, 80).passes());
}

// Section 3 of docs/semantics.md.

#[test]
fn empty_ingress_denies_and_empty_rule_allows_all() {
    let all = [CACHE, DB, OTHER, GHOST, OUTSIDE];
    assert_sources(json!([]), &[], &all);
    assert_sources(Value::Null, &[], &all);
    assert_sources(json!([{}]), &all, &[]);
    assert_sources(json!([{"from": []}]), &all, &[]);
    assert_sources(json!([{"from": null, "ports": null}]), &all, &[]);
}

#[test]
fn rule_without_ports_allows_every_port_and_protocol() {
    for rule in [json!({}), json!({"ports": []}), json!({"ports": null})] {
        let world = world([ingress(json!([rule]))]);
        for (protocol, port) in [(TCP, Some(1)), (UDP, Some(65535)), (SCTP, Some(80)), (1, None), (47, None)] {
            assert_eq!(judge_flow(&world, OUTSIDE, WEB, protocol, port).ingress, Allowed);
        }
    }
}
