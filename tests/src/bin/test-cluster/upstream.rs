//! The NetworkPolicy tests of Kubernetes.

use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::Stage;
use crate::cluster::root;
use crate::images::work_folder;

/// Runs the `e2e.test` program that the variable `E2E_TEST` names.
pub(crate) fn upstream_network_policy_suite_passes(stage: &Stage) -> anyhow::Result<String> {
    let Some(suite) = std::env::var_os("E2E_TEST") else {
        return Ok("SKIPPED: E2E_TEST is not set".to_owned());
    };
    // It runs in the root folder of the control plane's host.
    let suite = std::fs::canonicalize(&suite).with_context(|| format!("E2E_TEST: no program {}", suite.display()))?;
    let archive = std::env::var("AGNHOST").context("E2E_TEST needs AGNHOST, a docker archive of the agnhost image")?;
    let script = root().join("scripts/cluster");
    stage.cluster.load_archive(&archive)?;
    let folder = std::env::var("CLUSTER_DIR").unwrap_or_else(|_| "/var/tmp/ringfence-cluster".to_owned());
    let log = std::fs::File::create(work_folder().join("upstream.log"))?;
    let status = Command::new(script)
        .env("CLUSTER", stage.cluster.number.to_string())
        .args(["node", "0"])
        .arg(suite)
        .arg(format!("--kubeconfig={folder}/{}/admin.kubeconfig", stage.cluster.number))
        .args(["--provider=skeleton", "--ginkgo.focus=NetworkPolicy", "--ginkgo.skip=SCTP", "--ginkgo.no-color"])
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log)
        .status()?;
    let text = std::fs::read_to_string(work_folder().join("upstream.log"))?;
    let summary = text.lines().rev().find(|line| line.contains(" Passed | ")).unwrap_or("no summary").trim().to_owned();
    ensure!(status.success(), "{summary} (log: target/test-cluster/upstream.log)");
    Ok(summary)
}
