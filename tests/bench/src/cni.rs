//! Time that the CNI plugin adds to a pod's start: a runtime adds containers to a network with it and to one without
//! it, alternately, on a node with a real agent. Two such nodes alternate by round: the agent of one knows only the
//! containers' pods, that of the other a large cluster beside them.

mod report;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use policy::Kind;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::fed::Agent;
use super::record::Measurement;
use generator::cluster::{Cluster, NODE, Size as ClusterSize};
use kit::agent_process::{AgentProcess, built, without_variables};
use kit::cni_runtime::{AddResult, Container, Runtime, Sandbox};
use kit::fake_api::FakeApi;
use kit::lab::{Lab, LabSpec, NodeSpec};
use report::CniReport;

/// Parameters of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub rounds: usize,
    /// Containers added in each round, with the plugin and without it.
    pub containers: usize,
    /// Runs of the plugin that only print its version.
    pub starts: usize,
    /// Pods of the cluster that the second agent knows beside those of the containers, which are all that the first
    /// knows.
    pub pods: usize,
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn new(pods: &[usize], rounds: usize) -> Size {
        let largest = pods.iter().copied().max().expect("a cluster has pods");
        Size { rounds, containers: 100, starts: 200, pods: largest }
    }
}

/// Samples of each round, in milliseconds.
#[derive(Default)]
struct Samples {
    with: Vec<f64>,
    without: Vec<f64>,
    /// The plugin alone, as a part of the ADD.
    plugin: Vec<f64>,
    plugin_delete: Vec<f64>,
    version: Vec<f64>,
    /// An empty program: the time to start any.
    nothing: Vec<f64>,
}

/// All rounds with one cluster.
struct Rounds {
    /// Pods that the agent knows.
    pods: usize,
    rounds: Vec<Samples>,
}

/// Measures with the program, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(program: &Path, size: Size) -> Measurement {
    let large = Cluster::of(ClusterSize::of_pods(size.pods));
    let known = [size.containers, size.containers + large.size().pods];
    let nodes = [Node::new(size, None), Node::new(size, Some(large))];
    let agents = nodes.each_ref().map(|node| node.start(program));
    let mut clusters = known.map(|pods| Rounds { pods, rounds: Vec::new() });
    for round in 0..size.rounds {
        for (node, cluster) in nodes.iter().zip(&mut clusters) {
            cluster.rounds.push(node.round(round, size));
        }
    }
    drop(agents);
    CniReport { size, clusters }.measured()
}

struct Node {
    lab: Lab,
    folder: TempDir,
    api: FakeApi,
    with: Runtime,
    without: Runtime,
}

impl Node {
    /// A node whose agent will know every pod beforehand, as if it had received each pod from the API server before the
    /// kubelet did.
    fn new(size: Size, cluster: Option<Cluster>) -> Node {
        let node = NodeSpec { name: NODE.into(), ..NodeSpec::default() };
        let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![] });
        let folder = TempDir::new().expect("a folder");
        let api = lab.node_exec(NODE, FakeApi::start);
        cluster.into_iter().for_each(|cluster| api.set_cluster(cluster));
        for (kind, object) in objects(size) {
            api.set(kind, object);
        }
        let runtime = |name: &str, network: u8, more: Option<Value>| {
            let plugins: Vec<Value> = std::iter::once(routed(&folder.path().join(name), network)).chain(more).collect();
            let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins});
            Runtime::new(&lab.node_namespace_path(NODE), &list, &folder.path().join(format!("{name}-cache")))
        };
        let run_dir = folder.path().join("run");
        let ours = json!({
            "type": "ringfence-cni", "agentSocket": run_dir.join("cni.sock"), "stateDir": run_dir.join("cni"),
        });
        let (with, without) = (runtime("with", 1, Some(ours)), runtime("without", 2, None));
        Node { lab, folder, api, with, without }
    }

    fn start(&self, program: &Path) -> Agent<'_> {
        let mut command = Command::new(program);
        without_variables(&mut command);
        command.args(["agent", "--node-name", NODE, "--run-dir"]).arg(self.folder.path().join("run"));
        command.arg("--kubeconfig").arg(self.api.kubeconfig());
        let mut agent = Agent(AgentProcess::start(&self.lab, NODE, command));
        agent.until_ready();
        agent.until_idle();
        agent
    }

    fn round(&self, round: usize, size: Size) -> Samples {
        let mut samples = Samples::default();
        for number in 0..size.containers {
            for turn in 0..2 {
                let id = format!("{round}-{number}-{turn}");
                if (turn + number) % 2 == 0 {
                    let (took, added, deleted) = start_and_stop(&self.without, &id, number);
                    assert_eq!((added.steps.len(), deleted.len()), (1, 1), "a chain of one plugin");
                    samples.without.push(took);
                } else {
                    let (took, added, deleted) = start_and_stop(&self.with, &id, number);
                    let ours = added.steps.last().expect("a chain has plugins");
                    assert_eq!(ours.plugin, "ringfence-cni");
                    samples.with.push(took);
                    samples.plugin.push(milliseconds(ours.took));
                    samples.plugin_delete.push(deleted[0]);
                }
            }
        }
        let plugin = built("ringfence-cni");
        for _ in 0..size.starts {
            samples.version.push(start_of(Command::new(&plugin).env("CNI_COMMAND", "VERSION")));
            samples.nothing.push(start_of(&mut Command::new("true")));
        }
        samples
    }
}

/// Milliseconds of the ADD and of each step of the DEL.
fn start_and_stop(runtime: &Runtime, id: &str, pod: usize) -> (f64, AddResult, Vec<f64>) {
    let sandbox = Sandbox::new();
    let container = Container::of_pod(id, "shop", &format!("pod-{pod}"), &sandbox);
    let begun = Instant::now();
    let added = runtime.add(&container).unwrap_or_else(|failed| panic!("{failed:?}"));
    let took = milliseconds(begun.elapsed());
    let deleted = runtime.delete(&container).unwrap_or_else(|failed| panic!("{failed:?}"));
    (took, added, deleted.iter().map(|step| milliseconds(step.took)).collect())
}

/// Milliseconds from the start of a program to its end.
fn start_of(command: &mut Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let status = command.status().expect("the program starts");
    let took = milliseconds(begun.elapsed());
    assert!(status.success(), "{command:?} fails");
    took
}

/// A network as the usual plugins create it, with its own address range.
fn routed(addresses: &Path, network: u8) -> Value {
    json!({
        "type": "ptp",
        "ipam": {
            "type": "host-local", "dataDir": addresses, "ranges": [[{"subnet": format!("10.{network}.0.0/16")}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

/// The pods, and a policy that isolates them, so that each ADD changes the rules.
fn objects(size: Size) -> Vec<(Kind, Value)> {
    let pod = |number: usize| {
        let pod = json!({
            "metadata": {"name": format!("pod-{number}"), "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "main"}]},
        });
        (Kind::Pod, pod)
    };
    let policy = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
        },
    });
    let namespace = json!({"metadata": {"name": "shop"}});
    let first = [(Kind::Namespace, namespace), (Kind::NetworkPolicy, policy)];
    first.into_iter().chain((0..size.containers).map(pod)).collect()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
