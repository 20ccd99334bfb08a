//! The CNI plugin in chains of real plugins, on a node of the lab, with a fake agent.

// Results of a chain, and the stored attachment of a pod.
mod chains;
// Time and content of the response to ADD.
mod answers;
// Pods that start without the agent.
mod isolation;
// Pods that forge the source address of other pods.
// Flow records of frames that a bridge floods.
mod flooded;
mod forged;
// Checks of packets from a pod to its node and its neighbours.
mod edge;
// Packets over the gateway of a bridge, and from a host behind its uplink.
mod gateway;
// Interfaces that join a bridge after their ADD.
mod late_port;
// Packets that tc redirects.
mod redirected;
// Checksums that the kernel completes after a packet was judged.
mod checksum_offload;
// IPv4 options, which make nodes answer along a source route.
mod options;
// ICMP errors and fragments that leave a pod.
mod icmp;
// Headers that change after the check.
mod shared_memory;
// DEL, CHECK, GC and STATUS.
mod lifecycle;
// Pods that reach themselves.
mod hairpin;
// Flows of pods to their own node, which cluster policies judge.
mod own_node;
// Input that the plugin refuses.
mod refusals;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use cni::{AttachmentKey, AttachmentRecord, store};
use kit::cni_runtime::{Container, Runtime, Sandbox};
use kit::lab::{Lab, LabSpec, NodeSpec};
use serde_json::{Value, json};
use tempfile::TempDir;

const NODE: &str = "node-a";
const NODE_ADDRESS: &str = "192.0.2.10";
const OUTSIDE: &str = "192.0.2.1";

/// Address ranges of host-local.
#[derive(Clone, Copy)]
enum Families {
    V4,
    Dual,
}

/// A node, and a temporary folder for all state.
struct Place {
    lab: Lab,
    folder: TempDir,
}

/// A pod's sandbox and its container as the runtime describes it.
struct Pod {
    sandbox: Arc<Sandbox>,
    container: Container,
}

impl Pod {
    fn new(name: &str) -> Pod {
        let sandbox = Arc::new(Sandbox::new());
        let container = Container::of_pod(&format!("id-of-{name}"), "shop", name, &sandbox);
        Pod { sandbox, container }
    }

    fn id(&self) -> AttachmentKey {
        AttachmentKey::new(&self.container.id, &self.container.interface).unwrap()
    }
}

impl Place {
    fn new() -> Place {
        let node = NodeSpec { name: NODE.into(), addresses: vec![NODE_ADDRESS.parse().unwrap()], pods: Vec::new() };
        let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![OUTSIDE.parse().unwrap()] });
        Place { lab, folder: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("run/cni.sock")
    }

    fn state_dir(&self) -> PathBuf {
        self.path("run/cni")
    }

    /// Ringfence's entry of a chain, with additional keys. An agent on a busy machine answers within the timeout; a
    /// test without an agent sets a shorter one.
    fn ours(&self, more: Value) -> Value {
        let mut entry = json!({
            "type": "ringfence-cni",
            "agentSocket": self.socket(),
            "stateDir": self.state_dir(),
            "timeoutSeconds": 60,
        });
        let more = more.as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(more);
        entry
    }

    fn ipam(&self, families: Families) -> Value {
        let (v4, v6) = (json!([{"subnet": "10.1.0.0/16"}]), json!([{"subnet": "fd00:1::/64"}]));
        let (v4_route, v6_route) = (json!({"dst": "0.0.0.0/0"}), json!({"dst": "::/0"}));
        let (ranges, routes) = match families {
            Families::V4 => (json!([v4]), json!([v4_route])),
            Families::Dual => (json!([v4, v6]), json!([v4_route, v6_route])),
        };
        json!({"type": "host-local", "dataDir": self.path("ipam"), "ranges": ranges, "routes": routes})
    }

    fn ptp(&self, families: Families) -> Value {
        json!({"type": "ptp", "ipam": self.ipam(families)})
    }

    fn bridge(&self, families: Families) -> Value {
        json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": self.ipam(families)})
    }

    /// A plugin that prints the file `stub.json`.
    fn stub(&self, result: &str) -> Value {
        let (folder, program) = (self.path("plugins"), self.path("plugins/stub"));
        fs::create_dir_all(&folder).unwrap();
        let file = self.path("stub.json");
        fs::write(&file, result).unwrap();
        let script = format!(
            "#!/bin/sh\nwhile read -r line; do :; done\n[ \"$CNI_COMMAND\" != ADD ] || exec cat {}\n",
            file.display()
        );
        // Renamed into place, because a file that is still open for writing cannot be executed.
        fs::write(folder.join("new"), script).unwrap();
        fs::set_permissions(folder.join("new"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(folder.join("new"), program).unwrap();
        json!({"type": "stub"})
    }

    fn runtime(&self, version: &str, plugins: &[Value]) -> Runtime {
        let network = json!({"cniVersion": version, "name": "pods", "plugins": plugins});
        Runtime::new(&self.lab.node_namespace_path(NODE), &network, &self.path("cache"))
            .with_plugins(&self.path("plugins"))
    }

    /// A chain of ptp and ringfence-cni, with these keys.
    fn ptp_runtime(&self, more: Value) -> Runtime {
        self.runtime("1.0.0", &[self.ptp(Families::V4), self.ours(more)])
    }

    /// All stored attachments, each of which must be readable.
    fn attachments(&self) -> Vec<AttachmentRecord> {
        let stored = store::read_all(&self.state_dir()).unwrap();
        assert_eq!(stored.unreadable, []);
        stored.attachments
    }
}
