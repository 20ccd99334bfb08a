use std::process::Command;

use kit::agent_process::{AgentProcess, ask_socket, until};
use kit::fake_api::{FailingStreams, NO_WATCH_PROGRESS, Verb};
use policy::Kind;
use serde_json::json;

use crate::stage::{NODE, Stage, ingress, namespace, pod, policy, set_all, state_of};

#[test]
fn nothing_is_programmed_before_initial_sync_completes() {
    for held_back in Kind::NEEDED.into_iter().chain([Kind::ClusterNetworkPolicy]) {
        let stage = Stage::new();
        let api = stage.api();
        let objects =
            [namespace("shop", ""), pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")];
        set_all(&api, &objects);
        api.install(Kind::ClusterNetworkPolicy);
        api.faults(|f| f.refuse(held_back, &[Verb::List, Verb::Watch], 403));
        let mut agent = stage.start(stage.agent_on_api(&api));
        let waiting = format!("initial sync not complete; waiting for the list of: {held_back}\n");
        let reason = agent.until("only one kind is missing", |agent| {
            let answer = agent.try_get("/readyz").ok()?;
            assert_ne!(answer.status, 200);
            answer.body.strip_prefix(&waiting).filter(|reason| !reason.is_empty()).map(String::from)
        });
        assert!(reason.contains("forbidden: the RBAC verb"), "{reason}");
        assert_eq!(agent.metric("ringfence_ready"), 0);
        assert_eq!(stage.tables(), "", "nothing is programmed without {held_back}");

        api.faults(|f| f.refusals.clear());
        agent.until_ready();
        assert!(stage.enforces(&state_of(&objects)));
        assert_eq!(agent.metric("ringfence_commits_total"), 1);
    }
}

#[test]
fn events_of_every_kind_reach_the_kernel() {
    let stage = Stage::new();
    let api = stage.api();
    let from_team = json!({"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}]});
    let mut objects = vec![
        namespace("shop", "team=a"),
        pod("db", NODE, "app=db", &["10.1.0.2", "fd00:1::2"]),
        policy("db", "app=db", from_team),
    ];
    set_all(&api, &objects);
    let mut agent = stage.start_on_api(&api);
    assert!(stage.enforces(&state_of(&objects)));

    for added in [
        pod("web", "node-b", "app=web", &["10.2.0.1"]),
        namespace("shop", "team=b"),
        ingress("more", "app=db", "app=web"),
        pod("db", NODE, "app=db,more=labels", &["10.1.0.3"]),
    ] {
        set_all(&api, std::slice::from_ref(&added));
        objects.retain(|o| (&o["kind"], &o["metadata"]["name"]) != (&added["kind"], &added["metadata"]["name"]));
        objects.push(added);
        stage.until_enforced(&mut agent, &state_of(&objects));
    }
    for (kind, name) in [(Kind::NetworkPolicy, "more"), (Kind::Pod, "web"), (Kind::NetworkPolicy, "db")] {
        api.remove(kind, "shop", name);
        objects.retain(|o| (o["kind"] != json!(kind.to_string())) || o["metadata"]["name"] != json!(name));
        stage.until_enforced(&mut agent, &state_of(&objects));
    }
}

/// A policy that denies the pods of a namespace what others send them.
fn isolates_shop() -> serde_json::Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "isolate-shop"},
        "spec": {
            "tier": "Admin", "priority": 10,
            "subject": {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
        },
    })
}

#[test]
fn cluster_policies_are_enforced_once_installed() {
    for version in ["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"] {
        let stage = Stage::new();
        let api = stage.api();
        let objects = vec![
            namespace("shop", ""),
            pod("db", NODE, "app=db", &["10.1.0.2"]),
            pod("web", "node-b", "app=web", &["10.2.0.1"]),
        ];
        set_all(&api, &objects);
        let mut agent = stage.start_on_api(&api);
        assert!(stage.enforces(&state_of(&objects)), "an API server without the kind needs no more");
        assert_eq!(agent.metric("ringfence_ready"), 1);

        api.install_version(Kind::ClusterNetworkPolicy, version);
        api.set(Kind::ClusterNetworkPolicy, isolates_shop());
        let with_policy = [&objects[..], &[isolates_shop()]].concat();
        stage.until_enforced(&mut agent, &state_of(&with_policy));
        api.uninstall(Kind::ClusterNetworkPolicy);
        stage.until_enforced(&mut agent, &state_of(&objects));
    }
}

/// Otherwise a watch whose API server vanished without a RST would last until its timeout of five minutes.
#[test]
fn connections_to_api_server_have_keepalives() {
    let stage = Stage::new();
    let api = stage.api();
    let agent = stage.start_on_api(&api);
    let port = format!("dport = :{}", api.address().port());
    until("every connection waits for its keepalive timer", || {
        let output = stage.lab.node_exec(NODE, || Command::new("ss").args(["-Htno", &port]).output());
        let connections = String::from_utf8(output.expect("iproute2").stdout).unwrap();
        let is_probed = |line: &str| line.contains("timer:(keepalive,");
        (!connections.is_empty() && connections.lines().all(is_probed)).then_some(())
    });
    drop(agent);
}

#[test]
fn lost_api_server_keeps_rules_and_shows_status() {
    let stage = Stage::new();
    let api = stage.api();
    let objects = [namespace("shop", ""), pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")];
    set_all(&api, &objects);
    let mut agent = stage.start_on_api(&api);
    let generation = stage.kernel_generation();
    drop(api);
    for kind in ["pods", "namespaces", "networkpolicies", "nodes"] {
        agent.until_logged(&["WARN", "cannot connect to the API server", &format!("{kind} watch")]);
    }
    let status = ask_socket(&stage.run_dir(), "/v1/status").body;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let problems = status["source"]["problems"].as_array().map(Vec::len);
    assert_eq!((&status["rules"]["inForce"], problems), (&json!(true), Some(4)), "{status}");
    assert_eq!(agent.metric("ringfence_source_problems"), 4);
    // The enforced rules are correct as far as known: restarting the agent would not help.
    assert_eq!(agent.get("/readyz").status, 200);
    assert!(stage.enforces(&state_of(&objects)));
    assert_eq!(stage.kernel_generation(), generation);
}

#[test]
fn unreachable_api_server_is_named_in_readiness() {
    let stage = Stage::new();
    let api = stage.api();
    let kubeconfig = std::fs::read_to_string(api.kubeconfig()).expect("a file");
    let address = api.address().to_string();
    drop(api);
    let path = stage.manifests().join("kubeconfig");
    std::fs::write(&path, kubeconfig).expect("a folder of ours");
    let mut command = stage.agent();
    command.arg("--kubeconfig").arg(path);
    let mut agent = stage.start(command);
    let reason = agent.until("a reason", |agent| {
        agent
            .try_get("/readyz")
            .ok()
            .filter(|a| a.body.contains("cannot connect to the API server"))
            .map(|a| (a.status, a.body))
    });
    assert_eq!(reason.0, 503);
    assert!(
        reason.1.starts_with(
            "initial sync not complete; waiting for the list of: Namespace, Pod, NetworkPolicy, ClusterNetworkPolicy\n"
        ),
        "{reason:?}"
    );
    assert!(reason.1.contains("Connection refused") || reason.1.contains(&address), "{reason:?}");
    agent.until_logged(&["WARN", "cannot connect to the API server"]);
    assert_eq!(agent.get("/healthz").status, 200);
    assert_eq!(stage.tables(), "");
}

#[test]
fn agent_is_ready_without_nodes_and_retries() {
    for code in [403, 404] {
        let stage = Stage::new();
        let api = stage.api();
        let objects =
            [namespace("shop", ""), pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")];
        set_all(&api, &objects);
        api.set(Kind::Node, json!({"metadata": {"name": NODE}}));
        api.faults(|f| f.refuse(Kind::Node, &[Verb::List, Verb::Watch], code));
        let mut agent = stage.start_on_api(&api);
        agent.until_ready();
        assert!(stage.enforces(&state_of(&objects)));
        let reported = if code == 403 { "the RBAC verb" } else { "does not serve nodes (404)" };
        agent.until("the reason is in the status", |_| {
            ask_socket(&stage.run_dir(), "/v1/status").body.contains(reported).then_some(())
        });
        let counts = |agent: &AgentProcess, count: u32| {
            agent.get("/metrics").body.contains(&format!("ringfence_objects{{kind=\"node\"}} {count}\n"))
        };
        assert!(counts(&agent, 0));
        api.faults(|f| f.refusals.clear());
        agent.until("the nodes are listed", |agent| counts(agent, 1).then_some(()));
        agent.until("the reason is gone", |_| {
            (!ask_socket(&stage.run_dir(), "/v1/status").body.contains(reported)).then_some(())
        });
    }
}

/// A Deny rule about nodes matches nothing while no node is known.
#[test]
fn agent_waits_for_nodes_with_cluster_policies() {
    for code in [403, 404, 500] {
        let stage = Stage::new();
        let api = stage.api();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}});
        let mut to_nodes = isolates_shop();
        to_nodes["spec"]["egress"] = json!([{"action": "Deny", "to": [{"nodes": {}}]}]);
        let objects = [namespace("shop", ""), pod("db", NODE, "app=db", &["10.1.0.2"]), node.clone(), to_nodes.clone()];
        set_all(&api, &objects[..2]);
        api.set(Kind::Node, node);
        api.install(Kind::ClusterNetworkPolicy);
        api.set(Kind::ClusterNetworkPolicy, to_nodes);
        let mut agent = stage.start_on_api(&api);
        stage.until_enforced(&mut agent, &state_of(&objects));
        agent.stop();

        api.faults(|f| f.refuse(Kind::Node, &[Verb::List, Verb::Watch], code));
        let mut command = stage.agent();
        command.arg("--kubeconfig").arg(api.kubeconfig());
        let mut agent = stage.start(command);
        agent.until("the reason is in the readiness", |agent| {
            let answer = agent.try_get("/readyz").ok()?;
            (answer.status == 503 && answer.body.contains("until the nodes are listed")).then_some(())
        });
        assert!(stage.enforces(&state_of(&objects)), "{code}: the rules of the agent before");
        api.faults(|f| f.refusals.clear());
        agent.until_ready();
        assert!(stage.enforces(&state_of(&objects)));
    }
}

#[test]
fn agent_is_ready_where_etcd_lacks_watch_progress() {
    let stage = Stage::new();
    let api = stage.api();
    let objects = [namespace("shop", ""), pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")];
    set_all(&api, &objects);
    api.faults(|f| f.failing_streams = Some(FailingStreams { failure: NO_WATCH_PROGRESS, requests: None }));
    let mut agent = stage.start_on_api(&api);
    agent.until_ready();
    assert!(stage.enforces(&state_of(&objects)));
    agent.until_logged(&["INFO", "streaming list failed; falling back to paged lists", "RequestWatchProgress"]);
    let status = ask_socket(&stage.run_dir(), "/v1/status").body;
    assert!(!status.contains("RequestWatchProgress"), "{status}");
}
