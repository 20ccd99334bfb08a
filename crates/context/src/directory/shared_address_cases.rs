//! Tests of the records of shared addresses, case by case.

use ::identity::ReservedIdentity;
use cluster::Watchable;
use policy::remote::RemoteSet;
use serde_json::{Value, json};

use crate::record::Role;

use super::record_cases::{PodFixture, WEB, directory, directory_with, namespace, record, settings, shop, workload};
use super::shared_addresses::MOST_HOST_WORKLOADS;
use super::*;

const API_SERVER: PodFixture<'static> = PodFixture {
    name: "kube-system/kube-apiserver-node-a",
    owner: "DaemonSet kube-apiserver",
    labels: &[("component", "kube-apiserver")],
    addresses: &["192.0.2.1"],
    host_network: true,
    ..WEB
};

fn lowered(kind: WatchedKind, object: &Value) -> WatchedObject {
    WatchedObject::lower(&mut Interner::new(), kind, object).unwrap()
}

fn node(name: &str, addresses: &[&str], labels: Value) -> WatchedObject {
    let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
    let object = json!({"metadata": {"name": name, "labels": labels}, "status": {"addresses": addresses}});
    lowered(WatchedKind::Node, &object)
}

fn api_servers(addresses: &[&str]) -> WatchedObject {
    let object = json!({
        "metadata": {"namespace": "default", "name": "kubernetes"}, "endpoints": [{"addresses": addresses}]
    });
    lowered(WatchedKind::EndpointSlice, &object)
}

fn ingress(name: &str, addresses: &[&str]) -> WatchedObject {
    let entries: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let object = json!({
        "metadata": {"namespace": "shop", "name": name}, "status": {"loadBalancer": {"ingress": entries}}
    });
    lowered(WatchedKind::Ingress, &object)
}

fn set(directory: &mut Directory, object: WatchedObject) {
    directory.apply(Change::Set(object), Instant::now());
}

fn remove(directory: &mut Directory, kind: WatchedKind, name: ObjectName) {
    directory.apply(Change::Remove(kind, name), Instant::now());
}

/// `namespace/workload`, the state and the number of an address.
fn who(directory: &Directory, address: &str) -> (String, Option<ReservedIdentity>, u32) {
    let found = record(directory, address);
    let (state, num) = found.map_or((None, u32::MAX), |found| (found.state, found.num));
    (workload(directory, address), state, num)
}

fn unknown_owner() -> (String, Option<ReservedIdentity>, u32) {
    ("nobody".into(), None, u32::MAX)
}

fn host(name: &str) -> (String, Option<ReservedIdentity>, u32) {
    (format!("/{name}"), Some(ReservedIdentity::Host), ReservedIdentity::Host.num())
}

fn api_server(name: &str) -> (String, Option<ReservedIdentity>, u32) {
    (name.into(), Some(ReservedIdentity::KubeApiserver), ReservedIdentity::KubeApiserver.num())
}

fn remote(name: &str) -> (String, Option<ReservedIdentity>, u32) {
    (name.into(), Some(ReservedIdentity::Remote), ReservedIdentity::Remote.num())
}

fn host_workloads(directory: &Directory, address: &str) -> Vec<String> {
    let detail = record(directory, address).unwrap().detail.as_ref().unwrap();
    detail.host_workloads.iter().map(ToString::to_string).collect()
}

#[test]
fn node_has_the_addresses_of_its_object() {
    let mut directory = directory(&[node("node-a", &["192.0.2.1", "2001:db8::1"], json!({}))]);
    for address in ["192.0.2.1", "2001:db8::1"] {
        assert_eq!(who(&directory, address), host("node-a"));
        assert_eq!(record(&directory, address).unwrap().detail.as_ref().unwrap().node.as_deref(), Some("node-a"));
    }
    set(&mut directory, node("node-a", &["192.0.2.2"], json!({"node-role.kubernetes.io/control-plane": ""})));
    assert_eq!(who(&directory, "192.0.2.1"), unknown_owner());
    assert_eq!(who(&directory, "192.0.2.2"), host("node-a"));
    assert_eq!(record(&directory, "192.0.2.2").unwrap().role(), Role::ControlPlane);
    remove(&mut directory, WatchedKind::Node, ObjectName::new("", "node-a"));
    assert!(directory.current().table.is_empty());
    assert_eq!(directory.current().sum, Default::default());
}

#[test]
fn shared_node_address_goes_to_pod_confirmed_node() {
    let shared = ["192.0.2.1"];
    let of_b = PodFixture { host_network: true, addresses: &shared, node: "node-b", ..WEB };
    let mut directory = directory(&[node("node-b", &shared, json!({})), node("node-a", &shared, json!({}))]);
    assert_eq!(who(&directory, "192.0.2.1"), host("node-a"), "the first by name");
    set(&mut directory, of_b.object());
    assert_eq!(who(&directory, "192.0.2.1"), host("node-b"));
    set(&mut directory, PodFixture { node: "node-c", ..of_b }.object());
    assert_eq!(who(&directory, "192.0.2.1"), host("node-a"), "an object counts more than a pod");
    for name in ["node-a", "node-b"] {
        remove(&mut directory, WatchedKind::Node, ObjectName::new("", name));
    }
    assert_eq!(who(&directory, "192.0.2.1"), host("node-c"));
}

#[test]
fn pod_outranks_other_claimants_of_its_address() {
    let all = ["10.0.0.1"];
    let mut directory = directory(&[
        shop(),
        node("node-a", &all, json!({})),
        api_servers(&all),
        ingress("front", &all),
        PodFixture { host_network: true, name: "kube-system/proxy", ..WEB }.object(),
        WEB.object(),
    ]);
    let set = RemoteSet::new("east", "shop", "db");
    directory.apply_remote(RemoteChange::Replace(vec![(set, vec!["10.0.0.1".parse().unwrap()])]), Instant::now());
    assert_eq!((workload(&directory, "10.0.0.1"), who(&directory, "10.0.0.1").1), ("shop/web".into(), None));
    // Each removal exposes the claim with the next lower priority.
    remove(&mut directory, WatchedKind::Pod, WEB.name.parse().unwrap());
    assert_eq!(who(&directory, "10.0.0.1"), api_server("/kube-apiserver"));
    remove(&mut directory, WatchedKind::EndpointSlice, ObjectName::new("default", "kubernetes"));
    assert_eq!(who(&directory, "10.0.0.1"), host("node-a"));
    remove(&mut directory, WatchedKind::Node, ObjectName::new("", "node-a"));
    remove(&mut directory, WatchedKind::Pod, ObjectName::new("kube-system", "proxy"));
    assert_eq!(
        who(&directory, "10.0.0.1"),
        ("/ingress".into(), Some(ReservedIdentity::Ingress), ReservedIdentity::Ingress.num())
    );
    remove(&mut directory, WatchedKind::Ingress, ObjectName::new("shop", "front"));
    assert_eq!(who(&directory, "10.0.0.1"), remote("shop/db"));
    directory.apply_remote(RemoteChange::RemoveCluster("east".into()), Instant::now());
    assert_eq!(who(&directory, "10.0.0.1"), unknown_owner());
}

#[test]
fn api_server_address_names_its_host_network_pod() {
    let proxy = PodFixture { name: "kube-system/proxy", owner: "DaemonSet proxy", labels: &[], ..API_SERVER };
    let mut directory = directory(&[node("node-a", &["192.0.2.1", "192.0.2.9"], json!({})), proxy.object()]);
    assert_eq!(who(&directory, "192.0.2.1"), host("node-a"));
    set(&mut directory, API_SERVER.object());
    assert_eq!(who(&directory, "192.0.2.1"), api_server("kube-system/kube-apiserver"));
    let found = record(&directory, "192.0.2.1").unwrap();
    assert_eq!((found.role(), found.labels().count()), (Role::ControlPlane, 1));
    assert_eq!(found.detail.as_ref().unwrap().node.as_deref(), Some("node-a"));
    // The node's other addresses have the record of the node.
    assert_eq!(who(&directory, "192.0.2.9"), host("node-a"));
    for address in ["192.0.2.1", "192.0.2.9"] {
        assert_eq!(host_workloads(&directory, address), ["kube-system/kube-apiserver", "kube-system/proxy"]);
    }
    set(&mut directory, api_servers(&["192.0.2.1", "203.0.113.1"]));
    assert_eq!(who(&directory, "203.0.113.1"), api_server("/kube-apiserver"), "one that no pod is");
    assert_eq!(record(&directory, "203.0.113.1").unwrap().role(), Role::ControlPlane);
    remove(&mut directory, WatchedKind::Pod, API_SERVER.name.parse().unwrap());
    assert_eq!(who(&directory, "192.0.2.1"), api_server("/kube-apiserver"));
    assert_eq!(host_workloads(&directory, "192.0.2.1"), ["kube-system/proxy"]);
    set(&mut directory, api_servers(&[]));
    assert_eq!([who(&directory, "192.0.2.1"), who(&directory, "203.0.113.1")], [host("node-a"), unknown_owner()]);
}

#[test]
fn tenant_pod_named_kube_apiserver_stays_internal() {
    let tenant = PodFixture { name: "shop/kube-apiserver", ..API_SERVER };
    let directory = directory(&[shop(), tenant.object()]);
    assert_eq!(who(&directory, "192.0.2.1"), host("node-a"));
    assert_eq!(record(&directory, "192.0.2.1").unwrap().role(), Role::Internal);
}

#[test]
fn node_names_a_bounded_number_of_workloads() {
    let names: Vec<String> = (0..2 * MOST_HOST_WORKLOADS).map(|n| format!("apps/app-{n:03}")).collect();
    let pod = |name: &String| PodFixture { name, owner: "", labels: &[], ..API_SERVER }.object();
    let mut objects: Vec<WatchedObject> = names.iter().map(pod).collect();
    let etcd = PodFixture { name: "kube-system/etcd-node-a", owner: "DaemonSet etcd", ..API_SERVER };
    objects.push(etcd.object());
    let directory = directory(&objects);
    let named = host_workloads(&directory, "192.0.2.1");
    assert_eq!((named.len(), named[0].as_str(), named[1].as_str()), (32, "kube-system/etcd", "apps/app-000"));
}

#[test]
fn other_nodes_are_remote_to_the_own_node() {
    let nodes = [node("node-a", &["192.0.2.1"], json!({})), node("node-b", &["192.0.2.2"], json!({}))];
    let own = Settings { node: Some("node-a".into()), ..settings() };
    let directory = directory_with(own, &[&nodes[..], &[api_servers(&["192.0.2.3"])]].concat());
    assert_eq!(who(&directory, "192.0.2.1"), host("node-a"));
    let expected = ("/node-b".into(), Some(ReservedIdentity::RemoteNode), ReservedIdentity::RemoteNode.num());
    assert_eq!(who(&directory, "192.0.2.2"), expected);
    assert_eq!(who(&directory, "192.0.2.3"), api_server("/kube-apiserver"));
}

#[test]
fn ingress_addresses_are_exposed_and_shared() {
    let mut directory = directory(&[ingress("a", &["203.0.113.9"]), ingress("b", &["203.0.113.9", "2001:db8::9"])]);
    let expected = ("/ingress".to_owned(), Some(ReservedIdentity::Ingress), ReservedIdentity::Ingress.num());
    for address in ["203.0.113.9", "2001:db8::9"] {
        assert_eq!(who(&directory, address), expected);
        assert_eq!(record(&directory, address).unwrap().role(), Role::InternetExposed);
    }
    remove(&mut directory, WatchedKind::Ingress, ObjectName::new("shop", "b"));
    assert_eq!([who(&directory, "203.0.113.9"), who(&directory, "2001:db8::9")], [expected, unknown_owner()]);
}

#[test]
fn hosted_control_plane_counts_in_its_namespace() {
    let hosted = PodFixture { owner: "StatefulSet etcd-main", name: "shoot--a/etcd-main-0", ..WEB };
    let mut directory = directory(&[namespace("shoot--a", json!({})), hosted.object()]);
    let role = |directory: &Directory| record(directory, "10.0.0.1").unwrap().role();
    assert_eq!(role(&directory), Role::Internal);
    set(&mut directory, namespace("shoot--a", json!({"gardener.cloud/role": "shoot"})));
    assert_eq!(role(&directory), Role::ControlPlane);
    set(&mut directory, PodFixture { owner: "StatefulSet loki", ..hosted }.object());
    assert_eq!(role(&directory), Role::Internal);
}

#[test]
fn remote_pods_have_records_of_their_set() {
    let now = Instant::now();
    let ips = |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
    let mut directory = directory(&[shop(), WEB.object()]);
    directory.take_changes();
    let [web, api] = ["web", "api"].map(|name| RemoteSet::new("east", "apps", name));
    let update = |set: &RemoteSet, adds: &[&str], removes: &[&str]| RemoteChange::Update {
        set: set.clone(),
        adds: ips(adds),
        removes: ips(removes),
    };
    directory.apply_remote(update(&web, &["10.9.0.1", "10.9.0.2", "10.0.0.1"], &[]), now);
    assert_eq!(who(&directory, "10.9.0.1"), remote("apps/web"));
    let found = directory.record("10.9.0.1".parse().unwrap()).unwrap().clone();
    assert_eq!(found.detail.as_ref().unwrap().cluster.as_deref(), Some("east"));
    assert_eq!((&*found.service(), found.role(), found.sid), ("", Role::Internal, None));
    assert!(Arc::ptr_eq(&found, directory.record("10.9.0.2".parse().unwrap()).unwrap()));
    assert_eq!(workload(&directory, "10.0.0.1"), "shop/web", "a pod of this cluster counts more");
    let changes = directory.take_changes();
    assert_eq!((changes.upserts.len(), changes.removes.len(), changes.id_upserts.len()), (2, 0, 0));
    // If several sets have the address, the first by cluster, namespace and name owns it.
    directory.apply_remote(update(&api, &["10.9.0.1"], &[]), now);
    assert_eq!(who(&directory, "10.9.0.1"), remote("apps/api"));
    directory.apply_remote(update(&RemoteSet::new("central", "z", "z"), &["10.9.0.1"], &[]), now);
    assert_eq!(who(&directory, "10.9.0.1"), remote("z/z"));
    directory.apply_remote(RemoteChange::RemoveCluster("central".into()), now);
    directory.apply_remote(update(&api, &[], &["10.9.0.1"]), now);
    assert!(directory.take_changes().is_empty(), "the table is what it was");
    remove(&mut directory, WatchedKind::Pod, WEB.name.parse().unwrap());
    assert_eq!(who(&directory, "10.0.0.1"), remote("apps/web"));
    directory.apply_remote(update(&web, &[], &["10.9.0.1", "10.9.0.2", "10.0.0.1"]), now);
    assert!(directory.current().table.is_empty());
}

#[test]
fn remote_change_costs_the_addresses_it_moves() {
    let now = Instant::now();
    let mut directory = directory(&[shop(), WEB.object()]);
    let address = |n: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a09_0000 + n));
    let web = RemoteSet::new("east", "apps", "web");
    let all: Vec<IpAddr> = (0..2_000).map(address).collect();
    directory.apply_remote(RemoteChange::Replace(vec![(web.clone(), all)]), now);
    let before = directory.resolved();
    let (adds, removes) = (vec![address(5_000)], vec![address(7), address(9_000)]);
    directory.apply_remote(RemoteChange::Update { set: web, adds, removes }, now);
    assert_eq!(directory.resolved() - before, 2);
}
