//! What `ringfence doctor` finds in real network namespaces, and what it leaves there.

// Pods that are ports of a bridge.
mod bridges;
// Tables and engines of others.
mod others;
// Service proxies that forward past the rules.
mod services;
// Interfaces whose source addresses nobody checks.
mod sources;
// Tunnels of the node at ports that the agent does not know.
mod tunnels;
// Real packets through rules that are right, and through rules that are not.
mod self_test;
// What a person sees, and with which status it ends.
mod report;

use std::process::Command;

use serde_json::Value;
use tests::agent_process::{Ended, ended, ringfence};

use crate::stage::{NODE, Stage};

/// Runs the doctor in the node's namespace, with folders of its own in place of the machine's.
fn doctor(stage: &Stage, arguments: &[&str]) -> Ended {
    stage.lab.node_exec(NODE, || ended(doctor_command(stage).args(arguments)))
}

fn doctor_command(stage: &Stage) -> Command {
    let mut command = ringfence();
    command.args(["doctor", "--run-dir"]).arg(stage.run_dir());
    command.arg("--cni-conf-dir").arg(stage.run_dir().join("net.d"));
    command.arg("--cni-bin-dir").arg(stage.run_dir().join("bin"));
    command
}

/// Each finding's severity and text, of those with the id.
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

/// Runs a command of a shell in the node's namespace.
#[track_caller]
fn sh(stage: &Stage, script: &str) {
    let Ended { code, stdout, stderr } = stage.lab.node_exec(NODE, || ended(Command::new("sh").args(["-ec", script])));
    assert_eq!(code, Some(0), "{script}: {stdout}{stderr}");
}
