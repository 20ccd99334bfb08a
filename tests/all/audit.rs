//! Audited policies: packets that they would deny pass, are reported, counted, and turned into suggested policies.

mod tiers;

use kit::agent_process::{AgentProcess, ProgramExit, ask_socket, run, run_unread};
use kit::lab::probe_all;
use kit::openmetrics;
use kit::oracle::Probe;
use kit::prober::{Flow, Way};
use serde_json::{Value, json};

use crate::drops::{DB, OTHER, WEB, drop_events, pods, send_datagrams};
use crate::stage::{NODE, Stage, policy};

const AUDITED: &str = "ringfence.io/enforcement";

/// A policy of namespace shop with this enforcement annotation, or without one.
fn says(enforcement: Option<&str>, mut object: Value) -> Value {
    if let Some(enforcement) = enforcement {
        object["metadata"]["annotations"] = json!({AUDITED: enforcement});
    }
    object
}

/// Denies all ingress to `db`.
fn closed_db() -> Value {
    policy("closed", "app=db", json!({"policyTypes": ["Ingress"]}))
}

/// Denies all egress from `web`.
fn nowhere() -> Value {
    policy("nowhere", "app=web", json!({"policyTypes": ["Egress"]}))
}

fn stage(policies: &[Value]) -> Stage {
    let stage = Stage::with_pods(&[("shop/web", &WEB), ("shop/db", &DB), ("shop/other", &OTHER)]);
    stage.write_objects("pods.json", &pods());
    stage.write_objects("policies.json", policies);
    stage
}

fn audit(stage: &Stage, arguments: &[&str]) -> ProgramExit {
    run([&["audit", "--run-dir", stage.run_dir().to_str().unwrap()], arguments].concat())
}

/// By policy: number of packets that it would have denied.
fn summary(stage: &Stage) -> Vec<(String, u64)> {
    let shown = audit(stage, &["-o", "json"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&shown.stdout).unwrap();
    let policies = report["policies"].as_array().unwrap().iter();
    policies.map(|p| (p["policy"].as_str().unwrap().to_owned(), p["wouldDeny"].as_u64().unwrap())).collect()
}

#[track_caller]
fn until_summed_up(stage: &Stage, agent: &mut AgentProcess, expected: &[(&str, u64)]) {
    let expected: Vec<(String, u64)> = expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    agent.until(&format!("it is summed up: {expected:?}"), |_| (summary(stage) == expected).then_some(()));
}

/// Whether TCP connections can be established.
fn reached(stage: &Stage, from: &str, port: u16) -> bool {
    let (source, destination) = (from.parse().unwrap(), DB[0].parse().unwrap());
    probe_all(&stage.lab, &[Probe { source, destination, protocol: Probe::TCP, port: Some(port) }])[0]
}

#[test]
fn audited_denial_passes_and_is_reported_per_direction() {
    let stage = stage(&[says(Some("audit"), closed_db()), says(Some("audit"), nowhere())]);
    let mut agent = stage.start_on_manifests();
    let mut flow = Flow::tcp(&stage.lab, WEB[0], DB[0]);
    for way in [Way::ToServer, Way::ToClient, Way::ToServer] {
        flow.assert_alive(way);
    }
    let events = agent.until("both directions are reported", |_| {
        let events = drop_events(&stage, "?verdict=would-deny");
        (events.len() >= 2).then_some(events)
    });
    for (direction, by) in [("egress", "shop/nowhere"), ("ingress", "shop/closed")] {
        let event = events.iter().find(|event| event["direction"] == direction).unwrap();
        assert_eq!((&event["verdict"], &event["cause"]), (&json!("would-deny"), &json!(direction)));
        assert_eq!((&event["source"]["pod"], &event["destination"]["pod"]), (&json!("shop/web"), &json!("shop/db")));
        assert_eq!((&event["policies"], &event["closest"]), (&json!([by]), &Value::Null));
        assert_eq!(event["count"], 1);
    }
    agent.until_logged(&["packets passed that policies in audit would deny", "policies=\"shop/closed\""]);
    assert_eq!(drop_events(&stage, "?verdict=denied"), Vec::<Value>::new());
    // The flow is approved, so its packets are judged only once.
    until_summed_up(&stage, &mut agent, &[("shop/closed", 1), ("shop/nowhere", 1)]);
}

#[test]
fn audit_summary_lists_policies_with_packets_and_begin() {
    let idle = policy("idle", "app=other", json!({"policyTypes": ["Ingress"]}));
    let stage = stage(&[says(Some("audit"), closed_db()), says(Some("audit"), idle), nowhere()]);
    let mut agent = stage.start_on_manifests();
    for port in [53, 54] {
        send_datagrams(&stage, OTHER[0], DB[0], port, 3);
    }
    until_summed_up(&stage, &mut agent, &[("shop/closed", 2), ("shop/idle", 0)]);
    let text = audit(&stage, &[]).stdout;
    assert!(text.starts_with("On node-a, since 20"), "{text}");
    for words in [
        "shop/closed  would have denied 2 packets of 2 flows, from 20",
        "    ingress  shop/other (10.1.0.3) -> shop/db (10.1.0.2)  53/udp  x1",
        "shop/idle  would have denied nothing",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    let of_others = audit(&stage, &["--namespace", "ops"]).stdout;
    assert!(of_others.contains("no audited policies"), "{of_others}");

    // The counters of a policy restart at zero when it is enforced and audited again.
    for (enforcement, expected) in
        [(None, vec![("shop/idle", 0)]), (Some("audit"), vec![("shop/closed", 0), ("shop/idle", 0)])]
    {
        let idle = policy("idle", "app=other", json!({"policyTypes": ["Ingress"]}));
        stage.write_objects("policies.json", &[says(enforcement, closed_db()), says(Some("audit"), idle)]);
        until_summed_up(&stage, &mut agent, &expected);
    }
}

#[test]
fn enforced_suggested_policies_allow_only_observed_flows() {
    let mut objects = pods();
    objects[0] = says(Some("audit"), objects[0].clone());
    let stage = stage(&[closed_db()]);
    stage.write_objects("pods.json", &objects);
    let mut agent = stage.start_on_manifests();
    assert!(reached(&stage, WEB[0], 5432));
    until_summed_up(&stage, &mut agent, &[("shop/closed", 1)]);

    let suggested = audit(&stage, &["--suggest", "--namespace", "shop"]);
    assert_eq!((suggested.code, suggested.stderr.as_str()), (Some(0), ""));
    assert_eq!(audit(&stage, &["--suggest", "--namespace", "shop", "--pod", "db"]).stdout, suggested.stdout);
    let nobody = audit(&stage, &["--suggest", "--namespace", "shop", "--pod", "other"]);
    assert_eq!((nobody.code, nobody.stdout.as_str()), (Some(0), ""));
    assert!(nobody.stderr.contains("no policy suggested"), "{}", nobody.stderr);
    assert_eq!(audit(&stage, &["--suggest"]).code, Some(2));

    stage.write("suggested.yaml", &suggested.stdout);
    agent.until("it is audited, too", |_| (summary(&stage).len() == 2).then_some(()));
    let again = audit(&stage, &["--suggest", "--namespace", "shop"]);
    assert_eq!(again.stdout, "", "what is allowed already is not suggested again");
    let text = audit(&stage, &[]).stdout;
    assert!(text.contains("none of the recorded flows would still be denied"), "{text}");
    stage.write_objects("pods.json", &pods());
    agent.until("nothing is audited any more", |_| summary(&stage).is_empty().then_some(()));
    agent.until("others are denied", |_| (!reached(&stage, OTHER[0], 5432)).then_some(()));
    assert!(reached(&stage, WEB[0], 5432), "{}", suggested.stdout);
    assert!(!reached(&stage, WEB[0], 5433), "{}", suggested.stdout);
}

#[test]
fn enforcing_audited_policy_cuts_connections_in_one_commit() {
    let stage = stage(&[says(Some("audit"), closed_db())]);
    let mut agent = stage.start_on_manifests();
    let mut flow = Flow::tcp(&stage.lab, WEB[0], DB[0]);
    flow.assert_alive(Way::ToServer);
    let before = agent.metric("ringfence_commits_total");
    stage.write_objects("policies.json", &[closed_db()]);
    agent.until("a commit", |agent| (agent.metric("ringfence_commits_total") > before).then_some(()));
    flow.assert_dead(&stage.lab, NODE, Way::ToServer);
    assert_eq!(agent.metric("ringfence_commits_total"), before + 1);
    let events = agent.until("the denial is reported", |_| {
        let events = drop_events(&stage, "?verdict=denied");
        (!events.is_empty()).then_some(events)
    });
    assert_eq!(events[0]["policies"], json!(["shop/closed"]));
}

#[test]
fn drop_event_names_audited_rule_that_would_allow() {
    let from_other = json!([{"podSelector": {"matchLabels": {"app": "other"}}}]);
    let next = policy("next", "app=db", json!({"ingress": [{"from": from_other}]}));
    let stage = stage(&[closed_db(), says(Some("audit"), next)]);
    let mut agent = stage.start_on_manifests();
    send_datagrams(&stage, OTHER[0], DB[0], 53, 1);
    let events = agent.until("the denial is reported", |_| {
        let events = drop_events(&stage, "?verdict=denied");
        (!events.is_empty()).then_some(events)
    });
    assert_eq!(events[0]["policies"], json!(["shop/closed"]));
    assert_eq!(events[0]["wouldAllow"], json!([{"policy": "shop/next", "field": "spec.ingress[0]"}]));
    agent.until_logged(&["packets denied", "would_allow=\"shop/next spec.ingress[0]\"", "node=\"node-a\""]);
    let text = run(["drops", "--run-dir", stage.run_dir().to_str().unwrap()]).stdout;
    assert!(text.contains("shop/next spec.ingress[0] would allow it, but is only audited"), "{text}");
}

#[test]
fn policies_without_annotation_get_default_enforcement_of_agent() {
    let stage = stage(&[closed_db(), says(Some("enforce"), nowhere())]);
    let mut command = stage.agent_on_manifests();
    command.args(["--enforcement", "audit"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    assert!(reached(&stage, OTHER[0], 80));
    assert!(!reached(&stage, WEB[0], 80));
    until_summed_up(&stage, &mut agent, &[("shop/closed", 1)]);
}

/// Counts of the status: enforced and audited policies, isolated and audited pods.
fn figures(stage: &Stage) -> [u64; 4] {
    let status: Value = serde_json::from_str(&ask_socket(&stage.run_dir(), "/v1/status").body).unwrap();
    let figure = |of: &str, name: &str| status[of][name].as_u64().unwrap();
    [("policies", "enforced"), ("policies", "audit"), ("pods", "isolated"), ("pods", "audited")]
        .map(|(of, name)| figure(of, name))
}

/// The same counts from the metrics.
fn figures_of_metrics(agent: &AgentProcess) -> [u64; 4] {
    let families = openmetrics::parse(&agent.get("/metrics").body).unwrap();
    let policies = |state: &str| {
        let mut samples = families.iter().flat_map(|family| &family.samples);
        samples.find(|s| s.name == "ringfence_policies" && s.labels["state"] == state).unwrap().value as u64
    };
    let (isolated, audited) = (agent.metric("ringfence_isolated_pods"), agent.metric("ringfence_audited_pods"));
    [policies("enforced"), policies("audit"), isolated, audited]
}

#[track_caller]
fn until_figures(stage: &Stage, agent: &mut AgentProcess, expected: [u64; 4]) {
    agent.until(&format!("the status has {expected:?}"), |_| (figures(stage) == expected).then_some(()));
    assert_eq!(figures_of_metrics(agent), expected);
}

#[test]
fn status_and_metrics_count_audited_policies_and_pods() {
    let stage = stage(&[closed_db(), nowhere()]);
    let mut agent = stage.start_on_manifests();
    until_figures(&stage, &mut agent, [2, 0, 2, 0]);
    stage.write_objects("policies.json", &[says(Some("audit"), closed_db()), nowhere()]);
    until_figures(&stage, &mut agent, [1, 1, 1, 1]);

    // The annotation of a namespace applies to its policies without an annotation.
    let mut objects = pods();
    objects[0] = says(Some("audit"), objects[0].clone());
    stage.write_objects("pods.json", &objects);
    stage.write_objects("policies.json", &[closed_db(), nowhere()]);
    until_figures(&stage, &mut agent, [0, 2, 0, 2]);
    stage.write_objects("policies.json", &[closed_db(), says(Some("enforce"), nowhere())]);
    until_figures(&stage, &mut agent, [1, 1, 1, 1]);
    drop(agent);

    // Each direction of a pod is audited independently.
    let of_db = policy("nowhere", "app=db", json!({"policyTypes": ["Egress"]}));
    stage.write_objects("pods.json", &pods());
    stage.write_objects("policies.json", &[closed_db(), says(Some("enforce"), of_db)]);
    let mut command = stage.agent_on_manifests();
    command.args(["--enforcement", "audit"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    until_figures(&stage, &mut agent, [1, 1, 1, 1]);
}

#[test]
fn verbs_succeed_when_reader_closes_pipe_early() {
    let stage = stage(&[says(Some("audit"), closed_db())]);
    let mut agent = stage.start_on_manifests();
    send_datagrams(&stage, OTHER[0], DB[0], 53, 1);
    until_summed_up(&stage, &mut agent, &[("shop/closed", 1)]);
    agent.until("it is reported", |_| (!drop_events(&stage, "").is_empty()).then_some(()));
    let run_dir = stage.run_dir();
    for verb in [
        &["status"][..],
        &["status", "-o", "json"],
        &["audit"],
        &["audit", "-o", "json"],
        &["audit", "--suggest", "--namespace", "shop"],
        &["drops"],
        &["explain", "shop/other", "shop/db", "80"],
    ] {
        let ProgramExit { code, stderr, .. } = run_unread([verb, &["--run-dir", run_dir.to_str().unwrap()]].concat());
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{verb:?}");
    }
}
