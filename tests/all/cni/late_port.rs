//! Interfaces that become ports of a bridge after their ADD.

use std::net::IpAddr;

use cni::{AttachmentRecord, store};
use kit::frame::{send_frame, udp_datagram};
use kit::kernel_table::nft;

use super::edge::{BRIDGE, count_incoming, incoming, ip};
use super::forged::{Node, hardware_address};
use super::gateway::add_host_behind_uplink;
use super::{Place, Pod};

/// The host side of the pod's interface, whose attachment then has no bridge, as if a program had made it a port later.
fn without_bridge(place: &Place, pod: &str) -> String {
    let attachment = place.attachments().into_iter().find(|attachment| attachment.pod == pod).unwrap();
    assert!(attachment.bridge.is_some());
    store::write(&place.state_dir(), &AttachmentRecord { bridge: None, ..attachment.clone() }).unwrap();
    attachment.host_interface.unwrap()
}

#[test]
fn closed_pod_whose_interface_joins_bridge_is_closed() {
    let place = Place::new();
    let mut node = Node::start(&place, BRIDGE(&place), false, &[]);
    add_host_behind_uplink(&node);
    let interface = without_bridge(&place, "other");
    let ports = |node: &Node| node.runtime.on_node(|| nft("list set bridge ringfence closed-ports"));
    let until_listed = |node: &mut Node, is_listed: bool| {
        let Node { agent, runtime, .. } = node;
        let lists = || runtime.on_node(|| nft("list set bridge ringfence closed-ports")).contains(&interface);
        agent.until("the set of closed ports follows", |_| (lists() == is_listed).then_some(()));
    };
    assert!(ports(&node).contains(&interface));
    node.runtime.on_node(|| ip(&format!("link set {interface} nomaster")));
    until_listed(&mut node, false);
    node.runtime.on_node(|| ip(&format!("link set {interface} master cni0")));
    until_listed(&mut node, true);

    let arrives = |pod: &Pod| {
        let (to, from) = (hardware_address(pod), [2, 0, 0, 0, 0, 0x77]);
        // An address that the pod does not have: its kernel counts the packet before it looks.
        let destination: IpAddr = "203.0.113.5".parse().unwrap();
        let source: IpAddr = "203.0.113.9".parse().unwrap();
        let packet = udp_datagram((source, 40_000).into(), (destination, 9).into(), b"x");
        let frame = [&to[..], &from, &[0x08, 0], &packet].concat();
        pod.sandbox.run(|| count_incoming("udp dport 9"));
        node.runtime.on_node(|| (0..5).for_each(|_| send_frame("host0", &frame)));
        pod.sandbox.run(incoming) > 0
    };
    assert!(arrives(&node.web), "a pod that is not isolated for ingress");
    assert!(!arrives(&node.other));
    node.end();
}
