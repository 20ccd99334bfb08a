//! `--log-level` and RUST_LOG select the messages of every program that logs.

use kit::agent_process::AgentProcess;
use kit::provider_process::{Provider, free_port};
use serde_json::json;
use tempfile::TempDir;

use crate::install::{Node, list};
use crate::stage::{NODE, Stage, ingress, pod};

fn agent_after_two_commits<'stage>(
    stage: &'stage Stage,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> AgentProcess<'stage> {
    stage.write_objects("db.json", &[pod("db", NODE, "app=db", &["10.1.0.2"])]);
    let mut command = stage.agent_on_manifests();
    command.args(arguments).envs(variables.iter().copied());
    let mut agent = stage.start(command);
    agent.until_ready();
    stage.write_objects("policy.json", &[ingress("db", "app=db", "app=web")]);
    stage.until_enforced(&mut agent, &stage.state_of_manifests());
    agent
}

#[test]
fn agent_logs_no_less_severe_messages() {
    let stage = Stage::new();
    let agent = agent_after_two_commits(&stage, &["--log-level", "error"], &[]);
    // The log is complete once the agent has ended.
    let (_, log) = agent.stop();
    assert_eq!(log, "");
}

#[test]
fn agent_logs_each_commit_at_debug() {
    for (arguments, variables) in [
        (&["--log-level", "debug"][..], &[][..]),
        (&[], &[("RINGFENCE_LOG_LEVEL", "DEBUG")]),
        (&["--log-level", "error"], &[("RUST_LOG", "debug")]),
    ] {
        let stage = Stage::new();
        let mut agent = agent_after_two_commits(&stage, arguments, variables);
        agent.until_logged(&["DEBUG", "committed"]);
    }
}

#[test]
fn provider_logs_no_less_severe_messages() {
    let manifests = TempDir::new().expect("a folder");
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    std::fs::write(manifests.path().join("shop.json"), object.to_string()).expect("a file in it");
    let folder = manifests.path().to_str().expect("UTF-8");
    let mut quiet =
        Provider::start_with([("RINGFENCE_LOG_LEVEL", "warn".to_owned())], free_port(), ["--manifests", folder]);
    quiet.until_ready();
    let mut usual = Provider::start(free_port(), ["--manifests", folder]);
    usual.until_ready();
    usual.until_logged(&["INFO"]);
    assert_eq!(quiet.log(), "");
}

#[test]
fn installer_logs_no_less_severe_messages() {
    for (level, expected) in [("warn", false), ("info", true)] {
        let node = Node::new();
        node.write("10-net.conflist", &list("net"));
        let mut command = node.command();
        let output = command.args(["--log-level", level]).output().expect("the program starts");
        assert!(output.status.success());
        let log = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(log.contains("INFO"), expected, "{level}: {log}");
    }
}
