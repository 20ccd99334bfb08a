//! What a pod's start takes longer with the CNI plugin in the chain: a runtime adds containers to a network with it and
//! to one without it, in turn, on a node with a real agent.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::figures::{Figure, Spread};
use super::record::{Measured, Record};
use crate::agent_process::{AgentProcess, built, without_variables};
use crate::cni_runtime::{Added, Container, Runtime, Sandbox};
use crate::lab::{Lab, LabSpec, NodeSpec};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub rounds: usize,
    /// Containers that are added in each round, with the plugin and without it.
    pub containers: usize,
    /// Starts of the plugin that does nothing but say its version.
    pub starts: usize,
}

impl Size {
    /// What `docs/performance.md` is measured with.
    pub fn of_rounds(rounds: usize) -> Size {
        Size { rounds, containers: 100, starts: 200 }
    }
}

const NODE: &str = "node-a";
const UNIT: &str = "ms";

/// What is measured of each round, in milliseconds.
#[derive(Default)]
struct Samples {
    with: Vec<f64>,
    without: Vec<f64>,
    /// The plugin alone, as a part of the ADD.
    plugin: Vec<f64>,
    plugin_delete: Vec<f64>,
    version: Vec<f64>,
    /// A program that does nothing: what it takes to start any.
    nothing: Vec<f64>,
}

/// One of the things that are measured.
type Of = fn(&Samples) -> &Vec<f64>;

/// Measures with the program, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(program: &Path, size: Size) -> Measured {
    let node = Node::new(size);
    let agent = node.start(program);
    let rounds: Vec<Samples> = (0..size.rounds).map(|round| node.round(round, size)).collect();
    drop(agent);
    report(size, &rounds)
}

fn report(size: Size, rounds: &[Samples]) -> Measured {
    let mut report =
        format!("\ncni: {} rounds of {} ADDs with the plugin and as many without\n", size.rounds, size.containers);
    let mut records = Vec::new();
    writeln!(report, "  {:<40} {:<22} 99th percentile", "median (least-most) of rounds, ms", "median")
        .expect("a String takes all");
    let lines: [(&str, Of); 6] = [
        ("ADD of the chain, without the plugin", |s| &s.without),
        ("ADD of the chain, with the plugin", |s| &s.with),
        ("the plugin's part of ADD", |s| &s.plugin),
        ("the plugin's part of DEL", |s| &s.plugin_delete),
        ("start of the plugin (VERSION)", |s| &s.version),
        ("start of a program that does nothing", |s| &s.nothing),
    ];
    for (what, samples) in lines {
        let of = |part: fn(&Spread) -> f64| {
            Figure::of(rounds.iter().filter_map(|round| Spread::of(samples(round).iter().copied())).map(|s| part(&s)))
        };
        let (median, p99) = (of(|s| s.median), of(|s| s.p99));
        writeln!(report, "  {what:<40} {:<22} {p99:.2}", format!("{median:.2}")).expect("a String takes all");
        for (line, figure) in [("median", &median), ("99th percentile", &p99)] {
            let x = (size.containers as f64, "containers");
            records.push(Record::new("cni", (what, line), x, (figure, UNIT)));
        }
    }
    Measured { report, records }
}

struct Node {
    lab: Lab,
    folder: TempDir,
    with: Runtime,
    without: Runtime,
}

impl Node {
    /// A node whose agent will know every pod beforehand, as it does when the kubelet has read it from the API server
    /// first.
    fn new(size: Size) -> Node {
        let node = NodeSpec { name: NODE.into(), ..NodeSpec::default() };
        let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![] });
        let folder = TempDir::new().expect("a folder");
        let manifests = folder.path().join("manifests");
        std::fs::create_dir(&manifests).expect("a folder in it");
        let texts: Vec<String> = objects(size).iter().map(Value::to_string).collect();
        std::fs::write(manifests.join("shop.yaml"), texts.join("\n---\n")).expect("a file in it");
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
        Node { lab, folder, with, without }
    }

    fn start(&self, program: &Path) -> AgentProcess<'_> {
        let mut command = Command::new(program);
        without_variables(&mut command);
        command.args(["agent", "--node-name", NODE, "--run-dir"]).arg(self.folder.path().join("run"));
        command.arg("--manifests").arg(self.folder.path().join("manifests"));
        let mut agent = AgentProcess::start(&self.lab, NODE, command);
        agent.until_ready();
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
fn start_and_stop(runtime: &Runtime, id: &str, pod: usize) -> (f64, Added, Vec<f64>) {
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

/// A network as the usual plugins make it, with addresses of its own.
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
fn objects(size: Size) -> Vec<Value> {
    let pod = |number: usize| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("pod-{number}"), "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "main"}]},
        })
    };
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
        },
    });
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    [namespace, policy].into_iter().chain((0..size.containers).map(pod)).collect()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
