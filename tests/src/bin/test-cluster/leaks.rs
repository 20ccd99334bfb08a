//! Pods that send from their first instruction, in a namespace that denies everything: nothing may arrive, whatever
//! happens to the agents meanwhile. The same pods in an open namespace are the positive control.

use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::Stage;
use crate::cluster::{Cluster, PodName, at, wait_for};
use crate::objects::{deny_all, list, pod, server};
use crate::policies::{Client, Flow, IN_FORCE, POD_START, check};

/// The namespace that denies everything.
const DENIED: &str = "denied";
/// The namespace of the positive control.
const OPEN: &str = "open";
/// The namespace of the receivers.
const RECEIVERS: &str = "receivers";
/// How long each pod sends.
const SEND_SECONDS: &str = "2";
/// Agents that are killed repeatedly are restarted by the kubelet after 10, 20, 40 s; the pods wait for them.
const BATCH: Duration = Duration::from_secs(600);

/// A batch of pods that send from their first instruction, some denied and some not.
struct Batch {
    group: &'static str,
    nodes: &'static [u8],
    pods: usize,
    receivers: Vec<PodName>,
    seconds: &'static str,
}

/// Packets of a group that arrived.
#[derive(Default, Debug, Clone, Copy)]
struct Arrived {
    packets: u64,
    pods: u64,
}

impl Batch {
    fn control_group(&self) -> String {
        format!("{}-control", self.group)
    }

    /// A tenth as many pods for the control, at least two for each node.
    fn control_pods(&self) -> usize {
        (self.pods / 10).max(2 * self.nodes.len())
    }

    fn targets(&self, cluster: Cluster) -> anyhow::Result<Vec<String>> {
        let mut targets = Vec::new();
        for receiver in &self.receivers {
            targets.extend(cluster.addresses(receiver)?.iter().map(|address| at(address, 8080)));
        }
        Ok(targets)
    }

    fn senders(&self, cluster: Cluster, namespace: &str, group: &str, pods: usize) -> anyhow::Result<Vec<Value>> {
        let targets = self.targets(cluster)?;
        let mut arguments = vec!["send", group, self.seconds];
        arguments.extend(targets.iter().map(String::as_str));
        Ok((0..pods)
            .map(|index| {
                let node = self.nodes[index % self.nodes.len()];
                let mut sender = pod(namespace, &format!("{group}-{index}"), node, &[("group", group)], &arguments);
                // A sender that has ended is done; one that sends forever is restarted after a reboot.
                let policy = if self.seconds == "0" { "Always" } else { "Never" };
                sender["spec"]["restartPolicy"] = policy.into();
                sender
            })
            .collect())
    }

    /// Creates all pods, interleaved with the control, so that both see the same conditions.
    fn create(&self, cluster: Cluster) -> anyhow::Result<()> {
        let mut senders = self.senders(cluster, DENIED, self.group, self.pods)?;
        let control = self.senders(cluster, OPEN, &self.control_group(), self.control_pods())?;
        let every = self.pods / control.len();
        for (index, pod) in control.into_iter().enumerate() {
            senders.insert(index * (every + 1), pod);
        }
        cluster.apply(&list(&senders))
    }

    fn wait_for_phase(&self, cluster: Cluster, phase: &str) -> anyhow::Result<()> {
        for (namespace, group, pods) in
            [(DENIED, self.group.to_owned(), self.pods), (OPEN, self.control_group(), self.control_pods())]
        {
            wait_for(&format!("{pods} pods of {namespace} are {phase}"), BATCH, || {
                let selector = format!("group={group}");
                let phases = cluster.kubectl(&[
                    "--namespace",
                    namespace,
                    "get",
                    "pods",
                    "--selector",
                    &selector,
                    "--output",
                    "jsonpath={.items[*].status.phase}",
                ])?;
                let reached = phases.split_whitespace().filter(|reached| *reached == phase).count();
                ensure!(reached >= pods, "{reached} of {pods}");
                Ok(Some(()))
            })?;
        }
        Ok(())
    }

    fn arrived(&self, cluster: Cluster, group: &str) -> anyhow::Result<Arrived> {
        let mut sum = Arrived::default();
        for receiver in &self.receivers {
            let request = format!("count {group}");
            let words = ["/test-cluster", "pod", "get", "tcp", "127.0.0.1:8080", &request];
            let answer = cluster.exec(receiver, &words)?;
            let (packets, pods) = answer.trim().split_once(' ').context("the receiver gave no count")?;
            sum.packets += packets.parse::<u64>()?;
            sum.pods = sum.pods.max(pods.parse()?);
        }
        Ok(sum)
    }

    /// Verifies that no packet of the denied pods arrived, and some of each pod of the control.
    fn check(&self, cluster: Cluster) -> anyhow::Result<String> {
        let control = self.arrived(cluster, &self.control_group())?;
        let leaked = self.arrived(cluster, self.group)?;
        ensure!(leaked.packets == 0, "{} packets of {} denied pods arrived", leaked.packets, leaked.pods);
        let pods = self.control_pods() as u64;
        ensure!(control.pods == pods, "positive control: packets of {} of {pods} pods arrived", control.pods);
        Ok(format!("{} pods, 0 packets leaked; control: {} packets of {pods} pods", self.pods, control.packets))
    }

    fn delete(&self, cluster: Cluster) -> anyhow::Result<()> {
        for (namespace, group) in [(DENIED, self.group.to_owned()), (OPEN, self.control_group())] {
            let selector = format!("group={group}");
            cluster.kubectl(&[
                "--namespace",
                namespace,
                "delete",
                "pods",
                "--selector",
                &selector,
                "--timeout=180s",
            ])?;
        }
        Ok(())
    }
}

fn receiver(node: u8) -> PodName {
    PodName::new(RECEIVERS, &format!("receiver-{node}"))
}

/// Creates receivers on both nodes, and namespaces of which one denies everything already.
fn prepare(stage: &Stage) -> anyhow::Result<()> {
    let cluster = stage.cluster;
    cluster.create_namespaces(&[RECEIVERS, OPEN, DENIED])?;
    cluster.apply(&list(&[
        deny_all(DENIED),
        server(RECEIVERS, "receiver-1", 1, &[("app", "receiver")]),
        server(RECEIVERS, "receiver-2", 2, &[("app", "receiver")]),
        server(DENIED, "guard-1", 1, &[("app", "guard")]),
        server(DENIED, "guard-2", 2, &[("app", "guard")]),
    ]))?;
    cluster.pods_ready(RECEIVERS, "app=receiver", POD_START)?;
    cluster.pods_ready(DENIED, "app=guard", POD_START)?;
    // Every agent must know the policy first: a pod that starts before its policy is known is another test.
    let mut flows = Vec::new();
    for node in [1, 2] {
        for address in cluster.addresses(&receiver(3 - node))? {
            let client = Client::Pod(PodName::new(DENIED, &format!("guard-{node}")));
            flows.push(Flow { client, protocol: "tcp", target: at(&address, 8080), allowed: false });
        }
    }
    wait_for("deny-all is in force", IN_FORCE, || check(stage, &flows).map(Some))
}

fn run_batch(
    stage: &Stage,
    group: &'static str,
    meanwhile: impl FnOnce() -> anyhow::Result<()> + Send,
) -> anyhow::Result<String> {
    prepare(stage)?;
    let (nodes, receivers) = (&[1, 2][..], vec![receiver(1), receiver(2)]);
    let batch = Batch { group, nodes, pods: stage.pod_starts, receivers, seconds: SEND_SECONDS };
    thread::scope(|scope| {
        let disturbance = scope.spawn(meanwhile);
        batch.create(stage.cluster)?;
        batch.wait_for_phase(stage.cluster, "Succeeded")?;
        disturbance.join().expect("the disturbance does not panic")
    })?;
    let measured = batch.check(stage.cluster)?;
    batch.delete(stage.cluster)?;
    Ok(measured)
}

pub(crate) fn starting_pods_leak_nothing(stage: &Stage) -> anyhow::Result<String> {
    run_batch(stage, "start", || Ok(()))
}

pub(crate) fn starting_pods_leak_nothing_during_rollout(stage: &Stage) -> anyhow::Result<String> {
    let cluster = stage.cluster;
    run_batch(stage, "rollout", || {
        for _ in 0..2 {
            cluster.kubectl(&["--namespace", "ringfence", "rollout", "restart", "daemonset", "ringfence"])?;
            cluster.rollout("ringfence", "daemonset/ringfence", POD_START)?;
        }
        Ok(())
    })
}

/// Kills the agent of each node once it is ready, three times.
pub(crate) fn starting_pods_leak_nothing_when_agents_die(stage: &Stage) -> anyhow::Result<String> {
    let cluster = stage.cluster;
    run_batch(stage, "killed", || {
        for _ in 0..3 {
            for node in [1, 2] {
                wait_for("the agent runs", POD_START, || kill_agent(cluster, node))?;
            }
            cluster.pods_ready("ringfence", "app.kubernetes.io/name=ringfence", POD_START)?;
        }
        Ok(())
    })
}

fn kill_agent(cluster: Cluster, node: u8) -> anyhow::Result<Option<()>> {
    let script = r#"pid=$(pgrep -f '^/usr/local/bin/ringfence agent') && kill -KILL "$pid""#;
    cluster.on_node(node, &["sh", "-c", script]).map(|_| Some(()))
}

/// All processes of node 2 end, and its tables and its /run are removed. The kubelet restarts its pods, some of them
/// before the agent; they send forever, from their first instruction.
pub(crate) fn restarted_pods_leak_nothing_after_reboot(stage: &Stage) -> anyhow::Result<String> {
    let cluster = stage.cluster;
    prepare(stage)?;
    let batch =
        Batch { group: "reboot", nodes: &[2], pods: stage.pod_starts / 4, receivers: vec![receiver(1)], seconds: "0" };
    batch.create(cluster)?;
    batch.wait_for_phase(cluster, "Running")?;
    let before = batch.arrived(cluster, &batch.control_group())?;
    cluster.reboot(2)?;
    wait_for("every sender was started again", BATCH, || {
        for (namespace, group) in [(DENIED, batch.group.to_owned()), (OPEN, batch.control_group())] {
            let selector = format!("group={group}");
            let restarts = cluster.kubectl(&[
                "--namespace", namespace, "get", "pods", "--selector", &selector, "--output",
                "jsonpath={range .items[*]}{.status.containerStatuses[0].restartCount}/{.status.containerStatuses[0].ready} {end}",
            ])?;
            let waiting =
                restarts.split_whitespace().filter(|pod| pod.starts_with("0/") || !pod.ends_with("/true")).count();
            ensure!(waiting == 0, "{waiting} pods of {namespace} were not");
        }
        Ok(Some(()))
    })?;
    cluster.rollout("ringfence", "daemonset/ringfence", POD_START)?;
    let after = wait_for("the control sends again", POD_START, || {
        let after = batch.arrived(cluster, &batch.control_group())?;
        Ok((after.packets > before.packets).then_some(after))
    })?;
    let measured = batch.check(cluster)?;
    batch.delete(cluster)?;
    Ok(format!("{measured}, {} of them after the reboot", after.packets - before.packets))
}
