use kit::oracle::Side::{WouldAllow, WouldDeny};

use super::*;

fn audited(mut policy: Value) -> Value {
    policy["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "audit"});
    policy
}

#[test]
fn annotation_counts_before_the_default() {
    let with = |annotations: Value, audits_by_default: bool| {
        let mut policy = admin_egress(json!([everyone("Deny", "to")]));
        policy["metadata"]["annotations"] = annotations;
        let mut world = cluster([], [policy]);
        world.audits_by_default = audits_by_default;
        // A cluster policy has no namespace whose annotation could count.
        world.namespaces[0].metadata.name = Some("default".into());
        world.namespaces[0].metadata.labels = Some([("team".into(), "b".into())].into());
        world.namespaces[0].metadata.annotations = Some([("ringfence.io/enforcement".into(), "audit".into())].into());
        world.namespaces.push(read(json!({"metadata": {"name": "shop", "labels": {"team": "a"}}})));
        to(&world, DB)
    };
    let word = |word: &str| json!({"ringfence.io/enforcement": word});
    assert_eq!([with(Value::Null, false), with(Value::Null, true)], [Denied, WouldDeny]);
    assert_eq!([with(word("audit"), false), with(word("enforce"), true)], [WouldDeny, Denied]);
    for unreadable in [word("off"), json!("audit"), json!({"ringfence.io/enforcement": true})] {
        assert_eq!(with(unreadable, true), Denied);
    }
}

#[test]
fn audited_policies_change_no_verdict() {
    for action in ["Accept", "Deny", "Pass"] {
        let first = audited(cluster_policy("a", "Admin", 1, json!({"egress": [everyone(action, "to")]})));
        let deny = cluster_policy("b", "Admin", 2, json!({"egress": [about("Deny", "to", "db")]}));
        let accept = cluster_policy("c", "Admin", 3, json!({"egress": [about("Accept", "to", "cache")]}));
        let world = cluster([], [first, deny, accept]);
        assert_eq!(decided(&world, DB), (Denied, rule(PolicyTier::Admin, 1, 0)));
        assert!(judge_flow(&world, WEB, CACHE, TCP, 80).passes() && judge_flow(&world, WEB, OTHER, TCP, 80).passes());
    }
}

#[test]
fn audited_denials_are_reported_where_they_would_decide() {
    let deny =
        |tier, priority| audited(cluster_policy("a", tier, priority, json!({"egress": [everyone("Deny", "to")]})));
    let accept = || cluster_policy("b", "Admin", 5, json!({"egress": [about("Accept", "to", "db")]}));
    let verdicts = |policies: &[Value], cluster_policies: &[Value]| {
        let world = cluster(policies.to_vec(), cluster_policies.to_vec());
        [to(&world, DB), to(&world, CACHE)]
    };
    assert_eq!(verdicts(&[], &[deny("Admin", 1), accept()]), [WouldDeny, WouldDeny]);
    assert_eq!(verdicts(&[], &[deny("Admin", 9), accept()]), [Allowed, WouldDeny]);
    assert_eq!(verdicts(&[], &[deny("Baseline", 1), accept()]), [Allowed, WouldDeny]);
    // NetworkPolicy decides before Baseline.
    assert_eq!(verdicts(&[egress(json!([{}]))], &[deny("Baseline", 1)]), [Allowed, Allowed]);
    assert_eq!(verdicts(&[egress(json!([{}]))], &[deny("Admin", 1)]), [WouldDeny, WouldDeny]);
    assert_eq!(verdicts(&[egress(json!([]))], &[deny("Admin", 1)]), [Denied, Denied]);
}

#[test]
fn audited_rules_are_in_order_with_each_other() {
    let policy = |name, action| audited(cluster_policy(name, "Admin", 1, json!({"egress": [everyone(action, "to")]})));
    let world = cluster([], [policy("a", "Accept"), policy("b", "Deny")]);
    assert_eq!(decided(&world, DB), (WouldAllow, rule(PolicyTier::Admin, 0, 0)));
    let world = cluster([], [policy("a", "Pass"), policy("b", "Deny")]);
    assert_eq!(to(&world, DB), NotIsolated);
}

#[test]
fn audited_network_policy_leaves_the_pod_to_baseline() {
    let deny = cluster_policy("a", "Baseline", 1, json!({"egress": [about("Deny", "to", "db")]}));
    let world = cluster([audited(egress(json!([])))], [deny]);
    assert_eq!(decided(&world, DB), (Denied, rule(PolicyTier::Baseline, 0, 0)));
    assert_eq!(decided(&world, CACHE), (WouldDeny, Decider::NetworkPolicy));
}
