//! Addresses of nodes, API servers and Ingresses in the table of a follower.

use super::follower::Follower;
use super::*;
use kit::agent_process::until;
use kit::provider_process::{Provider, free_port};

fn ingress(address: &str) -> Value {
    let metadata = json!({"namespace": "shop", "name": "front"});
    json!({"metadata": metadata, "status": {"loadBalancer": {"ingress": [{"ip": address}]}}})
}

/// Address, namespace and workload, state and number of every record with a state instead of a service, in address order.
fn reserved(follower: &Follower) -> Vec<String> {
    let FollowedTable::Identity(records) = follower.seen().table else { panic!("identities") };
    let of_state = records.into_iter().filter(|(_, record)| record["state"].is_string());
    let text = |record: &Value, field: &str| record[field].as_str().unwrap_or("").to_owned();
    let line = |(ip, record): (std::net::IpAddr, Value)| {
        let [namespace, workload, state] = ["namespace", "workload", "state"].map(|field| text(&record, field));
        format!("{ip} {namespace}/{workload} {state} {}", record["num"])
    };
    of_state.map(line).collect()
}

#[track_caller]
fn until_reserved(follower: &Follower, expected: &[&str]) {
    until(&format!("{expected:?}"), || (reserved(follower) == expected).then_some(()));
}

#[test]
fn follower_learns_nodes_api_servers_and_ingresses() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("kube-system", json!({})));
    world.set(&api, Kind::Node, node("node-a", "192.0.2.1"));
    world.set(&api, Kind::EndpointSlice, api_servers(&["203.0.113.1"]));
    let address = free_port();
    let kubeconfig = api.kubeconfig().display().to_string();
    let mut provider = Provider::start(address, ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER]);
    provider.until_ready();
    let follower = Follower::start(address, IDENTITY);
    until_reserved(&follower, &["192.0.2.1 /node-a host 1", "203.0.113.1 /kube-apiserver kube-apiserver 7"]);

    // A static pod on the host network makes the node's address that of the API server.
    let mut static_pod = pod("kube-system", "kube-apiserver-node-a", "none", &["192.0.2.1"]);
    static_pod["spec"]["hostNetwork"] = true.into();
    static_pod["metadata"]["labels"] = json!({"component": "kube-apiserver"});
    static_pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    static_pod["metadata"]["ownerReferences"] = json!([{"kind": "Node", "name": "node-a", "controller": true}]);
    world.set(&api, Kind::Pod, static_pod);
    world.set(&api, Kind::EndpointSlice, api_servers(&["192.0.2.1"]));
    until_reserved(&follower, &["192.0.2.1 kube-system/kube-apiserver kube-apiserver 7"]);
    let FollowedTable::Identity(records) = follower.seen().table else { panic!("identities") };
    let record = &records[&"192.0.2.1".parse().unwrap()];
    assert_eq!((&record["node"], &record["role"]), (&json!("node-a"), &json!("control-plane")));
    assert_eq!(record["host_workloads"], json!(["kube-system/kube-apiserver"]));

    world.set(&api, Kind::Ingress, ingress("203.0.113.9"));
    world.set(&api, Kind::Node, node("node-b", "192.0.2.2"));
    let expected = [
        "192.0.2.1 kube-system/kube-apiserver kube-apiserver 7",
        "192.0.2.2 /node-b host 1",
        "203.0.113.9 /ingress ingress 8",
    ];
    until_reserved(&follower, &expected);
    world.remove(&api, Kind::Ingress, "shop", "front");
    world.remove(&api, Kind::Node, "", "node-b");
    world.remove(&api, Kind::Pod, "kube-system", "kube-apiserver-node-a");
    until_reserved(&follower, &["192.0.2.1 /kube-apiserver kube-apiserver 7"]);
    world.remove(&api, Kind::EndpointSlice, "default", "kubernetes");
    until_reserved(&follower, &["192.0.2.1 /node-a host 1"]);
    let seen = follower.seen();
    assert_eq!((seen.baselines, seen.lost.len()), (1, 0), "the rest came as deltas: {seen:?}");
    let Fresh { tables, .. } = world.fresh();
    assert!(tables.contains(&seen.table), "a fresh start gives {tables:?}");
}

#[test]
fn other_nodes_are_remote_to_own_node() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("kube-system", json!({})));
    world.set(&api, Kind::Node, node("node-a", "192.0.2.1"));
    world.set(&api, Kind::Node, node("node-b", "192.0.2.2"));
    let address = free_port();
    let kubeconfig = api.kubeconfig().display().to_string();
    let arguments = ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER, "--own-node", "node-a"];
    let mut provider = Provider::start(address, arguments);
    provider.until_ready();
    let follower = Follower::start(address, IDENTITY);
    until_reserved(&follower, &["192.0.2.1 /node-a host 1", "192.0.2.2 /node-b remote-node 6"]);
}

#[test]
fn identities_are_served_without_node_and_slice_rights() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("kube-system", json!({})));
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    world.set(&api, Kind::Pod, pod("shop", "web-1", "web", &["10.0.0.1"]));
    world.set(&api, Kind::Node, node("node-a", "192.0.2.1"));
    for kind in [Kind::Node, Kind::EndpointSlice] {
        api.faults(|faults| faults.refuse(kind, &[kit::fake_api::Verb::List, kit::fake_api::Verb::Watch], 403));
    }
    let address = free_port();
    let kubeconfig = api.kubeconfig().display().to_string();
    let mut provider = Provider::start(address, ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER]);
    provider.until_ready();
    provider.until_status("both problems", |status| {
        let text = status["problems"].to_string();
        ["nodes", "endpointslices"].iter().all(|kind| text.contains(&format!("'watch' on {kind}")))
    });
    let follower = Follower::start(address, IDENTITY);
    until("the pod's record", || (follower.seen().table.len() == 1).then_some(()));
    api.faults(|faults| faults.refusals.clear());
    until_reserved(&follower, &["192.0.2.1 /node-a host 1"]);
}
