// Isolation of pods by direction, and the allowing rules (semantics 1 to 3).
mod isolation;
// Selectors of pods and namespaces (semantics 4).
mod selectors;
// The owner of an address, and the addresses that policies cover (semantics 5 to 8).
mod addresses;
// Ports, ranges, names and protocols (semantics 9 to 11).
mod ports;
// IP blocks (semantics 12 and 13).
mod blocks;
// Objects with unknown or invalid fields or values (semantics 15).
mod malformed;
// Audited policies (semantics 20 to 22).
mod audit;
// Pods of other clusters (semantics 23 to 26).
mod remote;
// ClusterNetworkPolicy (docs/cluster-policy.md).
mod cluster;

use kit::oracle::Side::{Allowed, Denied, NotIsolated, NotLocal};
use kit::oracle::{Judgement, Probe, Side, World, judge};
use serde_json::{Value, json};

const TCP: u8 = Probe::TCP;
const UDP: u8 = Probe::UDP;
const SCTP: u8 = Probe::SCTP;

/// The cluster of most tests. Every pod but `db` runs on the judging node, `here`.
fn world(policies: impl IntoIterator<Item = Value>) -> World {
    let pod = |namespace: &str, name: &str, number: u8, node: &str, ports: Value| {
        read(json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "ports": ports}]},
            "status": {"phase": "Running", "podIP": format!("10.0.0.{number}"), "podIPs": [
                {"ip": format!("10.0.0.{number}")}, {"ip": format!("fd00::{number}")}]},
        }))
    };
    let named = |number: u16| json!([{"name": "http", "containerPort": number}]);
    World {
        namespaces: vec![
            read(json!({"metadata": {"name": "shop", "labels": {"team": "a"}}})),
            read(json!({"metadata": {"name": "other", "labels": {"team": "b"}}})),
        ],
        pods: vec![
            pod("shop", "web", 1, "here", named(8080)),
            pod("shop", "cache", 2, "here", named(9090)),
            pod("shop", "db", 3, "there", named(7070)),
            pod("other", "web", 4, "here", json!([])),
            pod("ghost", "web", 5, "there", json!([])),
        ],
        policies: policies.into_iter().collect(),
        ..World::default()
    }
}

const WEB: &str = "10.0.0.1";
const CACHE: &str = "10.0.0.2";
const DB: &str = "10.0.0.3";
const OTHER: &str = "10.0.0.4";
/// A pod in a namespace without an object.
const GHOST: &str = "10.0.0.5";
const OUTSIDE: &str = "192.0.2.1";

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an API object")
}

/// A policy in the namespace `shop`.
fn policy(spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "policy"},
        "spec": spec,
    })
}

/// A policy that selects `web` for ingress.
fn ingress(rules: Value) -> Value {
    policy(json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": rules}))
}

/// A policy that selects `web` for egress.
fn egress(rules: Value) -> Value {
    policy(json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": rules}))
}

fn judge_flow(world: &World, source: &str, destination: &str, protocol: u8, port: impl Into<Option<u16>>) -> Judgement {
    let [source, destination] = [source, destination].map(|text| text.parse().expect("an address"));
    judge(world, "here", &Probe { source, destination, protocol, port: port.into() })
}

/// The verdict of ingress to `web` on TCP port 80 from a source.
fn from(world: &World, source: &str) -> Side {
    judge_flow(world, source, WEB, TCP, 80).ingress
}

/// The verdict of egress from `web` on TCP port 80 to a destination.
fn to(world: &World, destination: &str) -> Side {
    judge_flow(world, WEB, destination, TCP, 80).egress
}

#[track_caller]
fn assert_sources(rules: Value, allowed: &[&str], denied: &[&str]) {
    let world = world([ingress(rules)]);
    allowed.iter().for_each(|source| assert_eq!(from(&world, source), Allowed, "from {source}"));
    denied.iter().for_each(|source| assert_eq!(from(&world, source), Denied, "from {source}"));
}

/// Checks which (protocol, port) pairs a list of port entries allows to reach `web`.
#[track_caller]
fn assert_ports(ports: Value, allowed: &[(u8, u16)], denied: &[(u8, u16)]) {
    let world = world([ingress(json!([{"ports": ports}]))]);
    for (pairs, expected) in [(allowed, Allowed), (denied, Denied)] {
        for (protocol, port) in pairs {
            assert_eq!(judge_flow(&world, OUTSIDE, WEB, *protocol, *port).ingress, expected, "{protocol} {port}");
        }
    }
}

/// Both sides of `web` on TCP port 80: from `cache` and to `cache`.
fn both_sides(policy: Value) -> [Side; 2] {
    let world = world([policy]);
    [from(&world, CACHE), to(&world, CACHE)]
}

/// A pod of the namespace `shop` with the address 10.0.0.9 unless the arguments override it.
fn pod(name: &str, metadata: Value, spec: Value, status: Value) -> k8s_openapi::api::core::v1::Pod {
    let mut object = json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name},
        "spec": {"nodeName": "here", "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.9"},
    });
    for (part, more) in [("metadata", metadata), ("spec", spec), ("status", status)] {
        object[part].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    read(object)
}
