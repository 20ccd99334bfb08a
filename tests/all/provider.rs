//! `ringfence-context` as a process, between an API server, followers, a relay and a store, any of which may fail.

// Every table converges to that of a fresh start despite failures.
mod convergence;
// Publication delay of a change amid other events.
mod freshness;
// Leader election among pushing providers.
mod election;
// A relay that refuses pushes, and one that does not answer.
mod pushing;
// Baselines in a folder, also on a full disk.
mod storing;
// Baselines in a bucket.
mod bucket;
// Malformed objects, a faulty API server, readers that do not read.
mod hardship;
// Past owners of an address.
mod history;
// Output and exit status of the querying verbs.
mod asking;
// Pods of other clusters.
mod remote;
// Addresses of nodes, API servers and Ingresses.
mod reserved;
// Records of CIDR ranges: world and health checks.
mod ranges;
// TLS, authentication and grants.
mod secured;
// The certificates that the provider makes for itself.
mod own_certificates;
// A follower of a provider.
mod follower;
// A consumer's table.
mod table;
// A receiver behind a relay.
mod relayed;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::provider_process::run;
use serde_json::{Value, json};
use table::FollowedTable;
use tempfile::TempDir;

const IDENTITY: &str = "identity";
const EDGES: &str = "policy-edges";
const REMOTE: &str = "remote-sets";
/// The feed of identities in numeric form.
const NUMBERS: &str = "identity?form=numbers";
const FEEDS: [&str; 2] = [IDENTITY, EDGES];

/// The objects of the API server, by kind, namespace and name.
#[derive(Default)]
struct World(BTreeMap<(Kind, String, String), Value>);

impl World {
    fn set(&mut self, api: &FakeApi, kind: Kind, object: Value) {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or("").to_owned();
        self.0.insert((kind, text("namespace"), text("name")), object.clone());
        api.set(kind, object);
    }

    fn remove(&mut self, api: &FakeApi, kind: Kind, namespace: &str, name: &str) {
        if self.0.remove(&(kind, namespace.to_owned(), name.to_owned())).is_some() {
            api.remove(kind, namespace, name);
        }
    }

    /// Writes the objects as a folder of manifests.
    fn written(&self) -> TempDir {
        let folder = TempDir::new().unwrap();
        for (number, ((kind, ..), object)) in self.0.iter().enumerate() {
            let mut object = object.clone();
            object["kind"] = kind.to_string().into();
            object["apiVersion"] = api_version(*kind).into();
            std::fs::write(folder.path().join(format!("{number}.json")), object.to_string()).unwrap();
        }
        folder
    }

    /// The tables that a fresh start publishes.
    fn fresh(&self) -> Fresh {
        let (manifests, out) = (self.written(), TempDir::new().unwrap());
        let [from, to] = [&manifests, &out].map(|folder| folder.path().display().to_string());
        let built = run(["build", "--manifests", &from, "--out", &to, "--cluster-id", CLUSTER]);
        assert_eq!(built.code, Some(0), "{built:?}");
        Fresh::of_store(out.path())
    }
}

/// The name of the cluster in these tests: the UID that `namespace` gives to kube-system.
const CLUSTER: &str = "uid-of-kube-system";

/// The tables of a built or stored folder.
#[derive(Debug, PartialEq)]
struct Fresh {
    tables: [FollowedTable; 2],
    versions: [String; 2],
    /// The table of identities, without a position.
    ids: Value,
}

impl Fresh {
    fn of_store(folder: &Path) -> Fresh {
        let latest = FEEDS.map(|feed| latest(folder, feed));
        let table = |at: usize| FollowedTable::of(FEEDS[at], &read_part(folder, FEEDS[at], &latest[at], "baseline"));
        Fresh {
            tables: [table(0), table(1)],
            versions: [0, 1].map(|at| latest[at]["version"].as_str().unwrap().to_owned()),
            ids: without_position(serde_json::from_slice(&read_part(folder, IDENTITY, &latest[0], "ids")).unwrap()),
        }
    }
}

fn latest(folder: &Path, feed: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join(feed).join("latest.json")).unwrap()).unwrap()
}

/// The path of a part of the baseline in `latest`.
fn part(folder: &Path, feed: &str, latest: &Value, what: &str) -> PathBuf {
    let object = latest["objects"].as_array().unwrap().iter().find(|object| object["what"] == what).unwrap();
    folder.join(feed).join(object["object"].as_str().unwrap())
}

fn read_part(folder: &Path, feed: &str, latest: &Value, what: &str) -> Vec<u8> {
    std::fs::read(part(folder, feed, latest, what)).unwrap()
}

fn without_position(mut ids: Value) -> Value {
    let fields = ids.as_object_mut().unwrap();
    for of_position in ["epoch", "seq", "version"] {
        fields.remove(of_position).unwrap();
    }
    ids
}

fn api_version(kind: Kind) -> &'static str {
    match kind {
        Kind::Namespace | Kind::Pod | Kind::Node | Kind::Service => "v1",
        Kind::EndpointSlice => "discovery.k8s.io/v1",
        Kind::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
        Kind::NetworkPolicy | Kind::Ingress => "networking.k8s.io/v1",
        Kind::Gateway | Kind::HttpRoute | Kind::GrpcRoute => "gateway.networking.k8s.io/v1",
        Kind::TlsRoute | Kind::TcpRoute | Kind::UdpRoute => "gateway.networking.k8s.io/v1alpha2",
    }
}

/// A running pod with an address and a label `app`.
fn pod(namespace: &str, name: &str, app: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}"), "labels": {"app": app}},
        "spec": {"nodeName": "node-a", "containers": []},
        "status": {
            "phase": "Running", "podIP": addresses.first().map(|a| &a["ip"]), "podIPs": addresses,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

fn namespace(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-of-{name}"), "labels": labels}})
}

fn node(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
}

fn api_servers(addresses: &[&str]) -> Value {
    let metadata = json!({"namespace": "default", "name": "kubernetes"});
    json!({"metadata": metadata, "addressType": "IPv4", "endpoints": [{"addresses": addresses}]})
}
