//! A pod sets the offset of a checksum that the kernel completes after policies have judged the packet.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use kit::frame::{send_frame_with_checksum_at, switch_checksum_offload_off, udp_packet};
use kit::kernel_table::{counted_by_rule, load_text};
use serde_json::json;

use super::edge::neighbour;
use super::forged::{Node, hardware_address};
use super::{Families, Place};
use crate::stage::policy;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const ALLOWED_PORT: u16 = 7777;
const DENIED_PORT: u16 = 9;

/// A UDP datagram to the allowed port whose checksum, computed from the destination port on, equals the denied port.
fn rewritten_packet(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let length = 8 + 2;
    let payload = !DENIED_PORT - ALLOWED_PORT - length;
    udp_packet(from.octets(), to.octets(), ALLOWED_PORT, &payload.to_be_bytes())
}

/// Offset of the destination port: after the Ethernet and IPv4 headers and the source port.
const DESTINATION_PORT_AT: u16 = 14 + 20 + 2;

/// The datagrams that reach the server at its allowed and at its denied port, after one of each kind was sent.
fn received_with_offload(offload: &str) -> [u64; 2] {
    let place = Place::new();
    let to_db = json!([{
        "to": [{"podSelector": {"matchLabels": {"app": "db"}}}],
        "ports": [{"protocol": "UDP", "port": ALLOWED_PORT}],
    }]);
    let one_port = policy("one-port", "app=web", json!({"policyTypes": ["Egress"], "egress": to_db}));
    let plugins = [place.ptp(Families::V4), place.ours(json!({"txChecksumOffload": offload}))];
    let node = Node::start_with(&place, &plugins, &[one_port], false, &[]);
    let (IpAddr::V4(from), IpAddr::V4(to)) = (node.addresses["web"], node.addresses["db"]) else {
        panic!("IPv4 addresses")
    };
    let Node { web, db, .. } = &node;
    // This device completes the checksum, as an uplink without the offload does.
    let attachment = place.attachments().into_iter().find(|attachment| attachment.pod == "db").unwrap();
    let port = attachment.host_interface.expect("the host's side");
    node.runtime.on_node(|| switch_checksum_offload_off(&port));

    let count = format!(
        "table inet seen {{\nchain prerouting {{\ntype filter hook prerouting priority -400\n\
         udp dport {ALLOWED_PORT} counter\nudp dport {DENIED_PORT} counter\n}}\n}}\n"
    );
    db.sandbox.run(|| load_text(&count));
    let gateway = neighbour(web, GATEWAY.into());
    let frame = [&gateway[..], &hardware_address(web), &[0x08, 0], &rewritten_packet(from, to)].concat();
    web.sandbox.run(|| {
        UdpSocket::bind((from, 0)).unwrap().send_to(b"allowed", (to, ALLOWED_PORT)).unwrap();
        send_frame_with_checksum_at("eth0", &frame, DESTINATION_PORT_AT);
    });
    let counted = db.sandbox.run(|| counted_by_rule("table inet seen"));
    counted.try_into().expect("two rules count")
}

#[test]
fn completed_checksum_reaches_no_denied_port() {
    assert_eq!(received_with_offload("off"), [1, 0]);
    assert_eq!(received_with_offload("on"), [1, 1], "the test shows nothing where the offload does not matter");
}
