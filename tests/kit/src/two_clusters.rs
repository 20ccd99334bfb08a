//! Two clusters in one lab, the context provider between them, and an agent that subscribes to it.
//!
//! `home` has a node with an agent and a pod behind a policy that admits pods of `east`, by the labels of remote sets.
//! `east` has a node with pods and no agent. Both API servers, the provider and the agent are on the loopback of home's
//! node.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent_process::{AgentProcess, ask_socket, ringfence};
use crate::fake_api::FakeApi;
use crate::kernel_table::nft;
use crate::lab::{Lab, LabSpec, NodeSpec, PodSpec, probe_all};
use crate::oracle::Probe;
use crate::provider_process::Provider;

/// The node of the cluster whose policies are enforced.
pub const HOME: &str = "home-1";
/// The node of the other cluster.
pub const EAST: &str = "east-1";

/// The address of the other cluster's API server, the same after every restart.
const EAST_API: &str = "127.0.0.1:6443";
/// The configuration file that names the other cluster for the provider.
const REMOTE_FILE: &str = "remote.yaml";
/// More than the number of changes between two starts.
const VERSIONS_OF_A_LIFE: u64 = 1_000_000;
const PROVIDER: &str = "127.0.0.1:9471";

/// The pod behind the policy, in both families.
pub const DB: [&str; 2] = ["10.1.0.10", "fd01::10"];
/// Places for pods of the other cluster, in both families.
pub const PLACES: [[&str; 2]; 4] =
    [["10.2.0.10", "fd02::10"], ["10.2.0.11", "fd02::11"], ["10.2.0.12", "fd02::12"], ["10.2.0.13", "fd02::13"]];

/// A pod of the other cluster as its API server returns it. Its namespace is `shop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EastPod {
    pub name: &'static str,
    /// Index into [`PLACES`].
    pub place: usize,
    /// The label that exports its addresses.
    pub offered_as: Option<&'static str>,
    pub phase: &'static str,
}

impl EastPod {
    /// A running pod that exports its addresses as `web`.
    pub fn web(name: &'static str, place: usize) -> EastPod {
        EastPod { name, place, offered_as: Some("web"), phase: "Running" }
    }

    pub fn object(&self) -> Value {
        let labels = self.offered_as.map_or(json!({}), |name| json!({"semaphore.uw.systems/name": name}));
        let ips: Vec<Value> = PLACES[self.place].iter().map(|ip| json!({"ip": ip})).collect();
        json!({
            "metadata": {"namespace": "shop", "name": self.name, "uid": format!("{}-uid", self.name), "labels": labels},
            "spec": {"nodeName": EAST, "containers": []},
            "status": {"phase": self.phase, "podIP": PLACES[self.place][0], "podIPs": ips},
        })
    }
}

/// The lab, the API server of `home`, and a folder for the files of the processes.
pub struct TwoClusters {
    pub lab: Lab,
    pub home: FakeApi,
    folder: TempDir,
    /// Starts of the other cluster's API server so far.
    lives: AtomicU64,
}

impl Default for TwoClusters {
    fn default() -> TwoClusters {
        TwoClusters::new()
    }
}

impl TwoClusters {
    /// `home` with its pod and its policy, without other processes.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn new() -> TwoClusters {
        let lab = Lab::new(&spec());
        let folder = TempDir::new().expect("a folder");
        let home = lab.node_exec(HOME, FakeApi::start);
        home.set(policy::Kind::Namespace, json!({"metadata": {"name": "kube-system", "uid": "home-uid"}}));
        home.set(policy::Kind::Namespace, json!({"metadata": {"name": "shop", "labels": {"name": "shop"}}}));
        let ips: Vec<Value> = DB.iter().map(|ip| json!({"ip": ip})).collect();
        let db = json!({
            "metadata": {"namespace": "shop", "name": "db", "uid": "db-uid", "labels": {"app": "db"}},
            "spec": {"nodeName": HOME, "containers": []},
            "status": {"phase": "Running", "podIP": DB[0], "podIPs": ips},
        });
        home.set(policy::Kind::Pod, db);
        home.set(policy::Kind::NetworkPolicy, admits("semaphore.uw.systems", "web"));
        let clusters = TwoClusters { lab, home, folder, lives: AtomicU64::new(1) };
        let token = clusters.path("east.token");
        let remote = format!("clusters:\n- name: east\n  url: http://{EAST_API}\n  tokenFile: {}\n", token.display());
        let write = |path: PathBuf, text: &str| std::fs::write(path, text).expect("a folder of ours");
        write(token, "a-token");
        write(clusters.path(REMOTE_FILE), &remote);
        clusters
    }

    /// Starts the API server of `east` with these pods. An earlier one must have ended.
    ///
    /// # Panics
    /// If its address is in use.
    pub fn east(&self, pods: &[EastPod]) -> FakeApi {
        let address: SocketAddr = EAST_API.parse().expect("an address");
        let version = self.lives.fetch_add(1, Ordering::Relaxed) * VERSIONS_OF_A_LIFE;
        let api = self.lab.node_exec(HOME, || FakeApi::start_again(address, version));
        for pod in pods {
            api.set(policy::Kind::Pod, pod.object());
        }
        api
    }

    /// Starts the provider.
    ///
    /// # Panics
    /// If it does not start.
    pub fn provider(&self, more: &[&str]) -> Provider {
        let mut arguments = vec![
            "--kubeconfig".to_owned(),
            self.home.kubeconfig().display().to_string(),
            "--remote-clusters".into(),
            self.path(REMOTE_FILE).display().to_string(),
            "--state-dir".into(),
            self.path("provider").display().to_string(),
        ];
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        Provider::start_in(&self.lab, HOME, PROVIDER.parse().expect("an address"), arguments)
    }

    /// Starts an agent that subscribes to the provider.
    ///
    /// # Panics
    /// If it does not start.
    pub fn agent(&self, more: &[&str]) -> AgentProcess<'_> {
        let url = format!("http://{PROVIDER}");
        self.agent_without_provider(&[&["--context-url", &url], more].concat())
    }

    /// Starts an agent without a provider.
    ///
    /// # Panics
    /// If it does not start.
    pub fn agent_without_provider(&self, more: &[&str]) -> AgentProcess<'_> {
        let mut command = ringfence();
        command.args(["agent", "--node-name", HOME, "--run-dir"]).arg(self.run_dir());
        command.arg("--kubeconfig").arg(self.home.kubeconfig());
        command.arg("--state-dir").arg(self.path("agent")).args(more);
        AgentProcess::start(&self.lab, HOME, command)
    }

    pub fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Which of the other cluster's places reach the pod behind the policy on TCP port 80, over IPv4 and over IPv6.
    ///
    /// # Panics
    /// On system errors.
    pub fn admitted(&self) -> [[bool; 2]; PLACES.len()] {
        let probes: Vec<Probe> =
            PLACES.iter().flat_map(|place| place.iter().zip(DB)).map(|(from, to)| probe(from, to)).collect();
        let answers = probe_all(&self.lab, &probes);
        std::array::from_fn(|place| [answers[2 * place], answers[2 * place + 1]])
    }

    /// The addresses of the other cluster's places in the kernel's sets of peers.
    ///
    /// # Panics
    /// If the table cannot be listed.
    pub fn in_kernel(&self) -> Vec<&'static str> {
        let table = self.lab.node_exec(HOME, || nft("list ruleset inet"));
        // The table also contains denied sources, so only the sets of peers count.
        let sets = table.split("\tset ").filter(|set| set.starts_with("pods"));
        let sets = sets.filter_map(|set| set.split("\n\t}").next());
        let words: Vec<&str> = sets.flat_map(|set| set.split([' ', ',', '\n', '\t'])).collect();
        PLACES.iter().flatten().filter(|address| words.contains(address)).copied().collect()
    }

    /// The agent's `/v1/status`.
    ///
    /// # Panics
    /// If the request fails.
    pub fn agent_status(&self) -> Value {
        serde_json::from_str(&ask_socket(&self.run_dir(), "/v1/status").body).expect("JSON")
    }
}

/// The nodes and pods of the lab.
fn spec() -> LabSpec {
    let pod = |name: &str, addresses: [&str; 2]| PodSpec {
        name: name.into(),
        addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
    };
    let east = PLACES.iter().enumerate().map(|(place, addresses)| pod(&format!("place-{place}"), *addresses));
    LabSpec {
        nodes: vec![
            NodeSpec { name: HOME.into(), addresses: vec![], pods: vec![pod("db", DB)] },
            NodeSpec { name: EAST.into(), addresses: vec![], pods: east.collect() },
        ],
        outside: vec![],
    }
}

fn probe(from: &str, to: &str) -> Probe {
    let parse = |text: &str| -> IpAddr { text.parse().expect("an address") };
    Probe { source: parse(from), destination: parse(to), protocol: Probe::TCP, port: Some(80) }
}

/// A policy for the protected pod that admits the remote set `east/shop/<name>` by the labels of a family.
pub fn admits(prefix: &str, name: &str) -> Value {
    let key = |of: &str| format!("{prefix}/{of}");
    let from = json!({
        "namespaceSelector": {"matchLabels": {key("cluster"): "east", key("namespace"): "shop"}},
        "podSelector": {"matchLabels": {key("name"): name}},
    });
    json!({
        "metadata": {"namespace": "shop", "name": "db", "uid": "policy-uid"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [from]}],
        },
    })
}
