//! Conntrack accounting sysctls that flow records need, as an agent sets and restores them on a node of a lab.

use std::path::Path;

use kit::agent_process::{AgentProcess, ended, ringfence};
use serde_json::Value;

use crate::stage::{NODE, Stage};

const ACCT: &str = "/proc/sys/net/netfilter/nf_conntrack_acct";
const TIMESTAMP: &str = "/proc/sys/net/netfilter/nf_conntrack_timestamp";

/// Conntrack sysctls of the node: packet and byte counters, and timestamps.
pub(crate) fn accounting(stage: &Stage) -> [String; 2] {
    let read = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    stage.lab.node_exec(NODE, || [ACCT, TIMESTAMP].map(read))
}

fn start<'stage>(stage: &'stage Stage, flows: &str) -> AgentProcess<'stage> {
    let mut command = stage.agent_on_manifests();
    command.args(["--flows", flows]);
    let mut agent = stage.start(command);
    agent.until_ready();
    agent
}

/// The finding of `ringfence doctor` about flow records; `None` if there is none.
fn doctor(stage: &Stage) -> Option<Value> {
    let mut command = ringfence();
    command.args(["doctor", "--no-self-test", "--output", "json", "--run-dir"]).arg(stage.run_dir());
    let stdout = stage.lab.node_exec(NODE, || ended(&mut command)).stdout;
    let mut report: Value = serde_json::from_str(&stdout).unwrap();
    let findings = report["findings"].as_array_mut().unwrap();
    findings.iter_mut().find(|finding| finding["id"] == "flow-records").map(Value::take)
}

#[test]
fn agent_sets_accounting_until_flows_are_off() {
    let stage = Stage::new();
    assert_eq!(accounting(&stage), ["0", "0"]);
    for _ in 0..2 {
        let agent = start(&stage, "on");
        assert_eq!(accounting(&stage), ["1", "1"]);
        assert_eq!(doctor(&stage).unwrap()["severity"], "ok");
        drop(agent);
    }
    assert!(stage.run_dir().join("conntrack-settings.json").exists());
    let agent = start(&stage, "off");
    assert_eq!(accounting(&stage), ["0", "0"]);
    assert_eq!(doctor(&stage), None);
    assert!(agent.log().contains("restored net.netfilter.nf_conntrack_acct = 0"), "{}", agent.log());
    assert!(!stage.run_dir().join("conntrack-settings.json").exists());
}

#[test]
fn agent_without_writable_sysctls_is_ready_and_reports() {
    let stage = Stage::new();
    let mut command = stage.agent_with_read_only_sysctls();
    command.args(["--flows", "on"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    agent.until_logged(&["nf_conntrack_acct is off and cannot be set", "Read-only file system"]);
    assert_eq!(accounting(&stage), ["0", "0"]);
    let status = kit::agent_process::ask_socket(Path::new(&stage.run_dir()), "/v1/status");
    let status: Value = serde_json::from_str(&status.body).unwrap();
    assert_eq!(status["flows"]["problems"].as_array().map(Vec::len), Some(2), "{status}");
    let finding = doctor(&stage).unwrap();
    assert_eq!(finding["severity"], "warning");
    assert!(finding["advice"].as_str().unwrap().contains("sysctl -w net.netfilter.nf_conntrack_acct=1"), "{finding}");
}
