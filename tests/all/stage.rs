//! A node in a lab, with a folder of manifests or an API server for its agent, and read access to the kernel's table.

use std::path::PathBuf;
use std::process::Command;

use kit::agent_process::{AgentProcess, program, ringfence, without_variables};
use kit::fake_api::FakeApi;
use kit::kernel_table::nft;
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec};
use nfnetlink::{Kernel, TableSnapshot, repair};
use policy::{
    Change, ClusterState, DEFAULT_MARK_MASK, DENIED_PREFIX, DnsCopy, FORWARD_CHAIN, Kind, Layout, lower, translate,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::objects::kind_of;

/// The flag of tables that a living process owns.
const NFT_TABLE_F_OWNER: u32 = 2;

pub(crate) const NODE: &str = "node-a";

/// The namespaces are the lab's; the folder holds `manifests` and the run directory.
pub(crate) struct Stage {
    pub(crate) lab: Lab,
    folder: TempDir,
    mask: u32,
}

impl Stage {
    /// A node without pods.
    pub(crate) fn new() -> Stage {
        Stage::with_pods(&[])
    }

    /// A node with these pods, each with its addresses, and the outside.
    pub(crate) fn with_pods(pods: &[(&str, &[&str])]) -> Stage {
        Stage::with_outside(pods, &["192.0.2.1", "2001:db8::1"])
    }

    /// As [`Stage::with_pods`], with these addresses outside.
    pub(crate) fn with_outside(pods: &[(&str, &[&str])], outside: &[&str]) -> Stage {
        let addresses = |texts: &[&str]| texts.iter().map(|a| a.parse().expect("an address")).collect();
        let pods = pods.iter().map(|(name, ips)| PodSpec { name: (*name).into(), addresses: addresses(ips) }).collect();
        let node = NodeSpec { name: NODE.into(), addresses: vec![], pods };
        let lab = Lab::new(&LabSpec { nodes: vec![node], outside: addresses(outside) });
        let folder = TempDir::new().expect("a folder");
        std::fs::create_dir(folder.path().join("manifests")).expect("a folder in it");
        Stage { lab, folder, mask: DEFAULT_MARK_MASK }
    }

    pub(crate) fn with_mask(self, mask: u32) -> Stage {
        Stage { mask, ..self }
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Writes a manifest atomically, as editors do: under a temporary name, then renamed.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let (hidden, path) = (self.manifests().join(format!(".{file}")), self.manifests().join(file));
        std::fs::write(&hidden, text).and_then(|()| std::fs::rename(&hidden, &path)).expect("a folder of ours");
    }

    pub(crate) fn write_objects(&self, file: &str, objects: &[Value]) {
        let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
        self.write(file, &texts.join("\n---\n"));
    }

    /// `ringfence agent` without a source.
    pub(crate) fn agent(&self) -> Command {
        let mut command = ringfence();
        command.args(["agent", "--node-name", NODE, "--run-dir"]).arg(self.run_dir());
        command.args(["--ct-mark-mask", &format!("{:#010x}", self.mask)]);
        command
    }

    pub(crate) fn agent_on_manifests(&self) -> Command {
        let mut command = self.agent();
        command.arg("--manifests").arg(self.manifests());
        command
    }

    /// Read-only sysctls, as in a container without privileges.
    pub(crate) fn agent_with_read_only_sysctls(&self) -> Command {
        let mut command = Command::new("unshare");
        without_variables(&mut command);
        let script = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec \"$@\"";
        command.args(["--mount", "sh", "-euc", script, "sh"]).arg(program()).args(self.agent_on_manifests().get_args());
        command
    }

    /// Replaces `/etc/hosts` with a file.
    pub(crate) fn agent_with_hosts(&self, hosts: &str) -> Command {
        let path = self.folder.path().join("hosts");
        std::fs::write(&path, hosts).expect("the file of host names");
        let mut command = Command::new("unshare");
        without_variables(&mut command);
        let script = "mount --bind \"$0\" /etc/hosts; exec \"$@\"";
        command.args(["--mount", "sh", "-euc", script]).arg(path);
        command.arg(program()).args(self.agent_on_manifests().get_args());
        command
    }

    /// Starts the command in the node's namespace.
    pub(crate) fn start(&self, command: Command) -> AgentProcess<'_> {
        AgentProcess::start(&self.lab, NODE, command)
    }

    pub(crate) fn start_on_manifests(&self) -> AgentProcess<'_> {
        let mut agent = self.start(self.agent_on_manifests());
        agent.until_ready();
        agent
    }

    /// An API server on the node's loopback.
    pub(crate) fn api(&self) -> FakeApi {
        self.lab.node_exec(NODE, FakeApi::start)
    }

    pub(crate) fn agent_on_api(&self, api: &FakeApi) -> Command {
        let mut command = self.agent();
        command.arg("--kubeconfig").arg(api.kubeconfig());
        command
    }

    pub(crate) fn start_on_api(&self, api: &FakeApi) -> AgentProcess<'_> {
        let mut agent = self.start(self.agent_on_api(api));
        agent.until_ready();
        agent
    }

    pub(crate) fn nft(&self, command: &str) -> String {
        self.lab.node_exec(NODE, || nft(command))
    }

    /// The names of the tables in the node's namespace.
    pub(crate) fn tables(&self) -> String {
        self.nft("list tables")
    }

    /// The kernel generation, which every transaction of any process increments.
    pub(crate) fn kernel_generation(&self) -> u32 {
        self.lab.node_exec(NODE, || Kernel::open().expect("nf_tables").generation().expect("a generation"))
    }

    pub(crate) fn observed(&self) -> Option<TableSnapshot> {
        let table = nft::Table::inet(nft::Name::new("ringfence").expect("a name"));
        self.lab.node_exec(NODE, || Kernel::open().expect("nf_tables").read(&table).expect("the table is readable"))
    }

    /// The generation in the mark of approved flows.
    pub(crate) fn policy_generation(&self) -> u32 {
        self.generation_of(&self.observed().expect("a table of ours"))
    }

    pub(crate) fn generation_of(&self, observed: &TableSnapshot) -> u32 {
        let mark = observed.accepted_mark(FORWARD_CHAIN, self.mask).expect("a table of ours");
        self.layout().generation_at(mark).expect("a mark of ours").number()
    }

    /// The number of generations since this one.
    pub(crate) fn generations_since(&self, before: u32) -> u32 {
        let last = self.layout().first_generation().last_number();
        (last + self.policy_generation() - before) % last
    }

    fn layout(&self) -> Layout {
        Layout::new(nft::Name::new("ringfence").expect("a name"), self.mask).expect("a mask")
    }

    /// Whether the kernel's rules match the state, in any generation.
    pub(crate) fn enforces(&self, state: &ClusterState) -> bool {
        let Some(observed) = self.observed() else { return false };
        let Some(mark) = observed.accepted_mark(FORWARD_CHAIN, self.mask) else { return false };
        let Some(generation) = self.layout().generation_at(mark) else { return false };
        let owned = observed.flags & NFT_TABLE_F_OWNER != 0;
        let layout = self.layout().protected(owned).logging_to(observed.log_group(DENIED_PREFIX));
        let layout = layout.copying_dns_answers_to(observed.log_group(DnsCopy::Answer.prefix()));
        let wanted = translate(state, NODE, &layout).ruleset.stamp(generation);
        repair(Some(&observed), &wanted).is_empty()
    }

    /// Waits until the kernel's rules match these objects.
    #[track_caller]
    pub(crate) fn until_enforced(&self, agent: &mut AgentProcess, state: &ClusterState) {
        agent.until("the rules are in the kernel", |_| self.enforces(state).then_some(()));
    }

    pub(crate) fn state_of_manifests(&self) -> ClusterState {
        let folder = cluster::read_folder(&self.manifests()).expect("a folder");
        let mut state = ClusterState::new();
        for change in folder.changes() {
            state.apply(change);
        }
        state
    }
}

/// The state of a fresh start on these objects.
pub(crate) fn state_of(objects: &[Value]) -> ClusterState {
    let mut state = ClusterState::new();
    for kind in Kind::ALL {
        let of_kind = objects.iter().filter(|o| kind_of(o) == kind);
        let lowered = of_kind.map(|o| lower(kind, o).expect("it has a name")).collect();
        state.apply(Change::Replace(kind, lowered));
    }
    state
}

pub(crate) fn set_all(api: &FakeApi, objects: &[Value]) {
    for object in objects {
        api.set(kind_of(object), object.clone());
    }
}

/// Labels as in `app=web,tier=front`.
fn labels(text: &str) -> Value {
    text.split(',').filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), json!(v))).collect()
}

pub(crate) fn namespace(name: &str, with: &str) -> Value {
    let mut labels = labels(with);
    labels["kubernetes.io/metadata.name"] = json!(name);
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// A pod of namespace shop that runs on a node.
pub(crate) fn pod(name: &str, node: &str, with: &str, addresses: &[&str]) -> Value {
    let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": labels(with)},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "main"}]},
        "status": {"phase": "Running", "podIPs": ips},
    })
}

/// A policy of namespace shop that lets pods with labels `from` reach those with labels `to`, on every port.
pub(crate) fn ingress(name: &str, to: &str, from: &str) -> Value {
    policy(name, to, json!({"ingress": [{"from": [{"podSelector": {"matchLabels": labels(from)}}]}]}))
}

/// A policy of namespace shop that selects pods with these labels.
pub(crate) fn policy(name: &str, selects: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["podSelector"] = json!({"matchLabels": labels(selects)});
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "shop"}, "spec": spec,
    })
}
