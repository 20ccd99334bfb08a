//! Installation, upgrade and removal with the manifests of `deploy/`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, ensure};

use crate::Stage;
use crate::cluster::{Cluster, PodName, root, run, wait_for};
use crate::images::work_folder;
use crate::objects::{list, server};
use crate::policies::{POD_START, SHOP, allowed_flows_hold, denied_flows_hold, policy_is_in_force, restart_pods};
use crate::provider::other_cluster;

pub(crate) fn manifest(name: &str) -> anyhow::Result<String> {
    let path = root().join("deploy").join(name);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn roll_out(cluster: Cluster, manifests: &str) -> anyhow::Result<()> {
    cluster.apply(manifests)?;
    cluster.rollout("ringfence", "daemonset/ringfence", POD_START)
}

/// The agents of both nodes.
pub(crate) fn agents(cluster: Cluster) -> anyhow::Result<Vec<PodName>> {
    let selector = "app.kubernetes.io/name=ringfence";
    let object = cluster.json(&["--namespace", "ringfence", "get", "pods", "--selector", selector])?;
    let pods = object["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names: Vec<PodName> = pods
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .map(|name| PodName::new("ringfence", name))
        .collect();
    ensure!(names.len() == 2, "expected an agent on each of 2 nodes, got {names:?}");
    Ok(names)
}

pub(crate) fn install_yaml_rolls_out_on_every_node(stage: &Stage) -> anyhow::Result<String> {
    let begun = std::time::Instant::now();
    roll_out(stage.cluster, &manifest("install.yaml")?)?;
    let took = begun.elapsed().as_secs_f64();
    for agent in agents(stage.cluster)? {
        let object = stage.cluster.json(&["--namespace", "ringfence", "get", "pod", &agent.name])?;
        for status in object["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default() {
            ensure!(status["restartCount"] == 0, "a container of {} was restarted: {status}", agent.name);
        }
    }
    for node in [1, 2] {
        let configuration = stage.cluster.on_node(node, &["sh", "-c", "cat /etc/cni/net.d/*.conflist"])?;
        ensure!(configuration.contains("ringfence-cni"), "no entry in the CNI configuration of node {node}");
        stage.cluster.on_node(node, &["nft", "list", "table", "inet", "ringfence"])?;
    }
    Ok(format!("ready after {took:.1} s"))
}

/// Upgrades from an earlier revision, while allowed flows continue and a denied pod keeps trying. The tables and the
/// running pods' attachments are those of the earlier revision only: everything of this one is removed before.
pub(crate) fn upgrade_keeps_denials_and_allowed_flows(stage: &Stage) -> anyhow::Result<String> {
    let cluster = stage.cluster;
    let previous = stage.images.load_previous(cluster)?;
    uninstall(cluster)?;
    roll_out(cluster, &previous.manifests)?;
    restart_pods(stage)?;
    policy_is_in_force(stage)?;
    let current = manifest("install.yaml")?;
    let done = AtomicBool::new(false);
    let (answered, tried) = thread::scope(|scope| {
        let allowed = scope.spawn(|| allowed_flows_hold(stage, &done));
        let denied = scope.spawn(|| denied_flows_hold(stage, &done));
        let upgraded = roll_out(cluster, &current);
        done.store(true, Ordering::Relaxed);
        let answered = allowed.join().expect("no request panics")?;
        let tried = denied.join().expect("no request panics")?;
        upgraded.map(|()| (answered, tried))
    })?;
    let checked = policy_is_in_force(stage)?;
    let commit = &previous.commit[..12];
    Ok(format!(
        "from {commit}: {answered} allowed requests answered, {tried} denied ones not; {checked} flows afterwards"
    ))
}

/// The steps of docs/install.md.
fn uninstall(cluster: Cluster) -> anyhow::Result<()> {
    let path = |name: &str| root().join("deploy").join(name).display().to_string();
    cluster.kubectl(&["delete", "--filename", &path("install.yaml"), "--timeout=180s"])?;
    cluster.apply(&manifest("uninstall.yaml")?)?;
    cluster.rollout("ringfence-uninstall", "daemonset/ringfence-uninstall", POD_START)?;
    cluster.kubectl(&["delete", "--filename", &path("uninstall.yaml"), "--timeout=180s"]).map(drop)
}

pub(crate) fn uninstall_leaves_nothing_and_pods_start(stage: &Stage) -> anyhow::Result<String> {
    let cluster = stage.cluster;
    uninstall(cluster)?;
    for node in [1, 2] {
        let left = cluster.on_node(
            node,
            &[
                "sh",
                "-c",
                "
            nft list tables | grep ringfence
            grep -l ringfence /etc/cni/net.d/*
            ls -d /opt/cni/bin/ringfence-cni 2>/dev/null
            ls -A /run/ringfence /var/lib/ringfence 2>/dev/null | grep -v :
            true",
            ],
        )?;
        ensure!(left.trim().is_empty(), "left on node {node}: {}", left.trim());
    }
    let objects = cluster.kubectl(&["get", "clusterroles,clusterrolebindings,namespaces", "--output", "name"])?;
    ensure!(!objects.contains("ringfence"), "left in the API: {objects}");
    let pods = [server(SHOP, "after-1", 1, &[("app", "after")]), server(SHOP, "after-2", 2, &[("app", "after")])];
    cluster.apply(&list(&pods))?;
    cluster.pods_ready(SHOP, "app=after", POD_START)?;
    // The policies are no longer enforced: the denied port is reachable again.
    let target = crate::cluster::at(&cluster.addresses(&crate::policies::web(2))?[0], 9090);
    wait_for("policies are no longer enforced", POD_START, || {
        cluster.exec(&PodName::new(SHOP, "after-1"), &["/test-cluster", "pod", "get", "tcp", &target]).map(Some)
    })?;
    Ok(String::new())
}

/// Saves diagnostics: logs of all components, objects, and tables, in target/test-cluster/diagnostics.
pub(crate) fn save_diagnostics(stage: &Stage) -> anyhow::Result<()> {
    let folder = work_folder().join("diagnostics");
    fs::create_dir_all(&folder)?;
    let clusters = std::env::var("CLUSTER_DIR").unwrap_or_else(|_| "/var/tmp/ringfence-cluster".to_owned());
    for number in [stage.cluster.number, other_cluster().number] {
        let logs = Path::new(&clusters).join(number.to_string()).join("log");
        if logs.exists() {
            let kept = folder.join(format!("log-{number}"));
            run(Command::new("cp").args(["--recursive", "--no-target-directory"]).arg(logs).arg(kept))?;
        }
    }
    let asked: [(&str, &[&str]); 3] = [
        ("pods.txt", &["get", "pods", "--all-namespaces", "--output", "wide"]),
        ("objects.yaml", &["get", "pods,daemonsets,networkpolicies,services", "--all-namespaces", "--output", "yaml"]),
        ("events.txt", &["get", "events", "--all-namespaces"]),
    ];
    let mut saved = Vec::from(asked.map(|(file, words)| (file.to_owned(), stage.cluster.kubectl(words))));
    for node in [1, 2] {
        saved.push((format!("tables-{node}.txt"), stage.cluster.on_node(node, &["nft", "list", "ruleset"])));
        let logs = stage.cluster.on_node(node, &["sh", "-c", "tail -n 200 /var/log/pods/ringfence_*/*/*.log"]);
        saved.push((format!("agent-{node}.log"), logs));
    }
    for (file, text) in saved {
        // A broken cluster may fail to answer; its error is saved instead.
        fs::write(folder.join(file), text.unwrap_or_else(|error| format!("{error:#}")))?;
    }
    println!("diagnostics: {}", folder.display());
    Ok(())
}
