//! Findings of `ringfence doctor` in real network namespaces, and their cleanup.

// Pods on ports of a bridge.
mod bridges;
// Foreign tables and policy engines.
mod others;
// Service proxies that bypass the rules when forwarding.
mod services;
// Interfaces without a source check.
mod sources;
// Tunnels of the node at ports unknown to the agent.
mod tunnels;
// Real packets through correct and incorrect rules.
mod self_test;
// Human-readable output and exit status.
mod report;

use std::path::Path;
use std::process::Command;

use agent::doctor::{Check, cheap};
use kit::agent_process::{ProgramExit, ended, ringfence};
use serde_json::Value;

use crate::stage::{NODE, Stage, namespace, pod, set_all};

/// Runs the doctor in the node's namespace, with temporary folders instead of the machine's.
fn doctor(stage: &Stage, arguments: &[&str]) -> ProgramExit {
    stage.lab.node_exec(NODE, || ended(doctor_command(stage).args(arguments)))
}

fn doctor_command(stage: &Stage) -> Command {
    let mut command = ringfence();
    command.args(["doctor", "--run-dir"]).arg(stage.run_dir());
    command.arg("--cni-conf-dir").arg(stage.run_dir().join("net.d"));
    command.arg("--cni-bin-dir").arg(stage.run_dir().join("bin"));
    command
}

/// Severity and text of each finding with the id.
fn found(stage: &Stage, id: &str) -> Vec<(String, String)> {
    let report = doctor(stage, &["--no-self-test", "--output", "json"]);
    let parsed: Value = serde_json::from_str(&report.stdout).unwrap_or_else(|e| panic!("{e}: {report:?}"));
    let findings = parsed["findings"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let of_id = findings.iter().filter(|f| f["id"] == id);
    of_id.map(|f| (text(&f["severity"]), text(&f["finding"]))).collect()
}

fn severities(stage: &Stage, id: &str) -> Vec<String> {
    found(stage, id).into_iter().map(|(severity, _)| severity).collect()
}

/// The checks that keep an agent in the node's namespace from being ready.
fn obstacles(stage: &Stage) -> Vec<Check> {
    let run_dir = stage.run_dir();
    stage.lab.node_exec(NODE, || cheap(Path::new("/"), &run_dir, true)).into_iter().map(|finding| finding.id).collect()
}

/// Starts an agent, which is not ready for a reason that begins with `reason` until the script has removed its cause.
#[track_caller]
fn assert_unready_until(stage: &Stage, reason: &str, script: &str) {
    let api = stage.api();
    set_all(&api, &[namespace("shop", ""), pod("a", NODE, "app=a", &["10.1.0.1"])]);
    let mut command = stage.agent_on_api(&api);
    command.args(["--resync-secs", "1"]);
    let mut agent = stage.start(command);
    agent.until("the reason", |agent| {
        let answer = agent.try_get("/readyz").ok()?;
        (answer.status != 200 && answer.body.starts_with(reason)).then_some(())
    });
    sh(stage, script);
    agent.until_ready();
}

/// Runs a command of a shell in the node's namespace.
#[track_caller]
fn sh(stage: &Stage, script: &str) {
    let ProgramExit { code, stdout, stderr } =
        stage.lab.node_exec(NODE, || ended(Command::new("sh").args(["-ec", script])));
    assert_eq!(code, Some(0), "{script}: {stdout}{stderr}");
}
