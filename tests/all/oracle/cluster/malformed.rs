use super::*;

/// The verdicts of a rule of each action, placed before a rule that passes everything: for the destination that the
/// rule names, and for another destination.
fn verdicts(rule: &Value) -> [[Side; 2]; 3] {
    ["Accept", "Deny", "Pass"].map(|action| {
        let mut rule = rule.clone();
        rule["action"] = action.into();
        let world = cluster([], [admin_egress(json!([rule]))]);
        [to(&world, CACHE), to(&world, OUTSIDE)]
    })
}

/// Accept matches nothing, Deny and Pass deny everything.
const CLOSED: [[Side; 2]; 3] = [[NotIsolated; 2], [Denied; 2], [Denied; 2]];

#[test]
fn valid_rule_has_its_action() {
    let expected = [[Allowed, NotIsolated], [Denied, NotIsolated], [NotIsolated, NotIsolated]];
    assert_eq!(verdicts(&json!({"to": [{"namespaces": {}}]})), expected);
    assert_eq!(verdicts(&json!({"to": [{"namespaces": {}, "pods": null}], "name": "x", "from": null})), expected);
}

#[test]
fn invalid_peer_fails_closed() {
    for peer in [
        json!({}),
        json!("all"),
        json!([]),
        json!({"serviceAccounts": {}}),
        json!({"namespaces": {}, "pods": {"podSelector": {}}}),
        json!({"namespaces": {}, "networks": ["10.0.0.0/8"]}),
        json!({"namespaces": {}, "tenants": {}}),
        json!({"nodes": {}, "networks": ["10.0.0.0/8"]}),
        json!({"namespaces": {"matchExpressions": [{"key": "team", "operator": "Like", "values": ["a"]}]}}),
        json!({"namespaces": "shop"}),
        json!({"pods": {}}),
        json!({"pods": {"namespaceSelector": {}}}),
        json!({"pods": {"podSelector": {}, "nodeSelector": {}}}),
        json!({"pods": {"podSelector": {"matchLabels": {"app": 7}}}}),
        json!({"nodes": {"matchFields": []}}),
        json!({"networks": []}),
        json!({"networks": "10.0.0.0/8"}),
        json!({"networks": ["10.0.0.0/8", "10.0.0.1"]}),
        json!({"networks": ["10.0.0.0/33"]}),
        json!({"networks": ["::ffff:10.0.0.0/104"]}),
        json!({"domainNames": ["example"]}),
        json!({"domainNames": ["www.*.org"]}),
        json!({"domainNames": []}),
        json!({"domainNames": ["example.org"], "networks": ["10.0.0.0/8"]}),
    ] {
        assert_eq!(verdicts(&json!({"to": [{"namespaces": {}}, peer]})), CLOSED, "{peer}");
    }
    // Sources are pods only.
    for peer in [json!({"nodes": {}}), json!({"networks": ["10.0.0.0/8"]})] {
        let denied = cluster([], [admin_ingress(json!([{"action": "Deny", "from": [peer]}]))]);
        assert_eq!(from(&denied, OUTSIDE), Denied);
        let accepted = cluster([], [admin_ingress(json!([{"action": "Accept", "from": [peer]}]))]);
        assert_eq!(from(&accepted, CACHE), NotIsolated);
    }
}

#[test]
fn missing_peers_fail_closed() {
    for rule in [json!({}), json!({"to": []}), json!({"to": null}), json!({"to": {}}), json!({"to": "all"})] {
        assert_eq!(verdicts(&rule), CLOSED, "{rule}");
    }
}

#[test]
fn invalid_rule_fails_closed() {
    for more in [json!({"from": []}), json!({"ports": []}), json!({"name": 7}), json!({"protocols": "tcp"})] {
        let mut rule = json!({"to": [{"namespaces": {}}]});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(verdicts(&rule), CLOSED, "{rule}");
    }
}

#[test]
fn invalid_protocol_matches_nothing_or_denies_everything() {
    for entry in [
        json!({}),
        json!(80),
        json!({"tcp": {}}),
        json!({"tcp": {"destinationPort": {}}}),
        json!({"tcp": {"destinationPort": 80}}),
        json!({"tcp": {"destinationPort": {"number": 0}}}),
        json!({"tcp": {"destinationPort": {"number": 65536}}}),
        json!({"tcp": {"destinationPort": {"number": "80"}}}),
        json!({"tcp": {"destinationPort": {"number": 80, "range": {"start": 1, "end": 100}}}}),
        json!({"tcp": {"destinationPort": {"range": {"start": 80}}}}),
        json!({"tcp": {"destinationPort": {"range": {"start": 80, "end": 80}}}}),
        json!({"tcp": {"destinationPort": {"range": {"start": 81, "end": 80}}}}),
        json!({"tcp": {"destinationPort": {"number": 80}, "sourcePort": {"number": 1}}}),
        json!({"tcp": {"destinationPort": {"number": 80}}, "udp": {"destinationPort": {"number": 80}}}),
        json!({"icmp": {}}),
        json!({"destinationNamedPort": ""}),
        json!({"destinationNamedPort": 80}),
    ] {
        let rule = json!({"to": [{"namespaces": {}}], "protocols": [entry]});
        assert_eq!(verdicts(&rule), CLOSED, "{entry}");
        let valid = json!({"tcp": {"destinationPort": {"number": 80}}});
        let beside = json!({"to": [{"namespaces": {}}], "protocols": [entry, valid]});
        assert_eq!(verdicts(&beside), [[Allowed, NotIsolated], [Denied; 2], [Denied; 2]], "{entry}");
    }
    assert_eq!(verdicts(&json!({"to": [{"namespaces": {}}], "protocols": []})), CLOSED);
}

#[test]
fn unknown_action_denies_everything() {
    for rule in [
        json!({"action": "Allow", "to": [{"namespaces": {}}]}),
        json!({"action": "accept", "to": [{"namespaces": {}}]}),
        json!({"action": 1}),
        json!({"to": [{"namespaces": {}}]}),
        json!("Accept"),
        json!([]),
    ] {
        let rules = json!([about("Accept", "to", "db"), rule, everyone("Accept", "to")]);
        let world = cluster([], [admin_egress(rules)]);
        assert_eq!([DB, CACHE, OUTSIDE].map(|destination| to(&world, destination)), [Allowed, Denied, Denied]);
    }
}

/// The egress verdicts under a damaged policy, for each action of its rule: from `web` to `cache` and outside, and from
/// `other/web`, which the policy does not select, to `cache`.
fn damaged(damage: fn(&mut Value)) -> [[Side; 3]; 3] {
    ["Accept", "Deny", "Pass"].map(|action| {
        let mut policy = cluster_policy("policy", "Baseline", 10, json!({"egress": [everyone(action, "to")]}));
        damage(&mut policy);
        let world = cluster([], [policy]);
        [to(&world, CACHE), to(&world, OUTSIDE), judge_flow(&world, OTHER, CACHE, TCP, 80).egress]
    })
}

#[test]
fn policy_with_unknown_part_fails_closed() {
    let closed = [[NotIsolated; 3], [Denied, Denied, NotIsolated], [Denied, Denied, NotIsolated]];
    let damages: [fn(&mut Value); 6] = [
        |policy| policy["spec"]["scope"] = "Node".into(),
        |policy| policy["spec"]["tier"] = "Platform".into(),
        |policy| policy["spec"]["tier"] = Value::Null,
        |policy| policy["apiVersion"] = "policy.networking.k8s.io/v1alpha1".into(),
        |policy| policy["apiVersion"] = Value::Null,
        |policy| policy["defaultAction"] = "Accept".into(),
    ];
    for damage in damages {
        assert_eq!(damaged(damage), closed);
    }
    let open = damaged(|policy| policy["status"] = json!({"conditions": 7}));
    assert_eq!(open, [[Allowed, NotIsolated, NotIsolated], [Denied, NotIsolated, NotIsolated], [NotIsolated; 3]]);
}

#[test]
fn unknown_tier_is_admin() {
    let mut policy = cluster_policy("policy", "Platform", 10, json!({"egress": [everyone("Deny", "to")]}));
    let world = |policy: &Value| cluster([egress(json!([{}]))], [policy.clone()]);
    assert_eq!(decided(&world(&policy), DB), (Denied, rule(PolicyTier::Admin, 0, 0)));
    policy["spec"]["tier"] = "Baseline".into();
    assert_eq!(decided(&world(&policy), DB), (Allowed, Decider::NetworkPolicy));
}

#[test]
fn unreadable_priority_denies_everything_first() {
    let damages: [fn(&mut Value); 4] = [
        |policy| policy["spec"]["priority"] = Value::Null,
        |policy| policy["spec"]["priority"] = 1001.into(),
        |policy| policy["spec"]["priority"] = (-1).into(),
        |policy| policy["spec"]["priority"] = "5".into(),
    ];
    for damage in damages {
        assert_eq!(damaged(damage), [[Denied, Denied, NotIsolated]; 3]);
    }
    let mut unreadable = cluster_policy("z", "Admin", 1, json!({"egress": [everyone("Accept", "to")]}));
    unreadable["spec"]["priority"] = "first".into();
    let accept = |priority| cluster_policy("a", "Admin", priority, json!({"egress": [everyone("Accept", "to")]}));
    assert_eq!(to(&cluster([], [unreadable.clone(), accept(1)]), DB), Denied);
    assert_eq!(to(&cluster([], [unreadable, accept(0)]), DB), Allowed);
}

#[test]
fn unreadable_subject_is_every_pod() {
    let damages: [fn(&mut Value); 6] = [
        |policy| policy["spec"]["subject"] = Value::Null,
        |policy| policy["spec"]["subject"] = json!({}),
        |policy| policy["spec"]["subject"] = json!({"namespaces": {}, "pods": {"podSelector": {}}}),
        |policy| policy["spec"]["subject"] = json!({"nodes": {}}),
        |policy| policy["spec"]["subject"] = json!({"pods": {"namespaceSelector": {}}}),
        |policy| policy["spec"]["subject"] = json!({"namespaces": {"matchLabels": []}}),
    ];
    for damage in damages {
        assert_eq!(damaged(damage), [[Denied; 3]; 3]);
        let mut policy = admin_ingress(json!([everyone("Accept", "from")]));
        damage(&mut policy);
        let world = cluster([], [policy]);
        assert_eq!([to(&world, DB), from(&world, DB)], [NotIsolated, Denied], "a direction without rules");
    }
}

#[test]
fn unreadable_spec_denies_everything() {
    for spec in [Value::Null, json!("deny"), json!([])] {
        let mut policy = admin_egress(json!([]));
        policy["spec"] = spec;
        let world = cluster([], [policy]);
        assert_eq!([to(&world, DB), from(&world, DB), from(&world, OUTSIDE)], [Denied; 3]);
        assert_eq!(judge_flow(&world, OTHER, CACHE, TCP, 80).egress, Denied);
    }
}

#[test]
fn rules_that_are_no_list_deny_everything() {
    for rules in [json!({}), json!("all"), json!(true)] {
        let world = cluster([], [cluster_policy("policy", "Baseline", 10, json!({"egress": rules}))]);
        assert_eq!([to(&world, DB), to(&world, OUTSIDE), from(&world, DB)], [Denied, Denied, NotIsolated]);
        assert_eq!(judge_flow(&world, OTHER, CACHE, TCP, 80).egress, NotIsolated);
    }
}
