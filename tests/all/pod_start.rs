//! A pod sends nothing before its rules are in the kernel: the agent, the CNI plugin and Debian's plugins together,
//! with real packets.

// The kernel has the pod's rules before ADD returns.
mod rules;
// Pods that the agent does not know yet, or knows with another UID.
mod unknown;
// Pods that start without an agent, or without a ready one.
mod absent;
// Effects of DEL, GC, CHECK and STATUS.
mod lifecycle;
// Attachments take precedence over the API.
mod reported;
// No packet leaks in a thousand starts.
mod leaks;
// Other processes exhaust the agent's connections.
mod crowded;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cni::{AttachmentKey, store};
use kit::agent_process::AgentProcess;
use kit::cni_runtime::{Container, ProbeSender, Prober, Runtime, Sandbox};
use kit::fake_api::FakeApi;
use kit::prober::{PacketArrivals, Sent, arrivals, count_arrivals};
use policy::{Attachment, ClusterState, ObjectName};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stage::{NODE, Stage, pod, policy, set_all, state_of};

/// Default sending time of probers: hundreds of packets.
const PROBE: Duration = Duration::from_millis(20);

/// A port without a listener: arriving packets are counted before delivery.
const PORT: u16 = 9;

/// CNI's "try again later".
const TRY_AGAIN_LATER: u64 = 11;

/// `timeoutSeconds` for tests in which the agent refuses a start and answers why.
const ANSWERED_SECONDS: u64 = 4;

/// The plugin's table, as `nft list tables` names it.
const ISOLATED: &str = "table inet ringfence-isolated";

/// A node with an API server, on which a runtime starts pods.
struct Site {
    api: FakeApi,
    stage: Stage,
    folder: TempDir,
}

/// The network plugin of the pods.
#[derive(Debug, Clone, Copy)]
enum Network {
    Routed,
    Bridged,
}

impl Site {
    fn new() -> Site {
        let stage = Stage::new();
        Site { api: stage.api(), stage, folder: TempDir::new().unwrap() }
    }

    /// A site whose API server has the objects of a ready agent: a namespace, and the given ones.
    fn with(objects: &[Value]) -> Site {
        let site = Site::new();
        set_all(&site.api, objects);
        site
    }

    /// `ringfence agent` on the API server, with resyncs too rare to matter.
    fn agent(&self) -> Command {
        self.stage.agent_on_api(&self.api)
    }

    fn start_agent(&self) -> AgentProcess<'_> {
        self.stage.start_on_api(&self.api)
    }

    fn entry(&self, network: Network) -> Value {
        let ranges = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
        let ipam = json!({
            "type": "host-local", "dataDir": self.folder.path().join("ipam"), "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        });
        match network {
            Network::Routed => json!({"type": "ptp", "ipam": ipam}),
            Network::Bridged => json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam}),
        }
    }

    /// Ringfence's entry, with additional keys. No agent on a busy machine exceeds the timeout; a test in which it
    /// expires sets a short one.
    fn ours(&self, more: Value) -> Value {
        let mut entry = json!({
            "type": "ringfence-cni",
            "agentSocket": self.stage.run_dir().join("cni.sock"),
            "stateDir": self.stage.run_dir().join("cni"),
            "timeoutSeconds": 60,
        });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    }

    fn chain(&self, version: &str, plugins: &[Value]) -> Runtime {
        let network = json!({"cniVersion": version, "name": "pods", "plugins": plugins});
        Runtime::new(&self.stage.lab.node_namespace_path(NODE), &network, &self.folder.path().join("cache"))
    }

    /// A chain of the network plugin and ringfence-cni, with these keys.
    fn runtime(&self, network: Network, more: Value) -> Runtime {
        self.chain("1.0.0", &[self.entry(network), self.ours(more)])
    }

    /// The state that results from objects and attachments.
    fn state(&self, objects: &[Value]) -> ClusterState {
        let mut state = state_of(objects);
        let stored = store::read_all(&self.stage.run_dir().join("cni")).unwrap();
        assert_eq!(stored.unreadable, []);
        for attachment in stored.attachments {
            let mut attachment = lowered(attachment);
            // A deleted interface has no chain.
            attachment.host_interface = attachment
                .host_interface
                .filter(|name| self.stage.lab.node_exec(NODE, || nix::net::if_::if_nametoindex(name.as_str()).is_ok()));
            state.attach(attachment);
        }
        state
    }

    /// The kernel currently enforces the objects and attachments, and its sets have these addresses.
    #[track_caller]
    fn assert_enforced(&self, objects: &[Value], addresses: &[IpAddr]) {
        assert!(self.stage.enforces(&self.state(objects)), "{}", self.stage.nft("list ruleset"));
        for address in addresses {
            assert!(self.mentions(*address), "{address} in\n{}", self.stage.nft("list ruleset"));
        }
    }

    /// Whether the address is in any rule or set of the node.
    fn mentions(&self, address: IpAddr) -> bool {
        let address = address.to_string();
        let is_of_an_address = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
        self.stage.nft("list ruleset").split(|c| !is_of_an_address(c)).any(|word| word == address)
    }
}

/// The agent's attachment for one that the plugin has stored.
fn lowered(attachment: cni::AttachmentRecord) -> Attachment {
    let cni::AttachmentRecord { id, namespace, pod, uid, addresses, host_interface, bridge, added_nanos, .. } =
        attachment;
    let (hardware_address, link_local) = (attachment.hardware_address, attachment.link_local);
    let input_interface = attachment.input_interface.map(|name| name.parse().unwrap());
    Attachment {
        id: policy::AttachmentId { container: id.container_id().into(), interface: id.interface().into() },
        pod: ObjectName::new(&namespace, &pod),
        uid: uid.map(Arc::from),
        addresses,
        host_interface: host_interface.map(|name| name.parse().unwrap()),
        bridged: bridge.is_some(),
        input_interface,
        hardware_address: hardware_address.map(|address| address.parse().unwrap()),
        link_local,
        since: added_nanos,
    }
}

/// A pod's sandbox and its container as the runtime describes it.
struct Pod {
    sandbox: Arc<Sandbox>,
    container: Container,
}

impl Pod {
    fn new(name: &str) -> Pod {
        Pod::again(name, 0)
    }

    /// The sandbox that a pod gets after it has lost this many.
    fn again(name: &str, times: usize) -> Pod {
        let sandbox = Arc::new(Sandbox::new());
        let container = Container::of_pod(&format!("id-of-{name}-{times}"), "shop", name, &sandbox);
        Pod { sandbox, container }
    }

    fn id(&self) -> AttachmentKey {
        AttachmentKey::new(&self.container.id, &self.container.interface).unwrap()
    }

    fn ready_to_send(&self, to: IpAddr) -> Prober {
        Prober::ready(&self.sandbox, SocketAddr::new(to, PORT))
    }

    fn send(&self, to: IpAddr) -> ProbeSender {
        self.ready_to_send(to).start(PROBE)
    }
}

/// A pod after a successful ADD.
struct Running {
    pod: Pod,
    /// IPv4 and IPv6.
    addresses: Vec<IpAddr>,
}

impl Running {
    fn start(runtime: &Runtime, name: &str) -> Running {
        let pod = Pod::new(name);
        let addresses = runtime.add(&pod.container).unwrap().addresses();
        Running { pod, addresses }
    }
}

/// Whether packets arrive, in each family.
#[track_caller]
fn reaches(from: &Running, to: &Running) -> [bool; 2] {
    [0, 1].map(|family| {
        let at = to.addresses[family];
        to.pod.sandbox.run(|| count_arrivals(&[at]));
        let Sent { datagrams, connections } = from.pod.send(at).end();
        assert!(datagrams > 0 && connections > 0, "{datagrams} datagrams and {connections} SYNs were sent");
        let arrived = to.pod.sandbox.run(arrivals);
        arrived.get(&from.addresses[family]).is_some_and(|PacketArrivals { datagrams, connections }| {
            assert_eq!(*datagrams > 0, *connections > 0, "{arrived:?}");
            *datagrams > 0
        })
    })
}

const YES: [bool; 2] = [true, true];
const NO: [bool; 2] = [false, false];

/// The object of a pod of this node without a reported address.
fn pending(name: &str, labels: &str) -> Value {
    with_uid(&format!("uid-of-{name}"), pod(name, NODE, labels, &[]))
}

fn with_uid(uid: &str, mut object: Value) -> Value {
    object["metadata"]["uid"] = json!(uid);
    object["status"]["phase"] = json!("Pending");
    object
}

/// A policy of namespace shop: selected pods may send to pods with these labels only.
fn egress(name: &str, from: &str, to: &str) -> Value {
    let (key, value) = to.split_once('=').unwrap();
    policy(
        name,
        from,
        json!({
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": {"matchLabels": {key: value}}}]}],
        }),
    )
}
