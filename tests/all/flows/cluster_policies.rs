use kit::agent_process::ended;
use serde_json::{Value, json};

use super::verb::flows;
use super::{PORT, exchange, records, serve, start};
use crate::drops::{DB, OTHER, WEB, drop_events, send_datagrams, stage};
use crate::stage::Stage;

fn pods(app: &str) -> Value {
    json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}})
}

fn cluster_policy(name: &str, tier: &str, subject: &str, rules: &Value) -> Value {
    let mut spec = json!({"tier": tier, "priority": 1, "subject": pods(subject)});
    spec.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

fn hit(tier: &str, policy: &str, rule: &str, name: &str, action: &str) -> Value {
    json!([{
        "kind": "ClusterNetworkPolicy", "namespace": "", "name": policy, "tier": tier, "rule": rule, "ruleName": name,
        "action": action,
    }])
}

/// `ringfence audit` and `ringfence drops`.
fn verb(stage: &Stage, verb: &str) -> String {
    let mut command = kit::agent_process::ringfence();
    command.args([verb, "--run-dir"]).arg(stage.run_dir());
    ended(&mut command).stdout
}

#[test]
fn denial_names_rule_that_decided_and_passed() {
    let stage = stage();
    let from_web = json!({"ingress": [{"name": "on", "action": "Pass", "from": [pods("web")]}]});
    let from_all = json!({"ingress": [{"name": "out", "action": "Deny", "from": [{"namespaces": {}}]}]});
    let policies = [
        cluster_policy("watch", "Admin", "other", &from_web),
        cluster_policy("closed", "Baseline", "other", &from_all),
    ];
    stage.write_objects("cluster.json", &policies);
    let mut agent = start(&stage);
    send_datagrams(&stage, WEB[0], OTHER[0], 53, 3);
    // The first packet and the two repetitions may be of different windows.
    let denied = agent.until("all denied packets are in flow records", |_| {
        let records = records(&stage, "?policy=closed");
        let packets: u64 = records.iter().filter_map(|record| record["deniedPackets"].as_u64()).sum();
        (packets == 3).then_some(records)
    });
    let record = &denied[0];
    assert_eq!(record["ingress"]["enforced"], hit("baseline", "closed", "spec.ingress[0]", "out", "deny"));
    assert_eq!(record["ingress"]["passedBy"], hit("admin", "watch", "spec.ingress[0]", "on", "pass"));
    assert_eq!(records(&stage, "?policy=watch").len(), denied.len(), "rules that pass are found by their policy");

    let event = &drop_events(&stage, "?verdict=denied")[0];
    let rule =
        json!({"tier": "baseline", "policy": "closed", "field": "spec.ingress[0]", "name": "out", "action": "deny"});
    assert_eq!((&event["rule"], &event["policies"]), (&rule, &json!(["closed"])));
    assert_eq!(event["passedBy"][0]["policy"], "watch");
    let drops = verb(&stage, "drops");
    for words in [
        "by ClusterNetworkPolicy closed spec.ingress[0] 'out' (Baseline tier, Deny)\n",
        "    passed to the next tier by ClusterNetworkPolicy watch spec.ingress[0] 'on' (Admin tier, Pass)\n",
    ] {
        assert!(drops.contains(words), "{words} in {drops}");
    }
    let shown = ended(&mut flows(&stage, &["--policy", "closed"])).stdout;
    assert!(shown.contains("by ingress: closed spec.ingress[0] 'out' (baseline)"), "{shown}");
    agent.until_logged(&["packets denied", "tier=\"baseline\"", "rule=\"spec.ingress[0]\"", "rule_name=\"out\""]);
}

#[test]
fn audited_rule_counts_recorded_connections_once() {
    let stage = stage();
    let to_db = json!({"egress": [{"name": "no databases", "action": "Deny", "to": [pods("db")]}]});
    let mut tenants = cluster_policy("tenants", "Admin", "web", &to_db);
    tenants["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "audit"});
    stage.write_objects("cluster.json", &[tenants]);
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    for _ in 0..2 {
        exchange(&stage, WEB[0], DB[0], PORT, 1000);
    }
    let record = agent.until("the connections are recorded", |_| {
        records(&stage, "?policy=tenants").into_iter().find(|record| record["connections"]["started"] == 2)
    });
    assert_eq!((&record["verdict"], &record["egress"]["verdict"]), (&json!("would-deny"), &json!("would-deny")));
    assert_eq!(record["egress"]["pending"], hit("admin", "tenants", "spec.egress[0]", "no databases", "deny"));

    let counted = "tenants  would have denied 2 packets of 1 flows";
    agent.until("both connections are counted", |_| verb(&stage, "audit").contains(counted).then_some(()));
    let events = drop_events(&stage, "?verdict=would-deny");
    assert_eq!((&events[0]["direction"], &events[0]["traffic"]), (&json!("egress"), &json!("5432/tcp")));
    assert_eq!(events[0]["rule"]["policy"], "tenants");
    assert_eq!(drop_events(&stage, "?verdict=denied"), Vec::<Value>::new());
}
