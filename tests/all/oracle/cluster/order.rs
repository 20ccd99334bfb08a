use super::*;

#[test]
fn both_versions_have_the_same_meaning() {
    for version in ["v1alpha2", "v1beta1"] {
        let mut policy = admin_egress(json!([everyone("Deny", "to")]));
        policy["apiVersion"] = format!("policy.networking.k8s.io/{version}").into();
        assert_eq!(to(&cluster([], [policy]), DB), Denied, "{version}");
    }
}

#[test]
fn tiers_are_evaluated_before_and_after_network_policy() {
    let admin = cluster_policy("a", "Admin", 1000, json!({"egress": [about("Deny", "to", "db")]}));
    let baseline = cluster_policy("b", "Baseline", 0, json!({"egress": [everyone("Deny", "to")]}));
    let allow = || egress(json!([{}]));
    let all = cluster([allow()], [baseline.clone(), admin.clone()]);
    assert_eq!(decided(&all, DB), (Denied, rule(PolicyTier::Admin, 1, 0)));
    assert_eq!(decided(&all, CACHE), (Allowed, Decider::NetworkPolicy));
    let without_network_policy = cluster([], [baseline, admin.clone()]);
    assert_eq!(decided(&without_network_policy, CACHE), (Denied, rule(PolicyTier::Baseline, 0, 0)));
    assert_eq!(decided(&without_network_policy, OUTSIDE), (NotIsolated, Decider::Default));
    let accept = cluster_policy("c", "Admin", 0, json!({"egress": [everyone("Accept", "to")]}));
    let overridden = cluster([egress(json!([]))], [admin, accept]);
    assert_eq!(decided(&overridden, DB), (Allowed, rule(PolicyTier::Admin, 1, 0)));
    assert_eq!(decided(&overridden, OUTSIDE), (Denied, Decider::NetworkPolicy));
}

#[test]
fn pass_skips_the_rest_of_its_tier() {
    let pass = |tier| cluster_policy("a", tier, 1, json!({"egress": [about("Pass", "to", "db")]}));
    let deny = |tier| cluster_policy("b", tier, 2, json!({"egress": [everyone("Deny", "to")]}));
    let admin = [pass("Admin"), deny("Admin")];
    assert_eq!([to(&cluster([], admin.clone()), DB), to(&cluster([], admin.clone()), CACHE)], [NotIsolated, Denied]);
    assert_eq!(decided(&cluster([egress(json!([]))], admin.clone()), DB), (Denied, Decider::NetworkPolicy));
    let then_baseline = admin.into_iter().chain([deny("Baseline")]);
    assert_eq!(decided(&cluster([], then_baseline), DB), (Denied, rule(PolicyTier::Baseline, 2, 0)));
    let baseline = cluster([], [pass("Baseline"), deny("Baseline")]);
    assert_eq!([to(&baseline, DB), to(&baseline, CACHE)], [NotIsolated, Denied]);
}

#[test]
fn lower_priority_is_first_then_name() {
    let policy =
        |name, priority, action| cluster_policy(name, "Admin", priority, json!({"egress": [everyone(action, "to")]}));
    let verdict = |policies: [Value; 2]| to(&cluster([], policies), DB);
    assert_eq!(verdict([policy("z", 9, "Accept"), policy("a", 10, "Deny")]), Allowed);
    assert_eq!(verdict([policy("a", 100, "Accept"), policy("z", 20, "Deny")]), Denied);
    assert_eq!(verdict([policy("b", 5, "Accept"), policy("a", 5, "Deny")]), Denied);
    assert_eq!(verdict([policy("a-b", 5, "Accept"), policy("ab", 5, "Deny")]), Allowed);
}

#[test]
fn first_matching_rule_decides() {
    let rules = json!([about("Accept", "to", "cache"), everyone("Deny", "to"), about("Accept", "to", "db")]);
    let world = cluster([], [admin_egress(rules)]);
    assert_eq!(decided(&world, CACHE), (Allowed, rule(PolicyTier::Admin, 0, 0)));
    assert_eq!(decided(&world, DB), (Denied, rule(PolicyTier::Admin, 0, 1)));
    assert_eq!(to(&world, OUTSIDE), NotIsolated);
}

#[test]
fn cluster_policies_decide_hairpin_flows() {
    let itself = |world: &World| {
        let Judgement { egress, ingress, itself } = judge_flow(world, WEB, WEB, TCP, 80);
        assert!(itself);
        [egress, ingress]
    };
    let (no_egress, no_ingress) = (|| egress(json!([])), || ingress(json!([])));
    let deny = |tier, direction: &str, side: &str| {
        let mut rules = json!({});
        rules[direction] = json!([everyone("Deny", side)]);
        cluster_policy("a", tier, 1, rules)
    };
    assert_eq!(itself(&cluster([], [deny("Admin", "egress", "to")])), [Denied, NotIsolated]);
    assert_eq!(itself(&cluster([no_egress()], [deny("Admin", "ingress", "from")])), [Allowed, Denied]);
    assert_eq!(itself(&cluster([], [deny("Baseline", "ingress", "from")])), [NotIsolated, Denied]);
    assert_eq!(itself(&cluster([no_ingress()], [deny("Baseline", "ingress", "from")])), [NotIsolated, Allowed]);
}

#[test]
fn directions_are_decided_separately() {
    let accept = cluster([ingress(json!([]))], [admin_egress(json!([everyone("Accept", "to")]))]);
    let judgement = judge_flow(&accept, CACHE, WEB, TCP, 80);
    assert_eq!(judgement, Judgement { egress: Allowed, ingress: Denied, itself: false });
    assert!(!judgement.passes());
    assert_eq!(from(&accept, OTHER), Denied);
    let without_rules = cluster([], [admin_ingress(json!([])), admin_egress(Value::Null)]);
    assert_eq!([from(&without_rules, DB), to(&without_rules, DB)], [NotIsolated, NotIsolated]);
}

#[test]
fn baseline_is_for_pods_without_network_policy() {
    let baseline = cluster_policy(
        "b",
        "Baseline",
        1,
        json!({"ingress": [everyone("Deny", "from")], "egress": [everyone("Deny", "to")]}),
    );
    // The NetworkPolicy selects `web` for ingress only.
    let world = cluster([ingress(json!([{"from": [{"podSelector": {}}]}]))], [baseline]);
    assert_eq!([from(&world, CACHE), from(&world, OTHER), to(&world, CACHE)], [Allowed, Denied, Denied]);
    assert_eq!(judge_flow(&world, DB, CACHE, TCP, 80).ingress, Denied);
}
