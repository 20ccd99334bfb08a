use kit::oracle::Side::{WouldAllow, WouldDeny};

use super::*;

fn saying(mut policy: Value, annotations: Value) -> Value {
    policy["metadata"]["annotations"] = annotations;
    policy
}

fn audited(policy: Value) -> Value {
    saying(policy, json!({"ringfence.io/enforcement": "audit"}))
}

#[test]
fn audited_policies_alone_report_without_denying() {
    let from_cache = || ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": "cache"}}}]}]));
    let alone = world([audited(from_cache())]);
    assert_eq!([from(&alone, CACHE), from(&alone, DB)], [WouldAllow, WouldDeny]);
    assert!(judge_flow(&alone, DB, WEB, TCP, 80).passes());
    let from_db = ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]));
    let together = world([audited(from_cache()), audited(from_db)]);
    assert_eq!(
        [from(&together, CACHE), from(&together, DB), from(&together, OTHER)],
        [WouldAllow, WouldAllow, WouldDeny]
    );
}

#[test]
fn beside_enforced_policies_audited_ones_count_for_nothing() {
    let from_cache = ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": "cache"}}}]}]));
    let beside = |policy: Value| world([from_cache.clone(), audited(policy)]);
    assert_eq!(from(&beside(ingress(json!([{}]))), DB), Denied);
    assert_eq!(from(&beside(ingress(json!([]))), CACHE), Allowed);
    // The directions are independent.
    let egress_audited = beside(egress(json!([])));
    assert_eq!([from(&egress_audited, DB), to(&egress_audited, DB)], [Denied, WouldDeny]);
    assert!(judge_flow(&egress_audited, WEB, DB, TCP, 80).passes());
}

#[test]
fn the_nearest_word_about_enforcement_counts() {
    let word = |word: &str| json!({"ringfence.io/enforcement": word});
    let mut by_default = world([ingress(json!([]))]);
    by_default.audits_by_default = true;
    assert_eq!(from(&by_default, DB), WouldDeny);
    let mut by_namespace = by_default.clone();
    by_namespace.namespaces[0].metadata.annotations = serde_json::from_value(word("enforce")).unwrap();
    assert_eq!(from(&by_namespace, DB), Denied);
    by_namespace.namespaces[0].metadata.annotations = serde_json::from_value(word("Audit")).unwrap();
    assert_eq!(from(&by_namespace, DB), Denied, "what is not understood enforces");
    by_namespace.policies = vec![audited(ingress(json!([])))];
    assert_eq!(from(&by_namespace, DB), WouldDeny);
    for wrong in [word("off"), json!({"ringfence.io/enforcement": true}), json!("audit"), json!([])] {
        by_default.policies = vec![saying(ingress(json!([])), wrong.clone())];
        assert_eq!(from(&by_default, DB), Denied, "{wrong}");
    }
    for silent in [Value::Null, json!({}), json!({"ringfence.io/enforcement": null}), json!({"other": 1})] {
        by_default.policies = vec![saying(ingress(json!([])), silent.clone())];
        assert_eq!(from(&by_default, DB), WouldDeny, "{silent}");
    }
}
