//! A node with its pods, and an agent on it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::machine;
use super::Reporting;
use kit::agent_process::{AgentProcess, ask_socket, until, without_variables};
use kit::kernel_table::nft;
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec};

const NODE: &str = "node-a";

/// Sends the flood, which the target denies.
pub(super) const FLOODER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// Denies every source.
pub(super) const TARGET: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// The ends of a flow that a policy allows.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 3);
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 4);

const PODS: [(&str, Ipv4Addr); 4] = [("flooder", FLOODER), ("target", TARGET), ("client", CLIENT), ("server", SERVER)];

/// The chain that counts packets of the flood.
const DENYING: &str = "list chain inet ringfence deny/ingress";

pub(super) struct Node {
    pub(super) lab: Lab,
    folder: TempDir,
    program: PathBuf,
}

impl Node {
    pub(super) fn new(program: &Path) -> Node {
        let pods = PODS.map(|(name, address)| PodSpec { name: name.into(), addresses: vec![address.into()] });
        let node = NodeSpec { name: NODE.into(), addresses: vec![], pods: pods.into() };
        let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![] });
        let folder = TempDir::new().expect("a folder");
        let manifests = folder.path().join("manifests");
        std::fs::create_dir(&manifests).expect("a folder in it");
        let texts: Vec<String> = objects().iter().map(Value::to_string).collect();
        std::fs::write(manifests.join("shop.yaml"), texts.join("\n---\n")).expect("a file in it");
        Node { lab, folder, program: program.into() }
    }

    /// An agent, once its rules are in the kernel.
    pub(super) fn start(&self, reporting: Reporting) -> Agent<'_> {
        let mut command = Command::new(&self.program);
        without_variables(&mut command);
        let run_dir = self.folder.path().join("run");
        command.args(["agent", "--node-name", NODE, "--run-dir"]).arg(&run_dir);
        command.arg("--manifests").arg(self.folder.path().join("manifests"));
        let group = match reporting {
            Reporting::Off => "off",
            Reporting::On => "auto",
        };
        command.args(["--nflog-group", group]);
        let mut process = AgentProcess::start(&self.lab, NODE, command);
        process.until_ready();
        Agent { process, run_dir }
    }

    /// Packets dropped in the direction of the flood since the agent started.
    pub(super) fn dropped(&self) -> u64 {
        let listed = self.lab.node_exec(NODE, || nft(DENYING));
        // The counters of reporting rules, if there are any, count flows: the last counter is that of the drop.
        let counter = listed.rsplit("counter packets ").next().and_then(|text| text.split_whitespace().next());
        counter.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no counter in {listed}"))
    }
}

pub(super) struct Agent<'node> {
    process: AgentProcess<'node>,
    run_dir: PathBuf,
}

impl Agent<'_> {
    pub(super) fn processor_time(&self) -> Duration {
        machine::processor_time(Pid::from_raw(self.process.id().cast_signed()))
    }

    /// Verifies that the measured agent reports, or does not.
    ///
    /// # Panics
    /// If it has reported denied packets although it should not, or the reverse.
    pub(super) fn check(&self, reporting: Reporting) {
        let has_told = || !ask_socket(&self.run_dir, "/v1/drops").body.trim().is_empty();
        match reporting {
            Reporting::Off => assert!(!has_told(), "the agent tells of denied packets with --nflog-group off"),
            Reporting::On => until("the agent tells of denied packets", || has_told().then_some(())),
        }
    }
}

fn objects() -> Vec<Value> {
    let pod = |(name, address): (&str, Ipv4Addr)| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
            "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "main"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": address}]},
        })
    };
    let policy = |app: &str, ingress: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": app, "namespace": "shop"},
            "spec": {"podSelector": {"matchLabels": {"app": app}}, "ingress": ingress},
        })
    };
    let from_client = json!([{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]);
    PODS.map(pod).into_iter().chain([policy("target", json!([])), policy("server", from_client)]).collect()
}
