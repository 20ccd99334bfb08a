//! The CNI plugin in chains of real plugins, on a node of the lab, with an agent that does as it is told.

// What comes out of a chain, and what is kept of a pod.
mod chains;
// When ADD is answered, and with what.
mod answers;
// Pods that start without the agent.
mod isolation;
// Pods that send with the addresses of others.
mod forged;
// What leaves a pod towards its node and its neighbours.
mod edge;
// Packets that tc redirects.
mod redirected;
// Checksums that the kernel completes after a packet was judged.
mod checksum_offload;
// IPv4 options, to which nodes answer along a route of the sender's.
mod options;
// ICMP errors and fragments that leave a pod.
mod icmp;
// Headers that change behind the check.
mod shared_memory;
// DEL, CHECK, GC and STATUS.
mod lifecycle;
// Pods that reach themselves.
mod hairpin;
// What the plugin does not take.
mod refusals;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use cni::{Attachment, AttachmentId, store};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::cni_runtime::{Container, Runtime, Sandbox};
use tests::lab::{Lab, LabSpec, NodeSpec};

const NODE: &str = "node-a";
const NODE_ADDRESS: &str = "192.0.2.10";
const OUTSIDE: &str = "192.0.2.1";

/// What host-local gives addresses from.
#[derive(Clone, Copy)]
enum Families {
    V4,
    Dual,
}

/// A node, and a folder for all state.
struct Place {
    lab: Lab,
    folder: TempDir,
}

/// A pod's sandbox and what the runtime knows of it.
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

    fn id(&self) -> AttachmentId {
        AttachmentId::new(&self.container.id, &self.container.interface).unwrap()
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

    /// Our entry of a chain, with these keys besides. An agent on a busy machine answers within the timeout; a
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
        // Under another name first: a file that is still open for writing is not executed.
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

    /// ptp and ours, with these keys.
    fn ptp_runtime(&self, more: Value) -> Runtime {
        self.runtime("1.0.0", &[self.ptp(Families::V4), self.ours(more)])
    }

    /// Everything in the folder of attachments, all of which has to be readable.
    fn attachments(&self) -> Vec<Attachment> {
        let stored = store::read_all(&self.state_dir()).unwrap();
        assert_eq!(stored.unreadable, []);
        stored.attachments
    }
}
