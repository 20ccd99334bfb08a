use super::*;

// Semantics 15.

#[test]
fn invalid_selector_matches_nothing_and_other_peers_apply() {
    for selector in [
        json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["d*"]}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": []}]}),
        json!({"matchExpressions": [{"key": "none", "operator": "NotIn"}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["db"]}]}),
        json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist", "values": ["db"]}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "Exists", "weight": 1}]}),
        json!({"matchExpressions": [{"operator": "Exists"}]}),
        json!({"matchExpressions": {}}),
        json!({"matchLabels": {"app": 1}}),
        json!({"matchLabels": []}),
        json!({"matchFields": []}),
        json!("app=db"),
    ] {
        let cache = json!({"podSelector": {"matchLabels": {"app": "cache"}}});
        assert_sources(json!([{"from": [{"podSelector": selector}, cache]}]), &[CACHE], &[DB]);
        assert_sources(json!([{"from": [{"namespaceSelector": selector}]}]), &[], &[CACHE, DB, OTHER]);
        // As the policy's own selector, it selects everything and allows nothing.
        let types = json!(["Ingress"]);
        let spec = json!({"podSelector": selector, "policyTypes": types, "ingress": [{}], "egress": [{}]});
        assert_eq!(both_sides(policy(spec)), [Denied, NotIsolated]);
    }
}

#[test]
fn invalid_peer_matches_nothing_and_others_apply() {
    for peer in [
        json!({}),
        json!("all"),
        json!({"nodeSelector": {}}),
        json!({"podSelector": {}, "nodeSelector": {}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/33"}}),
        json!({"ipBlock": {"cidr": "10.0.0.0"}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/+8"}}),
        json!({"ipBlock": {}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["1.2.3.4"]}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": "10.0.0.1/32"}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "port": 80}}),
    ] {
        let cache = json!({"podSelector": {"matchLabels": {"app": "cache"}}});
        assert_sources(json!([{"from": [peer, cache]}]), &[CACHE], &[DB]);
    }
}

#[test]
fn invalid_port_matches_nothing_and_others_apply() {
    for port in [
        json!(80),
        json!({"protocol": "tcp"}),
        json!({"protocol": "ICMP"}),
        json!({"protocol": 6}),
        json!({"port": 0}),
        json!({"port": 65536}),
        json!({"port": 80.0}),
        json!({"port": [80]}),
        json!({"endPort": 80}),
        json!({"port": "http", "endPort": 9000}),
        json!({"port": 80, "endPort": 79}),
        json!({"port": 80, "endPort": 65536}),
        json!({"port": 80, "name": "http"}),
    ] {
        assert_ports(json!([port, {"port": 443}]), &[(TCP, 443)], &[(TCP, 80), (UDP, 80), (TCP, 8080)]);
    }
}

#[test]
fn invalid_rule_allows_nothing_and_others_apply() {
    for rule in [
        json!("all"),
        json!([]),
        json!({"to": [{"podSelector": {}}]}),
        json!({"icmps": []}),
        json!({"from": {}}),
        json!({"from": "all"}),
        json!({"ports": 80}),
        json!({"ports": {"port": 80}}),
    ] {
        let from_cache = json!({"from": [{"podSelector": {"matchLabels": {"app": "cache"}}}]});
        assert_sources(json!([rule, from_cache]), &[CACHE], &[DB]);
    }
    let peers_of_ingress = egress(json!([{"from": [{"podSelector": {}}]}]));
    assert_eq!(to(&world([peers_of_ingress]), CACHE), Denied);
}

#[test]
fn policy_with_unknown_field_isolates_and_allows_nothing() {
    let open =
        || policy(json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": [{}]}));
    let damaged = |damage: fn(&mut Value)| {
        let mut policy = open();
        damage(&mut policy);
        both_sides(policy)
    };
    assert_eq!(damaged(|_| ()), [NotIsolated, Allowed]);
    assert_eq!(damaged(|policy| policy["spec"]["priority"] = 1.into()), [NotIsolated, Denied]);
    assert_eq!(damaged(|policy| policy["action"] = "Allow".into()), [NotIsolated, Denied]);
    assert_eq!(damaged(|policy| policy["apiVersion"] = "networking.k8s.io/v2".into()), [NotIsolated, Denied]);
    assert_eq!(damaged(|policy| policy["spec"]["egress"] = json!({})), [NotIsolated, Denied]);
    assert_eq!(damaged(|policy| policy["spec"] = Value::Null), [Denied, Denied]);
    assert_eq!(damaged(|policy| policy["spec"] = "open".into()), [Denied, Denied]);
    let without_types = policy(json!({"egress": {}}));
    assert_eq!(both_sides(without_types), [Denied, Denied]);
}

#[test]
fn fields_without_meaning_are_ignored() {
    let mut open = egress(json!([{}]));
    open["metadata"]["unheard"] = "of".into();
    open["status"] = json!({"conditions": 7});
    open["spec"]["priority"] = Value::Null;
    assert_eq!(both_sides(open), [NotIsolated, Allowed]);
}

#[test]
fn unknown_policy_type_isolates_in_both_directions() {
    let of = |types: Value| both_sides(policy(json!({"policyTypes": types, "ingress": [{}], "egress": [{}]})));
    assert_eq!(of(json!(["Forward"])), [Denied, Denied]);
    assert_eq!(of(json!(["Ingress", "Forward"])), [Allowed, Denied]);
    assert_eq!(of(json!(["Forward", "Egress"])), [Denied, Allowed]);
}
