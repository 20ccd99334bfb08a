//! Tunnels: a node would decapsulate a pod's packet and forward the inner packet, whose source is arbitrary.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use kit::frame::{ip_packet, send_packets, udp_datagram, udp_packet};
use kit::kernel_table::{load_netlink, load_text};
use kit::lab::Lab;
use policy::TUNNEL_PORTS;
use serde_json::json;

use super::{dropped, lab, objects, places, received};
use crate::stage::{NODE, state_of};

/// The lab in which the host `router` is another node, optionally with a Node object.
fn lab_with_nodes(known: bool) -> Lab {
    let lab = lab();
    let mut objects = objects();
    if known {
        let addresses = places().map(|at| json!({"type": "InternalIP", "address": at.router.to_string()}));
        let metadata = json!({"name": "node-b"});
        objects.push(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"addresses": addresses}}),
        );
    }
    let layout = policy::Layout::for_table("ringfence").expect("a name");
    let ruleset = policy::translate(&state_of(&objects), NODE, &layout).ruleset.in_first_generation();
    lab.node_exec(NODE, || load_netlink(&ruleset));
    lab
}

/// Whether the reply of `server` arrives in a flow that `from` has opened from the port.
fn reply_arrives(lab: &Lab, from: SocketAddr, server: SocketAddr) -> bool {
    let request = udp_datagram(from, server, b"requests");
    assert_eq!(received(lab, server.ip(), &format!("udp dport {}", server.port()), from.ip(), &[request]), 1);
    let reply = udp_datagram(server, from, b"replying");
    received(lab, from.ip(), &format!("udp dport {}", from.port()), server.ip(), &[reply]) == 1
}

#[test]
fn flow_from_node_tunnel_port_carries_no_tunnel() {
    let lab = lab_with_nodes(true);
    for at in places() {
        for port in TUNNEL_PORTS {
            assert!(!reply_arrives(&lab, SocketAddr::new(at.router, port), SocketAddr::new(at.open, 53)), "{port}");
        }
    }
    assert_eq!(dropped(&lab, "deny/tunnel"), 2 * TUNNEL_PORTS.len() as u64);
}

/// The number of packets that the other node's VXLAN device decapsulates while a pod replies to that node's tunnel.
fn unwrapped(lab: &Lab) -> u64 {
    let at = places()[0];
    let (IpAddr::V4(router), inner_source) = (at.router, [10, 2, 0, 9]) else { panic!("an IPv4 address") };
    lab.in_namespace_of(at.router, || {
        let tunnel = "link add tunnel0 address 02:00:00:00:00:01 type vxlan id 1 dstport 8472 nolearning dev lo";
        for words in [tunnel, "link set tunnel0 up"] {
            assert!(Command::new("ip").args(words.split(' ')).status().expect("ip runs").success(), "{words}");
        }
    });
    let (outside, inside) = (SocketAddr::new(at.router, 8472), SocketAddr::new(at.open, 53));
    let request = udp_datagram(outside, inside, b"requests");
    assert_eq!(received(lab, at.open, "udp dport 53", at.router, &[request]), 1);
    // RFC 7348: the VNI, then a frame.
    let mut wrapped = vec![8, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0];
    wrapped.extend(udp_packet(inner_source, router.octets(), 9, b"wrapped"));
    received(lab, at.router, "ip saddr 10.2.0.9", at.open, &[udp_datagram(inside, outside, &wrapped)])
}

#[test]
fn another_nodes_tunnel_takes_nothing_from_a_flow() {
    assert_eq!(unwrapped(&lab()), 1, "without rules");
    assert_eq!(unwrapped(&lab_with_nodes(true)), 0);
}

#[test]
fn replies_to_tunnel_ports_of_clients_arrive() {
    let lab = lab_with_nodes(true);
    for at in places() {
        for port in TUNNEL_PORTS {
            for server in [at.open, at.server] {
                assert!(reply_arrives(&lab, SocketAddr::new(at.client, port), SocketAddr::new(server, 53)), "{port}");
            }
        }
    }
}

/// The server answers the request with an ICMP error; neither the request nor the error approves the flow.
#[test]
fn every_address_is_guarded_while_nodes_are_unknown() {
    let lab = lab_with_nodes(false);
    for at in places() {
        assert!(!reply_arrives(&lab, SocketAddr::new(at.client, 8472), SocketAddr::new(at.server, 53)));
    }
}

#[test]
fn service_translated_to_node_tunnel_is_unreachable() {
    let lab = lab_with_nodes(true);
    let at = places()[0];
    let translation = format!(
        "table ip nat {{\nchain prerouting {{\ntype nat hook prerouting priority dstnat;\n\
         ip daddr 10.96.0.1 udp dport 53 dnat to {}:8472\n}}\n}}\n",
        at.router
    );
    lab.node_exec(NODE, || load_text(&translation));
    let service = "10.96.0.1:53".parse().expect("an address");
    let packet = udp_datagram(SocketAddr::new(at.open, 40_000), service, b"tunnel");
    assert_eq!(received(&lab, at.router, "udp dport 8472", at.open, &[packet]), 0);
}

#[test]
fn wrapped_packets_reach_no_node() {
    let lab = lab_with_nodes(true);
    for at in places() {
        for protocol in [4, 41, 47, 115, 137] {
            let packet = |node| ip_packet(at.open, node, protocol, &[0; 8]);
            let condition = format!("meta l4proto {protocol}");
            assert_eq!(received(&lab, at.router, &condition, at.open, &[packet(at.router)]), 0, "{protocol}");
            let before = dropped(&lab, "deny/tunnel");
            lab.in_namespace_of(at.open, || send_packets(&[packet(at.node)]));
            assert_eq!(dropped(&lab, "deny/tunnel"), before + 1, "protocol {protocol} to its own node");
        }
    }
}
