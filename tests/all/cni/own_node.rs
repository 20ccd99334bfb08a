//! Flows of pods to their own node, which cluster policies judge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;
use std::time::Duration;

use kit::prober::{arrivals, count_arrivals};
use serde_json::{Value, json};

use super::forged::{Node, index_of_eth0};
use super::{Families, NODE, NODE_ADDRESS, Place};
use crate::stage::policy;

const SENT: u64 = 20;

/// A policy of the Admin tier that denies all pods this egress.
fn denying(rule: Value) -> Value {
    let mut rule = rule;
    rule["action"] = "Deny".into();
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "denying"},
        "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [rule]},
    })
}

/// Both the node and the other ports of its bridge receive a broadcast, in one flow.
#[test]
fn broadcast_allowed_to_node_reaches_no_other_pod() {
    let place = Place::new();
    let nowhere = policy("nowhere", "app=web", json!({"policyTypes": ["Egress"]}));
    let plugins = [place.bridge(Families::V4), place.ours(json!({}))];
    // Its program judges what pods send to their node.
    let elsewhere = denying(json!({"to": [{"networks": ["203.0.113.0/24"]}]}));
    let node = Node::start_with(&place, &plugins, &[nowhere, elsewhere], false, &[]);
    let from = node.addresses["web"];
    let to = Ipv4Addr::new(10, 1, 255, 255);
    node.db.sandbox.run(|| count_arrivals(&[to.into()]));
    node.web.sandbox.run(|| {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.set_broadcast(true).unwrap();
        for _ in 0..SENT {
            socket.send_to(b"all", (to, 9)).unwrap();
        }
    });
    let arrived = node.db.sandbox.run(arrivals).get(&from).map_or(0, |a| a.datagrams);
    assert_eq!(arrived, 0);
    node.end();
}

/// A rule denies the pods of the bridge, and nothing the addresses by which a bridge delivers to all of them.
#[test]
fn group_address_reaches_no_denied_pod() {
    let place = Place::new();
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "spec": {"podCIDR": "10.1.0.0/16"},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}]},
    });
    let plugins = [place.bridge(Families::Dual), place.ours(json!({}))];
    let node = Node::start_with(&place, &plugins, &[object, denying(json!({"to": [{"namespaces": {}}]}))], true, &[]);
    let v6 = node.addresses["web"];
    let of_web = place.attachments().into_iter().find(|a| a.pod == "web").unwrap();
    let v4 = *of_web.addresses.iter().find(|address| address.is_ipv4()).unwrap();
    let scope = node.web.sandbox.run(index_of_eth0);
    let groups = ["10.1.255.255", "255.255.255.255", "224.0.0.1", "ff02::1"].map(|text| text.parse().unwrap());
    node.db.sandbox.run(|| count_arrivals(&groups));
    node.web.sandbox.run(|| {
        for group in groups {
            let (from, to) = match group {
                IpAddr::V4(_) => (v4, SocketAddr::new(group, 9)),
                IpAddr::V6(group) => (v6, SocketAddrV6::new(group, 9, 0, scope).into()),
            };
            let socket = UdpSocket::bind((from, 0)).unwrap();
            socket.set_broadcast(true).unwrap();
            for _ in 0..SENT {
                socket.send_to(b"all", to).unwrap();
            }
        }
    });
    let arrived = node.db.sandbox.run(arrivals);
    let of = |address| arrived.get(&address).map_or(0, |a| a.datagrams);
    assert_eq!((of(v4), of(v6)), (0, 0));
    node.end();
}

const KUBELET: u16 = 10250;
const OTHER: u16 = 10251;

/// The link-local address of an interface in the network namespace of this thread.
fn link_local_of(interface: &str) -> Ipv6Addr {
    let shown = Command::new("ip").args(["-o", "-6", "address", "show", interface]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let word = shown.split_whitespace().find(|word| word.starts_with("fe80:")).expect("a link-local address");
    word.split('/').next().and_then(|address| address.parse().ok()).expect("an address")
}

/// The node has addresses that its Node object does not have.
fn rule_about_nodes_applies_to_every_address(plugin: Value, place: &Place, gateway: &str, broadcasts: &[IpAddr]) {
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}]},
    });
    let port = json!([{"udp": {"destinationPort": {"number": KUBELET}}}]);
    let nokubelet = denying(json!({"to": [{"nodes": {}}], "protocols": port}));
    let node = Node::start_with(place, &[plugin, place.ours(json!({}))], &[object, nokubelet], true, &[]);
    let from = node.addresses["web"];
    let scope = node.web.sandbox.run(index_of_eth0);
    let interface = match gateway {
        "" => place.attachments().into_iter().find(|a| a.pod == "web").unwrap().host_interface.unwrap(),
        bridge => bridge.to_owned(),
    };
    let link_local = node.runtime.on_node(|| link_local_of(&interface));
    let scoped = |ip: Ipv6Addr, port| SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope));
    let listening = |port: u16| {
        let socket = node.runtime.on_node(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let [kubelet, other] = [KUBELET, OTHER].map(listening);
    kubelet.set_nonblocking(true).unwrap();
    let unicast = [NODE_ADDRESS, "10.1.0.1", "fd00:1::1"].map(|address| address.parse::<IpAddr>().unwrap());
    let own: Vec<IpAddr> = unicast.into_iter().chain([link_local.into()]).chain(broadcasts.iter().copied()).collect();
    let mut buffer = [0; 8];
    for to in own {
        node.web.sandbox.run(|| {
            let source = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { from };
            let socket = UdpSocket::bind((source, 0)).unwrap();
            socket.set_broadcast(true).unwrap();
            for port in [KUBELET, OTHER] {
                let to = match to {
                    IpAddr::V6(ip) if ip.segments()[0] >= 0xfe80 => scoped(ip, port),
                    to => SocketAddr::new(to, port),
                };
                socket.send_to(b"hello", to).unwrap();
            }
        });
        other.recv_from(&mut buffer).unwrap_or_else(|e| panic!("{to} at another port: {e}"));
        assert!(kubelet.recv_from(&mut buffer).is_err(), "{to}");
    }
    node.end();
}

#[test]
fn rule_about_nodes_applies_to_bridge_addresses() {
    let place = Place::new();
    let all = [IpAddr::from([10, 1, 255, 255]), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into()];
    rule_about_nodes_applies_to_every_address(place.bridge(Families::Dual), &place, "cni0", &all);
}

#[test]
fn rule_about_nodes_applies_to_routed_addresses() {
    let place = Place::new();
    rule_about_nodes_applies_to_every_address(place.ptp(Families::Dual), &place, "", &[]);
}
