use std::path::Path;
use std::time::{Duration, Instant};

use kit::agent_process::{AgentProcess, run};
use kit::kernel_table::{listing, load_text, without_generation};
use kit::lab::{Lab, LabSpec, NodeSpec};
use kit::netns::in_new_namespace;
use nft::{Comment, Name, Ruleset, Table};
use serde_json::Value;

use crate::stage::{NODE, Stage, ingress, namespace, pod, policy, set_all, state_of};

/// The table as nft lists it, without the generation, which each agent chooses at random.
fn listed() -> Value {
    without_generation(listing(&Ruleset::new(Table::inet(Name::new("ringfence").unwrap()), Comment::new(""))))
}

#[test]
fn the_kernel_has_what_render_prints() {
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shop");
    let nodes = ["node-a", "node-b"].map(|name| NodeSpec { name: name.into(), ..NodeSpec::default() });
    let lab = Lab::new(&LabSpec { nodes: nodes.to_vec(), outside: vec![] });
    for node in ["node-a", "node-b"] {
        let run_dir = tempfile::tempdir().unwrap();
        let mut command = kit::agent_process::ringfence();
        command.args(["agent", "--node-name", node, "--manifests"]).arg(&shop).arg("--run-dir").arg(run_dir.path());
        // nft prints the flags of a protected table, but cannot parse them.
        command.args(["--table-owner", "off"]);
        let mut agent = AgentProcess::start(&lab, node, command);
        agent.until_ready();
        let in_kernel = lab.node_exec(node, listed);
        let rendered = run(["render", "--node-name", node, "--manifests", shop.to_str().unwrap()]);
        let expected = in_new_namespace(|| {
            load_text(&rendered.stdout);
            listed()
        });
        assert_eq!(in_kernel, expected, "{node}");
    }
}

#[test]
fn changed_manifest_is_enforced_before_the_next_resync() {
    let stage = Stage::new();
    let pods = [pod("web", NODE, "app=web", &["10.1.0.1", "fd00:1::1"]), pod("db", NODE, "app=db", &["10.1.0.2"])];
    stage.write_objects("pods.json", &pods);
    let mut command = stage.agent_on_manifests();
    command.args(["--resync-secs", "3600"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    assert!(stage.enforces(&stage.state_of_manifests()));

    stage.write_objects("policies.json", &[ingress("db", "app=db", "app=web")]);
    stage.until_enforced(&mut agent, &stage.state_of_manifests());
    stage.write_objects("policies.json", &[ingress("db", "app=db", "app=other"), ingress("web", "app=web", "app=db")]);
    stage.until_enforced(&mut agent, &stage.state_of_manifests());
    std::fs::remove_file(stage.manifests().join("policies.json")).unwrap();
    stage.until_enforced(&mut agent, &stage.state_of_manifests());
    assert_eq!(agent.metric("ringfence_commits_total"), 4);
    assert_eq!(agent.metric("ringfence_repairs_total"), 0);
}

/// Minimum interval between commits.
const APART: Duration = Duration::from_millis(10);

/// Asserts that at most one commit was made in each interval since then.
fn assert_paced(commits: u64, since: Instant) {
    let elapsed = since.elapsed();
    let most = elapsed.as_millis() as u64 / APART.as_millis() as u64 + 2;
    assert!(commits <= most, "{commits} commits in {elapsed:?}, in which {most} fit");
}

#[test]
fn burst_of_changed_files_is_coalesced() {
    let stage = Stage::new();
    stage.write_objects("db.json", &[pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]);
    let mut agent = stage.start_on_manifests();
    let before = agent.metric("ringfence_commits_total");
    // However slowly they are written, the agent reads them all at once.
    agent.hang();
    for n in 0..200 {
        let web = pod(&format!("web-{n}"), "node-b", "app=web", &[&format!("10.2.0.{n}")]);
        stage.write_objects(&format!("web-{n}.json"), &[web]);
    }
    let since = Instant::now();
    agent.resume();
    stage.until_enforced(&mut agent, &stage.state_of_manifests());
    let commits = agent.metric("ringfence_commits_total") - before;
    assert_paced(commits, since);
    assert!(commits <= 20, "{commits} commits");
}

#[test]
fn burst_of_watch_events_is_coalesced() {
    let stage = Stage::new();
    let api = stage.api();
    let mut objects = vec![pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")];
    set_all(&api, &objects);
    let mut agent = stage.start_on_api(&api);
    // A commit of the start may follow the reading of the metric, before the agent hangs.
    let since = Instant::now();
    let before = agent.metric("ringfence_commits_total");
    agent.hang();
    let webs = (0..200).map(|n| pod(&format!("web-{n}"), "node-b", "app=web", &[&format!("10.2.0.{n}")]));
    let webs: Vec<Value> = webs.collect();
    set_all(&api, &webs);
    agent.resume();
    objects.extend(webs);
    stage.until_enforced(&mut agent, &state_of(&objects));
    // A slow machine delivers the events over seconds, so only the interval bounds the commits.
    assert_paced(agent.metric("ringfence_commits_total") - before, since);
}

#[test]
fn invalid_manifest_keeps_previous_contents_until_corrected() {
    let stage = Stage::new();
    stage.write_objects("pods.json", &[pod("db", NODE, "app=db", &["10.1.0.2"])]);
    stage.write("policies.yaml", &ingress("db", "app=db", "app=web").to_string());
    let mut agent = stage.start_on_manifests();
    let before = stage.state_of_manifests();

    stage.write("policies.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nspec: {a: ]}\n");
    let line = agent.until_logged(&["WARN", "policies.yaml:3", "its previous contents are used until it is corrected"]);
    assert!(line.contains("column 7"), "{line}");
    assert!(stage.enforces(&before), "what it said before is in force");
    let reason = agent.until("it is not ready", |agent| Some(agent.get("/readyz")).filter(|a| a.status == 503)).body;
    assert!(reason.starts_with("some manifests are not in force:\npolicies.yaml:3: "), "{reason}");
    assert_eq!(agent.metric("ringfence_source_problems"), 1);

    // All other objects are still followed.
    let other = [pod("web", "node-b", "app=web", &["10.2.0.1"])];
    stage.write_objects("web.json", &other);
    let mut all =
        vec![pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web"), namespace("shop", "")];
    all.extend(other);
    stage.until_enforced(&mut agent, &state_of(&all));

    stage.write("policies.yaml", &policy("db", "app=db", serde_json::json!({"ingress": []})).to_string());
    stage.until_enforced(&mut agent, &stage.state_of_manifests());
    agent.until_logged(&["resolved:", "policies.yaml:3"]);
    agent.until_ready();
    assert_eq!(agent.metric("ringfence_source_problems"), 0);
}

#[test]
fn unsupported_policy_field_denies_and_is_reported() {
    let stage = Stage::new();
    let strange = serde_json::json!({"ingress": [{"ports": [{"protocol": "QUIC", "port": 443}]}]});
    let objects = [pod("db", NODE, "app=db", &["10.1.0.2"]), policy("db", "app=db", strange)];
    stage.write_objects("all.json", &objects);
    let mut agent = stage.start_on_manifests();
    agent.until_logged(&["not understood", "shop/db", "spec.ingress[0].ports[0].protocol", "QUIC"]);
    assert_eq!(agent.metric("ringfence_not_understood"), 1);
    assert_eq!(agent.metric("ringfence_isolated_pods"), 1);
    assert!(stage.enforces(&stage.state_of_manifests()));
}

#[test]
fn unknown_node_is_not_ready_and_programs_nothing() {
    let stage = Stage::new();
    let mut pods: Vec<Value> = (1..=7).map(|n| pod(&format!("p{n}"), &format!("worker-{n}"), "", &[])).collect();
    stage.write_objects("pods.json", &pods);
    let mut agent = stage.start(stage.agent_on_manifests());
    let line = agent.until_logged(&["WARN", "no pod is bound to node 'node-a'"]);
    assert!(line.contains("worker-1, worker-2, worker-3, worker-4, worker-5 and 2 more"), "{line}");
    agent.until("the reason why it is not ready", |agent| {
        agent.try_get("/readyz").ok().filter(|a| a.body.contains("check --node-name"))
    });
    assert!(!stage.tables().contains("ringfence"), "{}", stage.tables());
    pods.push(pod("here", NODE, "app=db", &["10.1.0.2"]));
    stage.write_objects("pods.json", &pods);
    agent.until_ready();
    assert!(stage.enforces(&stage.state_of_manifests()));
}
