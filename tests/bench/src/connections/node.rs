//! A node with two pods, the agent that records their connections, and the sender that opens them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::machine;
use kit::agent_process::{AgentProcess, ask_socket, until, without_variables};
use kit::kernel_table::nft;
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec};

const NODE: &str = "node-a";
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);

/// Conntrack timeout: with 5,000 connections a second there are some 100,000 entries, since the kernel collects expired
/// ones only at intervals.
const TIMEOUT_SECONDS: u32 = 10;

/// Number of the client's source ports. It sends from each to each port of the server in turn, which gives more
/// connections than a run opens.
const SOURCE_PORTS: usize = 64;

/// Connections whose DESTROY event was lost are recognised as closed after two windows.
const PATIENCE: Duration = Duration::from_secs(120);
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

pub(super) struct Node {
    pub(super) lab: Lab,
    folder: TempDir,
    program: PathBuf,
}

impl Node {
    pub(super) fn new(program: &Path) -> Node {
        let pods = [("client", CLIENT), ("server", SERVER)];
        let specs = pods.map(|(name, address)| PodSpec { name: name.into(), addresses: vec![address.into()] });
        let node = NodeSpec { name: NODE.into(), addresses: vec![], pods: specs.into() };
        let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![] });
        lab.node_exec(NODE, || {
            let path = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
            fs::write(path, TIMEOUT_SECONDS.to_string()).expect("a sysctl of a namespace of ours");
        });
        // Without this rule the server would answer that its ports are closed.
        lab.in_namespace_of(SERVER.into(), || {
            nft("add table inet silent");
            nft("add chain inet silent input { type filter hook input priority 0; policy drop; }");
        });
        let folder = TempDir::new().expect("a folder");
        let manifests = folder.path().join("manifests");
        fs::create_dir(&manifests).expect("a folder in it");
        let texts: Vec<String> = pods.map(pod).into_iter().chain([policy()]).map(|o| o.to_string()).collect();
        fs::write(manifests.join("shop.yaml"), texts.join("\n---\n")).expect("a file in it");
        Node { lab, folder, program: program.into() }
    }

    /// An agent with flow records enabled.
    pub(super) fn start(&self) -> Agent<'_> {
        let mut command = Command::new(&self.program);
        without_variables(&mut command);
        let run_dir = self.folder.path().join("run");
        command.args(["agent", "--node-name", NODE, "--flows", "on", "--run-dir"]).arg(&run_dir);
        command.arg("--manifests").arg(self.folder.path().join("manifests"));
        let mut process = AgentProcess::start(&self.lab, NODE, command);
        process.until_ready();
        let agent = Agent { process, run_dir };
        until("the agent follows connection tracking", || agent.asked()["since"].is_string().then_some(()));
        agent
    }

    pub(super) fn entries(&self) -> u64 {
        self.lab.node_exec(NODE, || nfnetlink::count_flows().expect("conntrack").entries.into())
    }
}

pub(super) struct Agent<'node> {
    process: AgentProcess<'node>,
    run_dir: PathBuf,
}

/// Completeness of the records.
pub(super) struct Coverage {
    pub(super) started: u64,
    pub(super) lost_events: u64,
    /// How often the agent gave up reliable delivery of DESTROY events.
    pub(super) given_up: u64,
}

impl Agent<'_> {
    pub(super) fn processor_time(&self) -> Duration {
        machine::processor_time(Pid::from_raw(self.process.id().cast_signed()))
    }

    fn asked(&self) -> Value {
        let body = ask_socket(&self.run_dir, "/v1/flows/coverage").body;
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
    }

    /// Flushes all connections, and waits until they are in the records.
    pub(super) fn end(&self, node: &Node) -> Coverage {
        node.lab.node_exec(NODE, || {
            let ended = Command::new("conntrack").arg("-F").output().expect("conntrack is installed");
            assert!(ended.status.success(), "{ended:?}");
        });
        let deadline = Instant::now() + PATIENCE;
        // Connections that the agent learns of only by their DESTROY event are recorded after those it knew.
        let mut before = Value::Null;
        let found = loop {
            let coverage = self.asked();
            if coverage["live"] == 0 && coverage == before {
                break coverage;
            }
            before = coverage.clone();
            assert!(Instant::now() < deadline, "connections that have ended still live: {coverage}");
            thread::sleep(BETWEEN_LOOKS);
        };
        let figure = |name: &str| found[name].as_u64().unwrap_or_else(|| panic!("{name} of {found}"));
        let given_up = self.process.metric("ringfence_flow_reliability_given_up_total");
        Coverage { started: figure("started"), lost_events: figure("lostEvents"), given_up }
    }
}

/// Opens connections between the pods, each with its first packet.
pub(super) struct Sender {
    sockets: Vec<UdpSocket>,
    opened: usize,
}

impl Sender {
    pub(super) fn new(lab: &Lab) -> Sender {
        let socket = |_| UdpSocket::bind((CLIENT, 0)).expect("a socket");
        let sockets = lab.in_namespace_of(IpAddr::V4(CLIENT), || (0..SOURCE_PORTS).map(socket).collect());
        Sender { sockets, opened: 0 }
    }

    pub(super) fn open_one(&mut self) {
        let ports = usize::from(u16::MAX);
        let socket = &self.sockets[self.opened / ports % SOURCE_PORTS];
        let port = (self.opened % ports) as u16 + 1;
        socket.send_to(&[7], (SERVER, port)).expect("the client sends");
        self.opened += 1;
    }
}

fn pod((name, address): (&str, Ipv4Addr)) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "main"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]},
    })
}

/// Allows the client's connections.
fn policy() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "server", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "server"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}],
        },
    })
}
