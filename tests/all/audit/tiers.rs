//! Audited policies of all tiers, reported by the kernel's rules without flow records.

use super::*;

/// A policy whose one rule is about this pod of the namespace `shop`.
fn cluster_policy(name: &str, tier: &str, subject: &str, direction: &str, action: &str, peer: &str) -> Value {
    let pods = |app: &str| json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}});
    let peers = if direction == "ingress" { "from" } else { "to" };
    let mut spec = json!({"tier": tier, "priority": 1, "subject": pods(subject)});
    spec[direction] = json!([{"name": "the rule", "action": action, peers: [pods(peer)]}]);
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// Packets by direction that audited policies would have denied, as the rules count them.
fn counted(agent: &AgentProcess) -> [u64; 2] {
    let families = openmetrics::parse(&agent.get("/metrics").body).unwrap();
    ["egress", "ingress"].map(|direction| {
        let mut samples = families.iter().flat_map(|family| &family.samples);
        let is_it = |s: &&openmetrics::Sample| {
            s.name == "ringfence_would_deny_packets_total" && s.labels["direction"] == direction
        };
        samples.find(is_it).unwrap().value as u64
    })
}

#[track_caller]
fn until_counted(agent: &mut AgentProcess, expected: [u64; 2]) {
    agent.until(&format!("the rules have counted {expected:?}"), |agent| (counted(agent) == expected).then_some(()));
}

#[test]
fn audited_rules_of_both_tiers_report_passing_flows() {
    let stage = stage(&[
        says(Some("audit"), cluster_policy("no-databases", "Admin", "web", "egress", "Deny", "db")),
        says(Some("audit"), cluster_policy("closed", "Baseline", "db", "ingress", "Deny", "web")),
    ]);
    let mut agent = stage.start_on_manifests();
    let mut flow = Flow::tcp(&stage.lab, WEB[0], DB[0]);
    for way in [Way::ToServer, Way::ToClient, Way::ToServer] {
        flow.assert_alive(way);
    }
    let events = agent.until("both directions are reported", |_| {
        let events = drop_events(&stage, "?verdict=would-deny");
        (events.len() >= 2).then_some(events)
    });
    for (direction, tier, policy) in [("egress", "admin", "no-databases"), ("ingress", "baseline", "closed")] {
        let event = events.iter().find(|event| event["direction"] == direction).unwrap();
        let field = format!("spec.{direction}[0]");
        let rule = json!({"tier": tier, "policy": policy, "field": field, "name": "the rule", "action": "deny"});
        assert_eq!((&event["rule"], &event["policies"], &event["count"]), (&rule, &json!([policy]), &json!(1)));
        assert_eq!((&event["source"]["pod"], &event["destination"]["pod"]), (&json!("shop/web"), &json!("shop/db")));
    }
    // The flow is approved, so its packets are judged only once.
    until_summed_up(&stage, &mut agent, &[("no-databases", 1), ("closed", 1)]);
    until_counted(&mut agent, [1, 1]);
    assert_eq!(agent.metric("ringfence_drop_event_rule_packets_total"), 2);
    assert_eq!(drop_events(&stage, "?verdict=denied"), Vec::<Value>::new());
    assert!(reached(&stage, OTHER[0], 80), "no policy is about it");
    assert_eq!(counted(&agent), [1, 1]);
}

#[test]
fn audited_network_policy_before_baseline_is_reported() {
    let accept = cluster_policy("open", "Baseline", "db", "ingress", "Accept", "web");
    let stage = stage(&[says(Some("audit"), closed_db()), accept]);
    let mut agent = stage.start_on_manifests();
    send_datagrams(&stage, WEB[0], DB[0], 53, 1);
    until_summed_up(&stage, &mut agent, &[("shop/closed", 1)]);
    let events = drop_events(&stage, "?verdict=would-deny");
    assert_eq!((&events[0]["policies"], &events[0]["direction"]), (&json!(["shop/closed"]), &json!("ingress")));

    // Flows that the Baseline tier denies are denied, and no audited policy is reported for them.
    let deny = cluster_policy("shut", "Baseline", "db", "ingress", "Deny", "other");
    let before = agent.metric("ringfence_commits_total");
    stage.write_objects("policies.json", &[says(Some("audit"), closed_db()), deny]);
    agent.until("a commit", |agent| (agent.metric("ringfence_commits_total") > before).then_some(()));
    send_datagrams(&stage, OTHER[0], DB[0], 54, 2);
    agent.until("the packets are counted", |agent| (agent.metric("ringfence_denied_packets_total") == 2).then_some(()));
    assert_eq!(drop_events(&stage, "?verdict=denied")[0]["rule"]["policy"], "shut");
    until_counted(&mut agent, [0, 1]);
}

#[test]
fn audited_baseline_behind_network_policy_is_silent() {
    let allow = policy("allow", "app=db", json!({"ingress": [{}]}));
    let deny = says(Some("audit"), cluster_policy("shut", "Baseline", "db", "ingress", "Deny", "web"));
    let admin = says(Some("audit"), cluster_policy("first", "Admin", "db", "ingress", "Deny", "other"));
    let stage = stage(&[allow, deny, admin]);
    let mut agent = stage.start_on_manifests();
    send_datagrams(&stage, WEB[0], DB[0], 53, 1);
    send_datagrams(&stage, OTHER[0], DB[0], 53, 1);
    until_summed_up(&stage, &mut agent, &[("first", 1), ("shut", 0)]);
    until_counted(&mut agent, [0, 1]);
}

#[test]
fn open_connections_follow_enforcement_of_cluster_policy() {
    let deny = || cluster_policy("no-databases", "Admin", "web", "egress", "Deny", "db");
    let stage = stage(&[says(Some("audit"), deny())]);
    let mut agent = stage.start_on_manifests();
    let mut flow = Flow::tcp(&stage.lab, WEB[0], DB[0]);
    flow.assert_alive(Way::ToServer);
    until_summed_up(&stage, &mut agent, &[("no-databases", 1)]);
    let commit = |agent: &mut AgentProcess, policies: &[Value]| {
        let before = agent.metric("ringfence_commits_total");
        stage.write_objects("policies.json", policies);
        agent.until("a commit", |agent| (agent.metric("ringfence_commits_total") > before).then_some(()));
        assert_eq!(agent.metric("ringfence_commits_total"), before + 1);
    };
    commit(&mut agent, &[deny()]);
    for way in Way::BOTH {
        flow.assert_dead(&stage.lab, NODE, way);
    }
    // Its retransmissions would be counted once they pass again.
    flow.abort();
    commit(&mut agent, &[says(Some("audit"), deny())]);
    let mut flow = Flow::tcp(&stage.lab, WEB[0], DB[0]);
    until_summed_up(&stage, &mut agent, &[("no-databases", 1)]);

    // A connection that is open when a policy becomes audited is evaluated again.
    let shut = || says(Some("audit"), cluster_policy("shut", "Baseline", "db", "ingress", "Deny", "web"));
    commit(&mut agent, &[says(Some("audit"), deny()), shut()]);
    Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    until_summed_up(&stage, &mut agent, &[("no-databases", 2), ("shut", 1)]);
}
