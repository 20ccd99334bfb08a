//! Pods of other clusters: two API servers, and a provider that watches one on behalf of the other.

// Outages of the other cluster and of the provider, and the state on disk meanwhile.
mod outage;
// The file of clusters, and changes to it.
mod configured;
// GlobalNetworkSets.
mod exported;
// Pods that offer their addresses to a set.
mod offered;
// A cluster that exceeds its limits.
mod limited;
// Identity records of remote addresses.
mod records;
// Declared edges with remote pods.
mod declared;
// Observed edges with remote pods.
mod observed;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use kit::fake_api::Kind;
use kit::fake_api::{FakeApi, Verb};
use kit::provider_process::{Provider, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::follower::Follower;
use super::table::FollowedTable;
use super::{REMOTE, namespace, pod};

const LABEL: &str = "semaphore.uw.systems/name";

/// A cluster with its provider, and another cluster, which is called east.
struct Stage {
    home: FakeApi,
    east: FakeApi,
    folder: TempDir,
    address: SocketAddr,
    more: Vec<String>,
}

impl Stage {
    fn new() -> Stage {
        let (home, east) = (FakeApi::start(), FakeApi::start());
        home.set(Kind::Namespace, namespace("kube-system", json!({})));
        let stage = Stage { home, east, folder: TempDir::new().unwrap(), address: free_port(), more: vec![] };
        stage.write_clusters(&[stage.east_by_token()]);
        stage.write("token", "first\n");
        stage
    }

    fn with(mut self, arguments: &[&str]) -> Stage {
        self.more.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        // Atomically, as a mounted Secret changes.
        std::fs::write(self.path("new"), text).unwrap();
        std::fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    fn write_clusters(&self, clusters: &[Value]) {
        self.write("clusters.yaml", &json!({"clusters": clusters}).to_string());
    }

    fn east_by_token(&self) -> Value {
        json!({"name": "east", "url": format!("http://{}", self.east.address()), "tokenFile": self.path("token")})
    }

    fn start(&self) -> Provider {
        let text = |path: PathBuf| path.display().to_string();
        let (kubeconfig, clusters, state) =
            (text(self.home.kubeconfig()), text(self.path("clusters.yaml")), text(self.path("state")));
        let arguments = ["--kubeconfig", &kubeconfig, "--remote-clusters", &clusters, "--state-dir", &state];
        Provider::start(self.address, arguments.into_iter().chain(self.more.iter().map(String::as_str)))
    }

    fn set(&self, object: Value) {
        self.east.set(Kind::Pod, object);
    }

    fn remove(&self, name: &str) {
        self.east.remove(Kind::Pod, "shop", name);
    }

    /// The other cluster refuses requests, and its open watches break off.
    fn cut_off(&self) {
        self.east.faults(|faults| faults.refuse(Kind::Pod, &[Verb::List, Verb::Watch], 503));
        self.east.cut_connections();
    }

    /// Ends the outage of [`Stage::cut_off`].
    fn restore(&self) {
        self.east.faults(|faults| faults.refusals.clear());
    }

    fn follower(&self) -> Follower {
        Follower::start(self.address, REMOTE)
    }
}

/// A pod of the namespace shop that offers its addresses under a name.
fn offering(name: &str, set: &str, addresses: &[&str]) -> Value {
    let mut pod = pod("shop", name, "any", addresses);
    pod["metadata"]["labels"] = json!({"app": "any", LABEL: set});
    pod
}

/// Sets of the namespace shop in the cluster east.
fn sets(of: &[(&str, &[&str])]) -> FollowedTable {
    let addresses = |list: &[&str]| list.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect::<BTreeSet<_>>();
    FollowedTable::Remote(of.iter().map(|(set, list)| (format!("east/shop/{set}"), addresses(list))).collect())
}

/// The currently served table of a provider.
fn served(provider: &Provider) -> Option<FollowedTable> {
    let answer = provider.try_get("/remote-sets/download").ok().filter(|answer| answer.status == 200)?;
    Some(FollowedTable::of(REMOTE, answer.body.as_bytes()))
}

#[track_caller]
fn until_served(provider: &mut Provider, wanted: &FollowedTable) {
    provider.until(&format!("it serves {wanted:?}"), |provider| served(provider).filter(|table| table == wanted));
}

/// The status of the cluster.
fn east(status: &Value) -> &Value {
    let clusters = status["remote"]["clusters"].as_array().expect("other clusters are watched");
    clusters.iter().find(|cluster| cluster["cluster"] == "east").unwrap_or(&Value::Null)
}

fn problems(status: &Value) -> String {
    let remote = east(status);
    remote["problems"].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join("; ")
}

/// The rows of the clusters, by name: whether each is reachable, and when its sets were last current.
fn rows(provider: &Provider) -> BTreeMap<String, Value> {
    let baseline = provider.try_json("/remote-sets/download").unwrap();
    let rows = baseline["clusters"].as_array().unwrap().iter();
    rows.map(|row| (row["cluster"].as_str().unwrap().to_owned(), row.clone())).collect()
}
